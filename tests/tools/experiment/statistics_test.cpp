// SPDX-License-Identifier: Apache-2.0

// Statistics of benches against known numbers, and tables.

#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "executor/devices/gpu_meter.h"
#include "executor/devices/nvml.h"
#include "executor/plan/plan.h"
#include "tools/experiment/answer/statistics.h"
#include "tools/experiment/answer/table.h"
#include "tools/experiment/trials/machine_state.h"

using namespace arbalest;

namespace bench_statistics_test {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Sums of twelve uniform numbers: nearly normal, with deviation 1.
std::vector<double> drawn(uint64_t stream, size_t count, double mean) {
  std::vector<double> values;
  for (size_t i = 0; i < count; ++i) {
    double sum = -6;
    for (uint64_t k = 0; k < 12; ++k) sum += double(uniform(philox(random_key(1, stream), i, k).word[0]));
    values.push_back(mean + sum);
  }
  return values;
}

}  // namespace

TEST_CASE("medians, trimmed means and outliers are those of the definitions") {
  CHECK(median_of({3, 1, 2}) == 2);
  CHECK(median_of({4, 1, 2, 3}) == 2.5);
  CHECK(trimmed_mean({1, 2, 6, 100}) == 4);
  CHECK(trimmed_mean({1, 3}) == 2);
  CHECK(trimmed_mean({1, 2, kNever}) == 2);
  CHECK(std::isinf(trimmed_mean({1, kNever, kNever})));
  CHECK(estimate({10, 11, 12, 13, 40}).outliers == 1);
  CHECK(estimate({10, 11, 12, 13, 14}).outliers == 0);
  CHECK(estimate({10, 10, 10, 10, 10.001}).outliers == 0);  // the rest tells nothing of how far others may lie
}

TEST_CASE("the interval of a bootstrap holds the median in nineteen of twenty experiments") {
  int held = 0;
  for (uint64_t stream = 0; stream < 200; ++stream) {
    const Estimate found = estimate(drawn(stream, 25, 100));
    REQUIRE(found.interval.has_value());
    held += found.interval->low <= 100 && 100 <= found.interval->high ? 1 : 0;
  }
  CHECK(held >= 180);
  CHECK(held <= 199);
  const Estimate one = estimate({5});
  CHECK_FALSE(one.interval.has_value());
  CHECK_FALSE(estimate({5, 6, 7, 8}).interval.has_value());
  CHECK_FALSE(ratio({5, 6, 7, 8}, {5, 6, 7, 8, 9})->interval.has_value());
  const Estimate five = estimate({5, 6, 7, 8, 9});  // from the least to the greatest
  CHECK(five.interval->low == 5);
  CHECK(five.interval->high == 9);
  const Estimate again = estimate({1, 2, 3, 4, 5}), same = estimate({1, 2, 3, 4, 5});
  CHECK(again.interval->low == same.interval->low);
  CHECK(again.interval->low >= 1);
  CHECK(again.interval->high <= 5);
  CHECK_FALSE(estimate({1, kNever, kNever}).interval.has_value());
}

TEST_CASE("a ratio differs from 1 only if its interval excludes 1, and seldom by luck") {
  const auto faster = ratio({110, 111, 112, 113, 114}, {100, 101, 102, 103, 104});
  REQUIRE(faster.has_value());
  CHECK(faster->median == doctest::Approx(112.0 / 102));
  CHECK(difference(*faster) == Difference::Above);
  CHECK(difference(*ratio({100, 101, 102, 103, 104}, {110, 111, 112, 113, 114})) == Difference::Below);
  CHECK(difference(*ratio({110, 111, 112, 113}, {100, 101, 102, 103})) == Difference::Unclear);  // four are too few
  CHECK_FALSE(ratio({1, 2}, {kNever, kNever}).has_value());
  CHECK_FALSE(ratio({1, 2}, {0, 0}).has_value());
  int lucky = 0, apart = 0;  // of two runs of the same cells, a process a repetition
  for (uint64_t stream = 0; stream < 200; ++stream) {
    const std::vector<double> first = drawn(2 * stream, kFewest, 100), second = drawn(2 * stream + 1, kFewest, 100);
    lucky += difference(*ratio(first, second)) == Difference::Unclear ? 0 : 1;
    const Confidence one = *estimate(first).interval, other = *estimate(second).interval;
    apart += one.low > other.high || other.low > one.high ? 1 : 0;
  }
  CHECK(lucky <= 10);
  CHECK(apart <= 10);
}

TEST_CASE("Student's one-sided test has the tables' probabilities") {
  // The mean is t deviations of the mean above 0: t = 2.132 with 4 degrees of freedom and t = 6.314 with 1 are 5 %.
  const auto sample = [](double t) {
    const std::vector<double> around = {-1, -0.5, 0, 0.5, 1};
    std::vector<double> values;
    for (const double value : around) values.push_back(value + t * std::sqrt(2.5 / 4 / 5));
    return values;
  };
  CHECK(chance_above(sample(2.1318), 0) == doctest::Approx(0.05).epsilon(0.001));
  CHECK(chance_above(sample(3.7469), 0) == doctest::Approx(0.01).epsilon(0.001));
  CHECK(chance_above(sample(-2.1318), 0) == doctest::Approx(0.95).epsilon(0.001));
  CHECK(chance_above({6.3138 - 1, 6.3138 + 1}, 0) == doctest::Approx(0.05).epsilon(0.001));
  CHECK(chance_above({1, 1}, 0.5) == 0);
  CHECK(chance_above(sample(1e9), 0) >= 0);
  CHECK(chance_above({1, 1}, 1) == 1);
  CHECK(chance_above({7}, 1) == 1);
  CHECK(mean_interval({1, 2})->high == doctest::Approx(1.5 + 12.706 * 0.5).epsilon(1e-3));
  CHECK_FALSE(mean_interval({7}).has_value());
  CHECK_FALSE(mean_interval({0.5, 0.5}).has_value());  // by luck, of a metric with few digits
}

