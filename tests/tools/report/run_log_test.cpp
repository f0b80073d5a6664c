// SPDX-License-Identifier: Apache-2.0

// Logs of runs, whole and damaged, and the page that shows them.

#include <doctest/doctest.h>

#include <ctime>
#include <fstream>
#include <random>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "tests/io/test_folder.h"
#include "tools/report/report_page.h"
#include "tools/report/run_log.h"
#include "tools/watch/log.h"

using namespace arbalest;
using Json = nlohmann::ordered_json;

namespace run_log_test {
namespace {

// A run of two epochs, as JsonLog writes it.
std::string whole_log(const TestFolder& folder) {
  const std::string path = (folder / "whole.jsonl").string();
  RunSettings settings;
  settings.command = {"arbalest", "run", "lenet.onnxtxt"};
  settings.options = {{"seed", 1}, {"save", nullptr}};
  JsonLog log(path, settings);
  RunStarted started;
  started.graph = "lenet";
  started.iterations_per_epoch = 100;
  log.started(started);
  RunProgress progress;
  progress.epoch = 1;
  progress.epochs = 0.5;
  progress.iteration = 50;
  progress.seconds = 1.5;
  progress.loss = 2.25;
  progress.metrics = {{"accuracy", 0.25}, {"auc", std::nan("")}};
  log.progress(progress);
  EpochEnded epoch;
  epoch.epoch = 1;
  epoch.iteration = 100;
  epoch.loss = 2;
  log.epoch(epoch);
  Validated validated;
  validated.epoch = 1;
  validated.iteration = 100;
  validated.loss = 1.75;
  validated.metrics = {{"accuracy", 0.5}};
  log.validation(validated);
  Tuned tuned;
  tuned.learners = 1;
  tuned.next = 2;
  tuned.reason = "faster";
  log.tuned(tuned);
  log.skipped({"photos/1.jpg", "cut off"});
  log.kept({"train", 60, 60, 4096, 0.5});
  log.checkpoint({"w", 1, 100, 4096, 2.0});
  RunFinished finished;
  finished.reason = RunEnd::Until;
  finished.iteration = 100;
  finished.targets = {{"accuracy >= 0.4", 2}, {"accuracy >= 0.9", -1}};
  log.finished(finished);
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

RunLog only_run(const TestFolder& folder, const std::string& text) {
  const std::vector<RunLog> runs = read_run_logs(folder.write("log", text).string(), "log");
  REQUIRE(runs.size() == 1);
  return runs[0];
}

std::string first_fault(const TestFolder& folder, const std::string& line) {
  const RunLog run = only_run(folder, whole_log(folder) + line);
  REQUIRE(run["faults"].size() == 1);
  CHECK(run["faults"][0]["line"] == 10);
  return run["faults"][0]["what"];
}

}  // namespace

TEST_CASE("a log that a run wrote is read whole") {
  const TestFolder folder;
  const RunLog run = only_run(folder, whole_log(folder));
  CHECK(run["name"] == "log");
  CHECK(run["faults"].empty());
  CHECK(run["start"]["graph"] == "lenet");
  CHECK(run["start"]["command"].size() == 3);
  CHECK(run["start"]["options"]["save"].is_null());
  CHECK(run["progress"]["epochs"] == Json{0.5});
  CHECK(run["progress"]["iteration"] == Json{50.0});
  CHECK(run["progress"]["seconds"] == Json{1.5});
  CHECK(run["progress"]["values"]["loss"] == Json{{"at", Json{0}}, {"value", Json{2.25}}});
  CHECK(run["progress"]["values"]["accuracy"]["value"] == Json{0.25});
  CHECK_FALSE(run["progress"]["values"].contains("auc"));
  CHECK_FALSE(run["progress"]["values"].contains("iteration"));
  CHECK(run["epochs"]["values"]["loss"]["value"] == Json{2.0});
  CHECK(run["validations"]["values"]["accuracy"]["value"] == Json{0.5});
  CHECK_FALSE(run["validations"]["values"].contains("samples"));
  CHECK(run["tunes"][0]["next_learners"] == 2);
  CHECK(run["skipped"] == 1);
  CHECK(run["checkpoints"][0]["path"] == "w");
  CHECK(run["end"]["reason"] == "until");
  CHECK(run["end"]["targets"][0]["seconds"] == 2);
  CHECK(run["end"]["targets"][1]["seconds"].is_null());
  CHECK(run["error"].is_null());
}

TEST_CASE("of a run that went back, points that it gave up are left out") {
  const TestFolder folder;
  const std::string path = (folder / "back.jsonl").string();
  {
    JsonLog log(path, {});
    log.started({});
    RunProgress progress;
    for (const int64_t iteration : {10, 20, 30}) {
      progress.iteration = iteration;
      progress.loss = iteration == 30 ? std::nan("") : double(iteration);
      log.progress(progress);
    }
    log.rolled_back({"the loss is no longer finite after iteration 30", 30, "c/checkpoint", 1, 10, 1, 3, 0.5, 2.0});
    progress.iteration = 20;
    progress.loss = 21;
    log.progress(progress);
  }
  const RunLog run = read_run_logs(path, "back").front();
  CHECK(run["faulty_lines"] == 0);
  CHECK(run["progress"]["iteration"] == Json({10, 20}));
  CHECK(run["progress"]["values"]["loss"] == Json({{"at", {0, 1}}, {"value", {10, 21}}}));
  REQUIRE(run["rollbacks"].size() == 1);
  CHECK(run["rollbacks"][0]["iteration"] == 10);
  CHECK(run["rollbacks"][0]["from_iteration"] == 30);
  CHECK(run["rollbacks"][0]["reason"] == "the loss is no longer finite after iteration 30");
}

TEST_CASE("a log tells of processes that were lost or came back, and of the learners that went on") {
  const TestFolder folder;
  const std::string path = (folder / "lost.jsonl").string();
  {
    JsonLog log(path, {});
    log.started({});
    RanksChanged event;
    event.reason = "rank 2 on node07 is lost: its connection has ended";
    event.lost = {"rank 2 on node07"};
    event.learners = 3;
    event.devices = {"node05/cpu:0", "node06/cpu:0"};
    event.iteration = 120;
    log.ranks_changed(event);
    event.reason = "rank 2 on node07 came back";
    event.returned = std::exchange(event.lost, {});
    event.learners = 4;
    event.iteration = 150;
    log.ranks_changed(event);
  }
  const RunLog run = read_run_logs(path, "lost").front();
  CHECK(run["faulty_lines"] == 0);
  REQUIRE(run["losses"].size() == 2);
  CHECK(run["losses"][0]["iteration"] == 120);
  CHECK(run["losses"][0]["learners"] == 3);
  CHECK(run["losses"][0]["reason"] == "rank 2 on node07 is lost: its connection has ended");
  CHECK(run["losses"][1]["learners"] == 4);
  CHECK(run["losses"][1]["reason"] == "rank 2 on node07 came back");
}

TEST_CASE("where logs lack the share of an epoch it follows from iterations") {
  const TestFolder folder;
  const RunLog run = only_run(folder,
                              "{\"event\":\"start\",\"iterations_per_epoch\":40}\n"
                              "{\"event\":\"progress\",\"epoch\":1,\"iteration\":10,\"seconds\":1,\"loss\":1}\n");
  CHECK(run["progress"]["epochs"] == Json{0.25});
}

TEST_CASE("damaged lines are reported with their numbers, and the others are read") {
  const TestFolder folder;
  check_parts(first_fault(folder, "{\"event\":\"progress\",\"epo"), {"no JSON", "last line", "cut off"});
  check_parts(first_fault(folder, "[1]"), {"found array, expected an object"});
  check_parts(first_fault(folder, "{}"), {"without 'event'"});
  check_parts(first_fault(folder, "{\"event\":3}"), {"'event' is number, expected a name"});
  check_parts(first_fault(folder, "{\"event\":\"dance\"}"), {"unknown event 'dance'"});
  check_parts(first_fault(folder, "{\"event\":\"progress\",\"epoch\":1,\"iteration\":1,\"loss\":1}"),
              {"'seconds' is missing"});
  check_parts(first_fault(folder, "{\"event\":\"epoch\",\"epoch\":\"one\",\"iteration\":1,\"seconds\":1}"),
              {"'epoch' is 'one', expected a number"});
  check_parts(first_fault(folder, "{\"event\":\"epoch\",\"epoch\":1,\"iteration\":1,\"seconds\":1,\"loss\":[2]}"),
              {"'loss' is array, expected a number"});
  check_parts(first_fault(folder, "{\"event\":\"epoch\",\"epoch\":1,\"iteration\":1,\"seconds\":1e999}"),
              {"no JSON", ": number overflow parsing '1e999'"});
  check_parts(first_fault(folder, std::string("\xff\0\x1b[31m", 7)), {"no JSON"});
  const RunLog run = only_run(folder, "half a line\"}\n" + whole_log(folder));
  CHECK(run["faulty_lines"] == 1);
  CHECK(run["faults"][0]["line"] == 1);
  CHECK(run["end"]["reason"] == "until");
}

TEST_CASE("a log without its start is read, and says so") {
  const TestFolder folder;
  const std::string text = whole_log(folder);
  const RunLog run = only_run(folder, text.substr(text.find('\n') + 1));
  check_parts(run["faults"][0]["what"], {"does not begin with the start of a run"});
  CHECK(run["start"].is_null());
  CHECK(run["validations"]["seconds"].size() == 1);
}

TEST_CASE("logs that were joined are several runs") {
  const TestFolder folder;
  const std::string text = whole_log(folder);
  const std::vector<RunLog> runs = read_run_logs(folder.write("log", text + text).string(), "log");
  REQUIRE(runs.size() == 2);
  CHECK(runs[1]["name"] == "log (2)");
  CHECK(runs[0]["progress"] == runs[1]["progress"]);
}

TEST_CASE("what is no log is refused") {
  const TestFolder folder;
  const auto refusal = [&](const std::string& text) {
    return message_of<RunError>([&] { read_run_logs(folder.write("log", text).string(), "log"); });
  };
  check_parts(refusal(""), {"log: found an empty file, expected a log that run --log wrote"});
  check_parts(refusal(R"({"event":"cell","learners":1})"),
              {"log: found what bench scaling --json writes, expected a log",
               "it is drawn by: arbalest report --plot scaling /"});
  check_parts(refusal("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[]}"),
              {"log: found a trace that run --trace wrote, expected a log", "it is shown by: arbalest view /"});
  check_parts(refusal("P6\n3 3\n"), {"no event; line 1: no JSON"});
  check_parts(refusal("{\"event\":\"dance\"}"), {"line 1: unknown event 'dance'"});
  CHECK_THROWS_AS(read_run_logs((folder / "nothing").string(), "nothing"), RunError);
  CHECK_THROWS_AS(read_run_logs(folder.string(), "folder"), RunError);
}

TEST_CASE("deep, wide and many-named lines neither end the program nor fill the page") {
  const TestFolder folder;
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  const RunLog nested = only_run(folder, whole_log(folder) + "{\"event\":\"end\",\"x\":" + deep + "}\n");
  check_parts(nested["faults"][0]["what"], {"nested more than 8 deep"});
  CHECK(report_page({nested}).size() < 200'000);
  std::string names = whole_log(folder);
  for (int i = 0; i < 3000; ++i) {
    names += "{\"event\":\"epoch\",\"epoch\":1,\"iteration\":1,\"seconds\":1,\"n" + std::to_string(i) + "\":1}\n";
  }
  const RunLog run = only_run(folder, names);
  CHECK(run["epochs"]["values"].size() == 1000);  // loss and images_per_second among them
  CHECK(run["faulty_lines"] == 2002);
  CHECK(run["faults"].size() == 20);
}

TEST_CASE("lines of many objects and of many members are read in time that grows with their length") {
  const TestFolder folder;
  std::string objects, members;
  for (int i = 0; i < 100'000; ++i) {
    objects += "{\"a\":1},";
    members += "\"k" + std::to_string(i) + "\":1,";
  }
  const std::clock_t began = std::clock();
  const RunLog run = only_run(folder, whole_log(folder) + "{\"x\":[" + objects + "1],\"event\":\"dance\"}\n" +
                                          "{\"event\":\"dance\"," + members + "\"last\":1}\n");
  CHECK(double(std::clock() - began) / CLOCKS_PER_SEC < 1.5);
  CHECK(run["faulty_lines"] == 2);
  check_parts(run["faults"][0]["what"], {"unknown event 'dance'"});
  check_parts(run["faults"][1]["what"], {"an object has more than 50000 members"});
}

TEST_CASE("whatever becomes of a log's bytes, it is read or refused") {
  const TestFolder folder;
  const std::string text = whole_log(folder);
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    std::string changed = text;
    for (uint32_t i = 0, count = 1 + random() % 8; i < count; ++i) {
      const size_t at = random() % changed.size();
      const uint32_t how = random() % 4;
      if (how == 0) changed[at] = char(random());
      if (how == 1) changed.erase(at, random() % 40);
      if (how == 2) changed.insert(at, 1, "{}[]\",:0\n"[random() % 9]);
      if (how == 3) changed.insert(at, changed.substr(random() % changed.size(), random() % 60));
      if (changed.empty()) changed = " ";
    }
    try {
      for (const RunLog& run : read_run_logs(folder.write("log", changed).string(), "log"))
        CHECK(!report_page({run}).empty());
    } catch (const RunError&) {
    }
  }
}

TEST_CASE("names in a log are neither markup nor script in the page") {
  const TestFolder folder;
  const RunLog run = only_run(folder,
                              "{\"event\":\"start\",\"graph\":\"</script><script>alert(1)</script><!--\"}\n"
                              "{\"event\":\"epoch\",\"epoch\":1,\"iteration\":1,\"seconds\":1,\"</script>\":1}\n");
  const std::string page = report_page({run});
  size_t ends = 0;
  for (size_t at = 0; (at = page.find("</script>", at)) != page.npos; ++at) ++ends;
  CHECK(ends == 2);
  CHECK(page.find("<!--") == page.npos);
  CHECK(page.find("alert(1)") != page.npos);  // as data
  CHECK(page.find("http") == page.find("http-equiv"));
}

}  // namespace run_log_test
