// SPDX-License-Identifier: Apache-2.0

// `arbalest bench FILE` as users call it: cells are measured by processes, of which any may be killed.

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/tools/experiment/bench_place.h"
#include "tools/command/own_variables.h"
#include "tools/experiment/answer/summary.h"
#include "tools/experiment/trials/cell_command.h"
#include "tools/experiment/trials/child_process.h"
#include "tools/experiment/trials/results.h"
#include "tools/experiment/trials/trials.h"

using namespace arbalest;
using namespace arbalest::test;

namespace bench_command_test {
namespace {

namespace fs = std::filesystem;

using Place = BenchPlace;

constexpr const char* kMatrix =
    "batch = [8, 16]\nlearners = [1, 2]\ndevices = \"cpu:0\"\nthreads = 1\ndeterministic = true\ntrain.epochs = 2\n"
    "[throughput]\nrepetitions = 2\nwindows = 2\nwindow = \"50ms\"\nwarmup = \"50ms\"\n"
    "[accuracy]\nseeds = [1, 2]\ntargets = [0.1]\ncheckpoint_every = \"20it\"\n";

// The metric after each epoch, by cell and seed.
std::map<std::pair<std::string, int64_t>, std::vector<double>> curves(const std::string& results) {
  std::map<std::pair<std::string, int64_t>, std::vector<double>> all;
  for (const TrialResult& trial : read_results(results).trials) {
    CHECK_MESSAGE(trial.error.empty(), trial.error);
    for (const CurvePoint& point : trial.curve) all[{trial.name, trial.repetition}].push_back(point.value);
  }
  return all;
}

}  // namespace

TEST_CASE("a bench that is killed three times ends with the results of one that is not, and then has nothing to do" *
          doctest::test_suite("alone")) {
  const Place place;
  place.write(kMatrix);
  REQUIRE(place.run("whole.jsonl") == kDone);
  CHECK(place.text("out").find("batch 16, learners 2") != std::string::npos);

  srand(unsigned(time(nullptr)));
  for (int round = 0; round < 3; ++round) {
    Rank process(place.words("killed.jsonl"), place.path("log"));
    std::this_thread::sleep_for(std::chrono::milliseconds(500 + rand() % 3000));
    process.send(SIGKILL);
    process.wait();
  }
  CHECK(place.run("killed.jsonl") == kDone);
  CHECK(read_results(place.path("killed.jsonl")).trials.size() == 16);
  const auto whole = curves(place.path("whole.jsonl"));
  CHECK(whole.size() == 8);
  CHECK(curves(place.path("killed.jsonl")) == whole);

  const auto begin = std::chrono::steady_clock::now();
  CHECK(place.run("killed.jsonl") == kDone);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(1));
  CHECK(place.text("errors").empty());
}

