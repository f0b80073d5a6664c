// SPDX-License-Identifier: Apache-2.0

// A sweep tells of its trials: warnings, lengths, what they are ranked by, what settings do.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "base/process.h"
#include "tests/tools/sweep/place.h"
#include "tools/sweep/leaderboard.h"
#include "tools/sweep/trial_runs.h"
#include "tools/sweep/trial_warnings.h"

using namespace arbalest;
using namespace arbalest::test;

namespace sweep_test {
namespace {

std::vector<std::string> warned;

// Warnings of the process are noted in `warned`.
struct Noted {
  const MessageHandler before = set_warning_handler([](const std::string& message) { warned.push_back(message); });
  Noted() { warned.clear(); }
  ~Noted() { set_warning_handler(before); }
};

bool has_line(const Place& place, const std::string& part) {
  return std::any_of(place.lines.begin(), place.lines.end(),
                     [&](const std::string& line) { return line.find(part) != line.npos; });
}

bool has_warning(const std::string& part) {
  return std::any_of(warned.begin(), warned.end(),
                     [&](const std::string& warning) { return warning.find(part) != warning.npos; });
}

}  // namespace

TEST_CASE("sweep: a search by rungs warns of rates that have yet to fall there") {
  Place place;
  const auto warns = [&](const char* schedule, const char* ema) {
    const Noted noted;
    CHECK(place.sweep({"--vary", "train.lr=0.003,0.03,0.01", "--search", "asha", "--epochs", "3", "--set",
                       "train.epochs=3", "--set", schedule, "--set", ema, "--dry-run"}) == 0);
    return has_warning("the rate falls until epoch 3");
  };
  CHECK(warns("train.schedule=linear", "train.ema=0"));
  CHECK_FALSE(warns("train.schedule=linear", "train.ema=0.9"));
  CHECK_FALSE(warns("train.schedule=constant", "train.ema=0"));
}

TEST_CASE("sweep: trials that end before any validation are ranked by the loss of training, in iterations") {
  Place place;
  CHECK(place.sweep({"--vary", "train.lr=1e-6,0.03", "--iterations", "5"}) == 0);  // an epoch has 12
  CHECK(has_line(place, "loss of training "));
  CHECK(has_line(place, ", 5 iterations in "));
  CHECK(has_line(place, "place  train.lr    loss  trial  iterations"));
  CHECK(has_line(place, "ranked by the loss of training, since no trial has come to its first validation"));
  CHECK(has_line(place, "best model: "));
  CHECK_FALSE(has_line(place, "no value"));
  const SweepRecord record = place.record();
  const int best = *last_result(record, 1)->loss < *last_result(record, 0)->loss ? 1 : 0;
  CHECK(ranked_trials(record) == std::vector<int>{best, 1 - best});
  CHECK(fs::exists(trial_model(place.out, best)));
  CHECK_FALSE(fs::exists(trial_model(place.out, 1 - best)));
}

TEST_CASE("sweep: a trial that was validated ranks above those that were not") {
  Place place;
  CHECK(place.sweep({"--vary", "iterations=3,12", "--vary", "train.lr=0.01,0.02"}) == 0);
  const SweepRecord record = place.record();
  const Leaderboard board = leaderboard_of(record);
  CHECK(board.metric == "accuracy");
  CHECK(board.why.empty());
  CHECK(board.in_iterations);
  CHECK_FALSE(board.groups.back().mean.has_value());
  const std::vector<int> ranked = ranked_trials(record);
  REQUIRE(ranked.size() == 4);
  CHECK(std::min(ranked[0], ranked[1]) == 2);  // those of 12 iterations
  for (int trial = 0; trial < 4; ++trial) CHECK(fs::exists(trial_model(place.out, trial)) == (trial == ranked[0]));
}

TEST_CASE("sweep: what all trials warn of is told once, what some warn of with their number") {
  Place place;
  const Noted noted;
  CHECK(place.sweep({"--vary", "train.lr=0.01,0.02,0.03", "--vary", "train.epochs=1,2", "--vary", "seed=1,2",
                     "--epochs", "3", "--set", "train.schedule=\"constant\"", "--dry-run"}) == 0);
  std::sort(warned.begin(), warned.end());
  REQUIRE(warned.size() == 2);
  CHECK(warned[0] == "--set train.epochs=1: changes nothing, because --epochs counts (6 of 12 trials)");
  CHECK(warned[1] == "--set train.epochs=2: changes nothing, because --epochs counts (6 of 12 trials)");
  warned.clear();
  CHECK(place.sweep({"--vary", "train.lr=0.01,0.02,0.03", "--set", "train.epochs=1", "--epochs", "3", "--set",
                     "train.schedule=\"constant\""}) == 0);
  CHECK(std::count(warned.begin(), warned.end(), "--set train.epochs=1: changes nothing, because --epochs counts") ==
        1);
}

TEST_CASE("sweep: warnings that still wait are told when it ends, later ones at once") {
  const Noted noted;
  {
    TrialWarnings warnings;
    warn("a");
    warnings.begin_trials(2);
    warn("b");
    warn("b");
    warn("a");  // of some trials, after all
    CHECK(warned.empty());
  }
  CHECK(warned == std::vector<std::string>{"a", "b"});
  warned.clear();
  TrialWarnings warnings;
  warn("e");
  warn("b");
  warnings.begin_trials(2);
  warn("b");
  warnings.begin_trials(1);
  warn("b");
  warn("c");
  warnings.tell_gathered(4);
  CHECK(warned == std::vector<std::string>{"e", "b (3 of 4 trials)", "c (1 of 4 trials)"});
  warn("c");
  warn("d");
  CHECK(warned.back() == "d");
  CHECK(warned.size() == 4);
}

TEST_CASE("sweep: settings that change together have one table") {
  Place place;
  CHECK(place.sweep({"--vary", "prefetch.batch+train.lr=32+0.01,16+0.02", "--vary", "hidden.units=8,16", "--epochs",
                     "1"}) == 0);
  CHECK(has_line(place, "accuracy by prefetch.batch+train.lr"));
  CHECK(has_line(place, "prefetch.batch  train.lr  accuracy  trials"));
  CHECK(has_line(place, "accuracy by hidden.units"));
  CHECK(std::none_of(place.lines.begin(), place.lines.end(), [](const std::string& line) {
    return line == "accuracy by train.lr" || line == "accuracy by prefetch.batch";
  }));
  CHECK(place.record().plan.together == std::vector<SettingNames>{{"prefetch.batch", "train.lr"}});
  const auto tables = tables_of(leaderboard_of(place.record()), place.record());
  REQUIRE(tables.size() == 3);
  REQUIRE(tables[1].rows.size() == 2);
  CHECK(tables[1].rows[0][0].text == "16");  // in the order of the first
  CHECK(tables[1].rows[0][1].text == "0.02");
  Place alone;
  CHECK(alone.sweep({"--vary", "prefetch.batch+train.lr=32+0.01,16+0.02", "--vary", "seed=1,2", "--epochs", "1"}) == 0);
  CHECK_FALSE(has_line(alone, "accuracy by"));  // the leaderboard says that
}

TEST_CASE("sweep: a row of the leaderboard counts trials that have not ended") {
  SweepRecord record;
  record.plan.title = "g";
  for (const char* seed : {"1", "2", "3"}) record.plan.trials.push_back({{"seed", seed}});
  SweepResult result;
  result.metric = "accuracy";
  result.value = 0.5;
  record.results.push_back(result);
  result.job.trial = 1;
  result.error = "no memory";
  record.results.push_back(result);
  const auto tables = tables_of(leaderboard_of(record), record);
  REQUIRE(tables.front().rows.size() == 1);
  CHECK(tables.front().rows[0][2].text == "3 (1 failed, 1 not ended)");
}

TEST_CASE("sweep: options that trials have by themselves are not in the help, and say where such files are") {
  const auto refused = [](const std::string& option, const std::string& part) {
    const Command command = parse({"sweep", "g.onnxtxt", "--vary", "seed=1,2", "-o", "x", option.c_str()});
    const Exit* exit = options_if<Exit>(command);
    REQUIRE(exit);
    CHECK_MESSAGE(exit->text.find(part) != std::string::npos, exit->text);
  };
  refused("--save=x", "trial-007/model.safetensors");
  refused("--trace=x", "a sweep writes no traces; 'arbalest run'");
  refused("--log=x", "trial-007/log.jsonl");  // which sweep never had
  refused("--sav=x", "did you mean '--set'?");
  const Command command = parse({"sweep", "--help"});
  const Exit* help = options_if<Exit>(command);
  REQUIRE(help);
  for (const char* option : {"--save", "--trace", "--sample-every", "--change", "--checkpoint "}) {
    CHECK_MESSAGE(help->text.find(option) == std::string::npos, option);
  }
  CHECK(help->text.find("--checkpoint-every") != std::string::npos);
}

TEST_CASE("sweep: the models that stay are one word of a shell, or a line each; the mean of strangers is warned of") {
  Place place;
  const std::string two = (place.folder / "two words").string(), nine = (place.folder / "nine").string();
  const auto sweep = [&](const std::string& out, const std::string& seeds, const std::string& epochs) {
    return place.run({"sweep", place.graph, "-o", out, "--vary", "seed=1.." + seeds, "--epochs", epochs, "--keep", "9",
                      "--set", "train.lr=0.1", "--set", "prefetch.source=glyphs:?train=1000&test=500&size=16",
                      "--deterministic"});
  };
  REQUIRE(sweep(two, "2", "10") == 0);
  const std::string listed = (place.folder / "listed").string(), prefix = "best models: ";
  REQUIRE(place.lines.back().starts_with(prefix));
  std::ofstream(place.folder / "list.sh") << "ls " << place.lines.back().substr(prefix.size()) << " > " << listed;
  CHECK(std::system(("bash " + (place.folder / "list.sh").string()).c_str()) == 0);
  CHECK(content(listed) == trial_model(two, 0) + "\n" + trial_model(two, 1) + "\n");

  REQUIRE(sweep(nine, "9", "1") == 0);
  REQUIRE(place.lines.size() > 10);
  CHECK(place.lines[place.lines.size() - 10] == "best models:");
  const std::vector<int> ranked = ranked_trials(read_sweep_log(sweep_log_path(nine)));
  CHECK(place.lines.back() == "  " + trial_model(nine, ranked.back()));

  const Noted noted;
  const std::string mean = (place.folder / "mean.safetensors").string();
  REQUIRE(place.run({"average", place.graph, two, "-o", mean}) == 0);
  CHECK(has_warning("the mean is worse than each of its models"));
  warned.clear();
  REQUIRE(place.run({"average", place.graph, trial_model(two, 0), trial_model(two, 0), "-o", mean}) == 0);
  CHECK_FALSE(has_warning("the mean is worse"));
}

}  // namespace sweep_test
