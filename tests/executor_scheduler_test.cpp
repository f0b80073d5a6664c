// The scheduler on real plans with host functions of the test's own: errors, stalls, stopping, and recorded steps
// against eager ones.

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>

#include "executor/host_tasks.h"
#include "executor/scheduler.h"
#include "executor/state.h"
#include "tests/executor_fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace {

std::unique_ptr<Device> make_device(const PlanDevice& device, const std::shared_ptr<CpuProgress>& progress,
                                    const std::shared_ptr<CudaEvents>& events) {
  return device.kind == PlanDevice::Kind::Cpu ? make_cpu_device(device.index, 1, progress)
                                              : make_cuda_device(device.index, events);
}

// A bound plan whose host tasks do as little as they may: fills write batches, everything else nothing.
struct Harness {
  Prepared prepared;
  Plan plan;
  std::unique_ptr<Binding> binding;
  Scheduler::HostFunctions host;

  explicit Harness(const SessionOptions& options, bool capture = true)
      : Harness(prepare(tiny({}), options), options, capture) {}

  Harness(Prepared from, const SessionOptions& options, bool capture = true)
      : prepared(std::move(from)), plan(make_plan(prepared.program, prepared.request)) {
    const auto progress = make_cpu_progress(plan.tasks.size());
    const auto events = make_cuda_events(plan.tasks.size());
    std::vector<std::unique_ptr<Device>> devices;
    for (const PlanDevice& device : plan.devices) devices.push_back(make_device(device, progress, events));
    BindOptions bind;
    bind.deterministic = true;
    bind.capture = capture;
    binding = std::make_unique<Binding>(plan, std::move(devices), nullptr, bind);
    set_weights(options.seed);
    host.resize(plan.tasks.size());
    for (TaskId id = 0; id < TaskId(plan.tasks.size()); ++id) {
      if (!plan.on_host(id)) continue;
      host[size_t(id)] = [](int64_t) {};
      if (plan.tasks[size_t(id)].kind == Task::Kind::Fill) host[size_t(id)] = fill(plan.tasks[size_t(id)]);
    }
  }

  TaskId task(std::string_view name) const {
    for (TaskId id = 0; id < TaskId(plan.tasks.size()); ++id) {
      if (plan.tasks[size_t(id)].name == name) return id;
    }
    FAIL("no task ", std::string(name));
    return kNone;
  }

  std::string run(SchedulerOptions options = {}) {
    Scheduler scheduler(*binding, host, std::move(options));
    const std::atomic<bool> interrupted{false};
    return message_of([&] { scheduler.run(interrupted); });
  }

  std::vector<std::byte> weights() const {
    const Loop& loop = prepared.program.training;
    const Value& value = loop.graph.values[size_t(loop.arenas.weights)];
    std::vector<std::byte> content(size_t(value.type.bytes()));
    const BufferId buffer = binding->find(to_string(plan.devices[0]) + "/learner 0/weights");
    binding->device(0).download(content.data(), binding->address(buffer, 0), int64_t(content.size()));
    return content;
  }

 private:
  void set_weights(uint64_t seed) {
    const Loop& loop = prepared.program.training;
    for (const ValueId v : {loop.arenas.weights, loop.graph.find_value("loss.seed")}) {
      const auto content = initial_content(loop.graph, v, seed);
      for (size_t b = 0; b < plan.buffers.size(); ++b) {
        const std::string& name = plan.buffers[b].name;
        if (!name.ends_with("/" + loop.graph.values[size_t(v)].name) || contains(name, "validation")) continue;
        const auto device = plan.arenas[size_t(plan.buffers[b].arena)].device;
        binding->device(device).upload(binding->address(BufferId(b), 0), content.data(), int64_t(content.size()));
      }
    }
  }

  std::function<void(int64_t)> fill(const Task& task) {
    const bool training = task.learner != kNone;
    const Loop& loop = training ? prepared.program.training : *prepared.program.validation;
    auto filler = std::make_shared<BatchFiller>(
        *binding, task, loop, training ? *prepared.training : *prepared.validation, batch_layout(loop, false));
    const DataOrder order(1, training ? prepared.training->size() : prepared.validation->size(), training);
    return [filler, order, training, rounds = prepared.request.rounds](int64_t tick) {
      StepScalars scalars;
      scalars.learning_rate = 0.05f;
      filler->fill(tick, order, 0, training ? tick % rounds : 0, scalars);
    };
  }
};

SessionOptions epochs(SessionOptions options, int64_t count) {
  options.epochs = count;
  options.strategy = Strategy::Kind::None;
  return options;
}

}  // namespace

