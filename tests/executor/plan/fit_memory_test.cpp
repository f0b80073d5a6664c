// SPDX-License-Identifier: Apache-2.0

// Plans for less memory than keeping everything takes.

#include "executor/limit/fit_memory.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <map>

#include "executor/limit/step_memory.h"
#include "executor/plan/strategy.h"
#include "ops/builtin_ops.h"
#include "tests/executor/fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace fit_memory_test {
namespace {

StepCut cut_step(const PlanInputs& in) {
  return in.strategy().cut_step(in);
}

Prepared example(const std::string& name, PlanDevice::Kind kind, const std::string& image, int64_t limit = 0) {
  const char* root = std::getenv("ARBALEST_SOURCE");
  Graph graph = load_graph(fmt::format("{}/examples/{}.onnxtxt", root ? root : ".", name), builtin_ops());
  graph.find_op("arbalest.Prefetch")
      ->attributes.set("source", fmt::format("synthetic:?shape={}&classes=10&size=1000", image));
  graph.find_op("arbalest.Validate")->attributes.set("batch", int64_t{8});
  SessionOptions options = on_cpus();
  options.learners.devices = {{kind, 0}};
  if (kind == PlanDevice::Kind::Cuda) options.numerics.precision = Precision::Bf16;
  options.execution.memory_limit = limit;
  return prepare(std::move(graph), options);
}

int64_t peak_of(const Prepared& prepared) {
  return planned_bytes(make_plan(prepared.program, prepared.request), 0);
}

struct Model {
  const char *name, *image;
};
constexpr Model kModels[] = {{"resnet20", "3x32x32"},
                             {"densenet121", "3x64x64"},
                             {"vit_s16", "3x224x224"},
                             {"resnet50", "3x64x64"},
                             {"mobilenet_v3_large", "3x64x64"}};

// Bytes of activations that live at once in the step of a plan's only learner, as its buffers say it.
int64_t planned_at_once(const Plan& plan) {
  const auto step = std::find_if(plan.tasks.begin(), plan.tasks.end(),
                                 [](const Task& task) { return task.kind == Task::Kind::Compute; });
  const ArenaId activations = plan.launches[size_t(step->first_launch)].gaps;
  std::vector<int64_t> changes;
  for (const Buffer& buffer : plan.buffers) {
    if (buffer.arena != activations) continue;
    changes.resize(std::max(changes.size(), size_t(buffer.last) + 2), 0);
    changes[size_t(buffer.first)] += aligned(buffer.bytes);
    changes[size_t(buffer.last) + 1] -= aligned(buffer.bytes);
  }
  int64_t live = 0, most = 0;
  for (const int64_t change : changes) {
    live += change;
    most = std::max(most, live);
  }
  return most;
}

// The same as its launches' operands say it.
int64_t live_at_once(const Plan& plan) {
  const auto step = std::find_if(plan.tasks.begin(), plan.tasks.end(),
                                 [](const Task& task) { return task.kind == Task::Kind::Compute; });
  std::map<BufferId, std::pair<int32_t, int32_t>> lives;
  for (int32_t i = 0; i < step->launches; ++i) {
    const Launch& launch = plan.launches[size_t(step->first_launch + i)];
    for (int32_t o = 0; o < launch.inputs + launch.outputs; ++o) {
      const BufferId buffer = plan.operands[size_t(launch.first_operand + o)].buffer;
      if (buffer == kNone) continue;
      if (!contains(plan.arenas[plan.buffers[buffer].arena].name, "/activations")) continue;
      lives.try_emplace(buffer, i, i).first->second.second = i;
    }
  }
  int64_t most = 0;
  for (int32_t i = 0; i < step->launches; ++i) {
    int64_t live = 0;
    for (const auto& [buffer, life] : lives) {
      if (life.first <= i && i <= life.second) live += aligned(plan.buffers[buffer].bytes);
    }
    most = std::max(most, live);
  }
  return most;
}

}  // namespace