TEST_CASE("a bench that is interrupted answers with what it has measured") {
  const Place place;
  place.write(kMatrix);
  Rank process(place.words("cut.jsonl"), place.path("log"), {}, place.path("told"));
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const auto told = [&] {
    const std::vector<TrialResult> trials = read_results(place.path("cut.jsonl")).trials;
    return !trials.empty();
  };
  while (!std::filesystem::exists(place.path("cut.jsonl")) || !told()) {
    REQUIRE(std::chrono::steady_clock::now() < until);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  process.send(SIGINT);
  CHECK(process.wait() == kInterrupted);
  const std::string answer = place.text("told");
  std::istringstream lines(answer);
  int measured = 0;
  for (std::string line; std::getline(lines, line);) {
    measured += line.starts_with("batch ") && line.find("not measured yet") == line.npos ? 1 : 0;
  }
  CHECK_MESSAGE(measured > 0, answer);
}

TEST_CASE("a trial that fails says why, is a result, and runs again on demand") {
  const Place place;
  place.write("devices = \"cpu:0\"\nthreads = 1\nlearners = [1, 300]\ntrain.epochs = 2\n[accuracy]\nseeds = [1]\n");
  CHECK(place.run("r.jsonl") == kFailed);
  const std::string out = place.text("out");
  CHECK_MESSAGE(out.find("one update of 300 learners takes 2400") != out.npos, out);
  const size_t count = read_results(place.path("r.jsonl")).trials.size();
  CHECK(count == 2);
  CHECK(place.run("r.jsonl", {"--format", "csv"}) == kFailed);
  CHECK(place.text("errors").empty());  // a failure is a result
  CHECK(place.text("out").starts_with("table,cell,"));
  CHECK(place.run("r.jsonl") == kFailed);
  CHECK(place.text("out").find("1 trial failed; --retry runs them once more") != std::string::npos);
  CHECK(place.run("r.jsonl", {"--retry"}) == kFailed);
  CHECK(place.text("errors").find("1 of 1: learners 300: seed 1: failed: ") != std::string::npos);
  CHECK(place.run("r.jsonl", {"--set", "train.lrr=3"}) == kWrong);
  CHECK(place.text("errors").find("learners 1: --set") != std::string::npos);
}

TEST_CASE("trials that other work disturbed are told, and run again on demand") {
  const Place place;
  place.write("devices = \"cpu:0\"\nthreads = 1\nlearners = [1, 2]\ntrain.epochs = 1\n[accuracy]\nseeds = [1]\n");
  CHECK(place.run("r.jsonl") == kDone);
  std::vector<TrialResult> trials = read_results(place.path("r.jsonl")).trials;
  REQUIRE(trials.size() == 2);
  std::ofstream file(place.path("r.jsonl"), std::ios::trunc);
  for (TrialResult& trial : trials) {
    trial.state.erase("faults");
    if (&trial == &trials[1]) trial.state["faults"] = {"3 of 4 cores do other work"};
    file << line_of(trial);
  }
  file.close();
  CHECK(place.run("r.jsonl") == kDone);
  CHECK(place.text("out").find("1 of 2 trials were measured while the machine did other work or slowed down; --retry "
                               "without --anyway runs them once more") != std::string::npos);
  const auto waiting = [&](const Words& more) {
    Words words = place.words("r.jsonl");
    std::erase(words, "--anyway");
    words.insert(words.end(), {"--dry-run"});
    words.insert(words.end(), more.begin(), more.end());
    Rank process(words, place.path("errors"), {}, place.path("told"));
    CHECK(process.wait() == kDone);
    const std::string told = place.text("told");
    return told.find(", 1 trial to run") != told.npos ? 1 : told.find(", 0 trials to run") != told.npos ? 0 : -1;
  };
  CHECK(waiting({}) == 0);
  CHECK(waiting({"--retry"}) == 1);
  CHECK(waiting({"--retry", "--anyway"}) == 0);
}

TEST_CASE("two names of one attribute are no two settings") {
  const Place place;
  const auto refused = [&](const std::string& settings, const std::string& what) {
    place.write(settings + "[throughput]\n");
    CHECK(place.run("r.jsonl", {"--dry-run"}) == kWrong);
    const std::string errors = place.text("errors");
    CHECK_MESSAGE(errors.find(what) != errors.npos, errors);
  };
  refused("prefetch.batch = [10, 20]\nbatch = [30, 40]\n",
          "batch and prefetch.batch both change the attribute 'batch'");
  refused("train.lr = [0.1, 0.3]\ntrained.lr = 5\n", "train.lr and trained.lr both change the attribute 'lr'");
}

TEST_CASE("a line of results that is damaged is told, and its trial runs again") {
  const Place place;
  place.write("devices = \"cpu:0\"\nthreads = 1\ntrain.epochs = 1\n[accuracy]\nseeds = [1, 2]\ntargets = [0.01]\n");
  REQUIRE(place.run("r.jsonl") == kDone);
  const std::vector<TrialResult> trials = read_results(place.path("r.jsonl")).trials;
  REQUIRE(trials.size() == 2);
  // Progress and tables have one clock.
  const CurvePoint& last = trials[0].curve.back();
  const std::string told = fmt::format("{:.4f} after {} s", last.value, shown(trials[0].setup_seconds + last.seconds));
  CHECK_MESSAGE(place.text("errors").find(told) != std::string::npos, place.text("errors"));
  const std::string whole = place.text("r.jsonl");
  const size_t second = whole.find('\n') + 1;
  place.folder.write("r.jsonl", whole.substr(0, second) + "\n" + whole.substr(second));  // an empty line
  place.folder.write("cut.jsonl", whole.substr(0, second / 2) + "\n" + whole.substr(second));
  CHECK(place.run("cut.jsonl") == kDone);
  const std::string errors = place.text("errors");
  const size_t fault = errors.find("cut.jsonl:1: no JSON: column ");
  CHECK_MESSAGE(fault != errors.npos, errors);
  CHECK_MESSAGE(errors.find("cut.jsonl:1: ", fault + 1) == errors.npos, errors);  // once
  CHECK_MESSAGE(errors.find("1 of 1: g: seed 1: ") != errors.npos, errors);
  CHECK(read_results(place.path("cut.jsonl")).trials.size() == 2);
  const Redirected output(place.path("out")), warnings(place.path("errors"), stderr);
  // The other lines are read, of which there are too few to judge.
  CHECK_THROWS_AS(command_bench_compare({{place.path("r.jsonl"), place.path("cut.jsonl")}}), GraphError);
  CHECK(warnings.lines().size() == 2);
}

TEST_CASE("a changed graph is measured anew, and named") {
  const Place place;
  place.write("devices = \"cpu:0\"\nthreads = 1\n[throughput]\nrepetitions = 1\nwindows = 1\nwindow = \"20ms\"\n");
  REQUIRE(place.run("r.jsonl") == kDone);
  std::string graph = kGraph;
  place.folder.write("g.onnxtxt", "# a comment\n" + graph);
  REQUIRE(place.run("r.jsonl") == kDone);
  CHECK(read_results(place.path("r.jsonl")).trials.size() == 1);
  graph.replace(graph.find("units = 10"), 10, "units = 11");
  place.folder.write("g.onnxtxt", graph);
  REQUIRE(place.run("r.jsonl", {"--dry-run"}) == kDone);
  const std::string errors = place.text("errors");
  CHECK_MESSAGE(errors.find("changed since they were measured (the graph): g") != errors.npos, errors);
  CHECK(place.text("out").find("1 trial to run") != std::string::npos);
  REQUIRE(place.run("r.jsonl") == kDone);
  CHECK(read_results(place.path("r.jsonl")).trials.size() == 2);
}

TEST_CASE("a changed setting is measured anew, and named") {
  const Place place;
  const auto write = [&](const std::string& settings) {
    place.write("devices = \"cpu:0\"\nthreads = 1\n" + settings +
                "[throughput]\nrepetitions = 1\nwindows = 1\nwindow = \"20ms\"\n");
  };
  write("batch = [8, 16]\n");
  REQUIRE(place.run("r.jsonl") == kDone);
  const auto told = [&](const std::string& settings) {
    write(settings);
    REQUIRE(place.run("r.jsonl", {"--dry-run"}) == kDone);
    return place.text("errors");
  };
  const auto names = [](const std::string& errors, const std::string& part) {
    CHECK_MESSAGE(errors.find("changed since they were measured (" + part) != errors.npos, errors);
  };
  names(told("batch = [8, 32]\n"), "batch 32, was 16): batch 32");
  names(told("batch = [8, 16]\ntrain.epochs = 3\n"), "train.epochs 3, was not set): batch 16; batch 8");
  CHECK(told("batch = [8, 16, 32]\n").find("changed since") == std::string::npos);  // none is gone
}

TEST_CASE("a dry run says what each cell takes, what is excluded and why, and does not fit") {
  const Place place;
  place.write(
      "batch = [8, 16]\ndevices = \"cuda:0\"\n[[exclude]]\nwhen = \"batch == 8\"\nreason = \"too small\"\n"
      "[throughput]\nrepetitions = 5\nwindows = 5\n");
  CHECK(place.run("r.jsonl", {"--dry-run", "--gpu-memory", "1KiB"}) == kDone);
  const std::string out = place.text("out");
  INFO(out);
  CHECK(out.find("excluded: too small") != out.npos);
  CHECK(out.find("does not fit: the plan takes ") != out.npos);
  CHECK(out.find("1 cell, 0 trials to run\n") != out.npos);
  CHECK(place.run("r.jsonl", {"--dry-run", "--gpu-memory", "80GiB"}) == kDone);
  CHECK(place.text("out").find("1 cell, 5 trials to run, about 35.0 s\n") != std::string::npos);
  CHECK(place.run("r.jsonl", {"--dry-run", "--gpu-memory", "80GiB", "--format", "csv"}) == kDone);
  CHECK(place.text("out").find(",5,35,\n") != std::string::npos);
  CHECK_MESSAGE(place.text("out").find("iB") == std::string::npos, place.text("out"));  // bytes are a number
  CHECK(place.run("r.jsonl", {"--dry-run", "--gpu-memory", "80GiB", "--set", "throughput.window=10m"}) == kDone);
  CHECK(place.text("out").find("h, about") != std::string::npos);
  CHECK(place.text("out").find("1 cell, 5 trials to run, about 4.169 h\n") != std::string::npos);
  CHECK_FALSE(fs::exists(place.path("r.jsonl")));
}

TEST_CASE("a dry run finds cells that cannot run, and runs none of them") {
  const Place place;
  const auto finds = [&](const std::string& text, const std::string& part) {
    place.write(text);
    CHECK(place.run("r.jsonl", {"--dry-run"}) == kFailed);
    const std::string out = place.text("out");
    CHECK_MESSAGE(out.find(part) != out.npos, out);
    CHECK_MESSAGE(out.find("1 cell, 0 trials to run") != out.npos, out);
  };
  const std::string accuracy = "devices = \"cpu:0\"\ntrain.epochs = 2\n[accuracy]\n";
  finds("data = \"mnist:nowhere\"\n" + accuracy, "nowhere");
  finds("batch = 0\n" + accuracy, "batch");
  finds(accuracy + "targets = [30]\n", "cannot be reached: 'accuracy' is 0 to 1; 30 % is 0.3");
  finds(accuracy + "metric = \"acuracy\"\n", "no metric 'acuracy'");
  place.write(accuracy + "targets = [0.3]\n");
  CHECK(place.run("r.jsonl", {"--dry-run"}) == kDone);
  CHECK(place.run("r.jsonl", {"--output", place.path("nowhere/p.html")}) == kFailed);
  CHECK_FALSE(fs::exists(place.path("r.jsonl")));  // before anything is measured
}

TEST_CASE("another program is measured in turn, and a wrong one is an error of its cell") {
  const Place place;
  place.write(
      "devices = \"cpu:0\"\nthreads = 1\n[throughput]\nrepetitions = 2\nwindows = 1\nwindow = \"20ms\"\n"
      "[peer.other]\ncommand = \"echo '{\\\"images_per_second\\\": 7.5}'\"\n[peer.broken]\ncommand = \"echo no; exit "
      "3\"\n");
  CHECK(place.run("r.jsonl") == kFailed);
  const std::string out = place.text("out");
  INFO(out);
  CHECK(out.find("g, other      7.500") != out.npos);
  CHECK(out.find("ended with status 3, and said nothing") != out.npos);
}

TEST_CASE("another program knows what is measured of it, and with which seed") {
  const Place place;
  place.write(
      "devices = \"cpu:0\"\nthreads = 1\ntrain.epochs = 1\n[throughput]\nrepetitions = 1\nwindows = 1\n"
      "window = \"20ms\"\n[accuracy]\nseeds = [4]\n[peer.other]\ncommand = \"echo {measure} {seed} >> '" +
      place.path("asked") + "'; echo '{\\\"img_s\\\": 7.5, \\\"final\\\": 0.5}'\"\n");
  REQUIRE(place.run("r.jsonl") == kDone);
  CHECK(place.text("asked") == "throughput 1\naccuracy 4\n");
}

TEST_CASE("another program has its user's environment, no input, and an end that nothing in the background holds up") {
  const Place place;
  place.write(
      "devices = \"cpu:0\"\nthreads = 1\nlearners = 9\n[throughput]\nrepetitions = 1\nwindows = 1\nwindow = \"20ms\"\n"
      "[peer.other]\ncommand = \"cat; sleep 60 & echo '{\\\"img_s\\\": '${CUDA_DEVICE_MAX_CONNECTIONS:-7.5}'}'\"\n");
  unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  const auto begin = std::chrono::steady_clock::now();
  CHECK(place.run("r.jsonl") == kDone);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(30));
  CHECK(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS") != nullptr);
  CHECK_MESSAGE(place.text("out").find("g, other     7.500") != std::string::npos, place.text("out"),
                place.text("errors"));
  unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
}

TEST_CASE("another program gets a variable that its user has set, and none that the command has set for itself") {
  constexpr const char* kName = "NCCL_RUNTIME_CONNECT";
  const Place place;
  place.write(
      "devices = \"cpu:0\"\nthreads = 1\n[throughput]\nrepetitions = 1\nwindows = 1\nwindow = \"20ms\"\n"
      "[peer.other]\ncommand = \"echo '{\\\"img_s\\\": '${NCCL_RUNTIME_CONNECT:-7.5}'}'\"\n");
  const auto rate_of_other = [&](const char* results) {
    REQUIRE(place.run(results) == kDone);
    std::vector<TrialResult> trials = read_results(place.path(results)).trials;
    std::erase_if(trials, [](const TrialResult& trial) { return !trial.settings.contains("peer"); });
    REQUIRE(trials.size() == 1);
    return trials[0].images_per_second;
  };
  const char* const given = std::getenv(kName);
  const std::string before = given != nullptr ? given : "";
  setenv(kName, "3", 1);
  set_own_variable(kName, "4");
  CHECK(rate_of_other("given.jsonl") == 3);
  unsetenv(kName);
  set_own_variable(kName, "4");
  CHECK(std::string(std::getenv(kName)) == "4");
  CHECK(rate_of_other("own.jsonl") == 7.5);
  setenv(kName, before.c_str(), 1);
}

TEST_CASE("hardware queues are those of the whole file, whichever cells are asked for") {
  const Place place;
  place.write("devices = \"cpu:0\"\nlearners = [1, 9]\n[throughput]\n");
  const std::string id = expand(read_bench_file(place.path("b.toml"))).cells.front().id;
  unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  REQUIRE(place.run("r.jsonl", {"--dry-run", "--cell", id}) == kDone);
  const char* queues = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  REQUIRE(queues != nullptr);
  CHECK(std::string(queues) == "9");
  unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
}

TEST_CASE("a process whose end nobody can tell is no success") {
  const ChildEnd end = run_child("/bin/sh", {"-c", "cat; echo out; echo err >&2; exit 3"}, {});
  CHECK(end.status == 3);
  CHECK(end.signal == 0);
  CHECK(end.output == "out\n");
  CHECK(end.errors == "err\n");
  const auto before = std::signal(SIGCHLD, SIG_IGN);
  CHECK_THROWS_AS(run_child("/bin/true", {}, {}), RunError);
  std::signal(SIGCHLD, before);
  CHECK(run_child("/bin/true", {}, {}).status == 0);
}

TEST_CASE("a program that is gone ends the bench, and leaves no results of trials that it could not run") {
  const Place place;
  place.write("devices = \"cpu:0\"\nthreads = 1\n[throughput]\nrepetitions = 3\n");
  place.folder.write("arbalest", std::string("#!/usr/bin/env bash\nrm -- \"$0\"\necho why >&2\nexit 1\n"));
  CHECK(place.run("r.jsonl") == kFailed);
  CHECK(place.text("errors").find(place.program + ": the program is no longer there") != std::string::npos);
  const std::vector<TrialResult> results = read_results(place.path("r.jsonl")).trials;
  REQUIRE(results.size() == 1);
  CHECK(results[0].error == "why");
}

TEST_CASE("a crash is a result, and what ends a process from outside is none") {
  const Place place;
  place.write("devices = \"cpu:0\"\nthreads = 1\n[throughput]\nrepetitions = 1\n");
  const auto killed_by = [&](const char* signal) {
    place.folder.write("arbalest", std::string("#!/usr/bin/env bash\necho why >&2\nkill -") + signal + " $$\n");
    return place.run("r.jsonl");
  };
  CHECK(killed_by("KILL") == kFailed);
  CHECK(place.text("errors").find("repetition 1: was ended from outside (Killed); it runs again") != std::string::npos);
  CHECK(read_results(place.path("r.jsonl")).trials.empty());
  CHECK(killed_by("SEGV") == kFailed);
  const std::vector<TrialResult> results = read_results(place.path("r.jsonl")).trials;
  REQUIRE(results.size() == 1);
  CHECK(results[0].error == "crashed (Segmentation fault): why");
}

TEST_CASE("the logs of results without a usual name stand next to them, and checkpoints end with their trial") {
  const Place place;
  place.write(
      "devices = \"cpu:0\"\nthreads = 1\ntrain.epochs = 1\n[accuracy]\nseeds = [1]\ncheckpoint_every = \"1it\"\n"
      "targets = [0.01, 0.999]\n[accuracy.mllog]\nsubmission_org = \"A lab\"\n");
  REQUIRE(place.run("results") == kDone);
  const std::string key = read_results(place.path("results")).trials.at(0).key;
  CHECK(fs::exists(place.path("results.runs/" + key + "/log.jsonl")));
  CHECK_FALSE(fs::exists(place.path("results.runs/" + key + "/checkpoints")));
  const std::string mllog = read_text(place.path("results.runs/" + key + "/mllog.txt"));
  CHECK(mllog.find("\"key\":\"submission_org\",\"value\":\"A lab\"") != mllog.npos);
  CHECK(mllog.find("\"status\":\"aborted\"") != mllog.npos);  // the last target was not met
}

TEST_CASE("a trial is known by its hosts and by the content of its weights") {
  const Place place;
  place.folder.write("w.safetensors", std::string("one"));
  place.write("devices = \"cpu:0\"\nhosts = [1, 2]\nweights = \"w.safetensors\"\n[accuracy]\n");
  const BenchFile file = read_bench_file(place.path("b.toml"));
  const BenchCells cells = expand(file);
  const auto identity = [&](size_t cell) {
    return Identities("").of(cells.cells[cell], cell_words(file, cells.cells[cell], Measure::Accuracy));
  };
  const Identity one = identity(0), two = identity(1);
  CHECK(two.devices == one.devices + " × 2 hosts");
  CHECK(one.options == two.options);
  CHECK(one.devices.find(" cores)") != one.devices.npos);
  CHECK(one.options.find("w.safetensors") == one.options.npos);
  place.folder.write("w.safetensors", std::string("another"));
  CHECK(identity(0).options != one.options);
}

TEST_CASE("a script for SLURM is written with its folders, and what its elements leave is collected") {
  const Place place;
  place.write(
      "devices = \"cpu:0\"\nthreads = 1\nbatch = [8, 16]\n[throughput]\nrepetitions = 1\nwindows = 1\n"
      "window = \"20ms\"\n");
  REQUIRE(place.run("r.jsonl", {"--slurm", place.path("queue")}) == kDone);
  for (const char* option : {"--slurm", "--svg"}) {
    CHECK(place.run("r.jsonl", {option, place.path("g.onnxtxt/x")}) == kFailed);
    CHECK(place.text("errors").find("g.onnxtxt/x") != std::string::npos);
    CHECK(place.text("errors").find("the folder cannot be made: Not a directory") != std::string::npos);
  }
  CHECK(read_results(place.path("r.jsonl")).trials.empty());  // refused before anything was measured
  const std::string script = read_text(place.path("queue/b.sbatch"));
  CHECK(script.find("#SBATCH --array=\"0-1%4\"\n") != script.npos);
  const size_t at = script.find("cells=(\n  ") + 10;
  const std::string id = script.substr(at, 16);
  CHECK(place.run("r.jsonl", {"--collect", place.path("queue")}) == kFailed);  // nothing is there yet
  REQUIRE(place.run("queue/results/" + id + ".jsonl", {"--cell", id}) == kDone);
  const size_t before = read_text(place.path("r.jsonl")).size();
  CHECK(place.run("r.jsonl", {"--collect", place.path("queue"), "--svg", place.path("g.onnxtxt/x")}) == kFailed);
  CHECK(read_text(place.path("r.jsonl")).size() == before);  // refused before anything was taken over
  CHECK(place.run("r.jsonl", {"--collect", place.path("queue"), "--dry-run"}) == kDone);
  CHECK(place.text("out").find("2 cells, 1 trial to run") != std::string::npos);
  CHECK(read_text(place.path("r.jsonl")).size() == before);
  CHECK(place.run("r.jsonl", {"--collect", place.path("queue")}) == kFailed);
  CHECK(place.text("out").find("not measured yet") != std::string::npos);
  CHECK(read_results(place.path("r.jsonl")).trials.size() == 1);
  CHECK(place.run("r.jsonl", {"--collect", place.path("nowhere")}) == kWrong);
  CHECK(place.run("r.jsonl", {"--cell", "zz"}) == kWrong);
}

TEST_CASE("scripts for SLURM take the place of those of an earlier call") {
  const Place place;
  const auto scripts = [&] {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(place.path("queue"))) {
      if (entry.path().extension() == ".sbatch") names.insert(entry.path().filename().string());
    }
    return names;
  };
  const auto write = [&](const std::string& settings) {
    place.write(settings + "[throughput]\n");
    REQUIRE(place.run("r.jsonl", {"--slurm", place.path("queue")}) == kDone);
  };
  write("devices = [\"cuda:0\", \"cuda:0-1\"]\n");
  CHECK(scripts() == std::set<std::string>{"b-1x1.sbatch", "b-1x2.sbatch"});
  for (const char* other : {"b-1x3.sbatch", "b-long.sbatch", "bb.sbatch"}) {  // of other experiments
    place.folder.write(std::string("queue/") + other, std::string("#SBATCH --job-name=\"another\"\n"));
  }
  write("devices = \"cuda:0\"\n");
  CHECK(scripts() == std::set<std::string>{"b.sbatch", "b-1x3.sbatch", "b-long.sbatch", "bb.sbatch"});
  write("devices = [\"cuda:0\", \"cuda:0-1\"]\n");
  CHECK(scripts() ==
        std::set<std::string>{"b-1x1.sbatch", "b-1x2.sbatch", "b-1x3.sbatch", "b-long.sbatch", "bb.sbatch"});
}

