// SPDX-License-Identifier: Apache-2.0

// The scheduler on real plans with host functions of the test's own: errors, stalls, stopping, and recorded steps
// against eager ones.

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>

#include "ops/builtin_ops.h"
#include "tests/executor/run/scheduler_harness.h"

using namespace arbalest;
using namespace arbalest::test;

TEST_CASE("an error in a task names task, device, learner and iteration, and nothing hangs") {
  for (const auto& [devices, learners] : {std::pair{1, 1}, {2, 2}}) {
    Harness harness(epochs(on_cpus(devices, learners), 20));
    const std::string last = fmt::format("cpu:{}/learner {}", devices - 1, devices * learners - 1);
    const TaskId failing = harness.task(last + "/fill");
    harness.host[failing] = [inner = harness.host[failing]](int64_t tick) {
      if (tick == 7) throw RunError("the disk is gone");
      inner(tick);
    };
    const std::string message = harness.run();
    CHECK(message == fmt::format("{}/fill, device cpu:{}, learner {}, batch 7: the disk is gone", last, devices - 1,
                                 devices * learners - 1));
  }
}

TEST_CASE("an error tells the iteration of the run, and one about the whole training is passed on") {
  Harness harness(epochs(on_cpus(), 20));
  const TaskId failing = harness.task("cpu:0/learner 0/fill");
  const auto thrown = [&](const auto& error) {
    harness.host[failing] = [&](int64_t tick) {
      if (tick == 0) throw error;
    };
    SchedulerOptions options;
    options.first_iteration = 1000;
    Scheduler scheduler(*harness.binding, harness.host, options);
    try {
      scheduler.run();
    } catch (const TaskError& task_error) {
      return std::pair(std::string(task_error.what()), task_error.iteration);
    }
    return std::pair(std::string(), int64_t(0));
  };
  CHECK(thrown(RunError("unread")) ==
        std::pair(std::string("cpu:0/learner 0/fill, device cpu:0, learner 0, batch 0: unread"), int64_t(1000)));
  CHECK(thrown(TaskError("no use", 7)) == std::pair(std::string("no use"), int64_t(7)));
}

TEST_CASE("what is no exception of ours is caught as well") {
  Harness harness(epochs(on_cpus(), 3));
  harness.host[harness.task("report")] = [](int64_t tick) {
    if (tick == 2) throw 42;
  };
  CHECK(harness.run() == "report, report 2: an unknown error");
}

TEST_CASE("an error in a kernel names the node and its operator as well") {
  const SessionOptions options = epochs(on_cpus(2, 2), 20);
  Prepared prepared = prepare(tiny({}), options);
  Op faulty = builtin_ops().get("Relu");
  std::atomic<int> runs{0};
  faulty.cpu = [&](const KernelRequest& request) {
    std::shared_ptr<Kernel> relu = builtin_ops().get("Relu").cpu(request);
    return make_kernel([relu, &runs](const KernelContext& context) {
      if (++runs == 10) throw RunError("out of order");
      relu->run(context);
    });
  };
  Graph& step = prepared.program.training().graph;
  step.nodes[step.find_node("h")].op = &faulty;
  Harness harness(std::move(prepared), options);
  const std::string message = harness.run();
  INFO(message);
  CHECK(message.starts_with("cpu:"));
  CHECK(contains(message, "/step, device cpu:"));
  CHECK(contains(message, ", learner "));
  CHECK(contains(message, ", batch "));
  CHECK(message.ends_with(": node 'h' (Relu): out of order"));
}

TEST_CASE("a scheduler may go as soon as its run has ended, well or not") {
  for (int round = 0; round < 30; ++round) {
    SessionOptions options = on_cpus(2, 1);
    options.length.iterations = 2;
    options.learners.strategy = "none";
    Harness harness(options);
    const bool fails = round % 2 == 1;
    if (fails) harness.host[harness.task("report")] = [](int64_t) { throw RunError("at the end"); };
    REQUIRE(contains(harness.run(), "at the end") == fails);
  }
}

