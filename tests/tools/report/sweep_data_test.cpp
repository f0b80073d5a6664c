// SPDX-License-Identifier: Apache-2.0

// A sweep's folder as its page carries it: whole, still running, and damaged.

#include "tools/report/sweep/sweep_data.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "base/error.h"
#include "tests/io/test_folder.h"
#include "tests/tools/command_line.h"
#include "tests/tools/redirected.h"
#include "tools/report/sweep/setting_axis.h"
#include "tools/report/sweep/sweep_page.h"
#include "tools/report/sweep/trial_curves.h"

using namespace arbalest;
using Json = nlohmann::ordered_json;

namespace sweep_data_test {
namespace {

// Two rates, two kinds of norm, two seeds: trial t has the t-th combination, the last setting fastest.
SweepPlan two_by_two() {
  SweepPlan plan;
  plan.title = "lenet";
  plan.words = {"lenet.onnxtxt"};
  for (const char* rate : {"0.001", "0.5"}) {
    for (const char* norm : {"batch", "layer"}) {
      for (const char* seed : {"1", "2"})
        plan.trials.push_back({{"train.lr", rate}, {"h1.norm", norm}, {"seed", seed}});
    }
  }
  return plan;
}

SweepResult result_of(int trial, double value, int64_t epochs = 2) {
  SweepResult result;
  result.job = {trial, 0, 0};
  result.metric = "accuracy";
  result.value = value;
  result.loss = 1 - value;
  result.epochs = epochs;
  return result;
}

SweepResult failure_of(int trial, const std::string& error) {
  SweepResult result = result_of(trial, 0, 0);
  result.value.reset();
  result.loss.reset();
  result.error = error;
  return result;
}

// The log of a trial whose accuracies are those of its epochs, and whose losses are 1 less them.
std::string log_of(const std::vector<double>& accuracies) {
  std::string log = R"({"event":"start","graph":"lenet","iterations_per_epoch":10,"best_metric":"accuracy"})"
                    "\n";
  for (size_t i = 0; i < accuracies.size(); ++i) {
    const std::string place = fmt::format(R"("epoch":{0},"iteration":{0}0,"seconds":{0})", i + 1);
    log += fmt::format("{{\"event\":\"progress\",{},\"loss\":9}}\n", place);
    log += fmt::format("{{\"event\":\"epoch\",{},\"loss\":{}}}\n", place, 1 - accuracies[i]);
    log += fmt::format("{{\"event\":\"validation\",{},\"accuracy\":{}}}\n", place, accuracies[i]);
  }
  return log;
}

void write_log(const TestFolder& folder, int trial, const std::string& text) {
  folder.write(fmt::format("trial-{:03}/log.jsonl", trial + 1), text);
}

void write_sweep(const TestFolder& folder, const SweepPlan& plan, const std::vector<SweepResult>& results,
                 bool finished = true) {
  SweepLog log(folder.string(), plan, false);
  for (const SweepResult& result : results) log.result(result);
  if (finished) log.finished(1);
}

Json data_of(const TestFolder& folder) {
  return sweep_data(read_sweep_log(sweep_log_path(folder.string())), folder.string());
}

// All trials of two_by_two() at accuracies from 0.1 on, in steps of a tenth.
void write_whole(const TestFolder& folder) {
  std::vector<SweepResult> results;
  for (int trial = 0; trial < 8; ++trial) {
    const double value = 0.1 * (trial + 1);
    results.push_back(result_of(trial, value));
    write_log(folder, trial, log_of({value / 2, value}));
  }
  write_sweep(folder, two_by_two(), results);
}

Leaderboard board_of(const std::string& name, const std::vector<std::string>& values) {
  Leaderboard board;
  for (size_t i = 0; i < values.size(); ++i) {
    TrialGroup group;
    group.settings = {{name, values[i]}};
    group.trials = {int(i)};
    board.groups.push_back(group);
  }
  return board;
}

}  // namespace

TEST_CASE("a sweep's page has groups, effects of settings, pairs and folded curves") {
  const TestFolder folder;
  write_whole(folder);
  const Json data = data_of(folder);
  CHECK(data["metric"] == "accuracy");
  CHECK(data["finished"] == true);
  CHECK(data["trials_ended"] == 8);
  CHECK(data["notes"].empty());

  REQUIRE(data["groups"].size() == 4);
  const Json& best = data["groups"][0];
  CHECK(best["settings"] == Json{"0.5", "layer"});
  CHECK(best["trials"] == Json{6, 7});
  CHECK(best["mean"].get<double>() == doctest::Approx(0.75));
  CHECK(best["low"].get<double>() == doctest::Approx(0.75 - 12.706 * 0.05).epsilon(1e-3));
  CHECK(data["trials"][6]["group"] == 0);
  CHECK(data["trials"][6]["settings"] == "train.lr 0.5, h1.norm layer, seed 1");

  REQUIRE(data["settings"].size() == 2);
  CHECK(data["settings"][0]["scale"] == "log");
  CHECK(data["settings"][1]["scale"] == "names");
  CHECK(data["settings"][0]["means"][1]["mean"].get<double>() == doctest::Approx(0.65));
  CHECK(data["settings"][0]["means"][1]["values"] == 4);
  CHECK(data["settings"][0]["means"][1]["low"].is_null());  // they differ in h1.norm too
  CHECK(data["settings"][1]["means"][0]["text"] == "batch");
  CHECK(data["settings"][1]["means"][0]["mean"].get<double>() == doctest::Approx(0.35));

  REQUIRE(data["pairs"].size() == 1);
  CHECK(data["pairs"][0]["cells"][1][0]["mean"].get<double>() == doctest::Approx(0.55));
  CHECK(data["pairs"][0]["cells"][1][0]["values"] == 2);

  REQUIRE(data["validation"].size() == 4);
  CHECK(data["validation"][0] == Json{{"group", 0},
                                      {"epochs", {1, 2}},
                                      {"mean", {0.375, 0.75}},
                                      {"low", {0.35, 0.7}},
                                      {"high", {0.4, 0.8}},
                                      {"count", {2, 2}}});
  CHECK(data["loss"][0]["mean"] == Json{0.625, 0.25});
}

TEST_CASE("settings that change together are one axis of a sweep's page") {
  const TestFolder folder;
  SweepPlan plan = two_by_two();
  plan.together = {{"train.lr", "h1.norm"}};
  std::vector<SweepResult> results;
  for (int trial = 0; trial < 8; ++trial) results.push_back(result_of(trial, 0.1 * (trial + 1)));
  write_sweep(folder, plan, results);
  const Json data = data_of(folder);
  REQUIRE(data["settings"].size() == 1);
  CHECK(data["settings"][0]["name"] == "train.lr+h1.norm");
  CHECK(data["settings"][0]["scale"] == "names");
  CHECK(data["settings"][0]["means"][0]["text"] == "0.001+batch");
  CHECK(data["groups"][0]["settings"] == Json{"0.5+layer"});
  CHECK(data["pairs"].empty());
}

TEST_CASE("trials without a validation have losses and iterations on a sweep's page, and a line says why") {
  const TestFolder folder;
  std::vector<SweepResult> results;
  for (int trial = 0; trial < 8; ++trial) {
    SweepResult& result = results.emplace_back(result_of(trial, 0.1 * trial));
    result.value.reset();
    result.iterations = 4;
    result.per_epoch = 12;
  }
  write_sweep(folder, two_by_two(), results);
  Json data = data_of(folder);
  CHECK(data["metric"] == "loss");
  CHECK(data["lower"] == true);
  CHECK(data["in_iterations"] == true);
  CHECK(data["why"].get<std::string>().find("ranked by the loss of training") == 0);
  CHECK(data["groups"][0]["trials"] == Json{6, 7});
  CHECK(data["groups"][0]["iterations"] == 4);
  CHECK(data["trials"][7]["value"].get<double>() == doctest::Approx(0.3));
  results[3].validated = true;  // with a metric that is undefined
  const TestFolder other;
  write_sweep(other, two_by_two(), results);
  data = data_of(other);
  CHECK(data["metric"] == "accuracy");
  CHECK(data["why"] == "");
}

TEST_CASE("settings of a search are compared after its first rung") {
  const TestFolder folder;
  SweepPlan plan = two_by_two();
  plan.halving = HalvingRule{.epochs = {1, 3}};
  std::vector<SweepResult> results;
  for (int trial = 0; trial < 8; ++trial) results.push_back(result_of(trial, 0.1 * (trial + 1), 1));
  results.push_back(result_of(0, 0.95, 3));
  results.back().job.rung = 1;
  write_sweep(folder, plan, results);
  const Json data = data_of(folder);
  CHECK(data["groups"][0]["mean"] == 0.95);
  CHECK(data["trials"][0]["value"] == 0.95);
  CHECK(data["trials"][0]["first"] == Json{{"value", 0.1}, {"epochs", 1}});
  CHECK(data["settings"][0]["means"][0]["mean"].get<double>() == doctest::Approx(0.25));
  CHECK(data["pairs"][0]["cells"][0][0]["mean"].get<double>() == doctest::Approx(0.15));
}

TEST_CASE("a sweep that still runs is shown as far as it has come") {
  const TestFolder folder;
  write_sweep(folder, two_by_two(), {result_of(0, 0.3), failure_of(1, "out of <memory>")}, false);
  folder.write("sweep.jsonl",
               std::string(std::istreambuf_iterator<char>(std::ifstream(folder / "sweep.jsonl").rdbuf()), {}) +
                   R"({"event":"resu)");
  write_log(folder, 0, log_of({0.2, 0.3}));
  write_log(folder, 2, log_of({0.25}) + R"({"event":"progr)");  // being written
  const Json data = data_of(folder);
  CHECK(data["finished"] == false);
  CHECK(data["notes"].empty());
  std::vector<std::string> states;
  for (const Json& trial : data["trials"]) states.push_back(trial["state"]);
  CHECK(states == std::vector<std::string>{"ended", "failed", "unfinished", "waiting", "waiting", "waiting", "waiting",
                                           "waiting"});
  CHECK(data["trials"][1]["error"] == "out of <memory>");
  CHECK(data["trials"][1]["value"].is_null());
  CHECK(data["trials"][2]["value"] == 0.25);
  CHECK(data["trials"][2]["epochs"] == 1);
  CHECK(data["groups"][0]["failed"] == 1);
  CHECK(data["groups"][0]["low"].is_null());
  CHECK(data["groups"][1]["unfinished"] == 2);
  REQUIRE(data["validation"].size() == 2);
  CHECK(data["validation"][1]["epochs"] == Json{1});
  CHECK_FALSE(data["validation"][1].contains("low"));
  CHECK(data["pairs"][0]["cells"][1][1].is_null());
}

TEST_CASE("a sweep without a result yet takes its metric from the logs") {
  const TestFolder folder;
  write_sweep(folder, two_by_two(), {}, false);
  CHECK(data_of(folder)["metric"] == "");
  write_log(folder, 3, log_of({0.5}));
  const Json data = data_of(folder);
  CHECK(data["metric"] == "accuracy");
  CHECK(data["validation"][0]["group"] == data["trials"][3]["group"]);
}

TEST_CASE("logs of trials that are missing or damaged are notes, and the rest is shown") {
  const TestFolder folder;
  write_whole(folder);
  std::filesystem::remove(folder / "trial-001/log.jsonl");
  write_log(folder, 1, std::string("\0\xff\n{", 4));
  write_log(folder, 2, log_of({0.1}) + "{\"event\":\"epoch\",\"epoch\":\"two\"}\n" + "cut off");
  std::filesystem::remove(folder / "trial-004/log.jsonl");
  std::filesystem::create_directory(folder / "trial-004/log.jsonl");
  const Json data = data_of(folder);
  REQUIRE(data["notes"].size() == 5);
  check_parts(data["notes"][0], {"trial 3: ", "trial-003/log.jsonl:5: ", "'epoch' is 'two', expected a number"});
  check_parts(data["notes"][1], {"trial 3: ", "trial-003/log.jsonl:6: no JSON"});
  check_parts(data["notes"][2], {"trial 4: "});
  check_parts(data["notes"][3], {"trial 1: ", "trial-001/log.jsonl: expected its log, found no such file"});
  check_parts(data["notes"][4], {"trial 2: ", "trial-002/log.jsonl: found no event"});
  CHECK(data["groups"].size() == 4);
  CHECK(data["validation"].size() == 3);
}

TEST_CASE("a search for a rate has losses over rates, and those that diverged") {
  const TestFolder folder;
  SweepPlan plan;
  plan.title = "lenet";
  plan.finds_rate = true;
  for (const char* rate : {"1", "0.01", "0.1"}) plan.trials.push_back({{"train.lr", rate}});
  write_sweep(folder, plan, {failure_of(0, "not finite"), result_of(1, 0.2), result_of(2, 0.6)});
  const std::string start = R"({"event":"start","graph":"lenet","iterations_per_epoch":100})";
  write_log(folder, 1,
            start + "\n" + R"({"event":"progress","epoch":1,"iteration":10,"seconds":1,"loss":3})" + "\n" +
                R"({"event":"progress","epoch":1,"iteration":20,"seconds":2,"loss":2})" + "\n");
  const Json data = data_of(folder);
  REQUIRE(data["rates"].size() == 1);
  const Json& points = data["rates"][0]["points"];
  REQUIRE(points.size() == 3);
  CHECK(points[0]["rate"] == 0.01);
  CHECK(points[0]["loss"].get<double>() == doctest::Approx(0.8));
  CHECK(points[0]["error"] == "");
  CHECK(points[2]["rate"] == 1);
  CHECK(points[2]["loss"].is_null());
  CHECK(points[2]["error"] == "not finite");
  check_parts(data["advice"], {"lowest at a rate of 0.1"});
  REQUIRE(data["loss"].size() == 1);  // reports, since no trial has two epochs
  CHECK(data["loss"][0]["epochs"] == Json{0.1, 0.2});
  CHECK(data["loss"][0]["mean"] == Json{3, 2});
}

TEST_CASE(
    "a setting's axis is logarithmic beyond two decades, or if that spreads its values, has names for texts, and "
    "ranges for many numbers") {
  using Scale = PlottedSetting::Scale;
  const auto axis = [](const std::vector<std::string>& values) { return setting_axes(board_of("x", values)).at(0); };
  CHECK(axis({"0.01", "1"}).scale == Scale::Linear);
  CHECK(axis({"0.01", "1.1"}).scale == Scale::Log);
  CHECK(axis({"0.01", "0.03", "0.1"}).scale == Scale::Log);
  CHECK(axis({"1", "5", "10", "15"}).scale == Scale::Linear);
  CHECK(axis({"1", "3", "9"}).scale == Scale::Linear);  // less than a decade
  CHECK(axis({"0", "1000"}).scale == Scale::Linear);
  CHECK(axis({"-1", "1000"}).scale == Scale::Linear);
  CHECK(axis({"1e-3", "fp32"}).scale == Scale::Names);
  CHECK(axis({"nan", "1"}).scale == Scale::Names);

  const PlottedSetting sorted = axis({"30", "4", "100"});
  CHECK(sorted.steps[0].text == "4");
  CHECK(*sorted.step[0] == 1);
  CHECK(*sorted.at[2] == 100);

  std::vector<std::string> many;
  for (int i = 0; i <= 24; ++i) many.push_back(fmt::format("1e{}", i - 12));
  const PlottedSetting ranges = axis(many);
  REQUIRE(ranges.steps.size() == 6);
  CHECK(ranges.steps[0].text == "1e-12 to 1e-08");
  CHECK(ranges.steps[0].at == doctest::Approx(1e-10));
  CHECK(*ranges.step[0] == 0);
  CHECK(*ranges.step[24] == 5);

  CHECK(setting_axes(board_of("x", {"1", "1"})).empty());  // does not vary
  Leaderboard some = board_of("x", {"1", "1"});
  some.groups[1].settings.clear();
  CHECK_FALSE(setting_axes(some).at(0).step[1].has_value());
}

TEST_CASE("curves of trials that end apart are one, with the number of trials at each place") {
  const TrialCurve whole = {{1, 2}, {2, 4}}, cut = {{1, 6}};
  const FoldedCurve fold = folded({&whole, &cut}, 0);
  CHECK(fold.epochs == std::vector<double>{1, 2});
  CHECK(fold.mean == std::vector<double>{4, 4});
  CHECK(fold.low == std::vector<double>{2, 4});
  CHECK(fold.high == std::vector<double>{6, 4});
  CHECK(fold.count == std::vector<int64_t>{2, 1});

  const TrialCurve one = {{0.1, 1}, {0.4, 3}, {0.5, 5}}, other = {{0.3, 8}};
  const FoldedCurve steps = folded({&one, &other}, 0.5);
  CHECK(steps.epochs == std::vector<double>{0.5});
  CHECK(steps.mean == std::vector<double>{5.5});

  TrialCurve long_one;
  for (int epoch = 1; epoch <= 2001; ++epoch) long_one[epoch] = epoch;
  const FoldedCurve thin = folded({&long_one}, 0);
  CHECK(thin.epochs.size() <= kMostPlaces);
  CHECK(thin.epochs.front() == 1);
  CHECK(thin.epochs.back() == 2001);
  CHECK(folded({}, 0).epochs.empty());
}

TEST_CASE("a folder that holds no sweep is refused, and a damaged line is left out") {
  const TestFolder folder;
  check_parts(message_of<RunError>([&] { sweep_page(folder.string()); }),
              {folder.string(), "found a folder which is empty", "expected one that 'arbalest sweep' wrote"});
  write_sweep(folder, two_by_two(), {result_of(0, 0.5)});
  const std::string path = sweep_log_path(folder.string());
  std::ofstream(path, std::ios::app) << "{\"event\":\"result\",\"trial\":99,\"rung\":0,\"to_epoch\":0}\n";
  CHECK(read_sweep_log(path).results.size() == 1);
  CHECK_NOTHROW(sweep_page(folder.string()));
  folder.write("sweep.jsonl", std::string());
  check_parts(message_of<RunError>([&] { sweep_page(folder.string()); }), {path + ": holds no sweep"});
}

TEST_CASE("report DIR writes the sweep's page, and takes no other log next to it") {
  const TestFolder folder;
  write_whole(folder);
  CHECK(sweep_name(folder.string() + "/") == std::filesystem::path(folder.string()).filename());
  const std::string page = (folder / "page.html").string(), log = (folder / "trial-001/log.jsonl").string();
  const auto report = [](const std::vector<const char*>& words) {
    return command_report(test::options_of<ReportOptions>(test::parse(words)));
  };
  {
    const test::Redirected out((folder / "out").string());
    CHECK(report({"report", folder.string().c_str(), "-o", page.c_str()}) == kDone);
    check_parts(out.lines().at(0), {"page.html", "open it in a browser"});
  }
  std::string text;
  std::getline(std::ifstream(page), text, '\0');
  check_parts(text, {"<!doctype html>", "id=\"sweep\"", "\"train.lr\""});
  check_parts(message_of<GraphError>([&] {
                report({"report", log.c_str(), folder.string().c_str()});
              }),
              {folder.string(), "is a folder; expected logs of runs"});
  check_parts(message_of<GraphError>([&] {
                report({"report", folder.string().c_str(), "--plot", "accuracy"});
              }),
              {"--plot: found", "expected logs of runs"});
  const std::string sweep = sweep_log_path(folder.string());
  check_parts(message_of<RunError>([&] {
                report({"report", sweep.c_str(), "-o", page.c_str()});
              }),
              {"sweep.jsonl: found the log of a sweep", "the sweep is shown by: arbalest report " + folder.string()});
  CHECK_THROWS_AS(report({"report", folder.string().c_str(), "-o", sweep.c_str()}), GraphError);
}
}  // namespace sweep_data_test
