// SPDX-License-Identifier: Apache-2.0

// Sweeps on CPUs: trials are the runs that they would be alone, and a sweep that was ended goes on to the same answer.

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <pty.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "executor/plan/device_list.h"
#include "graph/file/graph_file.h"
#include "graph/file/onnx_file.h"
#include "ops/builtin_ops.h"
#include "tests/io/image_files.h"
#include "tests/tools/sweep/place.h"
#include "tools/sweep/leaderboard.h"
#include "tools/sweep/rate_search.h"
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

TEST_CASE("sweep: what settings do in a search is read where all trials have come to") {
  SweepRecord record;
  record.plan.title = "g";
  record.plan.halving = HalvingRule{.epochs = {1, 3}, .reduction = 2};
  record.plan.trials = {{{"a.x", "1"}, {"a.y", "1"}},
                        {{"a.x", "1"}, {"a.y", "2"}},
                        {{"a.x", "2"}, {"a.y", "1"}},
                        {{"a.x", "2"}, {"a.y", "2"}}};
  const auto add = [&](int trial, int rung, int64_t epochs, double value) {
    SweepResult result;
    result.job = {trial, rung, epochs};
    result.metric = "accuracy";
    result.epochs = epochs;
    if (value > 0) result.value = value;
    if (value == 0) result.error = "the loss is no longer finite";
    record.results.push_back(result);
  };
  add(0, 0, 1, 0.5);
  add(1, 0, 1, 0.25);
  add(2, 0, 1, 0.625);
  add(3, 0, 0, 0);
  add(0, 1, 3, 0.875);  // further than the others
  const std::vector<ResultTable> tables = tables_of(leaderboard_of(record), record);
  REQUIRE(tables.size() == 3);
  CHECK(tables[0].rows[0][3].text == "0.875");
  CHECK(tables[0].notes == std::vector<std::string>{"failed: trial 4; the loss is no longer finite",
                                                    "5 epochs were trained, of 12 that all trials would take"});
  CHECK(tables[1].title == "accuracy by a.x, all after epoch 1");
  CHECK(tables[1].rows[0][1].text == "0.375");
  CHECK(tables[1].rows[1][1].text == "0.625");
  record.plan.halving.reset();
  CHECK(tables_of(leaderboard_of(record), record)[1].rows[0][1].text == "0.5625");
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

TEST_CASE("sweep: --set may stand in another order when it goes on, but for one setting") {
  Place place;
  const auto swept = [&](std::vector<std::string> sets) {
    std::vector<std::string> words = {"--vary", "seed=1..2", "--iterations", "1", "--resume"};
    for (std::string& set : sets) words.insert(words.end(), {"--set", std::move(set)});
    return place.sweep(words);
  };
  REQUIRE(swept({"train.ema=0.9", "prefetch.batch=8", "train.lr=0.1", "train.lr=0.2"}) == 0);
  CHECK(swept({"train.lr=0.1", "prefetch.batch=8", "train.lr=0.2", "train.ema=0.9"}) == 0);
  CHECK(place.record().results.size() == 2);
  CHECK(swept({"train.ema=0.9", "prefetch.batch=8", "train.lr=0.2", "train.lr=0.1"}) == 2);
  CHECK_MESSAGE(place.fault.find("the orders of options that state one setting differ") != std::string::npos,
                place.fault);
  CHECK(swept({"train.ema=0.9", "prefetch.batch=8", "train.lr=0.2"}) == 2);
  CHECK_MESSAGE(place.fault.find("(there --set=train.lr=0.1, here none)") != std::string::npos, place.fault);
}

TEST_CASE("sweep: a trial that asha promotes trains on as if it had never stopped") {
  for (const std::string ema : {"train.ema=0", "train.ema=0.9"}) {
    CAPTURE(ema);
    Place place;
    CHECK(place.sweep({"--vary", "train.lr=0.003,0.03,0.01", "--search", "asha", "--epochs", "6", "--reduction", "3",
                       "--keep", "all", "--set", ema}) == 0);
    const SweepRecord record = place.record();
    const int best = ranked_trials(record).front();
    REQUIRE(last_result(record, best)->job.epochs == 6);
    const std::string alone = (place.folder / "alone.safetensors").string();
    std::vector<std::string> words = {"run",    place.graph, "--deterministic", "--epochs", "6",
                                      "--save", alone,       "--save-best",     alone,      "--set",
                                      ema,      "--set"};
    words.push_back("train.lr=" + record.plan.trials[size_t(best)][0].second);
    REQUIRE(place.run(words) == 0);
    CHECK(tensors(trial_model(place.out, best)) == tensors(alone));
    // A file of averaged weights is judged as it is.
    REQUIRE(place.run({"evaluate", place.graph, "--weights", trial_model(place.out, best), "--json"}) == 0);
    CHECK(place.json().at("accuracy").get<double>() ==
          doctest::Approx(*last_result(record, best)->value).epsilon(1e-6));
  }
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

TEST_CASE("sweep: --find-lr tries rates and says which") {
  Place place;
  CHECK(place.sweep({"--find-lr", "--iterations", "20", "--vary", "train.lr=1e-5,1e-3,0.05,1e30"}) == 0);
  const SweepRecord record = place.record();
  CHECK(record.plan.finds_rate);
  const std::string advice = rate_advice(record);
  CHECK_MESSAGE(advice.find("lowest at a rate of 0.05") != advice.npos, advice);
  CHECK(content(fs::path(place.out) / "rates.svg").find("<svg") != std::string::npos);
  for (int trial = 0; trial < 3; ++trial) CHECK(!fs::exists(trial_model(place.out, trial)));
  const Leaderboard board = leaderboard_of(record);
  CHECK(board.metric == "loss");
  CHECK(board.groups[0].settings[0].second == "0.05");
}

TEST_CASE("sweep: a rate at which the loss explodes does not make all others look alike") {
  SweepRecord record;
  const std::vector<std::pair<const char*, double>> tried = {{"1e-5", 2.3057}, {"1e-4", 2.30}, {"1e-3", 2.25},
                                                             {"0.01", 1.2},    {"0.1", 0.4},   {"0.4642", 756.63}};
  for (const auto& [rate, loss] : tried) {
    SweepResult result;
    result.job.trial = int(record.plan.trials.size());
    result.loss = loss;
    record.plan.trials.push_back({{"train.lr", rate}});
    record.results.push_back(result);
  }
  CHECK(rate_advice(record) == "the loss is lowest at a rate of 0.1: 0.4\n");
  CHECK(rate_plot(record).find("loss, at most 3.46") != std::string::npos);
}

TEST_CASE("sweep: --find-lr advises on each combination of other settings, over seeds") {
  Place place;
  CHECK(place.sweep({"--find-lr", "--iterations", "3", "--vary", "hidden.units=8,16", "--vary", "seed=1,2"}) == 0);
  const SweepRecord record = place.record();
  CHECK(record.plan.trials.size() == 64);
  const std::string advice = rate_advice(record);
  CHECK_MESSAGE(advice.find("hidden.units 8: the loss is lowest at a rate of ") == 0, advice);
  CHECK_MESSAGE(advice.find("\nhidden.units 16: the loss is lowest at a rate of ") != advice.npos, advice);
  CHECK(std::count(advice.begin(), advice.end(), '\n') == 2);
  CHECK(content(fs::path(place.out) / "rates.svg").find("hidden.units 16") != std::string::npos);
}

TEST_CASE("sweep: a trial that asha promotes and that fails at once keeps the epochs that it was trained for") {
  const Place place;
  SweepPlan plan;
  plan.words = {place.graph};
  plan.trials = {{{"seed", "1"}}};
  plan.halving = HalvingRule{.epochs = {2, 6}};
  SweepSurroundings around;
  around.folder = place.out;
  around.devices = parse_devices("cpu:0", [] { return std::vector<PlanDevice>(); });
  const TrialEnd first = run_trial(plan, {0, 0, 2}, 0, around);
  CHECK_MESSAGE(first.result.error.empty(), first.result.error);
  CHECK(first.result.epochs == 2);
  fs::remove_all(trial_checkpoints(place.out, 0));
  std::ofstream(trial_checkpoints(place.out, 0)) << "is in the way";
  const TrialEnd second = run_trial(plan, {0, 1, 6}, 0, around);
  CHECK(!second.result.error.empty());
  CHECK(second.result.epochs == 2);
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

TEST_CASE("sweep: the line on a terminal counts each trial once, however many rungs it has come to") {
  Place place;
  const std::string text = shown_on_terminal(place, {"--vary", "train.lr=log(1e-4,0.1)", "--samples", "4", "--search",
                                                     "asha", "--epochs", "4", "--reduction", "2"});
  CHECK(place.record().results.size() > 4);
  const std::string between = " of 4 trials ended";
  int found = 0, most = 0;
  for (size_t at = text.find(between); at != text.npos; at = text.find(between, at + 1)) {
    size_t from = at;
    while (from > 0 && text[from - 1] >= '0' && text[from - 1] <= '9') --from;
    most = std::max(most, std::stoi(text.substr(from, at - from)));
    ++found;
  }
  CHECK(found > 4);
  CHECK(most == 4);
}

TEST_CASE("sweep: lists vary as wholes") {
  Place place;
  std::string graph = kGraph;
  graph.replace(graph.find("schedule = \"cosine\""), 19, "schedule = \"multistep\"");
  std::ofstream(place.graph) << graph;
  CHECK_MESSAGE(place.sweep({"--vary", "train.milestones=[1,2],[2]", "--vary",
                             "loss.class_weights=[1,1,1,1,1,1,1,1,1,1],[9,1,1,1,1,1,1,1,1,1]", "--epochs", "3",
                             "--keep", "all"}) == 0,
                place.fault);
  CHECK(place.record().plan.trials.size() == 4);
  const std::string alone = (place.folder / "alone.safetensors").string();
  REQUIRE(place.run({"run", place.graph, "--deterministic", "--epochs", "3", "--save", alone, "--save-best", alone,
                     "--set", "train.milestones=[2]", "--set", "loss.class_weights=[9,1,1,1,1,1,1,1,1,1]"}) == 0);
  CHECK(tensors(trial_model(place.out, 3)) == tensors(alone));
  CHECK(tensors(trial_model(place.out, 1)) != tensors(alone));
  CHECK(tensors(trial_model(place.out, 2)) != tensors(alone));
}

TEST_CASE("sweep: the graph file says what varies, and the command line takes its place") {
  const auto trials = [](const std::string& metadata, const std::vector<std::string>& words) {
    Place place;
    std::string graph = kGraph;
    graph.insert(graph.find(">\n"), ", metadata_props: [\"author\": \"x\", " + metadata + "]");
    std::ofstream(place.graph) << graph;
    std::vector<std::string> all = words;
    all.emplace_back("--dry-run");
    if (place.sweep(all) != 0) return std::vector<std::string>{place.fault};
    std::vector<std::string> settings;
    for (const std::string& line : place.lines) {
      if (line.starts_with("  ")) settings.push_back(line.substr(line.find_first_not_of(" 0123456789")));
    }
    return settings;
  };
  const std::string both = "\"vary\": \"train.lr=0.1,0.2; seed=1..2\"";
  CHECK(trials(both, {}) == std::vector<std::string>{"train.lr 0.1, seed 1", "train.lr 0.1, seed 2",
                                                     "train.lr 0.2, seed 1", "train.lr 0.2, seed 2"});
  CHECK(trials("\"vary\": \"train.lr=0.1,0.2\", \"vary\": \"seed=1..2\"", {}) == trials(both, {}));
  CHECK(trials(both, {"--vary", "seed=7,8,9", "--vary", "hidden.units=8,16"}).size() == 12);
  CHECK(trials(both, {"--vary", "trained.lr=0.3,0.4"})[0] == "seed 1, trained.lr 0.3");  // another name of it
  CHECK(trials(both, {"--set", "trained.lr=0.5"}) == std::vector<std::string>{"seed 1", "seed 2"});
  CHECK(trials(both, {"--seed", "3"}) == std::vector<std::string>{"train.lr 0.1", "train.lr 0.2"});
  CHECK(trials(both, {"--find-lr"}).size() == 32);
  CHECK(trials("\"vary\": \"train.milestones=[1,2],[3]\"", {"--set", "train.schedule=multistep"}).size() == 2);
  const std::string wrong = trials("\"vary\": \"seed\"", {})[0];
  CHECK_MESSAGE(wrong.find("g.onnxtxt:1:") != wrong.npos, wrong);
  CHECK_MESSAGE(wrong.find("metadata \"vary\": --vary 'seed': expected NAME=VALUES") != wrong.npos, wrong);
  CHECK(trials("\"vary\": \"train.lr=[1\"", {})[0].find("expected a ']'") != std::string::npos);
  CHECK(trials("\"vary\": \"learnrs=1,2\"", {})[0].find("did you mean 'learners'?") != std::string::npos);
  // A binary model has it, too.
  Place place;
  const std::string model = (place.folder / "g.onnx").string();
  write_onnx(load_graph(place.graph, builtin_ops()), model, {.metadata = {{"vary", "train.lr=0.1,0.2; seed=1..2"}}});
  REQUIRE(place.run({"sweep", model, "--dry-run"}) == 0);
  CHECK(place.lines[0].starts_with("4 trials of g"));
  write_onnx(load_graph(place.graph, builtin_ops()), model, {.metadata = {{"vary", "seed"}}});
  CHECK(place.run({"sweep", model, "--dry-run"}) == 2);
  CHECK_MESSAGE(place.fault.starts_with(model + ": metadata \"vary\": --vary 'seed'"), place.fault);
}

// Photos of two kinds, and a graph that trains on them.
void write_photos(const Place& place) {
  for (const std::string split : {"train", "test"}) {
    for (int i = 0; i < 16; ++i) {
      TestImage image = test_image(24, 20, 3, 10, uint64_t(i));
      for (uint8_t& value : image.bytes) value = i % 2 == 0 ? uint8_t(128 + value / 2) : uint8_t(value / 2);
      place.folder.write(fmt::format("{}/{}/{}.png", split, i % 2 == 0 ? "bright" : "dark", i), encode_png(image));
    }
  }
  std::ofstream(place.graph) << fmt::format(
      "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\nphotos () => (float loss)\n{{\n"
      "image, label = arbalest.Prefetch <source = \"folder:{}\", batch = 8> ()\n"
      "pixels = arbalest.ResizeCrop <size = [8]> (image)\n"
      "x = arbalest.Augment <mean = [0.5], std = [0.25]> (pixels)\n"
      "logits = arbalest.Linear <units = 2> (x)\n"
      "loss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
      "trained = arbalest.Train <lr = 0.01, momentum = 0.9> (loss)\n"
      "report = arbalest.Validate <split = \"test\"> (trained, loss)\n}}\n",
      place.folder.string());
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

TEST_CASE("sweep: attributes of a function's call are told once each, and refused if no node takes them") {
  const auto refused = [](const std::vector<std::string>& words, const std::string& part) {
    Place place;
    std::string text = kGraph;
    const std::string layer = "arbalest.Linear <units = 32> (x)";
    text.replace(text.find(layer), layer.size(), "block.two <units = 32, unused = 1> (x)");
    std::ofstream(place.graph) << text << "<domain: \"block\", opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
                               << "two <units, unused> (x) => (y) {\n  a = arbalest.Linear <units = @units> (x)\n"
                               << "  y = arbalest.Linear <units = @units> (a)\n}\n";
    CHECK(place.sweep(words) == 2);
    CHECK_MESSAGE(place.fault.find(part) != place.fault.npos, place.fault);
    CHECK(!fs::exists(place.out));
  };
  refused({"--vary", "units=1,2"},
          "an attribute of the graph: hidden.units, hidden/a.units, logits.units, or an option");
  refused({"--vary", "unused=1,2"}, "expected NODE.ATTRIBUTE, or an option");
  refused({"--vary", "hidden.unused=1,2"},
          "--vary hidden.unused=1: no node of the call 'hidden' (block.two) takes its attribute 'unused'");
}

TEST_CASE("sweep: what cannot be is refused before anything is written") {
  const auto refused = [](const std::vector<std::string>& words, const std::string& part, int status = 2) {
    Place place;
    CHECK(place.sweep(words) == status);
    CHECK_MESSAGE(place.fault.find(part) != place.fault.npos, place.fault);
    CHECK(!fs::exists(place.out));
  };
  refused({"--vary", "learnrs=1,2"}, "did you mean 'learners'?");
  refused({"--vary", "lr=1,2"}, "expected NODE.ATTRIBUTE, or an attribute of the graph: train.lr, or an option");
  refused({"--vary", "train.rate=1,2"}, "has no attribute 'rate'");
  refused({"--vary", "epochs=1,two"}, "trial 2 (epochs two)");
  refused({"--vary", "learners=1,auto"}, "trial 2 (learners auto): --learners auto measures");
  refused({"--vary", "save=a,b"}, "trial-007/model.safetensors");
  refused({"--vary", "seed=1,2", "--samples", "2"}, "has 1 different combination besides seeds and folds");
  refused({"--vary", "seed=1,2", "--seed", "3"}, "not given already");
  refused({"--vary", "fold=1,2"}, "expected --folds K");
  refused({"--vary", "seed=1,2", "--until", "acuracy >= 0.8"}, "validation has no metric 'acuracy'");
  refused({"--vary", "seed=1,2", "--metric", "acc"}, "validation has no metric 'acc'");
  refused({"--vary", "seed=1,2", "--patience", "2", "--iterations", "3"}, "--patience needs a validation");
  refused({"--folds", "3", "--fold-by", "pateint"}, "by=pateint: expected a field");
  refused({"--vary", "hidden.units=8,0"}, "trial 2 (hidden.units 0)");
  refused({"--vary", "train.lr=-0.1,0.1"}, "trial 1 (train.lr -0.1)");
  refused({"--vary", "seed=1,2", "--devices", "cuda:99"}, "--devices cuda:99: is not there");
  refused({"--vary", "seed=1,2", "--set", "prefetch.source=\"mnist:nowhere\""}, "trial 1 (seed 1)", 1);
  refused({"--vary", "devices=cpu:0,cpu:1"}, "--vary devices");
  refused({"--vary", "train.lr=0.001,0.5", "--vary", "trained.lr=0.1"},
          "--vary train.lr and --vary trained.lr both change the attribute 'lr' of node 'trained'");
  refused({"--vary", "train.lr=1", "--set", "trained.lr=2"}, "--vary train.lr and --set trained.lr=2 both change");
  refused({"--find-lr", "--vary", "hidden.units=8,16", "--set", "hidden.units=4"},
          "--vary hidden.units and --set hidden.units=4 both change");
  refused({"--vary", "prefetch.source=glyphs:,shapes:", "--folds", "3"},
          "--vary prefetch.source and --folds both change");
  refused({"--vary", "batch=16,32"}, "an attribute of the graph: prefetch.batch");
  refused({"--vary", "epochs=1,2", "--search", "asha"}, "--vary epochs excludes it");
  refused({"--vary", "seed=1,2", "--search", "asha", "--epochs", "2", "--first-rung", "3"}, "rungs from epoch 3 to 2");
  refused({"--vary", "seed=1,2", "--search", "asha", "--epochs", "1"},
          "first after epoch 1, where their training ends");
  refused({}, "nothing varies");
  CHECK(fault({"sweep", "g.onnxtxt", "-o", "x", "--vary", "train.lr=1,2", "seed=1..3"})
            .find("unexpected argument 'seed=1..3'; each --vary takes one setting: --vary seed=1..3") !=
        std::string::npos);
  CHECK(fault({"sweep", "g.onnxtxt", "--vary", "seed=1,2"}).find("--output DIR is missing") != std::string::npos);
  const auto search = [](const char* how, const char* samples) {
    return fault({"sweep", "g.onnxtxt", "--vary", "seed=1,2", "-o", "x", "--search", how, "--samples", samples});
  };
  CHECK(search("grid", "1").find("--samples excludes it") != std::string::npos);
  CHECK(search("random", "0").find("needs --samples N") != std::string::npos);
  CHECK(search("best", "0").find("expected all, grid, random or asha") != std::string::npos);
  CHECK(search("ahsa", "0").find("did you mean 'asha'?") != std::string::npos);
  CHECK(fault({"sweep", "g.onnxtxt", "-o", "x", "--find-lr", "--search", "asha"})
            .find("--find-lr, which counts iterations, excludes it") != std::string::npos);
  CHECK(fault({"sweep", "g.onnxtxt", "--vary", "seed=1,2", "-o", "x", "--retry"}).find("--retry needs --resume") !=
        std::string::npos);
  CHECK(fault({"sweep", "g.onnxtxt", "--vary", "seed=1,2", "-o", "x", "--save", "y"}).find("--save:") !=
        std::string::npos);
  CHECK(fault({"sweep", "g.onnxtxt", "--vary", "seed=1,2", "-o", "x", "--keep", "some"}).find("--keep") !=
        std::string::npos);
}

}  // namespace sweep_test
