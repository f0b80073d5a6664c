// SPDX-License-Identifier: Apache-2.0

// Tests the gauges of the process, and those of GPUs through a library that stands in for NVML.

#include "executor/devices/sampler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "executor/devices/device.h"
#include "tests/executor/fixture.h"
#include "tests/executor/trace/trace_fixture.h"

using namespace arbalest;
using namespace arbalest::test;

TEST_CASE("gauges of a GPU are read through NVML, without what it does not tell") {
  const auto library = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libnvml_fake.so";
  if (!std::filesystem::exists(library)) {
    MESSAGE("SKIP: there is no libnvml_fake.so next to the test");
    return;
  }
  const Nvml nvml(library.c_str());
  std::vector<Gauge> gauges = nvml.gauges("0000:1b:00.0");
  REQUIRE(gauges.size() == 4);
  CHECK(gauges[0].name == "GPU utilisation");
  CHECK(gauges[0].read() == 87.0);
  CHECK(gauges[1].name == "GPU memory");
  CHECK(gauges[1].read() == 42.0 * (1 << 30));
  CHECK(gauges[1].most == 100.0 * (1 << 30));
  CHECK(gauges[2].name == "GPU power");
  CHECK(gauges[2].most == 700);
  const double power = gauges[2].read().value();
  CHECK(power >= 500);
  CHECK(gauges[2].read() == power + 1);
  CHECK(gauges[3].name == "GPU clock");
  CHECK(gauges[3].read() == 1755.0);
  CHECK(gauges[3].most == 1980);
  CHECK(message_of([&] { nvml.gauges("0000:ff:00.0"); }) == "NVML: 0000:ff:00.0: Not Found");
}

TEST_CASE("a machine without NVML says so") {
  CHECK(contains(message_of([] { Nvml("libnot-there.so.1"); }), "libnot-there.so.1"));
  if (cuda_device_count() > 0) return;
  const Plan plan = small_plan();
  TraceRecorder recorder(plan);
  { const Sampler sampler(small_plan().devices, std::chrono::milliseconds(1), recorder); }  // cuda:0
  CHECK(contains(recorder.collect().sampling.note, "GPUs were not sampled: "));
}

TEST_CASE("the process is sampled at intervals: cores that work, and memory" * doctest::test_suite("alone")) {
  const Plan plan = small_plan();
  TraceRecorder recorder(plan);
  {
    const Sampler sampler(cpus(1), std::chrono::milliseconds(10), recorder);
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(120);
    while (std::chrono::steady_clock::now() < end) {
    }
  }
  const Sampling sampling = recorder.collect().sampling;
  CHECK(sampling.interval_ms == 10);
  CHECK(sampling.note.empty());
  REQUIRE(sampling.at.size() >= 3);
  CHECK(sampling.at.size() <= 13);
  CHECK(std::is_sorted(sampling.at.begin(), sampling.at.end()));
  REQUIRE(sampling.series.size() == 2);
  for (const SampleSeries& series : sampling.series) {
    CHECK(series.device == kNone);
    REQUIRE(series.values.size() == sampling.at.size());
    for (const double value : series.values) CHECK(value >= 0);  // 0: the system ran others meanwhile
    CHECK(*std::max_element(series.values.begin(), series.values.end()) > 0);
  }
  CHECK(sampling.series[0].unit == "cores");
  CHECK(sampling.series[1].unit == "B");
  CHECK(sampling.series[1].values[0] > 1 << 20);
}