TEST_CASE("a device that is not here is named once for all cells, and leaves no result") {
  const Place place;
  place.write(
      "devices = [\"cuda:63\", \"cpu:0\"]\nbatch = [8, 16]\nthreads = 1\n"
      "[throughput]\nrepetitions = 1\nwindows = 1\nwindow = \"20ms\"\n");
  REQUIRE(place.run("r.jsonl", {"--cell", "devices cpu:0"}) == kDone);
  const Words words = {"bench",  place.path("b.toml"), "--results", place.path("r.jsonl"),
                       "--cell", "devices cuda:63"};  // by this program
  CHECK(place.run(words) == kFailed);
  INFO(place.text("errors"));
  CHECK(place.text("errors") ==
        "arbalest: cuda:63 is not in this machine: not measured here: devices cuda:63, batch 8; devices cuda:63, "
        "batch 16\n");
  CHECK(place.text("out").find("not measured yet") != std::string::npos);
  CHECK(read_results(place.path("r.jsonl")).trials.size() == 2);
  Words dry = words;
  dry.emplace_back("--dry-run");
  CHECK(place.run(dry) == kDone);  // it may be meant for another machine
  CHECK(place.text("out").find("cuda:63 is not in this machine\n") != std::string::npos);
}

TEST_CASE("cells are asked for by parts of their names") {
  const Place place;
  place.write("batch = [8, 16]\nlearners = [1, 2]\ndevices = \"cpu:0\"\n[throughput]\nrepetitions = 1\n");
  const auto listed = [&](const char* asked) {
    REQUIRE(place.run("r.jsonl", {"--dry-run", "--cell", asked}) == kDone);
    return place.text("out");
  };
  CHECK(listed("batch 8").find("\n2 cells, ") != std::string::npos);
  CHECK(listed("learners 2").find("\n2 cells, ") != std::string::npos);
  CHECK(listed("learners 2, batch 8").find("\n1 cell, ") != std::string::npos);
  for (const char* wrong : {"batch 1", "atch 8", "batch 8, ", ""}) {
    CAPTURE(wrong);
    CHECK(place.run("r.jsonl", {"--dry-run", "--cell", wrong}) == kWrong);
  }
}

