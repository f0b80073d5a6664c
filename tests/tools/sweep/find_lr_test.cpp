// SPDX-License-Identifier: Apache-2.0

// --find-lr: rates that are tried at once, and the advice.

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/tools/sweep/place.h"
#include "tools/sweep/leaderboard.h"
#include "tools/sweep/rate_search.h"
#include "tools/sweep/trial_runs.h"

using namespace arbalest;
using namespace arbalest::test;

namespace sweep_test {

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

}  // namespace sweep_test
