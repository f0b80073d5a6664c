// SPDX-License-Identifier: Apache-2.0

// Sweeps on CPUs: trials are the runs that they would be alone, and the best models stay.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "executor/plan/device_list.h"
#include "tests/tools/sweep/place.h"
#include "tools/sweep/leaderboard.h"
#include "tools/sweep/trial_runs.h"

using namespace arbalest;
using namespace arbalest::test;

namespace sweep_test {

TEST_CASE("sweep: a trial's weights are those of its run alone, to the bit") {
  Place place;
  CHECK(place.sweep({"--vary", "train.lr=0.003,0.03", "--vary", "seed=1..2", "--epochs", "2", "--keep", "all",
                     "--at-once", "3"}) == 0);
  const SweepRecord record = place.record();
  CHECK(record.finished);
  CHECK(record.results.size() == 4);
  for (int trial = 0; trial < 4; ++trial) {
    const std::string alone = (place.folder / "alone.safetensors").string();
    REQUIRE(place.run({"run", place.graph, "--deterministic", "--epochs", "2", "--save", alone, "--save-best", alone,
                       "--set", trial < 2 ? "train.lr=0.003" : "train.lr=0.03", "--seed",
                       trial % 2 == 0 ? "1" : "2"}) == 0);
    CHECK(tensors(trial_model(place.out, trial)) == tensors(alone));
    CHECK(!fs::exists(trial_checkpoints(place.out, trial)));
  }
  const Leaderboard board = leaderboard_of(record);
  REQUIRE(board.groups.size() == 2);
  CHECK(board.groups[0].values.size() == 2);
  CHECK(board.metric == "accuracy");
  CHECK(*board.groups[0].mean >= *board.groups[1].mean);
  REQUIRE(board.groups[0].interval);
  CHECK(tables_of(board, record)[0].notes.at(0).starts_with("± is the interval"));
  SweepRecord interrupted = record;  // before anything was measured
  interrupted.results.clear();
  const std::vector<ResultTable> tables = tables_of(leaderboard_of(interrupted), interrupted);
  for (const std::string& note : tables.at(0).notes) CHECK(note.find("±") == note.npos);
}

TEST_CASE("sweep: what diverges ends alone") {
  Place place;
  CHECK(place.sweep({"--vary", "train.lr=0.003,1e30", "--epochs", "1"}) == 1);
  const SweepRecord record = place.record();
  CHECK(last_result(record, 0)->error.empty());
  CHECK(last_result(record, 1)->error.find("no longer finite") != std::string::npos);
  CHECK(leaderboard_of(record).failed == 1);
  CHECK(fs::exists(trial_model(place.out, 0)));
  Place all;
  CHECK(all.sweep({"--vary", "train.lr=1e30,2e30", "--epochs", "1"}) == 1);
}

TEST_CASE("sweep: of the models the best ones stay") {
  Place place;
  CHECK(place.sweep({"--vary", "train.lr=1e-6,0.003,0.03", "--epochs", "2", "--keep", "2"}) == 0);
  const std::vector<int> ranked = ranked_trials(place.record());
  CHECK(fs::exists(trial_model(place.out, ranked[0])));
  CHECK(place.lines.back() == fmt::format("best models: {}/trial-{{{:03},{:03}}}/model.safetensors", place.out,
                                          ranked[0] + 1, ranked[1] + 1));
  int models = 0;
  for (int trial = 0; trial < 3; ++trial) models += fs::exists(trial_model(place.out, trial));
  CHECK(models == 2);
}

TEST_CASE("sweep: the model that is kept is that of the epoch which ranks it") {
  Place place;
  CHECK(place.sweep({"--vary", "train.lr=0.003,0.2,0.5", "--set", "train.schedule=\"constant\"", "--epochs", "5",
                     "--folds", "2", "--keep", "all"}) == 0);
  const SweepRecord record = place.record();
  int earlier = 0;
  for (int trial = 0; trial < 6; ++trial) {
    const SweepResult& result = *last_result(record, trial);
    earlier += result.epoch < result.epochs;
    REQUIRE(place.run({"evaluate", place.graph, "--weights", trial_model(place.out, trial), "--json"}) == 0);
    CHECK(place.json().at("accuracy").get<double>() == doctest::Approx(*result.value).epsilon(1e-6));
  }
  CHECK(earlier > 0);  // otherwise the last epoch's would do
  // The lines of all folds' predictions name each sample once, by its place in the data.
  std::set<std::string> seen;
  for (int trial = 0; trial < 2; ++trial) {
    REQUIRE(place.run({"predict", place.graph, "--weights", trial_model(place.out, trial), "--format", "csv"}) == 0);
    for (size_t line = 1; line < place.lines.size(); ++line) {
      CHECK(seen.insert(place.lines[line].substr(0, place.lines[line].find(','))).second);
    }
  }
  CHECK(seen.size() == 192);
  CHECK(seen.contains("191"));
  // Means of models of several folds are measured on what some of them were trained on.
  const std::string mean = (place.folder / "mean.safetensors").string();
  std::vector<std::string> words = {"average", place.graph, trial_model(place.out, 0), trial_model(place.out, 1),
                                    "-o",      mean};
  CHECK(place.run(words) == 0);
  words.emplace_back("--greedy");
  CHECK(place.run(words) == 2);
  CHECK_MESSAGE(place.fault.find("fold=1, folds=2 and") != place.fault.npos, place.fault);
  CHECK_MESSAGE(place.fault.find("folds=2: models") != place.fault.npos, place.fault);
  words[3] = trial_model(place.out, 2);  // of the same fold
  CHECK(place.run(words) == 0);
}

TEST_CASE("sweep: without a validation the last model is kept") {
  Place cut;
  CHECK(cut.sweep({"--vary", "seed=1..2", "--iterations", "3", "--keep", "all"}) == 0);  // an epoch has 12
  CHECK(fs::exists(trial_model(cut.out, 0)));
  CHECK(fs::exists(trial_model(cut.out, 1)));
  Place place;
  std::string graph = kGraph;
  graph.erase(graph.find("  report = "));
  std::ofstream(place.graph) << graph << "}\n";
  CHECK(place.sweep({"--vary", "seed=1..2", "--epochs", "2"}) == 0);
  CHECK(leaderboard_of(place.record()).metric == "loss");
  const int best = ranked_trials(place.record()).front();
  CHECK(fs::exists(trial_model(place.out, best)));
  CHECK_FALSE(fs::exists(trial_model(place.out, 1 - best)));
}

TEST_CASE("sweep: a changed graph is refused, and so are other weights") {
  Place place;
  const std::string weights = (place.folder / "w.safetensors").string();
  REQUIRE(place.run({"run", place.graph, "--epochs", "1", "--save", weights}) == 0);
  const std::vector<std::string> words = {"--vary", "seed=1..2", "--epochs", "1", "--weights", weights, "--resume"};
  CHECK(place.sweep(words) == 0);
  std::string graph = kGraph;
  std::ofstream(place.graph) << "# a comment changes nothing\n" << graph;
  CHECK(place.sweep(words) == 0);
  std::ofstream(place.graph) << graph.replace(graph.find("lr = 0.01"), 9, "lr = 0.02");
  CHECK(place.sweep(words) == 2);
  CHECK_MESSAGE(place.fault.find("another content of '" + place.graph + "'") != place.fault.npos, place.fault);
  std::ofstream(place.graph) << kGraph;
  REQUIRE(place.run({"run", place.graph, "--epochs", "2", "--save", weights}) == 0);
  CHECK(place.sweep(words) == 2);
  CHECK_MESSAGE(place.fault.find("another content of '" + weights + "'") != place.fault.npos, place.fault);
}

TEST_CASE("sweep: a trial that has come to its end lacks no checkpoint of it") {
  const Place place;
  SweepPlan plan;
  plan.words = {place.graph, "--deterministic", "--epochs=1"};
  plan.trials = {{{"seed", "1"}}};
  SweepSurroundings around;
  around.folder = place.out;
  around.devices = parse_devices("cpu:0", [] { return std::vector<PlanDevice>(); });
  const fs::path checkpoints = trial_checkpoints(place.out, 0);
  around.progress = [&](const SweepResult&) {
    fs::remove_all(checkpoints);
    std::ofstream(checkpoints) << "is in the way";
  };
  const TrialEnd end = run_trial(plan, {0, 0, 0}, 0, around);
  CHECK_MESSAGE(end.result.error.empty(), end.result.error);
  CHECK(end.result.end == "complete");
  CHECK(end.end.score);
  CHECK(fs::is_regular_file(checkpoints));  // so that none was written
}

TEST_CASE("sweep: the leaderboard has the epochs of a trial that failed") {
  SweepRecord record;
  record.plan.title = "g";
  for (const char* rate : {"0.1", "0.2"}) record.plan.trials.push_back({{"train.lr", rate}});
  for (const int trial : {0, 1}) {
    SweepResult result;
    result.job.trial = trial;
    result.metric = "accuracy";
    result.value = 0.5;
    result.epochs = trial == 0 ? 4 : 1;
    if (trial == 1) result.error = "the loss is no longer finite";
    record.results.push_back(result);
  }
  const Leaderboard board = leaderboard_of(record);
  CHECK(board.groups[0].epochs == 4);
  CHECK(board.groups[1].epochs == 1);
  CHECK(tables_of(board, record)[0].rows[1].back().text == "1");
}

TEST_CASE("sweep: what fails in some trials ranks below what does not") {
  SweepRecord record;
  record.plan.title = "g";
  for (const char* rate : {"0.1", "0.2"}) {
    for (const char* seed : {"1", "2"}) record.plan.trials.push_back({{"train.lr", rate}, {"seed", seed}});
  }
  for (const double value : {0.9, 0.0, 0.5, 0.4}) {
    SweepResult result;
    result.job.trial = int(record.results.size());
    result.metric = "accuracy";
    if (value > 0) result.value = value;
    if (value == 0) result.error = "the loss is no longer finite";
    record.results.push_back(result);
  }
  const Leaderboard board = leaderboard_of(record);
  CHECK(board.groups[0].settings[0].second == "0.2");
  CHECK(board.groups[1].failed == 1);
  CHECK(ranked_trials(record).front() == 0);
}

TEST_CASE("sweep: the mean of the models that it has kept, by its folder's name") {
  Place place;
  const std::string soup = (place.folder / "soup.safetensors").string();
  REQUIRE(place.sweep({"--vary", "train.lr=0.001,0.003,0.01", "--epochs", "1", "--keep", "2"}) == 0);
  REQUIRE(place.run({"average", place.graph, place.out, "-o", soup}) == 0);
  REQUIRE(place.lines.size() >= 3);
  const auto from_best = ranked_trials(place.record());
  const size_t first = place.lines.size() - 3;
  CHECK(place.lines[first].starts_with(trial_model(place.out, from_best[0])));
  CHECK(place.lines[first + 1].starts_with(trial_model(place.out, from_best[1])));
  CHECK(place.lines[first + 2].starts_with("mean of 2"));
  fs::remove(trial_model(place.out, from_best[1]));
  CHECK(place.run({"average", place.graph, place.out, "-o", soup}) == 2);
  CHECK(place.fault.find("found 1; the sweep in " + place.out + " has kept 1: --keep N") != std::string::npos);
}

TEST_CASE("sweep: folds are trials of their own, and one row") {
  Place place;
  CHECK(place.sweep({"--folds", "3", "--epochs", "1"}) == 0);
  const Leaderboard board = leaderboard_of(place.record());
  REQUIRE(board.groups.size() == 1);
  CHECK(board.groups[0].values.size() == 3);
  std::set<std::string> sources;
  for (int trial = 0; trial < 3; ++trial) {
    std::ifstream log(fs::path(trial_folder(place.out, trial)) / "log.jsonl");
    int validations = 0;
    for (std::string line; std::getline(log, line);) {
      const auto event = nlohmann::json::parse(line);
      if (event["event"] == "start") sources.insert(event.at("command").dump());
      if (event["event"] != "validation") continue;
      ++validations;
      CHECK(event["samples"] == 64);
    }
    CHECK(validations == 1);
  }
  CHECK(sources.size() == 3);
}

TEST_CASE("sweep: a time limit ends it") {
  Place place;
  CHECK(place.sweep({"--vary", "seed=1..3", "--epochs", "1000000", "--time-limit", "2s"}) == 130);
  CHECK(place.record().results.empty());
  CHECK(fs::exists(trial_checkpoints(place.out, 0)));
}

TEST_CASE("sweep: trials that share kept samples train as they would alone") {
  Place place;
  CHECK(place.sweep({"--set", "prefetch.cache=\"device\"", "--vary", "train.lr=0.003,0.03", "--epochs", "1", "--keep",
                     "all", "--at-once", "2"}) == 0);
  for (int trial = 0; trial < 2; ++trial) {
    const std::string alone = (place.folder / "alone.safetensors").string();
    REQUIRE(place.run({"run", place.graph, "--deterministic", "--epochs", "1", "--save", alone, "--set",
                       trial == 0 ? "train.lr=0.003" : "train.lr=0.03"}) == 0);
    CHECK(tensors(trial_model(place.out, trial)) == tensors(alone));
  }
}

TEST_CASE("sweep: each fold keeps its own samples, one after the other") {
  const std::vector<std::string> words = {"--folds", "8", "--epochs", "1", "--keep", "all", "--at-once", "1"};
  Place read, kept;
  std::vector<std::string> keeping = words;
  keeping.insert(keeping.end(), {"--set", "prefetch.cache=\"device\""});
  CHECK(read.sweep(words) == 0);
  CHECK(kept.sweep(keeping) == 0);
  for (int trial = 0; trial < 8; ++trial) {
    CHECK(tensors(trial_model(read.out, trial)) == tensors(trial_model(kept.out, trial)));
  }
}

TEST_CASE("sweep: trials that prepare the same photos do so once, and train as they would alone") {
  Place place;
  write_photos(place);
  const auto kept = [&](std::vector<std::string> words) {
    fs::remove_all(place.out);
    words.insert(words.end(), {"--epochs", "2", "--keep", "all"});
    CHECK_MESSAGE(place.sweep(words) == 0, place.fault);
    std::string told;
    for (const std::string& line : place.lines) {
      if (line.find("prepared once for all trials") != line.npos) told = line.substr(line.rfind(':') + 2);
    }
    return told;
  };
  const std::vector<std::string> rates = {"--vary", "train.lr=0.01,0.1", "--at-once", "2"};
  CHECK(kept(rates) == "6.0 KiB");  // 32 photos of 192 bytes
  CHECK(content(trial_model(place.out, 0)).find("prefetch.cache=host") != std::string::npos);
  for (int trial = 0; trial < 2; ++trial) {
    const std::string alone = (place.folder / "alone.safetensors").string();
    REQUIRE(place.run({"run", place.graph, "--deterministic", "--epochs", "2", "--save", alone, "--save-best", alone,
                       "--set", trial == 0 ? "train.lr=0.01" : "train.lr=0.1"}) == 0);
    CHECK(tensors(trial_model(place.out, trial)) == tensors(alone));
  }
  std::vector<std::string> again = rates;
  again.insert(again.end(), {"--epochs", "2", "--keep", "all", "--resume"});
  CHECK(place.sweep(again) == 0);                                // the same sweep, whether there is memory or not
  CHECK(kept({"--folds", "2", "--at-once", "2"}) == "6.0 KiB");  // two sets of 16
  CHECK(kept({"--vary", "pixels.size=4,8", "--at-once", "2"}) == "7.5 KiB");
  CHECK(kept({"--vary", "train.lr=0.01,0.1", "--at-once", "2", "--set", "prefetch.cache=none"}).empty());
  CHECK(kept({"--vary", "prefetch.cache=none,host", "--at-once", "2"}).empty());
  CHECK(kept({"--vary", "train.lr=0.01,0.1", "--at-once", "1"}).empty());
  CHECK(kept({"--vary", "train.lr=0.01,0.1", "--at-once", "2", "--set", "pixels.random=1"}).empty());
  Place drawn;  // that host nodes prepare nothing of
  CHECK(drawn.sweep({"--vary", "seed=1,2", "--epochs", "1", "--at-once", "2"}) == 0);
  for (const std::string& line : drawn.lines) CHECK(line.find("prepared once") == line.npos);
}

}  // namespace sweep_test
