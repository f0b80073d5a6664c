// SPDX-License-Identifier: Apache-2.0

// MLPerf's log of a run: its lines in the order of the run, and what the package mlperf-logging says of them.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/io/test_folder.h"
#include "tests/tools/command_line.h"
#include "tools/command/commands.h"
#include "tools/watch/mlperf_log.h"

using namespace arbalest;
using namespace arbalest::test;

namespace mlperf_log_test {
namespace {

using Json = nlohmann::ordered_json;

// ResNet-50 as the closed division of MLPerf 4.0 asks for it: SGD whose rate falls by a polynomial to 0.0001.
RunSettings settings() {
  RunSettings settings;
  settings.attributes = {
      {"train.optimizer", "sgd"}, {"train.lr", 3.2},      {"train.warmup", 2.0},   {"train.schedule", "polynomial"},
      {"train.lr_end", 0.0001},   {"train.power", 2.0},   {"train.momentum", 0.9}, {"train.weight_decay", 0.0002},
      {"train.clip_norm", 0.0},   {"train.accumulate", 2}};
  return settings;
}

RunStarted started() {
  RunStarted event;
  event.graph = "resnet";
  event.devices = {"cuda:0", "cuda:1"};
  event.models = {"H100", "H100"};
  event.learners = 1;
  event.strategy = "ssgd";
  event.batch = 64;
  event.precision = "bf16";
  event.seed = 7;
  event.samples_per_epoch = 1280;
  event.iterations_per_epoch = 10;
  event.iterations = 40;
  event.validates = true;
  event.best_metric = "accuracy";
  event.setup_seconds = 5;
  return event;
}

EpochEnded epoch(int64_t number) {
  EpochEnded event;
  event.epoch = number;
  event.iteration = 10 * number;
  event.seconds = 2.0 * double(number);
  event.validates = true;
  return event;
}

Validated validated(int64_t number, double accuracy) {
  Validated event;
  event.epoch = number;
  event.iteration = 10 * number;
  event.samples = 500;
  event.seconds = 2.0 * double(number) + 0.5;
  event.loss = 0.25;
  event.metrics = {{"top5", 0.95}, {"accuracy", accuracy}};
  return event;
}

RunFinished finished(double seconds_to_target) {
  RunFinished event;
  event.reason = seconds_to_target < 0 ? RunEnd::Complete : RunEnd::Until;
  event.seconds = 4.5;
  event.images = 2560;
  event.targets = {{"accuracy >= 0.759", seconds_to_target}};
  return event;
}

void log_run(const std::string& path, const std::vector<std::string>& entries, double accuracy = 0.76) {
  std::vector<MlperfLog::Entry> read;
  for (const std::string& entry : entries) read.push_back(MlperfLog::entry_of(entry));
  MlperfLog log(path, settings(), read);
  log.started(started());
  for (const int64_t number : {1, 2}) {
    RunProgress progress;
    progress.iteration = 10 * number - 5;
    progress.epochs = double(number) - 0.5;
    log.progress(progress);
    log.epoch(epoch(number));
    log.validation(validated(number, number == 1 ? 0.5 : accuracy));
  }
  log.finished(finished(accuracy >= 0.759 ? 4.5 : -1));
}

std::vector<Json> lines_of(const std::string& path) {
  std::vector<Json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    REQUIRE(line.starts_with(":::MLLOG "));
    lines.push_back(Json::parse(line.substr(9)));
  }
  return lines;
}

std::vector<std::string> keys_after(const std::vector<Json>& lines, const std::string& first) {
  std::vector<std::string> keys;
  for (const Json& line : lines) {
    if (!keys.empty() || line["key"] == first) keys.push_back(line["key"]);
  }
  return keys;
}

Json value_of(const std::vector<Json>& lines, const std::string& key) {
  Json found;
  size_t count = 0;
  for (const Json& line : lines) {
    if (line["key"] == key) {
      found = line["value"];
      ++count;
    }
  }
  CHECK_MESSAGE(count == 1, key);
  return found;
}

int64_t value_of_time(const std::vector<Json>& lines, const std::string& key) {
  for (const Json& line : lines) {
    if (line["key"] == key) return line["time_ms"];
  }
  return -1;
}

// ARBALEST_MLPERF_PYTHON: a Python with the package, if the system's has none. "": there is none.
std::string checker() {
  const char* given = std::getenv("ARBALEST_MLPERF_PYTHON");
  const std::string python = given ? given : "python3";
  if (std::system((python + " -c 'import mlperf_logging' 2>/dev/null").c_str()) == 0) return python;
  MESSAGE("SKIP: " << python << " has no package mlperf_logging");
  return "";
}

bool accepted(const std::string& python, const std::string& log) {
  return std::system(fmt::format("{} -m mlperf_logging.compliance_checker --werror --ruleset 4.0.0 --log_output "
                                 "{}.checked {} >{}.said 2>&1",
                                 python, log, log, log)
                         .c_str()) == 0;
}

std::string refused(const std::string& entry) {
  try {
    MlperfLog::entry_of(entry);
  } catch (const GraphError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("MLPerf's log has the run's course in order, and its clock begins with the first touch of data") {
  const TestFolder folder;
  const std::string path = (folder / "log.txt").string();
  log_run(path, {"submission_org=Lab", "cache_clear=true", "note=two words"});
  const std::vector<Json> lines = lines_of(path);
  CHECK(keys_after(lines, "init_stop") ==
        std::vector<std::string>{"init_stop", "run_start", "epoch_start", "epoch_stop", "eval_start", "eval_samples",
                                 "eval_accuracy", "eval_stop", "epoch_start", "epoch_stop", "eval_start",
                                 "eval_accuracy", "eval_stop", "trained_samples", "run_stop"});
  std::map<std::string, std::vector<int64_t>> times;
  for (const Json& line : lines) times[line["key"]].push_back(line["time_ms"]);
  const int64_t begin = times.at("run_start")[0];
  CHECK(times.at("init_start")[0] >= begin);  // the set-up of 5 s is of the test's making
  CHECK(times.at("epoch_start") == std::vector<int64_t>{begin + 5000, begin + 7000});
  CHECK(times.at("epoch_stop") == std::vector<int64_t>{begin + 7000, begin + 9000});
  CHECK(times.at("eval_accuracy") == std::vector<int64_t>{begin + 7500, begin + 9500});
  CHECK(times.at("run_stop")[0] == begin + 9500);
  CHECK(lines.back()["metadata"]["status"] == "success");
  CHECK(value_of(lines, "submission_org") == "Lab");
  CHECK(value_of(lines, "submission_benchmark") == "resnet");
  CHECK(value_of(lines, "submission_platform") == "2 × H100");
  CHECK(value_of(lines, "cache_clear") == true);
  CHECK(value_of(lines, "note") == "two words");
  CHECK(value_of(lines, "eval_samples") == 500);
  CHECK(value_of(lines, "train_samples") == 1280);
  CHECK(value_of(lines, "global_batch_size") == 256);  // 64 on each of two devices, twice for each update
  CHECK(value_of(lines, "max_steps") == 20);
  CHECK(value_of(lines, "sgd_opt_learning_rate_decay_steps") == 10);  // of 20, without two epochs of warm-up
  CHECK(value_of(lines, "sgd_opt_weight_decay") == 0.0002);
  CHECK(value_of(lines, "lowest_numerical_precision_in_linear") == "bfloat16");
}

TEST_CASE("the status in MLPerf's log is success only of runs that met their targets") {
  const TestFolder folder;
  const std::string path = (folder / "log.txt").string();
  log_run(path, {}, 0.7);
  CHECK(lines_of(path).back()["metadata"]["status"] == "aborted");
  MlperfLog failed((folder / "failed.txt").string(), settings(), {});
  failed.started(started());
  failed.failed({"boom", 1, 10, 3.0});
  CHECK(lines_of((folder / "failed.txt").string()).back()["metadata"]["status"] == "aborted");
  MlperfLog unstarted((folder / "unstarted.txt").string(), settings(), {});
  unstarted.failed({"boom", -1, -1, 0});
  CHECK(lines_of((folder / "unstarted.txt").string()).empty());
}

TEST_CASE("MLPerf's log ends with success at its target while the run goes on, and stays so") {
  const TestFolder folder;
  const std::string path = (folder / "log.txt").string();
  const auto log_to = [&](const std::string& target) {
    MlperfLog log(path, settings(), {}, false, parse_target(target));
    log.started(started());
    for (const int64_t number : {1, 2}) {
      log.epoch(epoch(number));
      log.validation(validated(number, 0.25 * double(number)));
      CheckpointSaved saved;
      saved.path = "c2";
      saved.epoch = number;
      saved.iteration = 10 * number;
      saved.seconds = 2.0 * double(number);
      saved.whole = true;
      log.checkpoint(saved);
    }
    log.finished(finished(-1));
    return lines_of(path);
  };
  const std::vector<Json> met = log_to("accuracy >= 0.2");
  CHECK(keys_after(met, "eval_accuracy") ==
        std::vector<std::string>{"eval_accuracy", "eval_stop", "trained_samples", "run_stop"});
  CHECK(met.back()["metadata"]["status"] == "success");
  CHECK(value_of(met, "trained_samples") == 1280);
  CHECK(int64_t(met.back()["time_ms"]) - int64_t(value_of_time(met, "run_start")) == 7500);  // with 5 s of set-up
  RunStarted resumed = started();
  resumed.resumed = "c2";
  resumed.resumed_iteration = 20;
  resumed.resumed_seconds = 4;
  {
    MlperfLog again(path, settings(), {}, true, parse_target("accuracy >= 0.2"));
    again.started(resumed);
    again.epoch(epoch(3));
    again.finished(finished(-1));
  }
  CHECK(lines_of(path) == met);
  {
    MlperfLog harder(path, settings(), {}, true, parse_target("accuracy >= 0.3"));
    harder.started(resumed);
    harder.epoch(epoch(3));
    harder.validation(validated(3, 0.4));
  }
  CHECK(lines_of(path).back()["metadata"]["target"] == "accuracy >= 0.3");  // the other target's end does not count

  const std::vector<Json> missed = log_to("accuracy >= 0.9");
  CHECK(missed.back()["metadata"]["status"] == "aborted");
  CHECK(value_of(missed, "trained_samples") == 2560);
  CHECK(log_to("top5 > 0.9").back()["metadata"]["status"] == "success");  // its metric is the one that is logged
  CHECK(fault({"run", "g.onnxtxt", "--mllog-target", "accuracy > 1"}) ==
        "arbalest: --mllog-target needs --mllog FILE\n");
}

TEST_CASE("entries of MLPerf's log are refused without a value, and if they follow from the run") {
  CHECK(refused("submission_org") == "--mllog-set 'submission_org': expected KEY=VALUE, as in submission_org=Lab");
  CHECK(refused("=Lab") == "--mllog-set '=Lab': expected KEY=VALUE, as in submission_org=Lab");
  CHECK(refused("eval_accuracy=1") ==
        "--mllog-set 'eval_accuracy=1': 'eval_accuracy' follows from the run; expected another key");
  CHECK(fault({"run", "g.onnxtxt", "--mllog-set", "a=b"}) == "arbalest: --mllog-set needs --mllog FILE\n");
}

TEST_CASE("MLPerf's checker accepts logs of both divisions, and refuses one below the accuracy") {
  const std::string python = checker();
  if (python.empty()) return;
  const TestFolder folder;
  const std::string open = (folder / "open.txt").string(), closed = (folder / "closed.txt").string(),
                    low = (folder / "low.txt").string();
  log_run(open, {}, 0.7);
  CHECK(accepted(python, open));
  log_run(closed, {"submission_division=closed", "submission_org=Lab", "submission_status=onprem"});
  CHECK(accepted(python, closed));
  log_run(low, {"submission_division=closed"}, 0.7);
  CHECK_FALSE(accepted(python, low));
}

TEST_CASE("a run writes MLPerf's log, which its checker accepts") {
  const TestFolder folder;
  const std::string body =
      "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
      "g () => () {\n"
      "  image, label = arbalest.Prefetch <source = \"glyphs:?train=96&test=32&size=16\", batch = 8> ()\n"
      "  x = arbalest.Augment (image)\n"
      "  logits = arbalest.Linear <units = 10> (x)\n"
      "  loss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
      "  accuracy = arbalest.Accuracy (logits, label)\n"
      "  trained = arbalest.Train <lr = 0.01, epochs = 2.0> (loss)\n";
  const std::string graph =
      folder.write("g.onnxtxt", body + "  report = arbalest.Validate (trained, loss, accuracy)\n}\n").string();
  const std::string blind = folder.write("blind.onnxtxt", body + "}\n").string();
  const std::string log = (folder / "log.txt").string(), save = (folder / "w.safetensors").string();
  const auto run = [&](const std::string& file, const std::string& target = "") {
    auto options =
        options_of<RunOptions>(parse({"run", file.c_str(), "--devices", "cpu:0", "--save", save.c_str(), "--mllog",
                                      log.c_str(), "--mllog-set", "submission_benchmark=resnet"}));
    options.mllog_target = target;
    return command_run(options);
  };
  CHECK_THROWS_WITH_AS(run(blind), "--mllog: the graph 'g' has no arbalest.Validate; MLPerf's log is of accuracies",
                       GraphError);
  CHECK_THROWS_WITH_AS(run(graph, "accuracy >= 75"),
                       "--mllog-target 'accuracy >= 75' cannot be reached: 'accuracy' is 0 to 1; 75 % is 0.75",
                       GraphError);
  CHECK_FALSE(std::filesystem::exists(log));
  REQUIRE(run(graph) == kDone);
  const std::vector<Json> lines = lines_of(log);
  CHECK(value_of(lines, "train_samples") == 96);
  CHECK(value_of(lines, "trained_samples") == 192);
  CHECK(value_of(lines, "eval_samples") == 32);
  CHECK(lines.back()["key"] == "run_stop");
  CHECK(lines.back()["metadata"]["status"] == "success");
  folder.write("log.txt", std::string("a letter\n"));
  CHECK_THROWS_AS(run(graph), GraphError);  // a file of another kind stays
  folder.write("log.txt", std::string(":::MLLOG {}\n"));
  REQUIRE(run(graph) == kDone);
  CHECK(lines_of(log).size() == lines.size());
  if (const std::string python = checker(); !python.empty()) CHECK(accepted(python, log));
}

}  // namespace mlperf_log_test
