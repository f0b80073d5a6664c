// SPDX-License-Identifier: Apache-2.0

// Several learners on several GPUs: the same equations, metrics and bits as on CPUs. Needs two GPUs; uses up to four.

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "executor/devices/device.h"
#include "executor/trace/trace_file.h"
#include "tests/executor/fixture.h"
#include "tests/executor/session/reference.h"
#include "tests/io/test_folder.h"
#include "tests/part.h"

using namespace arbalest;
using namespace arbalest::test;

namespace gpus_test {
namespace {

// Products and sums on GPUs are in single precision, in another order than on CPUs.
constexpr double kTolerance = 2e-6;

int gpu_count() {
  return std::min(4, cuda_device_count());
}

bool lacks_gpus() {
  if (gpu_count() >= 2) return false;
  MESSAGE("SKIP: fewer than two CUDA devices");
  return true;
}

std::vector<int> first_gpus(int count) {
  std::vector<int> gpus(size_t(count), 0);
  std::iota(gpus.begin(), gpus.end(), 0);
  return gpus;
}

struct Training {
  StrategyOptions strategy;
  double momentum = 0.9;
  bool drops = true;  // the rate does, at which SMA restarts; if it never does, updates wait for less
};

const std::vector<Training> kTrainings = {{{.name = "ssgd"}},
                                          {{.name = "sma", .momentum = 0}},
                                          {{.name = "sma", .momentum = 0.9}, 0},
                                          {{.name = "sma", .every = 4, .momentum = 0}},
                                          {{.name = "sma", .momentum = 0}, 0.9, false},
                                          {{.name = "sma", .momentum = 0.9}, 0, false},
                                          {{.name = "sma", .every = 4, .momentum = 0}, 0.9, false},
                                          {{.name = "local", .every = 4}}};

Setting setting_of(const Training& training, const std::vector<int>& gpus, int learners) {
  Setting setting;
  setting.strategy = training.strategy;
  setting.gpus = gpus;
  setting.devices = int(gpus.size());
  setting.learners = learners;
  setting.momentum = training.momentum;
  setting.rate = training.momentum > 0 ? 0.01 : 0.05;
  setting.decay = 0.02;
  setting.hidden = 12;
  if (training.drops) setting.milestones = {2.4};
  return setting;
}

}  // namespace

TEST_CASE("learners on several GPUs train as the equations say") {
  if (lacks_gpus()) return;
  std::vector<std::pair<std::vector<int>, int>> layouts = {{{0}, 3}, {{0, 1}, 1}, {{1, 0}, 2}};
  if (gpu_count() >= 3) layouts.push_back({first_gpus(3), 2});
  if (gpu_count() >= 4) layouts.insert(layouts.end(), {{{1, 3}, 1}, {first_gpus(4), 2}});
  Part part;
  for (const Training& training : kTrainings) {
    for (const auto& [gpus, learners] : layouts) {
      if (!part.has_next()) continue;
      const Setting setting = setting_of(training, gpus, learners);
      INFO(to_string(setting));
      CHECK(greatest_difference(executed(setting), simulated(setting)) < kTolerance);
    }
  }
}

TEST_CASE("AdamW, clipping, parameter groups and frozen layers on several GPUs train as the equations say") {
  if (lacks_gpus()) return;
  Part part;
  for (const Training& training : kTrainings) {
    if (training.momentum == 0) continue;
    for (const auto& [gpus, learners] :
         std::vector<std::pair<std::vector<int>, int>>{{{0}, 2}, {{0, 1}, 1}, {{0, 1}, 2}}) {
      for (const bool adamw : {false, true}) {
        if (!part.has_next()) continue;
        Setting setting = setting_of(training, gpus, learners);
        setting.adamw = adamw;
        setting.nesterov = !adamw;
        if (adamw) setting.momentum = 0;
        setting.accumulate = learners;
        const auto check = [&] {
          INFO(to_string(setting));
          CHECK(greatest_difference(executed(setting), simulated(setting)) < kTolerance);
        };
        check();
        setting.clip = 0.5;
        setting.logits_factor = 0.25;
        setting.decay_biases = false;
        setting.strategy.bucket_bytes = 64;
        check();
        setting.freeze_hidden = true;
        check();
      }
    }
  }
}

TEST_CASE("gradients travel between GPUs in buckets, also of several batches") {
  if (lacks_gpus()) return;
  Part part;
  for (const int64_t accumulate : {1, 2}) {
    for (const int learners : {1, 2}) {
      if (!part.has_next()) continue;
      Setting setting = setting_of(kTrainings[0], first_gpus(gpu_count()), learners);
      setting.strategy.bucket_bytes = 64;
      setting.accumulate = accumulate;
      INFO(to_string(setting));
      CHECK(greatest_difference(executed(setting), simulated(setting)) < kTolerance);
    }
  }
}

TEST_CASE("moving averages on several GPUs are as the equations say") {
  if (lacks_gpus()) return;
  Part part;
  for (const Training& training : kTrainings) {
    for (const auto& [gpus, learners] :
         std::vector<std::pair<std::vector<int>, int>>{{{0}, 1}, {{0}, 2}, {{0, 1}, 1}, {{1, 0}, 2}}) {
      if (!part.has_next()) continue;
      Setting setting = setting_of(training, gpus, learners);
      setting.ema = 0.9;
      setting.accumulate = learners;
      INFO(to_string(setting));
      CHECK(greatest_difference(executed(setting), simulated(setting)) < kTolerance);
      setting.rounds = 8;
      setting.test_samples = 61;
      setting.iterations = 4 * setting.rounds;
      check_validations(setting, 1e-4);
    }
  }
}

TEST_CASE("all GPUs validate one model") {
  if (lacks_gpus()) return;
  Part part;
  for (const Training& training : kTrainings) {
    if (!part.has_next()) continue;
    Setting setting = setting_of(training, first_gpus(gpu_count()), 2);
    setting.test_samples = 61;
    setting.iterations = 4 * setting.rounds;
    check_validations(setting, 1e-4);
  }
}

TEST_CASE("deterministic learners on GPUs give the same bits each time, and others with another seed") {
  if (lacks_gpus()) return;
  Part part;
  for (const Training& training : kTrainings) {
    if (!part.has_next()) continue;
    SessionOptions options = on_cpus();
    options.learners.devices.clear();
    for (const int gpu : first_gpus(gpu_count())) options.learners.devices.push_back({PlanDevice::Kind::Cuda, gpu});
    options.learners.per_device = 2;
    options.numerics.precision = Precision::Bf16;
    options.numerics.deterministic = true;
    options.learners.strategy = training.strategy.name;
    options.length.epochs = 2;
    const auto bits = [&] { return bits_of(trained(tiny(convolutional()), options)); };
    INFO(training.strategy.name);
    const auto first = bits();
    CHECK(first == bits());
    options.numerics.seed = 2;
    CHECK(first != bits());
  }
}

TEST_CASE("a trace of GPUs tells how long learners' tasks take alone") {
  if (lacks_gpus()) return;
  const TestFolder folder;
  SessionOptions options = on_cpus();
  options.learners.devices = {{PlanDevice::Kind::Cuda, 0}, {PlanDevice::Kind::Cuda, 1}};
  options.learners.per_device = 2;
  options.length.epochs = 4;
  options.files.trace = folder / "run.json.gz";
  run(tiny(convolutional()), options);
  const TraceFile trace = read_trace(options.files.trace);
  REQUIRE(trace.alone.size() == trace.plan.tasks.size());
  int steps = 0;
  for (const TaskId task : trace.alone.ids()) {
    const Task& known = trace.plan.tasks[task];
    const bool compute = trace.plan.lanes[known.lane].kind == Lane::Kind::Compute;
    INFO(known.name);
    CHECK((trace.alone[task] > 0) == compute);
    steps += known.name.ends_with("/step");
  }
  CHECK(steps == 4);
}

TEST_CASE("in a trace of GPUs what a task waited for in its queue had ended before it ended") {
  if (lacks_gpus()) return;
  const TestFolder folder;
  SessionOptions options = on_cpus();
  options.learners.devices.clear();
  for (const int gpu : first_gpus(gpu_count())) options.learners.devices.push_back({PlanDevice::Kind::Cuda, gpu});
  options.learners.per_device = 8;
  options.learners.strategy = "sma";
  options.length.epochs = 20;
  options.files.trace = folder / "run.json.gz";
  run(tiny(convolutional()), options);
  const TraceFile trace = read_trace(options.files.trace);
  const SpanIndex index(trace);
  int64_t compared = 0;
  for (const Edge& edge : trace.plan.edges) {
    if (edge.needs != Edge::Needs::Issued) continue;
    for (const TaskSpan* to : index.of(edge.to)) {
      const int64_t needed = needed_instance(trace.plan, edge, to->instance);
      const TaskSpan* from = needed < 0 ? nullptr : index.find(edge.from, needed);
      if (!from) continue;
      ++compared;
      const bool one_clock = trace.plan.tasks[edge.from].device == trace.plan.tasks[edge.to].device;
      const int64_t rounding = one_clock ? 2'000 : 200'000;  // ns: clocks of two GPUs differ
      if (from->ended <= to->ended + rounding) continue;
      INFO(trace.plan.tasks[edge.from].name << " " << needed << " ended at " << from->ended << ", "
                                            << trace.plan.tasks[edge.to].name << " " << to->instance << " at "
                                            << to->ended);
      CHECK(from->ended <= to->ended + rounding);
    }
  }
  CHECK(compared > 1000);
}

}  // namespace gpus_test