TEST_CASE("planned memory falls as the limit does, down to what refusals call the least") {
  for (const Model& model : kModels) {
    for (const PlanDevice::Kind kind : {PlanDevice::Kind::Cpu, PlanDevice::Kind::Cuda}) {
      INFO(std::string(model.name), kind == PlanDevice::Kind::Cuda ? " on a GPU" : "");
      const Prepared kept = example(model.name, kind, model.image);
      const int64_t peak = peak_of(kept);
      int64_t least = 0;
      try {
        example(model.name, kind, model.image, 1);
      } catch (const LimitTooLow& error) {
        least = error.least;
      }
      REQUIRE(least > 0);
      CHECK(double(least) < 0.85 * double(peak));
      CHECK_THROWS_AS(example(model.name, kind, model.image, least - 1), LimitTooLow);
      double work = 0;
      for (int tenths = 9; tenths >= 0; tenths -= 3) {
        const int64_t limit = least + (peak - least) * tenths / 10;
        const Prepared again = example(model.name, kind, model.image, limit);
        CHECK(peak_of(again) <= limit);
        CHECK(again.recomputation.values > 0);
        CHECK(again.recomputation.work > 0.8 * work);
        work = again.recomputation.work;
      }
      CHECK(work < 1);
    }
  }
}

TEST_CASE("where the limit is not exceeded the plan is what it is without one") {
  const Prepared kept = example("resnet20", PlanDevice::Kind::Cpu, "3x32x32");
  const Prepared wide = example("resnet20", PlanDevice::Kind::Cpu, "3x32x32", peak_of(kept));
  CHECK(print_plan(make_plan(wide.program, wide.request)) == print_plan(make_plan(kept.program, kept.request)));
  CHECK(wide.recomputation.limit == peak_of(kept));
  CHECK(to_string(wide.recomputation) == "nothing is computed again");
  const Prepared less = example("resnet20", PlanDevice::Kind::Cpu, "3x32x32", peak_of(kept) - 1);
  CHECK(less.recomputation.values == 1);
  CHECK(less.recomputation.work < 0.03);
}

TEST_CASE("counted memory is what is live at once in the plan that follows") {
  for (const Model& model : kModels) {
    INFO(std::string(model.name));
    const Prepared kept = example(model.name, PlanDevice::Kind::Cpu, model.image);
    const Loop& loop = kept.program.training();
    const StepMemory memory(loop, false, cut_step({kept.program, kept.request}).updates);
    Table<NodeId, bool> chosen(loop.graph.nodes.size(), false);
    for (size_t step = 0; step < 3; ++step) {  // nothing, every third node, all that can be
      for (const NodeId n : chosen.ids()) chosen[n] = step == 2 || (step == 1 && int32_t(n) % 3 == 0);
      Program program = kept.program;
      recompute(program.training().graph, chosen);
      CHECK(memory.need(chosen, 0).peak == live_at_once(make_plan(program, kept.request)));
    }
  }
}

TEST_CASE("counted memory is what is planned where launches run aside and what they read lingers") {
  for (const Model& model : kModels) {
    INFO(std::string(model.name));
    const Prepared kept = example(model.name, PlanDevice::Kind::Cuda, model.image);
    const Loop& loop = kept.program.training();
    const std::vector<UpdatePart> updates = cut_step({kept.program, kept.request}).updates;
    const Table<NodeId, bool> none(loop.graph.nodes.size(), false);
    const int64_t counted = StepMemory(loop, true, updates).need(none, 0).peak;
    CHECK(counted == planned_at_once(make_plan(kept.program, kept.request)));
    CHECK(counted >= StepMemory(loop, false, updates).need(none, 0).peak);
  }
}

TEST_CASE("choosing what to compute again takes no longer than a plan is worth waiting for") {
  for (const char* name : {"resnet50", "densenet121"}) {
    const Prepared kept = example(name, PlanDevice::Kind::Cpu, "3x224x224");
    const int64_t limit = peak_of(kept) * 6 / 10;
    const std::clock_t began = std::clock();  // of this process alone: the machine may be busy
    Program program = kept.program;
    const Recomputation told = fit_memory(program, kept.request, {limit, 0, 10});
    const double seconds = double(std::clock() - began) / CLOCKS_PER_SEC;
    CHECK(told.values > 10);
    INFO(std::string(name));
    CHECK(seconds < 30);  // it takes 0.05 and 0.25 s
  }
}

TEST_CASE("what a limit costs is reported in one line") {
  CHECK(to_string(Recomputation{6ll << 30, 31, 4404019200, 0.09}) ==
        "31 values (4.1 GiB) are computed again in each step, about 9 % more work");
  CHECK(to_string(Recomputation{1, 1, 1 << 20, 0.004}) ==
        "1 value (1 MiB) is computed again in each step, about 0.4 % more work");
  CHECK(size_text(6ll << 30) == "6 GiB");
  CHECK(size_text(900 << 20) == "900 MiB");
  CHECK(size_text((5ll << 30) + (1ll << 29)) == "5.5 GiB");
  CHECK(size_text(1023) == "1023 B");
  CHECK(size_text(12 << 10) == "12 KiB");
}

}  // namespace fit_memory_test