TEST_CASE("cells whose commands are the same have the results of the machines that measured them") {
  const Place place;
  place.write(
      "threads = 1\n[[together]]\nmachine = [\"two cheap\", \"one dear\"]\ndevices = [\"cpu:0\", \"cpu:0\"]\n"
      "price = [1.5, 2]\n[throughput]\nrepetitions = 1\nwindows = 1\nwindow = \"20ms\"\n"
      "[price]\ncurrency = \"EUR\"\nsource = \"here\"\ndate = 2026-01-01\nper_hour = \"price\"\n");
  for (const Words& more : {Words{}, Words{"--quote"}}) {  // this is one of the machines at most
    CHECK(place.run("r.jsonl", more) == kWrong);
    CHECK(place.text("errors") ==
          "arbalest: the cells are of 2 machines, and this is one of them; expected --cell 'machine one dear' or "
          "--cell 'machine two cheap'\n");
  }
  REQUIRE(place.run("here.jsonl", {"--cell", "machine two cheap"}) == kDone);
  REQUIRE(place.run("here.jsonl", {"--cell", "machine one dear", "--dry-run"}) == kDone);
  CHECK(place.text("out").find("1 cell, 1 trial to run") != std::string::npos);  // by the other machine
  const std::string cheap = "all/results/cheap.jsonl", dear = "all/results/dear.jsonl";
  REQUIRE(place.run(cheap, {"--cell", "machine two cheap"}) == kDone);
  CHECK(place.run("r.jsonl", {"--collect", place.path("all")}) == kFailed);
  CHECK(place.text("out").find("not measured yet") != std::string::npos);  // by the machine that it names
  REQUIRE(place.run(dear, {"--cell", "machine one dear"}) == kDone);
  const auto change = [&](const std::string& file, const std::string& devices, double rate) {
    std::vector<TrialResult> trials = read_results(place.path(file)).trials;
    REQUIRE(trials.size() == 1);
    if (!devices.empty()) trials[0].key = trials[0].identity.devices = devices;
    trials[0].images_per_second = rate;
    place.folder.write(file, line_of(trials[0]));
  };
  const auto check_collected = [&](const char* results) {
    REQUIRE(place.run(results, {"--collect", place.path("all")}) == kDone);
    const std::string out = place.text("out");
    INFO(out);
    CHECK(out.find("machine two cheap      1111") != out.npos);
    CHECK(out.find("machine one dear       2222") != out.npos);
  };
  change(cheap, "", 1111);  // both machines are alike
  change(dear, "", 2222);
  check_collected("alike.jsonl");
  change(cheap, "another", 1111);  // the answer is given on the dear machine
  check_collected("dear.jsonl");
  change(dear, "a third", 2222);  // and on neither
  check_collected("neither.jsonl");
}