TEST_CASE("a GPU's energy and what holds its clocks back are read through NVML") {
  const std::string folder = std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
  const Nvml nvml((folder + "/libnvml_fake.so").c_str());
  const GpuState state = nvml.state("0000:1b:00.0");
  REQUIRE(state.joules.has_value());
  CHECK(*nvml.state("0000:1b:00.0").joules - *state.joules == 500);
  CHECK(state.held_back == std::vector<std::string>{"temperature"});
  CHECK_THROWS_AS(nvml.state("0000:00:00.0"), RunError);
  const auto software = software_of_machine((folder + "/libnvml_fake.so").c_str());
  CHECK(software.front().first == "kernel");
  CHECK(software.back() == std::pair<std::string, std::string>("nvidia driver", "580.65.06"));
  CHECK(software_of_machine("libnot-there.so.1").size() + 1 == software.size());
}

TEST_CASE("what GPUs say under load is the sum of their energy, the mean of their use, and what holds them back") {
  const std::string library =
      std::filesystem::read_symlink("/proc/self/exe").parent_path().string() + "/libnvml_fake.so";
  const auto meter = [&](std::vector<std::pair<std::string, std::string>> gpus) {
    return GpuMeter(std::make_unique<Nvml>(library.c_str()), std::move(gpus));
  };
  // The fake GPU's counter grows by 500 J with each look: two looks a reading, the sum of which grows by 2000 J.
  const GpuMeter two = meter({{"cuda:0", "0000:1b:00.0"}, {"cuda:1", "0000:1b:00.0"}});
  const GpuReading before = two.read(), after = two.read();
  REQUIRE(before.joules.has_value());
  REQUIRE(after.joules.has_value());
  CHECK(*after.joules - *before.joules == 2000);
  CHECK(after.busy == 0.87);
  CHECK(after.held_back == std::vector<std::string>{"cuda:0: its clocks were held back by temperature under load",
                                                    "cuda:1: its clocks were held back by temperature under load"});
  const GpuReading unknown = meter({{"cuda:0", "0000:1b:00.0"}, {"cuda:1", "0000:ff:00.0"}}).read();
  CHECK_FALSE(unknown.joules.has_value());
  CHECK_FALSE(unknown.busy.has_value());
  CHECK_FALSE(GpuMeter(std::vector<PlanDevice>{{PlanDevice::Kind::Cpu, 0}}).read().joules.has_value());
}

TEST_CASE("the use of a GPU by a process that has just ended is no fault of the machine") {
  const std::string library =
      std::filesystem::read_symlink("/proc/self/exe").parent_path().string() + "/libnvml_fake.so";
  const auto faults = [&](const char* looks) {
    const Nvml nvml(library.c_str());
    setenv("NVML_FAKE_LOOKS", looks, 1);
    MachineState state;
    look_at_gpus(nvml, {{"cuda:0", "0000:1b:00.0"}}, state);
    unsetenv("NVML_FAKE_LOOKS");
    nvml.state("0000:1b:00.0");  // the count begins anew
    CHECK(state.gpus.size() == 1);
    return state.faults;
  };
  const std::string memory = "cuda:0: 42 GiB of its memory are taken by others",
                    clocks = "cuda:0: its clocks are held back by temperature";
  CHECK(faults("1") == std::vector<std::string>{memory, clocks});
  CHECK(faults("9") == std::vector<std::string>{"cuda:0: another process uses it (87 %)", memory, clocks});
}

TEST_CASE("tables are aligned for terminals, escaped for Markdown and quoted for CSV") {
  const ResultTable table{"T, one",
                          {{"cell", false}, {"rate", true, true}},
                          {{{"a|b"}, {"1.5 (1–2)", 1.5, Confidence{1, 2}}}, {{"long, \"name\""}, {"-"}}},
                          {"a note"}};
  CHECK(print_tables({table}, TableFormat::Text) ==
        "T, one\n"
        "cell               rate\n"
        "a|b           1.5 (1–2)\n"
        "long, \"name\"          -\n"
        "a note\n");
  CHECK(print_tables({table}, TableFormat::Markdown) ==
        "**T, one**\n\n| cell | rate |\n| --- | ---: |\n| a\\|b | 1.5 (1–2) |\n| long, \"name\" | - |\n\n- a note\n");
  CHECK(print_tables({table, table}, TableFormat::Csv)
            .starts_with("table,cell,rate,rate low,rate high\n\"T, one\",a|b,1.5,1,2\n\"T, one\",\"long, "
                         "\"\"name\"\"\",,,\n\ntable,"));
  const ResultTable parts{"T",
                          {{"s to 0.9", true, false, {"reached", "of"}}},
                          {{{"12, 3 of 5", 12, {}, {3, 5}}}, {{"not reached", {}, {}, {0, {}}}}, {{"-"}}},
                          {}};
  CHECK(print_tables({parts}, TableFormat::Csv) ==
        "table,s to 0.9,s to 0.9 reached,s to 0.9 of\nT,12,3,5\nT,,0,\nT,,,\n");
}

}  // namespace bench_statistics_test