TEST_CASE("an error in a task names task, device, learner and iteration, and nothing hangs") {
  for (const auto& [devices, learners] : {std::pair{1, 1}, {2, 2}}) {
    Harness harness(epochs(on_cpus(devices, learners), 20));
    const std::string last = fmt::format("cpu:{}/learner {}", devices - 1, devices * learners - 1);
    const TaskId failing = harness.task(last + "/fill");
    harness.host[size_t(failing)] = [inner = harness.host[size_t(failing)]](int64_t tick) {
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
    harness.host[size_t(failing)] = [&](int64_t tick) {
      if (tick == 0) throw error;
    };
    SchedulerOptions options;
    options.first_iteration = 1000;
    Scheduler scheduler(*harness.binding, harness.host, options);
    const std::atomic<bool> interrupted{false};
    try {
      scheduler.run(interrupted);
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
  harness.host[size_t(harness.task("report"))] = [](int64_t tick) {
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
  Graph& step = prepared.program.training.graph;
  step.nodes[size_t(step.find_node("h"))].op = &faulty;
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
    options.iterations = 2;
    options.strategy = Strategy::Kind::None;
    Harness harness(options);
    const bool fails = round % 2 == 1;
    if (fails) harness.host[size_t(harness.task("report"))] = [](int64_t) { throw RunError("at the end"); };
    REQUIRE(contains(harness.run(), "at the end") == fails);
  }
}

TEST_CASE("of many errors the first is told") {
  Harness harness(epochs(on_cpus(2, 2), 5));
  std::atomic<int> thrown{0};
  for (TaskId id = 0; id < TaskId(harness.plan.tasks.size()); ++id) {
    if (harness.plan.tasks[size_t(id)].kind != Task::Kind::Fill) continue;
    harness.host[size_t(id)] = [&thrown](int64_t) {
      ++thrown;
      throw RunError("broken");
    };
  }
  CHECK(contains(harness.run(), "fill, device cpu:"));
  CHECK(thrown >= 1);
}

TEST_CASE("a stall report says what runs and what waits for what") {
  Harness harness(epochs(on_cpus(), 2));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  std::atomic<bool> released{false};
  const TaskId blocked = harness.task("cpu:0/learner 0/fill");
  harness.host[size_t(blocked)] = [&, inner = harness.host[size_t(blocked)]](int64_t tick) {
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
  harness.host[size_t(harness.task("report"))] = [&](int64_t tick) {
    if (tick == 5) scheduler->stop();
  };
  Scheduler made(*harness.binding, harness.host, {});
  scheduler = &made;
  const std::atomic<bool> interrupted{false};
  made.run(interrupted);
  CHECK(made.iterations() > 5);
  CHECK(made.iterations() < 5000 * 3);
}

TEST_CASE("recorded steps compute what eager ones do") {
  if (cuda_device_count() == 0) {
    MESSAGE("SKIP: no CUDA device");
    return;
  }
  SessionOptions options = epochs(on_cpus(), 3);
  options.devices = {{PlanDevice::Kind::Cuda, 0}};
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

TEST_CASE("issuing threads take everything once, in order, and go on after they slept") {
  std::mutex mutex;
  std::vector<int64_t> issued;
  std::atomic<bool> held{true};
  {
    IssuingThreads threads(1, std::chrono::microseconds(50), [&](TaskId task, int64_t instance) {
      while (held.load()) std::this_thread::yield();
      const std::scoped_lock lock(mutex);
      issued.push_back(instance + 10'000 * task);
    });
    for (int64_t i = 0; i < 1000; ++i) threads.push(0, i);  // more than the ring begins with
    held = false;
    while (true) {
      const std::scoped_lock lock(mutex);
      if (issued.size() == 1000) break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // it sleeps
    for (int64_t i = 0; i < 10; ++i) threads.push(1, i);
  }
  REQUIRE(issued.size() == 1010);
  for (int64_t i = 0; i < 1010; ++i) CHECK(issued[size_t(i)] == (i < 1000 ? i : 10'000 + i - 1000));
}

TEST_CASE("several issuing threads share what is pushed from several") {
  std::atomic<int64_t> sum{0};
  {
    IssuingThreads threads(2, std::chrono::microseconds(0), [&](TaskId, int64_t instance) { sum += instance; });
    std::vector<std::thread> producers;
    for (int p = 0; p < 4; ++p) {
      producers.emplace_back([&] {
        for (int64_t i = 1; i <= 5000; ++i) threads.push(0, i);
      });
    }
    for (std::thread& producer : producers) producer.join();
  }
  CHECK(sum == 4 * 5000 * 5001 / 2);
}