TEST_CASE("bench scaling writes the file that it stands for, whose trials are its cells") {
  const Place place;
  const std::string graph = place.path("g.onnxtxt"), file = place.path("written.toml");
  const auto scaling = [&](Words more) {
    more.insert(more.begin(), {"bench", "scaling", graph, "--write", file});
    return place.run(more);
  };
  REQUIRE(scaling({"--devices",
                   "cpu:0-2",
                   "--device-counts",
                   "1,3",
                   "--learners",
                   "2,1",
                   "--batch",
                   "8",
                   "--strategy",
                   "local",
                   "--threads",
                   "1",
                   "--deterministic",
                   "--windows",
                   "3",
                   "--window-seconds",
                   "500ms",
                   "--set",
                   "train.lr=0.5",
                   "--set",
                   "train.schedule=cosine"}) == kDone);
  CHECK(place.text("out") == "arbalest bench " + file + "\n");
  const std::string text = read_text(file);
  CHECK(text.starts_with("[settings]\ngraph = \"" + graph + "\"\n"));
  CHECK(text.find("\nbatch = ") != std::string::npos);  // by which [peer] knows it
  const BenchFile read = read_bench_file(file);
  CHECK(read.throughput->windows == 3);
  CHECK(read.throughput->window_seconds == 0.5);
  CHECK(read.comparison->by == "devices");
  CHECK(read.comparison->against == "cpu:0");
  const BenchCells cells = expand(read);
  REQUIRE(cells.cells.size() == 4);
  const std::string words = fmt::format("{}", fmt::join(scaling_words(cells.cells[3].settings), " "));
  for (const char* part :
       {"--devices cpu:0,cpu:1,cpu:2", "--device-counts 3", "--learners 2", "--set prefetch.batch=8",
        "--strategy local", "--threads 1", "--deterministic", "--set train.lr=0.5", "--set train.schedule=cosine"}) {
    CHECK_MESSAGE((words + " ").find(std::string(part) + " ") != words.npos, words);
  }
  CHECK(scaling({}) == kWrong);
  CHECK(place.text("errors").find("is there already; expected the name of a new file") != std::string::npos);
  std::filesystem::remove(file);
  CHECK(scaling({"--seed", "2"}) == kWrong);
  CHECK(place.text("errors").find("a bench file has no setting for --seed") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(file));
  std::filesystem::create_directories(place.path("inner"));
  Words inner = {"bench", "scaling", graph, "--write", place.path("inner/w.toml"), "--devices", "cpu:0"};
  inner[2] = std::filesystem::path(graph).lexically_relative(std::filesystem::current_path()).string();
  REQUIRE(place.run(inner) == kDone);
  CHECK(read_text(place.path("inner/w.toml")).find("graph = \"../g.onnxtxt\"\n") != std::string::npos);
  CHECK(place.run({"bench", place.path("inner/w.toml"), "--dry-run", "--program", place.program}) == kDone);
}

