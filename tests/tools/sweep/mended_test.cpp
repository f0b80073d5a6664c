// SPDX-License-Identifier: Apache-2.0

// Sweeps that go on after a failed trial, a damaged log, another folder or a kill.

#include <doctest/doctest.h>
#include <pty.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "executor/plan/device_list.h"
#include "tests/tools/sweep/place.h"
#include "tools/sweep/leaderboard.h"
#include "tools/sweep/trial_runs.h"

using namespace arbalest;
using namespace arbalest::test;

namespace sweep_test {
namespace {

// Removes the last lines of a file, and half of the line before them, as if the process had been killed.
void cut_lines(const std::string& path, size_t keep) {
  std::vector<std::string> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  REQUIRE(lines.size() > keep);
  std::ofstream out(path);
  for (size_t i = 0; i < keep; ++i) out << lines[i] << "\n";
  out << lines[keep].substr(0, lines[keep].size() / 2);
}

}  // namespace

TEST_CASE("sweep: a trial that failed runs again on demand alone") {
  Place place;
  const std::vector<std::string> words = {"--vary", "seed=1..2", "--epochs", "1", "--resume"};
  fs::create_directories(place.out);
  std::ofstream(trial_folder(place.out, 1)) << "is in the way";
  CHECK(place.sweep(words) == 1);
  CHECK(place.lines.back() == "best model: " + trial_model(place.out, 0));
  CHECK(place.lines[place.lines.size() - 2] == "arbalest resume " + place.out + " --retry runs what failed once more");
  CHECK(!last_result(place.record(), 1)->error.empty());
  fs::remove(trial_folder(place.out, 1));
  CHECK(place.sweep(words) == 1);
  CHECK(leaderboard_of(place.record()).failed == 1);
  CHECK(place.run({"resume", place.out, "--retry"}) == 0);
  const SweepRecord record = place.record();
  CHECK(leaderboard_of(record).failed == 0);
  CHECK(record.results.size() == 3);
  CHECK(record.results.back().job.trial == 1);
  CHECK(place.sweep(words) == 0);  // and its result stays
}

TEST_CASE("sweep: a damaged line is told, and its trial runs again") {
  Place place;
  const std::vector<std::string> words = {"--vary", "seed=1..3", "--epochs", "1", "--resume"};
  REQUIRE(place.sweep(words) == 0);
  const std::string path = sweep_log_path(place.out), whole = content(path);
  const size_t result = whole.find("{\"event\":\"result\""), end = whole.find('\n', result);
  const std::string number = std::to_string(1 + std::count(whole.begin(), whole.begin() + int64_t(result), '\n'));
  const SweepRecord before = place.record();
  const int trial = before.results[0].job.trial;
  CHECK(before.faults.empty());
  for (const auto& [damage, what] : std::vector<std::pair<std::string, std::string>>{
           {whole.substr(result, 60), "no JSON: column "},
           {std::string(40, '\0'), "no JSON: column 1"},
           {"[1, 2]", "found array, expected an object"},
           {"{\"event\":\"result\",\"trial\":\"one\"}", "type must be number, but is string"},
           {"{\"event\":\"result\",\"trial\":9,\"rung\":0,\"to_epoch\":0}", "trial: found 9, expected 1 to 3"}}) {
    std::ofstream(path) << std::string(whole).replace(result, end - result, damage);
    const SweepRecord damaged = place.record();
    REQUIRE(damaged.faults.size() == 1);
    CHECK_MESSAGE(damaged.faults[0].starts_with(path + ":" + number + ": "), damaged.faults[0]);
    CHECK_MESSAGE(damaged.faults[0].find(what) != std::string::npos, damaged.faults[0]);
    CHECK(damaged.faults[0].find("line 1,") == std::string::npos);
    CHECK(damaged.results.size() == 2);
    CHECK(last_result(damaged, trial) == nullptr);
    {
      const Redirected errors((place.folder / "errors").string(), stderr);
      CHECK(place.sweep(words) == 0);
      CHECK(place.run({"report", place.out, "-o", (place.folder / "page.html").string()}) == 0);
      CHECK(errors.lines() == std::vector<std::string>(
                                  2, "arbalest: " + damaged.faults[0] + "; the line counts as if it were not there"));
    }
    REQUIRE(last_result(place.record(), trial));
    CHECK(last_result(place.record(), trial)->value == before.results[0].value);
  }
  std::ofstream(path) << whole.substr(0, 100) << whole.substr(whole.find('\n'));
  CHECK(place.sweep(words) == 1);
  CHECK_MESSAGE(place.fault.starts_with(path + ":1: no JSON: column "), place.fault);
}

TEST_CASE("sweep: one that was moved names the command that goes on with it") {
  Place place;
  const std::string moved = (place.folder / "moved").string();
  for (const std::vector<std::string>& output : std::vector<std::vector<std::string>>{
           {"-o", place.out}, {"--output", place.out}, {"--output=" + place.out}, {"-o" + place.out}}) {
    std::vector<std::string> words = {"sweep", place.graph, "--vary", "seed=1,2", "--epochs", "1"};
    words.insert(words.end(), output.begin(), output.end());
    REQUIRE(place.run(words) == 0);
    fs::rename(place.out, moved);
    CHECK(place.run({"resume", moved}) == 1);
    const std::string first =
        output.size() > 1 ? output[0] + " " : output[0].substr(0, output[0].size() - place.out.size());
    CHECK_MESSAGE(place.fault.ends_with("--epochs 1 " + first + moved + " --resume"), place.fault);
    fs::remove_all(moved);
  }
}

TEST_CASE("sweep: one that was killed goes on to the same answer") {
  const std::vector<std::string> words = {"--vary",    "train.lr=log(1e-4,0.1)",
                                          "--samples", "7",
                                          "--search",  "asha",
                                          "--epochs",  "9",
                                          "--keep",    "all",
                                          "--at-once", "2",
                                          "--set",     "train.ema=0.9"};
  Place whole, killed;
  CHECK(whole.sweep(words) == 0);
  CHECK(killed.sweep(words) == 0);
  const std::string log = sweep_log_path(killed.out);
  for (const size_t keep : {size_t(9), size_t(4), size_t(1)}) {
    // As a killed sweep leaves it: a log that ends in half a line, and trials that have to train again.
    cut_lines(log, keep);
    for (int trial = 0; trial < 7; ++trial) fs::remove_all(trial_folder(killed.out, trial));
    CHECK(killed.sweep(words) == 2);
    CHECK(killed.fault.find("--resume goes on with it") != std::string::npos);
    std::vector<std::string> again = words;
    again.emplace_back("--resume");
    CHECK(killed.sweep(again) == 0);
    const SweepRecord one = whole.record(), two = killed.record();
    CHECK(two.finished);
    REQUIRE(one.results.size() == two.results.size());
    for (int trial = 0; trial < 7; ++trial) {
      const SweepResult &expected = *last_result(one, trial), &found = *last_result(two, trial);
      CHECK(found.job == expected.job);
      CHECK(found.value == expected.value);
      CHECK(found.epoch == expected.epoch);
    }
  }
  std::vector<std::string> other = words;
  other[1] = "train.lr=log(1e-4,0.2)";
  other.emplace_back("--resume");
  CHECK(killed.sweep(other) == 2);
  CHECK(killed.fault.find("the trials differ") != std::string::npos);
  other = words;
  other.insert(other.end(), {"--precision", "bf16", "--resume"});
  CHECK(killed.sweep(other) == 2);
  CHECK(killed.fault.find("the options of its runs (there none, here --precision=bf16) differ") != std::string::npos);
}

TEST_CASE("sweep: a trial that goes on has the epochs of its checkpoint before it ends another") {
  const Place place;
  SweepPlan plan;
  plan.words = {place.graph, "--epochs=1000000"};
  plan.trials = {{{"seed", "1"}}};
  SweepSurroundings around;
  around.folder = place.out;
  around.devices = parse_devices("cpu:0", [] { return std::vector<PlanDevice>(); });
  std::vector<int64_t> reported;
  const auto run_until = [&](int64_t epochs) {
    std::stop_source stop;
    around.stop = stop.get_token();
    reported.clear();
    around.progress = [&](const SweepResult& result) {
      reported.push_back(result.epochs);
      if (result.epochs >= epochs) stop.request_stop();
    };
    const TrialEnd end = run_trial(plan, {0, 0, 0}, 0, around);
    CHECK(end.end.kind == JobEnd::Kind::Stopped);
    return end.result.epochs;
  };
  const int64_t first = run_until(3);
  CHECK(first >= 3);
  run_until(first + 1);
  REQUIRE(!reported.empty());
  CHECK(reported.front() >= 3);
}

// All that a command writes to a terminal.
std::string shown_on_terminal(Place& place, const std::vector<std::string>& words) {
  int screen = -1, line = -1;
  const winsize size = {24, 100, 0, 0};
  REQUIRE(openpty(&screen, &line, nullptr, nullptr, &size) == 0);
  std::string text;
  std::thread reader([&] {
    char part[4096];
    for (ssize_t got = 0; (got = read(screen, part, sizeof part)) > 0;) text.append(part, size_t(got));
  });
  const char* const before = std::getenv("TERM");
  const std::string terminal = before ? before : "";
  setenv("TERM", "xterm", 1);
  std::fflush(stdout);
  const int output = dup(STDOUT_FILENO);
  dup2(line, STDOUT_FILENO);
  close(line);
  std::vector<const char*> all = {"sweep", place.graph.c_str(), "-o", place.out.c_str()};
  for (const std::string& word : words) all.push_back(word.c_str());
  const int status = parse(all).run();
  std::fflush(stdout);
  dup2(output, STDOUT_FILENO);  // nobody writes to the terminal any more, and the reader ends
  close(output);
  reader.join();
  close(screen);
  before ? setenv("TERM", terminal.c_str(), 1) : unsetenv("TERM");
  CHECK(status == 0);
  return text;
}

}  // namespace sweep_test
