// SPDX-License-Identifier: Apache-2.0

// Cross-validation: whole groups of folds are ranked and kept, and predict what they have not seen.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "base/files/output_lock.h"
#include "base/process.h"
#include "tests/tools/sweep/place.h"
#include "tools/sweep/leaderboard.h"
#include "tools/sweep/trial_runs.h"
#include "tools/watch/event_stream.h"

using namespace arbalest;

namespace sweep_test {
namespace {

// The fields of a line of CSV without quotes.
std::vector<std::string> fields(const std::string& line) {
  std::vector<std::string> all;
  std::istringstream text(line);
  for (std::string field; std::getline(text, field, ',');) all.push_back(field);
  return all;
}

std::vector<std::vector<std::string>> table(const Place& place) {
  std::vector<std::vector<std::string>> rows;
  std::ifstream file(fs::path(place.out) / "predictions.csv");
  for (std::string line; std::getline(file, line);) rows.push_back(fields(line));
  return rows;
}

std::set<int> kept_models(const Place& place) {
  std::set<int> kept;
  for (int trial = 0; trial < int(place.record().plan.trials.size()); ++trial) {
    if (fs::exists(trial_model(place.out, trial))) kept.insert(trial);
  }
  return kept;
}

bool says(const Place& place, const std::string& part) {
  return std::any_of(place.lines.begin(), place.lines.end(),
                     [&](const std::string& line) { return line.find(part) != line.npos; });
}

SweepRecord record_of(const std::vector<std::vector<double>>& by_group) {
  SweepRecord record;
  record.plan.title = "g";
  record.plan.fold = "prefetch.source=glyphs:?folds=2&fold=";
  for (size_t group = 0; group < by_group.size(); ++group) {
    for (size_t fold = 0; fold < by_group[group].size(); ++fold) {
      SweepResult result;
      result.job.trial = int(record.plan.trials.size());
      result.metric = "accuracy";
      result.value = by_group[group][fold];
      if (*result.value < 0) result.error = "the loss is no longer finite";
      record.plan.trials.push_back({{"train.lr", std::to_string(group)}, {"fold", std::to_string(fold + 1)}});
      record.results.push_back(result);
    }
  }
  return record;
}

}  // namespace

TEST_CASE("folds: groups are ranked by their means, and each mean has its deviation") {
  // The luckiest fold is of the worst group.
  const SweepRecord record = record_of({{0.99, 0.11}, {0.7, 0.8}, {-1, 0.98}});
  const Leaderboard board = leaderboard_of(record);
  CHECK(board.groups[0].trials == std::vector<int>{2, 3});
  CHECK_FALSE(board.groups[0].interval);
  REQUIRE(board.groups[0].deviation);
  CHECK(*board.groups[0].deviation == doctest::Approx(std::sqrt(0.005)));
  const ResultTable shown = tables_of(board, record)[0];
  CHECK(shown.rows[0][2].text == "0.75 ± 0.071");
  CHECK(shown.notes[0].find("standard deviation") != std::string::npos);
  // A group of which a fold failed may still become better, and is not ranked.
  const auto whole = ranked_whole_groups(board, record);
  REQUIRE(whole.size() == 2);
  CHECK(whole[0]->trials.front() == 2);
  CHECK(whole[1]->trials.front() == 0);
  SweepRecord under_way = record;
  under_way.results.erase(under_way.results.begin() + 3);
  CHECK(ranked_whole_groups(leaderboard_of(under_way), under_way).size() == 1);
}

TEST_CASE("folds: the models of all folds of the best settings stay, and predict each sample once") {
  Place place;
  REQUIRE(place.sweep({"--vary", "train.lr=1e-6,0.3,1e-5", "--folds", "3", "--epochs", "3"}) == 0);
  const Leaderboard board = leaderboard_of(place.record());
  const std::vector<int>& best = board.groups[0].trials;
  CHECK(best == std::vector<int>{3, 4, 5});
  CHECK(kept_models(place) == std::set<int>(best.begin(), best.end()));
  CHECK(says(place, "best models: " + place.out + "/trial-{004,005,006}/model.safetensors"));
  CHECK(says(place, place.out + "/predictions.csv"));

  const auto rows = table(place);
  REQUIRE(rows.size() == 193);
  REQUIRE(rows[0].size() == 14);
  CHECK(rows[0][0] == "fold");
  CHECK(rows[0][1] == "sample");
  CHECK(rows[0][2] == "label");
  CHECK(rows[0][3] == "class");
  CHECK(rows[0][4] == "probability_0");
  std::set<std::string> samples;
  std::map<std::string, std::pair<int, int>> right;  // and all, by fold
  for (size_t row = 1; row < rows.size(); ++row) {
    CHECK(samples.insert(rows[row][1]).second);
    auto& [correct, all] = right[rows[row][0]];
    correct += rows[row][2] == rows[row][3];
    ++all;
    double sum = 0, most = 0;
    size_t at = 0;
    for (size_t c = 4; c < 14; ++c) {
      const double probability = std::stod(rows[row][c]);
      sum += probability;
      if (probability > most) at = c;
      most = std::max(most, probability);
    }
    CHECK(sum == doctest::Approx(1).epsilon(1e-4));
    CHECK(rows[0][at] == "probability_" + rows[row][3]);
  }
  CHECK(samples.contains("191"));
  // Each part of the table is what its fold was judged by.
  REQUIRE(right.size() == 3);
  for (size_t fold = 0; fold < 3; ++fold) {
    const auto& [correct, all] = right.at(std::to_string(fold + 1));
    CHECK(double(correct) / all == doctest::Approx(board.groups[0].values[fold]).epsilon(1e-6));
  }

  // A sweep that is over tells the same once more; without a model it cannot, and says so.
  const std::string before = content(fs::path(place.out) / "predictions.csv");
  std::vector<std::string> again = {"--vary", "train.lr=1e-6,0.3,1e-5", "--folds", "3", "--epochs", "3", "--resume"};
  CHECK(place.sweep(again) == 0);
  CHECK(content(fs::path(place.out) / "predictions.csv") == before);
  fs::remove(trial_model(place.out, 4));
  {
    const Redirected errors((place.folder / "errors").string(), stderr);
    CHECK(place.sweep(again) == 0);
    const auto told = errors.lines();
    REQUIRE(!told.empty());
    CHECK_MESSAGE(told.back().find("expected the model of trial 5") != std::string::npos, told.back());
  }
}

TEST_CASE("folds: --keep counts settings, and seeds repeat each fold") {
  Place place;
  REQUIRE(place.sweep({"--vary", "train.lr=1e-6,0.3,0.1", "--vary", "seed=1,2", "--folds", "2", "--epochs", "1",
                       "--keep", "2"}) == 0);
  const Leaderboard board = leaderboard_of(place.record());
  std::set<int> expected;
  for (const size_t group : {0, 1})
    expected.insert(board.groups[group].trials.begin(), board.groups[group].trials.end());
  CHECK(expected.size() == 8);
  CHECK(kept_models(place) == expected);
  const auto rows = table(place);
  REQUIRE(rows.size() == 2 * 192 + 1);
  CHECK(rows[0][0] == "seed");
  CHECK(rows[0][1] == "fold");
  std::set<std::string> lines;
  for (const auto& row : rows) lines.insert(row[0] + " " + row[2]);
  CHECK(lines.size() == rows.size());
  Place none;
  REQUIRE(none.sweep({"--folds", "2", "--epochs", "1", "--keep", "0"}) == 0);
  CHECK(table(none).size() == 193);
  CHECK(kept_models(none).empty());
}

TEST_CASE("folds: numbers are predicted next to those that they should be") {
  Place place;
  std::string graph = kGraph;
  graph.replace(graph.find("  loss = "), graph.find("  trained = ") - graph.find("  loss = "),
                "  digit = Cast <to = 1> (label)\n"
                "  one = Constant <value = int64[1] {1}> ()\n"
                "  target = Unsqueeze (digit, one)\n"
                "  loss = arbalest.MeanSquaredError (logits, target)\n");
  graph.replace(graph.find("units = 10"), 10, "units = 1");
  graph.replace(graph.find("accuracy, loss"), 14, "loss");
  std::ofstream(place.graph) << graph;
  REQUIRE_MESSAGE(place.sweep({"--folds", "2", "--epochs", "1"}) == 0, place.fault);
  const auto rows = table(place);
  REQUIRE(rows.size() == 193);
  CHECK(rows[0] == std::vector<std::string>{"fold", "sample", "logits_0", "target_0"});
  std::map<std::string, std::pair<double, int>> errors;
  for (size_t row = 1; row < rows.size(); ++row) {
    auto& [sum, all] = errors[rows[row][0]];
    sum += std::pow(std::stod(rows[row][2]) - std::stod(rows[row][3]), 2);
    ++all;
  }
  const Leaderboard board = leaderboard_of(place.record());
  for (size_t fold = 0; fold < 2; ++fold) {
    const auto& [sum, all] = errors.at(std::to_string(fold + 1));
    CHECK(sum / all == doctest::Approx(board.groups[0].values[fold]).epsilon(1e-4));
  }
}

TEST_CASE("folds: a search trains all folds of the best settings to the end, and writes their predictions") {
  Place place;
  REQUIRE(place.sweep({"--folds", "3", "--vary", "train.lr=0.03,1e-6", "--search", "asha", "--epochs", "3"}) == 0);
  CHECK(fs::exists(fs::path(place.out) / "predictions.csv"));
  const Leaderboard board = leaderboard_of(place.record());
  REQUIRE(board.groups.size() == 2);
  for (const size_t place_of : {size_t{0}, size_t{1}}) {
    for (const size_t result : board.groups[place_of].results) {
      CHECK(place.record().results[result].epochs == (place_of == 0 ? 3 : 1));
    }
  }
}

TEST_CASE("folds: that there are no predictions is said before another sweep may begin") {
  Place place;
  static std::string log, told;
  static bool locked;
  log = sweep_log_path(place.out);
  const MessageHandler before = set_warning_handler([](const std::string& message) {
    if (message.find("ended in every fold") == std::string::npos) return;
    told = message;
    locked = false;
    try {
      const EventStream of_another(log, "log");
    } catch (const OutputInUse&) {
      locked = true;
    }
  });
  const int status = place.sweep({"--folds", "2", "--set", "train.lr=1e30", "--epochs", "1"});
  set_warning_handler(before);
  CHECK(status == 1);
  CHECK_FALSE(fs::exists(fs::path(place.out) / "predictions.csv"));
  CHECK_MESSAGE(told.find("no predictions of samples that a model has not seen") != std::string::npos, told);
  CHECK(locked);
  const EventStream of_another(log, "log");  // the sweep has ended
}

}  // namespace sweep_test
