// SPDX-License-Identifier: Apache-2.0

// The dependency engine on several threads: slots, what is written before an edge, stop; and that nothing is allocated
// while it runs.

#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <new>
#include <thread>

#include "executor/plan/dependencies.h"
#include "tests/executor/plan/random_plan.h"

namespace {
thread_local int64_t allocations = 0;
}

// Counted for the whole program; every form of new that isn't over-aligned ends up here: the nothrow one by itself,
// since AddressSanitizer has its own. Not inlined: the compiler would take malloc and delete for a mismatch.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes > 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes > 0 ? bytes : 1);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace arbalest::dependencies_threads_test {
namespace {

using test::add_edge;
using test::add_task;
using test::empty_plan;
using test::Instance;
using test::is_live;

// A pipeline with slots: fill (width 3) → copy (device) → step (device) → report (host), each buffer's reuse an edge.
Plan slot_plan(int64_t batches, const std::vector<int>& slots) {
  Plan plan = empty_plan(batches);
  const TaskId fill = add_task(plan, "fill", 0, true, 3), copy = add_task(plan, "copy", 0, false);
  const TaskId step = add_task(plan, "step", 0, false), report = add_task(plan, "report", 0, true, 2);
  const std::vector<TaskId> line = {fill, copy, step, report};
  for (size_t k = 0; k + 1 < line.size(); ++k) {
    add_edge(plan, line[k], line[k + 1], 0);
    add_edge(plan, line[k + 1], line[k], slots[k]);
  }
  return plan;
}

// Ready instances, taken by several threads; device tasks end in order, from a queue of their own.
class Crew {
 public:
  Crew(const Plan& plan, Dependencies& dependencies)
      : plan_(plan), dependencies_(dependencies), queues_(plan.tasks.size()) {}

  template <class Body>
  void run(int threads, Body&& body) {
    if (dependencies_.start(put())) over_ = true;
    std::vector<std::thread> crew;
    for (int k = 0; k < threads; ++k) crew.emplace_back([&, k] { work(uint32_t(k), body); });
    for (std::thread& thread : crew) thread.join();
  }

  auto put() {
    return [this](TaskId task, int64_t instance) {
      Shelf& shelf = shelves_[next_shelf_.fetch_add(1, std::memory_order_relaxed) % kShelves];
      const std::lock_guard lock(shelf.mutex);
      shelf.ready.push_back({task, instance});
    };
  }

 private:
  static constexpr uint32_t kShelves = 5;
  struct Shelf {
    std::mutex mutex;
    std::vector<Instance> ready;
  };
  struct DeviceQueue {
    std::mutex mutex;
    std::deque<int64_t> issued;
  };

  template <class Body>
  void work(uint32_t seed, Body& body) {
    std::mt19937 random(seed);
    while (!over_.load(std::memory_order_relaxed)) {
      Instance next;
      {
        Shelf& shelf = shelves_[random() % kShelves];
        const std::lock_guard lock(shelf.mutex);
        if (!shelf.ready.empty()) {
          const size_t at = random() % shelf.ready.size();
          next = shelf.ready[at];
          shelf.ready.erase(shelf.ready.begin() + int64_t(at));
        }
      }
      if (next.task != kNone) run_one(next, body);
      poll(TaskId(random() % plan_.tasks.size()), body);
      if (next.task == kNone) std::this_thread::yield();
    }
  }

  template <class Body>
  void run_one(Instance next, Body& body) {
    if (plan_.on_host(next.task)) {
      body(next.task, next.instance);
      if (dependencies_.done(next.task, next.instance, put())) over_ = true;
      return;
    }
    {
      DeviceQueue& queue = queues_[next.task];
      const std::lock_guard lock(queue.mutex);
      queue.issued.push_back(next.instance);
    }
    if (dependencies_.issued(next.task, next.instance, put())) over_ = true;  // it may be done before this
  }

  template <class Body>
  void poll(TaskId task, Body& body) {
    DeviceQueue& queue = queues_[task];
    const std::lock_guard lock(queue.mutex);
    if (queue.issued.empty()) return;
    const int64_t instance = queue.issued.front();
    queue.issued.pop_front();
    body(task, instance);
    if (dependencies_.done(task, instance, put())) over_ = true;
  }

