// SPDX-License-Identifier: Apache-2.0

// Measures the cost of scheduling: a million instances of empty tasks on one thread by Arbalest's dependency engine.
// Prints nanoseconds per task instance and the allocations of the steady state.

#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "base/time/clock.h"
#include "executor/plan/dependencies.h"
#include "executor/plan/plan.h"

namespace {
std::atomic<int64_t> allocations{0};

void* counted(size_t bytes, size_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* memory = alignment > alignof(std::max_align_t)
                     ? std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment)
                     : std::malloc(bytes > 0 ? bytes : 1);
  return memory != nullptr ? memory : throw std::bad_alloc();
}
}  // namespace

[[gnu::noinline]] void* operator new(size_t bytes) {
  return counted(bytes, 0);
}
[[gnu::noinline]] void* operator new(size_t bytes, std::align_val_t alignment) {
  return counted(bytes, size_t(alignment));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace arbalest {
namespace {

constexpr int64_t kInstances = 1'000'000;
constexpr int kRepeats = 5;  // the fastest counts

struct Builder {
  Plan plan;

  explicit Builder(int64_t iterations) {
    plan.clocks = {{"batch", iterations}};
    plan.devices.resize(1);
    for (const Lane::Kind kind : {Lane::Kind::Host, Lane::Kind::Compute, Lane::Kind::CopyIn, Lane::Kind::CopyOut}) {
      Lane lane;
      lane.kind = kind;
      plan.lanes.push_back(lane);
    }
  }

  TaskId task(const std::string& name, Lane::Kind lane, int width = 1) {
    Task task;
    task.name = name;
    task.width = width;
    while (plan.lanes[task.lane].kind != lane) ++task.lane;
    plan.tasks.push_back(task);
    const TaskId id = TaskId(plan.tasks.size() - 1);
    const bool device = lane != Lane::Kind::Host;
    edge(id, id, device ? 1 : width, device ? Edge::Needs::Issued : Edge::Needs::Done);
    return id;
  }

  void edge(TaskId from, TaskId to, int64_t distance, Edge::Needs needs) {
    Edge edge;
    edge.from = from;
    edge.to = to;
    edge.distance = distance;
    edge.needs = needs;
    plan.edges.push_back(edge);
  }
};

constexpr Edge::Needs kIssued = Edge::Needs::Issued, kDone = Edge::Needs::Done;

// One task per node, as if nothing were captured: fill, copy, 48 nodes forward and 48 backward with a shortcut every
// third, update, tallies, report. Activations that backward reads have one slot.
Plan resnet_plan() {
  constexpr int kDepth = 48;
  Builder builder(kInstances / (2 * kDepth + 5));
  const TaskId fill = builder.task("fill", Lane::Kind::Host, 4), copy = builder.task("copy in", Lane::Kind::CopyIn);
  std::vector<TaskId> nodes;
  for (int k = 0; k < 2 * kDepth; ++k) nodes.push_back(builder.task(fmt::format("node {}", k), Lane::Kind::Compute));
  const TaskId update = builder.task("update", Lane::Kind::Compute);
  const TaskId out = builder.task("copy out", Lane::Kind::CopyOut), report = builder.task("report", Lane::Kind::Host);
  builder.edge(fill, copy, 0, kDone);
  builder.edge(copy, fill, 4, kDone);
  builder.edge(copy, nodes.front(), 0, kIssued);
  builder.edge(nodes.back(), copy, 2, kIssued);
  for (int k = 1; k < 2 * kDepth; ++k) builder.edge(nodes[size_t(k) - 1], nodes[size_t(k)], 0, kIssued);
  for (int k = 3; k < 2 * kDepth; k += 3) builder.edge(nodes[size_t(k) - 3], nodes[size_t(k)], 0, kIssued);
  for (int k = 0; k < kDepth; ++k) {
    const TaskId forward = nodes[size_t(k)], backward = nodes[size_t(2 * kDepth - 1 - k)];
    if (backward != forward + 1) builder.edge(forward, backward, 0, kIssued);
    builder.edge(backward, forward, 1, kIssued);
  }
  builder.edge(nodes.back(), update, 0, kIssued);
  builder.edge(update, nodes.front(), 1, kIssued);
  builder.edge(update, out, 0, kIssued);
  builder.edge(out, report, 0, kDone);
  builder.edge(report, out, 2, kDone);
  builder.edge(update, fill, 8, kDone);
  builder.edge(update, copy, 2, kDone);  // pace
  return builder.plan;
}

// One captured step an iteration, for each of two learners.
Plan step_plan() {
  constexpr int kLearners = 2;
  Builder builder(kInstances / (kLearners * 5));
  for (int learner = 0; learner < kLearners; ++learner) {
    const TaskId fill = builder.task("fill", Lane::Kind::Host, 3), copy = builder.task("copy in", Lane::Kind::CopyIn);
    const TaskId step = builder.task("step", Lane::Kind::Compute), out = builder.task("copy out", Lane::Kind::CopyOut);
    const TaskId report = builder.task("report", Lane::Kind::Host);
    builder.edge(fill, copy, 0, kDone);
    builder.edge(copy, fill, 3, kDone);
    builder.edge(copy, step, 0, kIssued);
    builder.edge(step, copy, 2, kIssued);
    builder.edge(step, out, 0, kIssued);
    builder.edge(out, step, 2, kIssued);
    builder.edge(out, report, 0, kDone);
    builder.edge(report, out, 2, kDone);
    builder.edge(step, fill, 5, kDone);
    builder.edge(step, copy, 2, kDone);  // pace
  }
  return builder.plan;
}

// The processor time of the thread is the cost also on a machine that others use.
double processor_nanoseconds() {
  return double(clock_ns(CLOCK_THREAD_CPUTIME_ID));
}

struct Result {
  double nanoseconds = 0;  // per task instance
  int64_t allocations = 0;
};

// The whole plan, with its slots, pace and lanes: every instance is fired, device instances are issued and then done.
Result measure_dependencies(const Plan& plan) {
  Result result{1e30, 0};
  struct Instance {
    TaskId task;
    int64_t instance;
  };
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    Dependencies dependencies(plan);
    std::vector<Instance> ready(4 * plan.tasks.size());
    size_t count = 0;
    int64_t ran = 0;
    const auto put = [&](TaskId task, int64_t instance) { ready[count++] = {task, instance}; };
    Table<TaskId, char> on_host;
    for (const TaskId task : plan.tasks.ids()) on_host.push_back(plan.on_host(task));
    const int64_t before = allocations;
    const double start = processor_nanoseconds();
    dependencies.start(put);
    for (; count > 0; ++ran) {
      const Instance next = ready[--count];
      if (!on_host[next.task]) dependencies.issued(next.task, next.instance, put);
      dependencies.done(next.task, next.instance, put);
    }
    const double time = processor_nanoseconds() - start;
    result.allocations = allocations - before;
    result.nanoseconds = std::min(result.nanoseconds, time / double(ran));
    if (!dependencies.complete()) std::abort();
  }
  return result;
}

void print(const std::string& name, const Plan& plan) {
  verify(plan);
  const Result result = measure_dependencies(plan);
  fmt::print("{}: {} tasks, {} edges, {} iterations: {:.1f} ns/task, {} calls of operator new\n", name,
             plan.tasks.size(), plan.edges.size(), plan.clocks[0].ticks, result.nanoseconds, result.allocations);
}

}  // namespace
}  // namespace arbalest

int main() {
  arbalest::print("ResNet, a task a node", arbalest::resnet_plan());
  arbalest::print("two learners, a task a step", arbalest::step_plan());
}
