// SPDX-License-Identifier: Apache-2.0

// Times of the nodes of a step, and where traces of GPUs have them.

#include "executor/run/step_profile.h"

#include <doctest/doctest.h>

#include <set>

#include "executor/plan/make_plan.h"
#include "executor/run/bind_plan.h"
#include "executor/trace/layer_times.h"
#include "tests/executor/fixture.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

TEST_CASE("every learner's nodes take what the first learner's were timed to take") {
  const SessionOptions options = on_cpus(1, 2);
  const Prepared prepared = prepare(tiny(convolutional()), options);
  Plan plan = make_plan(prepared.program, prepared.request);
  const auto binding = bind_plan(plan, 2, 60, bind_options(prepared, options), make_device_cache());
  const std::vector<NodeTime> times = time_nodes(*binding);

  std::map<std::string, std::vector<int64_t>> by_name;
  std::set<int32_t> launches;
  for (const NodeTime& node : times) {
    const Task& task = plan.tasks[node.task];
    CHECK(task.kind == Task::Kind::Compute);
    CHECK(node.launch >= task.first_launch);
    CHECK(node.launch < task.first_launch + task.launches);
    CHECK(node.ns > 0);
    launches.insert(node.launch);
    const Launch& launch = plan.launches[size_t(node.launch)];
    by_name[plan.graphs[size_t(launch.program)].nodes[launch.node].name].push_back(node.ns);
  }
  CHECK(launches.size() == times.size());
  REQUIRE(by_name.contains("c.conv"));
  for (const auto& [name, ns] : by_name) {
    INFO(name);
    REQUIRE(ns.size() == 2);
    CHECK(ns[0] == ns[1]);
  }
  size_t planned = 0;
  for (const Replica& learner : plan.handles.loops.front().replicas) {
    for (const TaskId task : learner.step) planned += size_t(plan.tasks[task].launches);
  }
  CHECK(times.size() == planned);
}

TEST_CASE("what libraries take of a GPU's memory is kept apart from what is planned") {
  SessionOptions options = on_cpus();
  TinyNet net = convolutional(8192);
  const auto bound = [&](auto&& look) {
    const Prepared prepared = prepare(tiny(net), options);
    Plan plan = make_plan(prepared.program, prepared.request);
    look(*bind_plan(plan, 2, 60, bind_options(prepared, options), make_device_cache()));
  };
  bound([](const Binding& binding) {
    CHECK(binding.library_bytes(0) == -1);
    CHECK(binding.device(0).taken_bytes() == -1);
  });
  if (cuda_device_count() == 0) {
    MESSAGE("SKIP: no CUDA device");
    return;
  }
  options.learners.devices = {{PlanDevice::Kind::Cuda, 0}};
  net.batch = 4096;  // far more than libraries take
  bound([](const Binding& binding) {
    constexpr int64_t kUnit = 2 << 20;  // bytes that CUDA takes at a time, of which others may use the rest
    const int64_t planned = binding.peak_bytes(0),
                  allocated = binding.device(0).taken_bytes() - binding.library_bytes(0);
    CHECK(planned > 64 << 20);
    CHECK(binding.library_bytes(0) >= 0);
    CHECK(allocated >= planned - kUnit);
    CHECK(allocated < planned + planned / 4);
  });
}

TEST_CASE("a trace of a GPU knows the layers of its steps") {
  if (cuda_device_count() == 0) {
    MESSAGE("SKIP: no CUDA device");
    return;
  }
  const TestFolder folder;
  SessionOptions options = on_cpus();
  options.learners.devices = {{PlanDevice::Kind::Cuda, 0}};
  options.learners.per_device = 2;
  options.length.epochs = 4;
  options.files.trace = folder / "run.json.gz";
  run(tiny(convolutional()), options);
  const TraceFile trace = read_trace(options.files.trace);
  CHECK(trace.nodes.empty());
  std::set<TaskId> timed;
  for (const NodeTime& node : trace.timed) timed.insert(node.task);
  for (const TaskId id : trace.plan.tasks.ids()) {
    const Task& task = trace.plan.tasks[id];
    INFO(task.name);
    CHECK(timed.contains(id) == (trace.plan.lanes[task.lane].kind == Lane::Kind::Compute));
  }
  bool forward = false, backward = false;
  std::string layers;
  for (const LayerTime& layer : layer_times(trace)) {
    layers += layer.name + "\n";
    if (layer.name != "c.conv") continue;
    forward = layer.forward_ns > 0;
    backward = layer.backward_ns > 0;
  }
  INFO(layers);
  CHECK(forward);
  CHECK(backward);
}
