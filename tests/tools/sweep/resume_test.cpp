// SPDX-License-Identifier: Apache-2.0

// Sweeps that were ended, by a time limit or a kill, and trials that end by themselves.

#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include "tests/tools/sweep/place.h"
#include "tests/tools/world/ranks.h"
#include "tools/sweep/leaderboard.h"
#include "tools/sweep/trial_runs.h"

using namespace arbalest;

namespace sweep_test {
namespace {

const std::vector<std::string> kLong = {
    "--vary", "train.lr=0.003,0.03", "--vary", "seed=1..2", "--epochs", "150", "--keep", "all", "--at-once", "2"};

// The leaderboard of the sweep as it prints it, without paths.
std::string board_text(const Place& place) {
  const SweepRecord record = place.record();
  return print_tables(tables_of(leaderboard_of(record), record), TableFormat::Text);
}

void check_same(const Place& one, const Place& other) {
  CHECK(board_text(one) == board_text(other));
  CHECK(other.record().finished);
  for (int trial = 0; trial < int(one.record().plan.trials.size()); ++trial) {
    CHECK(tensors(trial_model(one.out, trial)) == tensors(trial_model(other.out, trial)));
    CHECK(!fs::exists(trial_checkpoints(other.out, trial)));
  }
}

// Whether a trial has been trained for a while. Its checkpoints go when it ends.
bool has_checkpoint(const std::string& folder) {
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, none)) {
    if (entry.path().filename().string().ends_with(".safetensors")) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("sweep: one that a time limit ended goes on to the same answer") {
  Place whole, limited;
  REQUIRE(whole.sweep(kLong) == 0);
  std::vector<std::string> words = kLong;
  words.insert(words.end(), {"--time-limit", "0.1s", "--resume"});
  int ended = 0, status = 0;
  while ((status = limited.sweep(words)) == 130 && ended < 1000) {
    ++ended;
    words[words.size() - 2] = std::to_string(ended + 1) + "s";  // so that a slow machine comes to the end
  }
  CHECK(status == 0);
  CHECK(ended > 0);
  check_same(whole, limited);
}

TEST_CASE("sweep: one that was killed in the midst of a trial goes on to the same answer") {
  Place whole, killed;
  REQUIRE(whole.sweep(kLong) == 0);
  test::Words words = {"sweep", killed.graph, "--deterministic", "-o", killed.out, "--checkpoint-every", "1ep"};
  words.insert(words.end(), kLong.begin(), kLong.end());
  {
    const test::Rank process(words, (killed.folder / "errors").string());
    while (!has_checkpoint(trial_checkpoints(killed.out, 0))) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }  // SIGKILL
  CHECK(killed.record().results.size() < 4);
  CHECK(!killed.record().finished);
  CHECK(has_checkpoint(trial_checkpoints(killed.out, 0)));
  words.emplace_back("--resume");
  test::Rank again(words, (killed.folder / "errors").string());
  CHECK(again.wait() == 0);
  check_same(whole, killed);
}

TEST_CASE("sweep: a trial that reaches --until ends alone") {
  Place place;
  CHECK(place.sweep({"--vary", "train.lr=1e-7,0.3", "--epochs", "12", "--until", "accuracy >= 0.3"}) == 0);
  const SweepRecord record = place.record();
  CHECK(last_result(record, 0)->end == "complete");
  CHECK(last_result(record, 0)->epochs == 12);
  CHECK(last_result(record, 1)->end == "until");
  CHECK(last_result(record, 1)->epochs < 12);
  CHECK(*last_result(record, 1)->value >= 0.3);
}

TEST_CASE("sweep: a trial that runs out of --patience ends alone") {
  Place place;
  CHECK(place.sweep({"--vary", "train.lr=1e-12,0.03", "--epochs", "6", "--patience", "2", "--metric", "loss"}) == 0);
  const SweepRecord record = place.record();
  CHECK(last_result(record, 0)->end == "patience");
  CHECK(last_result(record, 0)->epochs < 6);
  CHECK(last_result(record, 1)->end == "complete");
  CHECK(last_result(record, 1)->epochs == 6);
}

}  // namespace sweep_test