  const Plan& plan_;
  Dependencies& dependencies_;
  Shelf shelves_[kShelves];
  Table<TaskId, DeviceQueue> queues_;
  std::atomic<uint32_t> next_shelf_{0};
  std::atomic<bool> over_{false};
};

TEST_CASE("no slot is overwritten while it is read, on four threads") {
  const std::vector<int> slots = {3, 2, 1};
  const int64_t batches = 3000;
  const Plan plan = slot_plan(batches, slots);
  verify(plan);
  Dependencies dependencies(plan);
  Table<TaskId, std::vector<int64_t>> memory;  // plain: the edges alone keep readers and writers apart
  for (int count : slots) memory.emplace_back(size_t(count), -1);
  std::atomic<int> wrong{0};
  Crew(plan, dependencies).run(4, [&](TaskId task, int64_t i) {
    if (task > 0) {
      const std::vector<int64_t>& source = memory[TaskId(int32_t(task) - 1)];
      if (source[size_t(i) % source.size()] != i) ++wrong;
    }
    if (size_t(task) < slots.size()) memory[task][size_t(i) % memory[task].size()] = i;
  });
  CHECK(wrong == 0);
  CHECK(dependencies.complete());
}

TEST_CASE("random plans run to the end on four threads, and what an instance wrote is seen after its edges") {
  std::mt19937 random(14);
  int runs = 0;
  for (int round = 0; round < 60; ++round) {
    const Plan plan = test::random_plan(random);
    if (!is_live(plan)) continue;
    const test::Definition definition(plan);
    Dependencies dependencies(plan);
    Table<TaskId, std::vector<int64_t>> written(plan.tasks.size());  // plain memory
    for (const TaskId task : plan.tasks.ids()) {
      written[task].assign(size_t(definition.ticks(task)), -1);
    }
    std::atomic<int> wrong{0};
    Crew(plan, dependencies).run(4, [&](TaskId task, int64_t i) {
      for (const Edge& edge : plan.edges) {
        if (edge.to != task || edge.needs != Edge::Needs::Done) continue;
        const int64_t needs = definition.needs(edge, i);
        if (needs < 0) continue;
        if (written[edge.from][size_t(needs)] != needs) ++wrong;
      }
      if (written[task][size_t(i)] != -1) ++wrong;
      written[task][size_t(i)] = i;
    });
    REQUIRE(wrong == 0);
    REQUIRE(dependencies.complete());
    ++runs;
  }
  CHECK(runs > 15);
}

TEST_CASE("stop from another thread finds a number of iterations that all tasks run") {
  for (int round = 0; round < 20; ++round) {
    const Plan plan = slot_plan(int64_t{1} << 40, {3, 2, 1});
    Dependencies dependencies(plan);
    Table<TaskId, std::atomic<int64_t>> ended(plan.tasks.size());
    Crew crew(plan, dependencies);
    std::thread stopper([&] {
      while (ended[3].load() < 10 * round) std::this_thread::yield();
      dependencies.stop(crew.put());
    });
    crew.run(4, [&](TaskId task, int64_t) { ++ended[task]; });
    stopper.join();
    CHECK(dependencies.complete());
    for (const auto& count : ended) CHECK(count == dependencies.limit(0));
  }
}

TEST_CASE("a run allocates nothing") {
  const Plan plan = slot_plan(20000, {3, 2, 1});
  Dependencies dependencies(plan);
  std::vector<Instance> stack;
  stack.reserve(64);
  const auto put = [&](TaskId task, int64_t instance) { stack.push_back({task, instance}); };
  const int64_t before = allocations;
  dependencies.start(put);
  int64_t ran = 0;
  for (; !stack.empty(); ++ran) {
    const Instance next = stack.back();
    stack.pop_back();
    if (!plan.on_host(next.task)) dependencies.issued(next.task, next.instance, put);
    dependencies.done(next.task, next.instance, put);
  }
  CHECK(allocations - before == 0);
  CHECK(ran == 4 * 20000);
  CHECK(dependencies.complete());
  operator delete(operator new(1));
  CHECK(allocations - before > 0);
}

}  // namespace
}  // namespace arbalest::dependencies_threads_test