TEST_CASE("of many errors the first is reported") {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  const auto until = [&](const auto& condition) {
    while (!condition() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  };
  // Both are under way when one of them fails; the other fails well after that.
  for (const int first : {0, 1}) {
    Harness harness(epochs(on_cpus(2, 1), 5));
    std::atomic<bool> other_began{false}, thrown{false};
    std::atomic<int> later{0};
    const auto fill_of = [&](int learner) {
      return harness.task(fmt::format("cpu:{}/learner {}/fill", learner, learner));
    };
    harness.host[fill_of(first)] = [&, inner = harness.host[fill_of(first)]](int64_t tick) {
      if (tick > 0) return inner(tick);  // several may run at once, on two threads
      until([&] { return other_began.load(); });
      thrown = true;
      throw RunError("broken");
    };
    harness.host[fill_of(1 - first)] = [&, inner = harness.host[fill_of(1 - first)]](int64_t tick) {
      if (tick > 0) return inner(tick);
      other_began = true;
      until([&] { return thrown.load(); });
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      ++later;
      throw RunError("broken as well");
    };
    const std::string message = harness.run();
    CHECK(message.starts_with(fmt::format("cpu:{}/learner {}/fill, device cpu:{}", first, first, first)));
    CHECK(message.ends_with(": broken"));
    CHECK(later >= 1);
  }
}

TEST_CASE("a stall report says what runs and what waits for what") {
  Harness harness(epochs(on_cpus(), 2));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  std::atomic<bool> released{false};
  const TaskId blocked = harness.task("cpu:0/learner 0/fill");
  harness.host[blocked] = [&, inner = harness.host[blocked]](int64_t tick) {
    while (tick == 4 && !released && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    inner(tick);
  };
  SchedulerOptions options;
  options.stall_seconds = 0.1;
  std::string latest;
  options.stalled = [&](const std::string& report) {
    latest = report;
    // Three may run at once; what ended ahead of instance 4 counts once that has ended. A busy machine may stall
    // before.
    released = contains(report, "cpu:0/learner 0/fill 7, 3 running, waits for cpu:0/learner 0/fill 4") &&
               contains(report, "cpu:0/learner 0/copy in 4, waits for cpu:0/learner 0/fill 4 (pinned batch)");
  };
  CHECK(harness.run(options) == "");
  INFO(latest);
  CHECK(released);
}

TEST_CASE("a host task may stop the run: all learners end after the same iteration") {
  Harness harness(epochs(on_cpus(2, 2), 5000));
  Scheduler* scheduler = nullptr;
  harness.host[harness.task("report")] = [&](int64_t tick) {
    if (tick == 5) scheduler->stop();
  };
  Scheduler made(*harness.binding, harness.host, {});
  scheduler = &made;
  made.run();
  CHECK(made.iterations() > 5);
  CHECK(made.iterations() < 5000 * 3);
  // Each has summed as many batches of 8.
  for (int learner = 0; learner < 4; ++learner) {
    const Replica& replica = harness.plan.handles.loops.front().replicas[size_t(learner)];
    const Operand tally = replica.placement.of[harness.prepared.program.training().arenas.tally];
    double samples = 0;
    harness.binding->device(replica.device)
        .download(&samples, harness.binding->address(tally.buffer, 0) + tally.offset, sizeof samples);
    CHECK(int64_t(samples) == 8 * made.iterations());
  }
}

TEST_CASE("recorded steps compute what eager ones do") {
  if (cuda_device_count() == 0) {
    MESSAGE("SKIP: no CUDA device");
    return;
  }
  SessionOptions options = epochs(on_cpus(), 3);
  options.learners.devices = {{PlanDevice::Kind::Cuda, 0}};
  Harness recorded(options, true), eager(options, false);
  CHECK(recorded.run() == "");
  CHECK(eager.run() == "");
  const auto a = recorded.weights(), b = eager.weights();
  double difference = 0, norm = 0;
  for (size_t i = 0; i + 4 <= a.size(); i += 4) {
    float x = 0, y = 0;
    std::memcpy(&x, a.data() + i, 4);
    std::memcpy(&y, b.data() + i, 4);
    difference += double(x - y) * double(x - y);
    norm += double(y) * double(y);
  }
  CHECK(norm > 0);
  CHECK(difference <= 1e-10 * norm);
}

TEST_CASE("what runs aside changes no bit") {
  if (cuda_device_count() == 0) {
    MESSAGE("SKIP: no CUDA device");
    return;
  }
  for (const auto& [learners, scaled] : {std::pair(1, false), std::pair(2, false), std::pair(1, true)}) {
    CAPTURE(learners);
    CAPTURE(scaled);
    SessionOptions options = epochs(on_cpus(), 3);
    options.learners.devices = {{PlanDevice::Kind::Cuda, 0}};
    options.learners.per_device = learners;
    const auto trained = [&, learners = learners, scaled = scaled](bool branches) {
      Prepared prepared = prepare(scaled ? with_scaled_weights() : tiny({}), options);
      prepared.request.branches = branches;
      Harness harness(std::move(prepared), options);
      const bool aside = std::any_of(harness.plan.launches.begin(), harness.plan.launches.end(),
                                     [](const Launch& launch) { return launch.aside; });
      CHECK(aside == branches);
      CHECK(harness.run() == "");
      return harness.weights();
    };
    CHECK(trained(true) == trained(false));
  }
}

namespace {

class CallingIssuer final : public Issuer {
 public:
  using Function = std::function<void(TaskId task, int64_t instance)>;
  explicit CallingIssuer(Function function) : function_(std::move(function)) {}
  void issue(TaskId task, int64_t instance) override { function_(task, instance); }

 private:
  const Function function_;
};

}  // namespace

TEST_CASE("issuing threads take everything once, in order, and go on after they slept") {
  std::mutex mutex;
  std::vector<int64_t> issued;
  std::atomic<bool> held{true};
  {
    CallingIssuer issuer([&](TaskId task, int64_t instance) {
      while (held.load()) std::this_thread::yield();
      const std::scoped_lock lock(mutex);
      issued.push_back(instance + 10'000 * int64_t(task));
    });
    IssuingThreads threads(1, std::chrono::microseconds(50));
    for (int64_t i = 0; i < 1000; ++i) threads.push(issuer, 0, i);  // more than the ring begins with
    held = false;
    while (true) {
      const std::scoped_lock lock(mutex);
      if (issued.size() == 1000) break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // it sleeps
    for (int64_t i = 0; i < 10; ++i) threads.push(issuer, 1, i);
  }
  REQUIRE(issued.size() == 1010);
  for (int64_t i = 0; i < 1010; ++i) CHECK(issued[size_t(i)] == (i < 1000 ? i : 10'000 + i - 1000));
}

TEST_CASE("several issuing threads share what is pushed from several") {
  std::atomic<int64_t> sum{0};
  {
    CallingIssuer issuer([&](TaskId, int64_t instance) { sum += instance; });
    IssuingThreads threads(2, std::chrono::microseconds(0));
    std::vector<std::thread> producers;
    for (int p = 0; p < 4; ++p) {
      producers.emplace_back([&] {
        for (int64_t i = 1; i <= 5000; ++i) threads.push(issuer, 0, i);
      });
    }
    for (std::thread& producer : producers) producer.join();
  }
  CHECK(sum == 4 * 5000 * 5001 / 2);
}
