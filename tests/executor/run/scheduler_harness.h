// SPDX-License-Identifier: Apache-2.0
#pragma once
// Real plans bound to devices, with host functions of the test's own.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "executor/run/host_tasks.h"
#include "executor/run/scheduler.h"
#include "executor/session/reading.h"
#include "executor/session/state.h"
#include "tests/executor/fixture.h"

namespace arbalest::test {

inline std::unique_ptr<Device> make_device(const PlanDevice& device, const std::shared_ptr<CpuProgress>& progress,
                                           const std::shared_ptr<CudaEvents>& events, CallWatch& calls) {
  return device.kind == PlanDevice::Kind::Cpu ? make_cpu_device(device.index, 1, progress)
                                              : make_cuda_device(device.index, events, calls);
}

// A bound plan whose host tasks do as little as they may: fills write batches, everything else nothing.
struct Harness {
  Prepared prepared;
  Plan plan;
  std::unique_ptr<Binding> binding;
  Scheduler::HostFunctions host;

  // Replaces a device by the one that a test wants.
  using Wrap = std::function<std::unique_ptr<Device>(std::unique_ptr<Device>, CallWatch&)>;

  explicit Harness(const SessionOptions& options, bool capture = true, const Wrap& wrap = {},
                   double device_timeout = 20)
      : Harness(prepare(tiny({}), options), options, capture, wrap, device_timeout) {}

  Harness(Prepared from, const SessionOptions& options, bool capture = true, const Wrap& wrap = {},
          double device_timeout = 20)
      : prepared(std::move(from)), plan(make_plan(prepared.program, prepared.request)) {
    const auto progress = make_cpu_progress(plan.tasks.size());
    const auto events = make_cuda_events(plan.tasks.size());
    auto calls = std::make_unique<CallWatch>(device_timeout);
    std::vector<std::unique_ptr<Device>> devices;
    for (const PlanDevice& device : plan.devices) {
      devices.push_back(make_device(device, progress, events, *calls));
      if (wrap) devices.back() = wrap(std::move(devices.back()), *calls);
    }
    BindOptions bind;
    bind.deterministic = true;
    bind.capture = capture;
    binding = std::make_unique<Binding>(plan, std::move(calls), std::move(devices), nullptr, bind);
    set_weights(options.numerics.seed);
    host.resize(plan.tasks.size());
    for (const TaskId id : plan.tasks.ids()) {
      if (!plan.on_host(id)) continue;
      host[id] = [](int64_t) {};
      if (plan.tasks[id].kind == Task::Kind::Fill) host[id] = fill(plan.tasks[id]);
    }
  }

  TaskId task(std::string_view name) const {
    for (const TaskId id : plan.tasks.ids()) {
      if (plan.tasks[id].name == name) return id;
    }
    FAIL("no task ", std::string(name));
    return kNone;
  }

  std::string run(SchedulerOptions options = {}) {
    Scheduler scheduler(*binding, host, std::move(options));
    return message_of([&] { scheduler.run(); });
  }

  std::vector<std::byte> weights() const {
    const Loop& loop = prepared.program.training();
    const Value& value = loop.graph.values[loop.arenas.weights];
    const Replica& learner = plan.handles.find(LoopRole::Train)->replicas.front();
    return binding->get(learner.placement.of[loop.arenas.weights], 0, value.type.bytes());
  }

 private:
  void set_weights(uint64_t seed) {
    const Loop& loop = prepared.program.training();
    for (const ValueId v : {loop.arenas.weights, loop.graph.find_value("loss.seed")}) {
      const auto content = initial_content(loop.graph, v, seed);
      for (const Replica& learner : plan.handles.find(LoopRole::Train)->replicas) {
        binding->put(learner.placement.of[v], 0, content);
      }
    }
  }

  std::function<void(int64_t)> fill(const Task& task) {
    const bool training = task.learner != kNone;
    const Loop& loop = training ? prepared.program.training() : *prepared.program.find(LoopRole::Validate);
    auto filler = std::make_shared<BatchFiller>(*binding, task, batch_layout(loop, BatchOrigin::Host),
                                                make_reader(prepared, loop, 1));
    const DataOrder order(1, training ? prepared.training->size() : prepared.validation->size(), training);
    return [filler, order, training, rounds = prepared.request.rounds](int64_t tick) {
      StepScalars scalars;
      scalars.learning_rate = 0.05f;
      const int64_t batch = training ? tick % rounds : 0;
      if (filler->has_scalars()) filler->put_scalars(tick, order, 0, batch, scalars);
      filler->fill(tick, order, 0, batch);
    };
  }
};

inline SessionOptions epochs(SessionOptions options, int64_t count) {
  options.length.epochs = count;
  options.learners.strategy = "none";
  return options;
}

}  // namespace arbalest::test
