// SPDX-License-Identifier: Apache-2.0

// Sweeps that search: trials train on from rung to rung as if they had never stopped, and are counted once.

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "executor/plan/device_list.h"
#include "tests/tools/sweep/place.h"
#include "tools/sweep/leaderboard.h"
#include "tools/sweep/trial_runs.h"

using namespace arbalest;
using namespace arbalest::test;

namespace sweep_test {

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

TEST_CASE("sweep: a search says how many folds of a setting its mean is of") {
  SweepRecord record;
  record.plan.title = "g";
  record.plan.halving = HalvingRule{.epochs = {1, 3}, .reduction = 2};
  record.plan.trials = {{{"a.x", "1"}, {"fold", "1"}},
                        {{"a.x", "1"}, {"fold", "2"}},
                        {{"a.x", "2"}, {"fold", "1"}},
                        {{"a.x", "2"}, {"fold", "2"}}};
  const auto add = [&](int trial, int rung, int64_t epochs, double value) {
    SweepResult result;
    result.job = {trial, rung, epochs};
    result.metric = "accuracy";
    result.value = value;
    result.epoch = result.epochs = epochs;
    record.results.push_back(result);
  };
  for (int trial = 0; trial < 4; ++trial) add(trial, 0, 1, 0.1 * trial);
  add(3, 1, 3, 0.9);
  const std::vector<ResultTable> tables = tables_of(leaderboard_of(record), record);
  REQUIRE(tables.at(0).rows.size() == 2);
  const auto trials_of = [&](size_t row) { return tables[0].rows[row].at(3).text; };
  CHECK(trials_of(0) == "2 (1 to epoch 3)");
  CHECK(trials_of(1) == "2");
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

}  // namespace sweep_test
