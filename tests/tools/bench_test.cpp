// SPDX-License-Identifier: Apache-2.0

// `arbalest bench scaling`: its options, windows, table and JSON lines.

#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tests/io/test_folder.h"
#include "tests/tools/command_line.h"
#include "tools/measure/bench_scaling.h"

using namespace arbalest;
using namespace arbalest::test;

namespace bench_test {
namespace {

Command parse_bench(std::vector<const char*> words) {
  words.insert(words.begin(), "bench");
  return parse(std::move(words));
}

ScalingCell measured(int devices, int learners, std::vector<double> windows) {
  ScalingCell cell;
  for (int i = 0; i < devices; ++i) cell.devices.push_back("cuda:" + std::to_string(i));
  cell.learners = learners;
  cell.batch = 64;
  cell.strategy = devices * learners > 1 ? "sma" : "none";
  cell.windows = std::move(windows);
  cell.planned_peak_bytes = 3 << 20;
  cell.setup_seconds = 0.5;
  return cell;
}

ScalingCell failed(int devices, int learners, std::string error) {
  ScalingCell cell = measured(devices, learners, {});
  cell.error = std::move(error);
  return cell;
}

}  // namespace

TEST_CASE("energy, use and what slows GPUs are those of the windows, without what came before them") {
  RunReadings readings;
  CHECK(readings.joules_per_iteration(0) == -1);
  CHECK(readings.busy(0) == -1);
  CHECK(readings.wants_gpus(0));
  readings.add(0, 0, {1000, 0.1, {"hot at first"}});
  CHECK_FALSE(readings.wants_gpus(0.05));
  CHECK(readings.joules_per_iteration(0) == -1);  // one reading tells nothing
  readings.add(10, 1, {1500, 0.2, {}});           // warming up takes more
  readings.add(30, 2, {1900, 0.5, {"hot"}});
  readings.add(50, 3, {2300, 0.75, {"hot"}});
  CHECK(readings.joules_per_iteration(1) == 20);
  CHECK(readings.joules_per_iteration(0) == 26);
  CHECK(readings.joules_per_iteration(3) == -1);
  CHECK(readings.busy(1) == 0.625);  // the reading at 1 s is of the time before
  CHECK(readings.held_back(1) == std::vector<std::string>{"hot"});
  CHECK(readings.held_back(0).size() == 2);
  readings.add(70, 4, {std::nullopt, std::nullopt, {}});  // a GPU that stops telling
  CHECK(readings.joules_per_iteration(1) == 20);
  CHECK(readings.busy(1) == 0.625);
}

TEST_CASE("late batches are those of the windows, by iterations") {
  RunReadings readings;
  CHECK(readings.late(0) == -1);
  readings.add(10, 1, 1.0);  // the warm-up waits
  CHECK(readings.late(0) == -1);
  readings.add(20, 2, 0.5);
  readings.add(50, 3, 0.1);
  CHECK(readings.late(1) == doctest::Approx(0.2));  // 5 of 10 and 3 of 30
  CHECK(readings.late(2) == doctest::Approx(0.1));
  CHECK(readings.late(3) == -1);

  const Train train = [](const Graph&, const SessionOptions&, RunObserver& observer, const std::stop_token& stop) {
    observer.on(RunStarted{.samples_per_epoch = 100, .iterations_per_epoch = 10});
    for (int64_t i = 1; i <= 20 && !stop.stop_requested(); ++i) {
      RunProgress progress;
      progress.iteration = 10 * i;
      progress.seconds = 0.5 * double(i);
      progress.input.late = i <= 3 ? 1 : i % 2 == 0 ? 0.25 : 0;
      observer.on(progress);
    }
  };
  WindowRule rule{.windows = 2, .window_seconds = 1, .warmup_seconds = 1.5, .warmup_iterations = 10};
  const ScalingCell cell = measure_cell({}, {}, rule, {}, train);
  CHECK(cell.error.empty());
  CHECK(cell.windows == std::vector<double>{200, 200});
  CHECK(cell.late_batches == doctest::Approx(0.125));
  CHECK(cell.gpu_busy == -1);  // there is none
  ScalingTable table({"net", "bf16", 1, {}});
  const auto line = nlohmann::json::parse(table.json(table.add(cell)));
  CHECK(line.at("late_batches") == 0.125);
  CHECK_FALSE(line.contains("gpu_busy"));
  CHECK_FALSE(line.contains("held_back"));
}

TEST_CASE("bench scaling takes its options") {
  // clang-format off
  const Command command = parse_bench({
      "scaling", "g.onnxtxt", "--devices", "cuda:0-7", "--device-counts", "8,1,4", "--learners", "2,1",
      "--strategy", "local", "--precision", "bf16", "--set", "train.lr=0.05", "--batch", "32", "--windows", "7",
      "--window-seconds", "0.5", "--warmup-seconds", "0", "--price-per-hour", "24.5", "--report-every", "3",
      "--threads", "2", "--json"});
  // clang-format on
  const ScalingOptions* options = options_if<ScalingOptions>(command);
  REQUIRE(options != nullptr);
  CHECK(options->graph == "g.onnxtxt");
  CHECK(options->devices == "cuda:0-7");
  CHECK(options->device_counts == std::vector<int>{1, 4, 8});
  CHECK(options->learners == std::vector<int>{1, 2});
  CHECK(options->session.numerics.precision == Precision::Bf16);
  CHECK(options->set == std::vector<std::string>{"train.lr=0.05", "prefetch.batch=32"});
  CHECK(options->windows == 7);
  CHECK(options->window_seconds == 0.5);
  CHECK(options->warmup_seconds == 0);
  CHECK(options->price_per_hour == 24.5);
  CHECK(options->session.execution.report_every == 3);
  CHECK(options->session.execution.threads == 2);
  CHECK(options->session.learners.strategy == "local");
  CHECK(options->json);

  const Command defaults = parse_bench({"scaling", "--learners", "4", "g"});
  options = options_if<ScalingOptions>(defaults);
  REQUIRE(options != nullptr);
  CHECK(options->graph == "g");
  CHECK(options->device_counts.empty());
  CHECK(options->learners == std::vector<int>{4});
  CHECK(options->windows == 5);
  CHECK(options->window_seconds == 1);
  CHECK(options->warmup_seconds == 1);
  CHECK(options->set.empty());
  CHECK_FALSE(options->session.learners.strategy.has_value());
  CHECK_FALSE(options->price_per_hour.has_value());
  CHECK_FALSE(options->json);
}

TEST_CASE("a warm-up ends once the rates of two windows agree, which are the first that count") {
  WindowRule rule{.windows = 3, .window_seconds = 1, .warmup_seconds = 1, .warmup_iterations = 10};
  rule.settled = 0.05;
  WindowMeter meter(rule);
  int64_t iteration = 0;
  double seconds = 0;
  const auto window = [&](int64_t iterations) {
    meter.add(iteration += iterations, seconds += 1);
    return meter.complete();
  };
  CHECK_FALSE(window(50));  // the least that a warm-up takes
  for (const int64_t rate : {20, 60, 90, 100}) CHECK_FALSE(window(rate));
  CHECK_FALSE(window(104));  // as 100, by 5 %
  CHECK(window(80));         // settled once, it stays so
  CHECK(meter.rates() == std::vector<double>{100, 104, 80});
  CHECK(meter.warmup_seconds() == 4);
  CHECK(meter.agreed());

  WindowMeter restless(rule);
  iteration = 0;
  for (int i = 0; i < 11; ++i) restless.add(iteration += i % 2 == 0 ? 50 : 100, i + 1);
  CHECK_FALSE(restless.complete());
  restless.add(iteration += 50, 12);
  CHECK(restless.complete());  // after the most windows it counts as warm
  CHECK(restless.rates().size() == 3);
  CHECK_FALSE(restless.agreed());
}

TEST_CASE("bench's help lists scaling and its options") {
  for (const std::vector<const char*>& words : {std::vector<const char*>{"--help"}, {"scaling", "--help"}}) {
    const Command command = parse_bench(words);
    REQUIRE(options_if<Exit>(command));
    CHECK(options_of<Exit>(command).status == kDone);
  }
  CHECK(options_of<Exit>(parse_bench({"--help"})).text.find("scaling") != std::string::npos);
  CHECK(options_of<Exit>(parse_bench({"scaling", "--help"})).text.find("--device-counts") != std::string::npos);
  const char* top[] = {"arbalest", "--help"};
  CHECK(options_of<Exit>(parse_command_line(2, top)).text.find("bench") != std::string::npos);
}

TEST_CASE("faults in bench's options name what was found") {
  const TestFolder folder;
  const auto says = [](const std::vector<const char*>& words, const char* part) {
    std::vector<const char*> whole = {"bench"};
    whole.insert(whole.end(), words.begin(), words.end());
    const std::string text = fault(whole);
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  };
  says({}, "scaling");
  says({"scalign", "g"}, "unknown command 'scalign'; did you mean 'scaling'?");
  const std::string file = folder.write("mybench", std::string("[settings]\n")).string();
  says({file.c_str()}, "mybench: the file's name has to end in .toml; expected FILE.toml, an experiment");
  says({"scaling"}, "bench scaling: GRAPH is missing; 'arbalest bench scaling --help'");
  says({"scaling", "g", "h"}, "unexpected argument 'h'");
  says({"scaling", "g", "--epochs", "3"}, "unknown option '--epochs'");
  says({"scaling", "g", "--window", "3"}, "did you mean '--windows'?");
  says({"scaling", "g", "--learners", "1,0"}, "--learners '1,0': found '0'");
  says({"scaling", "g", "--learners", "1,2000"}, "found '2000'; expected whole numbers from 1 to 1024");
  says({"scaling", "g", "--learners", "1,,2"}, "found ''");
  says({"scaling", "g", "--learners", "2x"}, "found '2x'");
  says({"scaling", "g", "--device-counts", "1,2,1"}, "1 is named twice");
  says({"scaling", "g", "--device-counts", ""}, "found ''");
  says({"scaling", "g", "--device-counts", "-1"}, "--device-counts");
  says({"scaling", "g", "--batch", "0"}, "--batch");
  says({"scaling", "g", "--windows", "0"}, "--windows");
  says({"scaling", "g", "--window-seconds", "0"}, "--window-seconds");
  says({"scaling", "g", "--warmup-seconds", "-1"}, "--warmup-seconds");
  says({"scaling", "g", "--price-per-hour", "0"}, "--price-per-hour");
  says({"scaling", "g", "--precision", "bf61"}, "did you mean 'bf16'?");
  says({"scaling", "g", "--strategy", "sna"}, "unknown strategy 'sna'");
  says({"scaling", "g", "--set", "lr=1"}, "NODE.ATTRIBUTE=VALUE");
}

TEST_CASE("a sweep covers powers of two and the whole pool unless options say otherwise") {
  CHECK(device_counts({}, 1) == std::vector<int>{1});
  CHECK(device_counts({}, 2) == std::vector<int>{1, 2});
  CHECK(device_counts({}, 6) == std::vector<int>{1, 2, 4, 6});
  CHECK(device_counts({}, 8) == std::vector<int>{1, 2, 4, 8});
  CHECK(device_counts({3, 8}, 8) == std::vector<int>{3, 8});
  CHECK_THROWS_WITH_AS(device_counts({1, 9}, 8),
                       "--device-counts: found 9, expected at most 8: --devices names no more", GraphError);
}

TEST_CASE("windows begin once the run is warm and follow one another") {
  WindowRule rule;
  rule.windows = 3;
  SUBCASE("slow first iterations: seconds alone do not warm up") {
    WindowMeter meter(rule);
    meter.add(5, 20.0);
    meter.add(9, 20.5);
    meter.add(10, 21.0);  // warm: the first window begins
    meter.add(15, 21.5);
    meter.add(20, 22.0);
    CHECK(meter.rates() == std::vector<double>{10});  // 10 iterations in a second
    meter.add(40, 22.5);
    meter.add(60, 23.0);
    meter.add(70, 23.75);  // no report between 23 and 24: the window is as long as it is
    meter.add(90, 25.0);
    CHECK(meter.rates() == std::vector<double>{10, 40, 15});
    CHECK(meter.complete());
    meter.add(1000, 30.0);  // batches under way when the run was asked to end
    CHECK(meter.rates().size() == 3);
  }
  SUBCASE("fast iterations: their number alone does not warm up") {
    WindowMeter meter(rule);
    for (int i = 1; i <= 16; ++i) meter.add(i * 100, i * 0.25);
    CHECK(meter.rates() == std::vector<double>{400, 400, 400});  // from second 1 to second 4
    CHECK(meter.complete());
  }
  SUBCASE("one report less and a window is missing") {
    WindowMeter meter(rule);
    for (int i = 1; i <= 15; ++i) meter.add(i * 100, i * 0.25);
    CHECK(meter.rates().size() == 2);
    CHECK_FALSE(meter.complete());
  }
}

TEST_CASE("the figure is the median, whatever the order of the windows") {
  const RateSummary odd = summarize({50, 10, 30});
  CHECK(odd.median == 30);
  CHECK(odd.min == 10);
  CHECK(odd.max == 50);
  CHECK(summarize({40, 10, 20, 30}).median == 25);
  CHECK(summarize({7}).median == 7);
}

TEST_CASE("cells are compared with the first and with one device") {
  ScalingTable table({"net", "bf16", 8, 16.0});
  CHECK_FALSE(table.any_measured());
  const ScalingRow first = table.add(measured(1, 1, {900, 1000, 1100}));
  CHECK(table.any_measured());
  CHECK(*first.speedup == 1);
  CHECK(*first.efficiency == 1);
  CHECK(*first.images_per_money_unit == doctest::Approx(1000 * 3600 / 2.0));  // an eighth of the pool's price
  const ScalingRow learners = table.add(measured(1, 2, {1500}));
  CHECK(*learners.speedup == 1.5);
  CHECK(*learners.efficiency == 1);
  const ScalingRow more = table.add(measured(4, 2, {5400}));
  CHECK(*more.speedup == 5.4);
  CHECK(*more.efficiency == doctest::Approx(0.9));
  CHECK(*more.images_per_money_unit == doctest::Approx(5400 * 3600 / 8.0));
  const ScalingRow alone = table.add(measured(4, 3, {5000}));  // no single device with three learners
  CHECK(*alone.speedup == 5);
  CHECK_FALSE(alone.efficiency.has_value());
  const ScalingRow lost = table.add(failed(8, 2, "no memory"));
  CHECK_FALSE(lost.speedup.has_value());
  CHECK_FALSE(lost.images_per_money_unit.has_value());

  ScalingTable broken({"net", "bf16", 2, {}});
  broken.add(failed(1, 1, "no memory"));
  CHECK_FALSE(broken.any_measured());
  const ScalingRow after = broken.add(measured(2, 1, {10}));
  CHECK_FALSE(after.speedup.has_value());
  CHECK_FALSE(after.efficiency.has_value());
  CHECK_FALSE(after.images_per_money_unit.has_value());
}

TEST_CASE("the table has a column a figure, or the error") {
  ScalingTable table({"net", "bf16", 8, {}});
  CHECK(table.heading() ==
        "devices learners strategy    images/s         min         max speed-up efficiency   peak/device\n");
  CHECK(table.line(table.add(measured(1, 1, {123.44, 900, 1000000}))) ==
        "      1        1     none       900.0       123.4     1000000     1.00    100.0 %       3.0 MiB\n");
  CHECK(table.line(table.add(measured(8, 1, {6480}))) ==
        "      8        1      sma        6480        6480        6480     7.20     90.0 %       3.0 MiB\n");
  CHECK(table.line(table.add(measured(8, 2, {6480}))) ==
        "      8        2      sma        6480        6480        6480     7.20          -       3.0 MiB\n");
  CHECK(table.line(table.add(failed(8, 4, "no memory"))) == "      8        4  failed: no memory\n");

  ScalingTable priced({"net", "bf16", 1, 3600.0});
  CHECK(priced.heading().find("images/money") != std::string::npos);
  const std::string line = priced.line(priced.add(measured(1, 1, {500})));
  CHECK(line.size() == priced.heading().size());
  CHECK(line.substr(line.size() - 5) == " 500\n");
}

TEST_CASE("a cell as JSON is one line with snake_case keys") {
  ScalingTable table({"net", "bf16", 8, 8.0});
  const std::string first = table.json(table.add(measured(1, 1, {900, 1000, 1100})));
  CHECK(first.rfind("{\"event\":\"cell\"", 0) == 0);
  CHECK(first.find('\n') == first.size() - 1);
  const auto cell = nlohmann::json::parse(first);
  CHECK(cell.at("graph") == "net");
  CHECK(cell.at("precision") == "bf16");
  CHECK(cell.at("devices") == std::vector<std::string>{"cuda:0"});
  CHECK(cell.at("device_count") == 1);
  CHECK(cell.at("learners") == 1);
  CHECK(cell.at("batch") == 64);
  CHECK(cell.at("strategy") == "none");
  CHECK(cell.at("images_per_second") == 1000.0);
  CHECK(cell.at("images_per_second_min") == 900.0);
  CHECK(cell.at("images_per_second_max") == 1100.0);
  CHECK(cell.at("window_images_per_second") == std::vector<double>{900, 1000, 1100});
  CHECK(cell.at("speedup") == 1.0);
  CHECK(cell.at("efficiency") == 1.0);
  CHECK(cell.at("planned_peak_bytes") == 3 << 20);
  CHECK(cell.at("setup_seconds") == 0.5);
  CHECK(cell.at("images_per_money_unit") == 3.6e6);
  CHECK_FALSE(cell.contains("error"));

  ScalingCell slowed = measured(2, 3, {1500});
  slowed.gpu_busy = 0.75;
  slowed.held_back = {"cuda:0: hot"};
  const auto alone = nlohmann::json::parse(table.json(table.add(slowed)));
  CHECK(alone.at("gpu_busy") == 0.75);
  CHECK(alone.at("held_back") == std::vector<std::string>{"cuda:0: hot"});
  CHECK_FALSE(alone.contains("late_batches"));
  CHECK(alone.at("efficiency").is_null());
  const auto lost = nlohmann::json::parse(table.json(table.add(failed(8, 1, "no memory"))));
  CHECK(lost.at("error") == "no memory");
  CHECK(lost.at("device_count") == 8);
  CHECK_FALSE(lost.contains("images_per_second"));
}

}  // namespace bench_test
