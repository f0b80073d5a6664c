// SPDX-License-Identifier: Apache-2.0
#include "executor/run/step_profile.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "base/random.h"
#include "executor/trace/layer_times.h"
#include "ops/names.h"

namespace arbalest {
namespace {

// One operator, bound to operands of noise on a lane of a device.
class Alone {
 public:
  Alone(Device& device, LaneId lane, const BindOptions& options, const Op& op, int inputs, const TensorType& type)
      : device_(device), lane_(lane) {
    node_.op = &op;
    node_.name = "limit";
    KernelRequest request{node_, std::vector<TensorType>(size_t(inputs), type), {type}};
    request.math = options.math;
    request.workspace_limit = options.workspace_limit;
    request.device = device.context(lane);
    const bool cpu = request.device == nullptr;
    device.run_there([&] { kernel_ = (cpu ? node_.op->cpu : node_.op->cuda)(request); });
    for (int i = 0; i < inputs; ++i) launch_.inputs.push_back(noise(type));
    launch_.outputs.push_back(device.allocate(type.bytes()));
    launch_.kernel = kernel_.get();
    launch_.node = &node_;
    launch_.context.stream = device.stream(lane);
    launch_.context.workspace = device.allocate(kernel_->workspace_bytes());
    launch_.context.inputs = launch_.inputs.data();
    launch_.context.outputs = launch_.outputs.data();
  }

  double seconds() const { return double(device_.time_launches(lane_, {launch_}).front()) * 1e-9; }

 private:
  // In [-1, 1): on zeros matrix units draw less power and run faster.
  void* noise(const TensorType& type) {
    constexpr int64_t kDrawn = 1 << 20;  // elements; the others repeat them
    const auto size = int64_t(size_of(type.dtype));
    std::vector<std::byte> bytes(size_t(type.bytes()));
    for (int64_t i = 0; i < std::min(type.elements(), kDrawn); ++i) {
      const float value = uniform(philox(1, 0, uint64_t(i) / 4).word[i % 4]) * 2 - 1;
      const bfloat16 lowered(value);
      std::memcpy(&bytes[size_t(i * size)], size == 4 ? static_cast<const void*>(&value) : &lowered, size_t(size));
    }
    for (int64_t i = kDrawn; i < type.elements(); i += kDrawn) {
      const int64_t count = std::min(kDrawn, type.elements() - i);
      std::memcpy(&bytes[size_t(i * size)], bytes.data(), size_t(count * size));
    }
    void* const memory = device_.allocate(type.bytes());
    device_.upload(memory, bytes.data(), type.bytes());
    return memory;
  }

  Device& device_;
  const LaneId lane_;
  Node node_;
  std::unique_ptr<Kernel> kernel_;
  BoundLaunch launch_;
};

// Another name or shape for what is in memory: its kernel launches nothing.
bool is_view(const BoundLaunch& launch, const Cost& cost) {
  const bool same = launch.outputs.size() == 1 && !launch.inputs.empty() && launch.outputs[0] == launch.inputs[0];
  return same && cost.flops == 0 && launch.node->op->aliases == std::vector<std::pair<int, int>>{{0, 0}};
}

// A limit stays 0 if the device has no memory left for finding it.
DeviceLimits find_limits(Device& device, LaneId lane, const Graph& graph, const BindOptions& options,
                         DataType precision) {
  const bool cpu = device.context(lane) == nullptr;
  const int64_t side = cpu ? 1024 : 8192, elements = int64_t{1} << (cpu ? 24 : 27);
  DeviceLimits limits;
  try {
    const Alone copy(device, lane, options, graph.op(op::Relu), 1, {precision, {elements}});
    limits.bytes_per_second = 2 * double(elements) * double(size_of(precision)) / copy.seconds();
    const Alone product(device, lane, options, graph.op(op::MatMul), 2, {precision, {side, side}});
    limits.flops_per_second = 2 * double(side) * double(side) * double(side) / product.seconds();
  } catch (const RunError&) {
  }
  return limits;
}

}  // namespace

double DeviceLimits::seconds(const Cost& cost) const {
  const double memory = bytes_per_second > 0 ? cost.bytes / bytes_per_second : 0;
  const double math = flops_per_second > 0 ? cost.flops / flops_per_second : 0;
  return std::max(memory, math);
}

std::vector<NodeTime> time_nodes(const Binding& binding) {
  const Plan& plan = binding.plan();
  const std::vector<Replica>& learners = plan.handles.loops.front().replicas;
  const Replica& first = learners.front();
  std::vector<NodeTime> times;
  for (size_t part = 0; part < first.step.size(); ++part) {
    const BoundTask& task = binding.tasks()[first.step[part]];
    if (task.variants.empty()) continue;
    const std::vector<BoundLaunch>& launches = task.variants.front().launches;
    const std::vector<int64_t> ns = binding.device(first.device).time_launches(first.lane, launches);
    for (const Replica& learner : learners) {
      const TaskId same = learner.step[part];
      const int32_t ahead = plan.tasks[same].first_launch - plan.tasks[task.id].first_launch;
      for (size_t i = 0; i < launches.size(); ++i) times.push_back({launches[i].launch + ahead, same, ns[i]});
    }
  }
  return times;
}

StepProfile profile_step(const Binding& binding, const BindOptions& options, DataType precision) {
  const Plan& plan = binding.plan();
  const Replica& learner = plan.handles.loops.front().replicas.front();
  Device& device = binding.device(learner.device);
  StepProfile profile;
  profile.library_bytes = binding.library_bytes(learner.device);
  profile.taken_bytes = device.taken_bytes();
  std::map<int32_t, int64_t> ns_of;  // by launch
  for (const NodeTime& node : time_nodes(binding)) ns_of[node.launch] = node.ns;
  for (const TaskId id : learner.step) {
    const BoundTask& task = binding.tasks()[id];
    if (task.variants.empty()) continue;
    int64_t sum = 0;
    for (const BoundLaunch& launch : task.variants.front().launches) {
      const Graph& graph = plan.graphs[size_t(plan.launches[size_t(launch.launch)].program)];
      const Node& node = *launch.node;
      const Cost cost = cost_of(graph, node);
      if (is_view(launch, cost)) continue;
      const int64_t ns = ns_of.at(launch.launch);
      sum += ns;
      profile.nodes.push_back({node.name, layer_of(node.name).layer, node.op->qualified_name(), launch.kernel->engine(),
                               node.stage, double(ns) * 1e-9, cost});
    }
    const int64_t alone = device.time_alone(task);
    profile.seconds += double(alone > 0 ? alone : sum) * 1e-9;
  }
  profile.limits = find_limits(device, learner.lane, plan.graphs.front(), options, precision);
  return profile;
}

}  // namespace arbalest