TEST_CASE("bench compare ends with a status for scripts, and a page has the tables") {
  const Place place;
  place.folder.write(
      "b.toml",
      std::string("title = \"a </title><b> & c\"\n[settings]\ngraph = \"g.onnxtxt\"\ndevices = \"cpu:0\"\nthreads = 1\n"
                  "batch = [8, 16]\n[throughput]\nrepetitions = 1\nwindows = 1\nwindow = \"20ms\"\n"));
  REQUIRE(place.run("r.jsonl", {"-o", place.path("page.html"), "--svg", place.path("plots"), "--bundle",
                                place.path("b.tar")}) == kDone);
  const std::string page = read_text(place.path("page.html"));
  const std::string svg = read_text(place.path("plots/throughput-images-s.svg"));
  CHECK(svg.starts_with("<svg "));
  CHECK(read_text(place.path("b.tar")).find(svg) != std::string::npos);
  CHECK(page.find("\"file\":\"throughput-images-s.svg\"") != page.npos);
  place.folder.write("plots/throughput-images-s.svg", std::string("a letter"));
  CHECK(place.run("r.jsonl", {"--svg", place.path("plots")}) == kWrong);
  CHECK(page.find("\"title\":\"Throughput\"") != page.npos);
  CHECK(page.find("<title>a &lt;/title&gt;&lt;b&gt; &amp; c</title>") != page.npos);
  const std::string results = place.path("r.jsonl");
  const Redirected output(place.path("out")), errors(place.path("errors"), stderr);
  // A build that can never fail is no check; five repetitions can be judged.
  CHECK_THROWS_WITH_AS(
      parse({"bench", "compare", results.c_str(), results.c_str()}).run(),
      (results + ", " + results +
       ": no row has 5 repetitions on both sides, so that none can ever be worse; expected [throughput] repetitions or "
       "[accuracy] seeds of 5 or more")
          .c_str(),
      GraphError);
  std::string lines;
  for (TrialResult trial = read_results(results).trials.at(0); trial.repetition < 5; ++trial.repetition) {
    trial.key += "x";
    lines += line_of(trial);
  }
  const std::string enough = place.folder.write("enough.jsonl", lines).string();
  CHECK(parse({"bench", "compare", enough.c_str(), enough.c_str()}).run() == kDone);
  CHECK(parse({"bench", "compare", enough.c_str(), enough.c_str(), "--format", "csv"}).run() == kDone);
  std::fflush(stdout);
  CHECK(place.text("out").find("table,cell,quantity,before,before low,before high,after,") != std::string::npos);
  CHECK_THROWS_WITH_AS(parse({"bench", "compare", enough.c_str(), enough.c_str(), "--target", "0.9"}).run(),
                       ("--target 0.9: " + enough +
                        " has no training run that could meet it; expected results of a file with [accuracy]")
                           .c_str(),
                       GraphError);
  const std::string nothing = place.folder.write("n.jsonl", std::string()).string();
  CHECK_THROWS_AS(parse({"bench", "compare", results.c_str(), nothing.c_str()}).run(), GraphError);
  const std::string file = place.path("b.toml"), nowhere = place.path("nowhere.jsonl");
  CHECK_THROWS_AS(parse({"bench", "compare", results.c_str(), file.c_str()}).run(), GraphError);
  CHECK_THROWS_WITH_AS(parse({"bench", "compare", results.c_str(), nowhere.c_str()}).run(),
                       (nowhere + ": there is no such file").c_str(), GraphError);
  const std::string no_file = place.path("nowhere.toml");
  CHECK_THROWS_AS(parse({"bench", no_file.c_str()}).run(), GraphError);
  CHECK(fault({"bench", "compare", results.c_str()}).find("found 1 files, expected two") != std::string::npos);
  CHECK(fault({"bench"}).find("expected FILE.toml") != std::string::npos);
  CHECK(fault({"bench", "a.toml", "--gpu-memory", "80GiB"}).find("expected --dry-run or --quote with it") !=
        std::string::npos);
  CHECK(fault({"bench", "a.toml", "--format", "pdf"}).find("expected text, markdown or csv") != std::string::npos);
}

}  // namespace bench_command_test
