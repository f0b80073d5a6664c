// SPDX-License-Identifier: Apache-2.0

// The tasks of one replica of a loop: the way of a batch to its device, the step, and the tally's way back.

#include <fmt/format.h>

#include <algorithm>

#include "base/checked.h"
#include "executor/plan/phases.h"

namespace arbalest {
namespace {

using Needs = Edge::Needs;
using Why = Edge::Why;

constexpr double kLeastPart = 250;  // µs of work; handing it over takes about one

// The samples of the loop's split in the memory of the device. Adds their arena and the buffers that are still missing:
// loops of a split may read different fields.
SamplesOnDevice& samples_on(PlanBuilder& builder, const PlanInputs& in, const Loop& loop, int32_t device) {
  std::vector<SamplesOnDevice>& all = builder.plan.handles.samples;
  const bool validation = loop.role == LoopRole::Validate;
  auto here = std::find_if(all.begin(), all.end(), [&](const SamplesOnDevice& samples) {
    return samples.validation == validation && samples.device == device;
  });
  const std::string name = in.device_name(device) + (validation ? "/validation samples" : "/training samples");
  if (here == all.end()) {
    const ArenaId arena = builder.add_arena(name, device, Arena::Memory::Device);
    builder.plan.arenas[size_t(arena)].kept = true;
    here = all.insert(all.end(), {validation, device, arena, std::vector<BufferId>(loop.fields.size(), kNone)});
  }
  const int64_t count = validation ? in.request.validation_samples : in.request.training_samples;
  for (size_t field = 0; field < loop.fields.size(); ++field) {
    if (loop.fields[field] == kNone || here->fields[field] != kNone) continue;
    const Value& value = loop.graph.values[size_t(loop.fields[field])];
    const int64_t bytes = memory_of(value.type.bytes() / loop.batch, count, name.c_str());
    here->fields[field] = add_buffer(builder.plan, here->arena, name + "/" + value.name, bytes, 1, kNone);
  }
  return *here;
}

// Makes the copy task gather a device slot from samples in the device's memory, instead of copying. `from`: the pinned
// slot, with the batch's scalars and the indices of its samples.
void add_taking(PlanBuilder& builder, const PlanInputs& in, const Loop& loop, BufferId from, const std::string& name,
                const Replica& replica) {
  const SamplesOnDevice& samples = samples_on(builder, in, loop, replica.device);
  const BatchLayout layout = batch_layout(loop, BatchOrigin::Samples);
  const auto words = [](int64_t bytes) { return TensorType{DataType::Int64, {bytes / int64_t(sizeof(int64_t))}}; };
  std::vector<Term> inputs = {{{from, 0, 0}, words(layout.pinned_bytes)}};
  std::vector<Term> outputs = {{{replica.slots, 0, 0}, words(sizeof(StepScalars))}};
  for (size_t field = 0; field < loop.fields.size(); ++field) {
    if (loop.fields[field] == kNone) continue;
    const int64_t bytes = loop.graph.values[size_t(loop.fields[field])].type.bytes() / loop.batch;  // of a sample
    const BufferId all = samples.fields[field];
    const int64_t count = builder.plan.buffers[size_t(all)].bytes / bytes;
    inputs.push_back({{all, 0, 0}, {DataType::Uint8, {count, bytes}}});
    outputs.push_back({{replica.slots, layout.offsets[field], 0}, {DataType::Uint8, {loop.batch, bytes}}});
  }
  builder.add_node(replica.copy, "arbalest.TakeSamples", name, inputs, outputs, {}, Stage::Forward);
}

}  // namespace

int32_t fill_parts(int64_t samples, double fill_time, int32_t threads) {
  const double worth = double(samples) * fill_time / kLeastPart;
  const double most = double(std::min<int64_t>({samples, threads, kWidest}));
  return std::max(1, int32_t(std::min(worth, most)));
}

void add_reader(PlanBuilder& builder, const PlanInputs& in, const Lanes& lanes, const Loop& loop, BatchOrigin origin,
                const std::string& prefix, ClockId clock, Replica& replica) {
  const int32_t device = replica.device;
  const BatchLayout layout = batch_layout(loop, origin);
  const auto depth = int32_t(loop.depth);
  const ArenaId pinned = builder.add_arena(prefix + "/pinned batches", device, Arena::Memory::Pinned);
  const ArenaId batches = builder.add_arena(prefix + "/batches", device, Arena::Memory::Device);
  const BufferId from =
      add_buffer(builder.plan, pinned, prefix + "/pinned batch slots", layout.pinned_bytes, depth, clock);
  replica.slots =
      add_buffer(builder.plan, batches, prefix + "/batch slots", layout.bytes, in.request.device_slots, clock);

  const bool validates = loop.role == LoopRole::Validate;
  const double fill_time = validates ? in.request.validation_fill_time : in.request.training_fill_time;
  const int32_t parts = origin == BatchOrigin::Host ? fill_parts(loop.batch, fill_time, in.request.host_threads) : 1;
  const int32_t width = std::min(depth, kWidest);
  for (int32_t part = 0; part < parts; ++part) {
    const std::string name = parts == 1 ? prefix + "/fill" : fmt::format("{}/fill {}", prefix, part);
    const TaskId fill = builder.add_task(Task::Kind::Fill, name, lanes.host, clock, width);
    builder.add_operands(fill, {{from, 0, 0}});
    Task& task = builder.task(fill);
    task.device = device;
    task.learner = replica.learner;
    task.part = part;
    task.parts = parts;
    replica.fills.push_back(fill);
  }
  const std::string name = prefix + (origin == BatchOrigin::Samples ? "/take samples" : "/copy in");
  replica.copy = builder.add_task(Task::Kind::CopyIn, name, lanes.copy_in[size_t(device)], clock);
  if (origin == BatchOrigin::Samples) {
    add_taking(builder, in, loop, from, name, replica);
  } else {
    builder.add_operands(replica.copy, {{from, 0, 0}, {replica.slots, 0, 0}});
  }

  for (const TaskId fill : replica.fills) {
    builder.add_edge(fill, fill, width, Needs::Done, Why::Self);
    builder.add_edge(fill, replica.copy, 0, Needs::Done, Why::Data, "pinned batch");
    builder.add_edge(replica.copy, fill, depth, Needs::Done, Why::Reuse, "pinned batch");
  }
  builder.add_lane_order(replica.copy);
}

void add_launches(PlanBuilder& builder, const PlanInputs& in, const Loop& loop, const Placement& placement, TaskId task,
                  NodeId begin, NodeId end) {
  Plan& plan = builder.plan;
  const auto place_of = [&](ValueId v) { return v == kNone ? Operand{} : placement.of[size_t(v)]; };
  const bool branches = loop.role == LoopRole::Train && has_branches(in, builder.task(task).device);
  for (NodeId n = begin; n < end; ++n) {
    const Node& node = loop.graph.nodes[size_t(n)];
    const bool aside = branches && can_run_aside(loop.graph, node);
    plan.launches.push_back({in.graph_of(loop), n, int32_t(plan.operands.size()), int32_t(node.inputs.size()),
                             int32_t(node.outputs.size()), aside, placement.activations});
    for (const ValueId v : node.inputs) plan.operands.push_back(place_of(v));
    for (const ValueId v : node.outputs) plan.operands.push_back(place_of(v));
  }
  builder.task(task).launches += end - begin;
}

bool has_branches(const PlanInputs& in, int32_t device) {
  constexpr int32_t kFewLearners = 2;
  return in.request.branches && in.request.devices[size_t(device)].kind == PlanDevice::Kind::Cuda &&
         in.request.learners <= kFewLearners;
}

void add_part(PlanBuilder& builder, const PlanInputs& in, const Loop& loop, const Placement& placement,
              const std::string& name, NodeId begin, NodeId end, Replica& replica) {
  const ClockId clock = builder.task(replica.copy).clock;
  const TaskId task = builder.add_task(Task::Kind::Compute, name, replica.lane, clock);
  builder.task(task).scalars = replica.slots;
  add_launches(builder, in, loop, placement, task, begin, std::min(end, NodeId(loop.graph.nodes.size())));
  replica.step.push_back(task);
}

void close_step(PlanBuilder& builder, const PlanInputs& in, const Replica& replica) {
  const std::vector<TaskId>& step = replica.step;
  builder.add_edge(replica.copy, step.front(), 0, Needs::Issued, Why::Data, "batch");
  builder.add_edge(step.back(), replica.copy, in.request.device_slots, Needs::Issued, Why::Reuse, "batch");
  builder.add_edge(step.back(), replica.copy, in.request.run_ahead, Needs::Done, Why::Pace);
  for (size_t i = 0; i + 1 < step.size(); ++i) builder.add_edge(step[i], step[i + 1], 0, Needs::Issued, Why::Lane);
  builder.add_edge(step.back(), step.front(), 1, Needs::Issued, Why::Lane);
}

void add_read_back(PlanBuilder& builder, const Lanes& lanes, const Loop& loop, const std::string& prefix, ClockId clock,
                   Replica& replica) {
  const TaskId sum = replica.step.back();
  const ArenaId pinned = builder.add_arena(prefix + "/pinned tally", replica.device, Arena::Memory::Pinned);
  std::vector<Operand> copies;  // from, to
  const auto copy = [&](ValueId value, const std::string& name) {
    const int64_t bytes = loop.graph.values[size_t(value)].type.bytes();
    const BufferId to = add_buffer(builder.plan, pinned, prefix + "/pinned " + name, bytes, kReadBackSlots, clock);
    copies.insert(copies.end(), {replica.placement.of[size_t(value)], {to, 0, 0}});
    return to;
  };
  replica.tally = copy(loop.arenas.tally, "tally");
  for (const LoopMetric& metric : loop.metrics) {
    if (metric.rows != kNone) replica.rows.push_back(copy(metric.rows, metric.name + ".rows"));
  }
  const LaneId lane = lanes.copy_out[size_t(replica.device)];
  replica.read_back = builder.add_task(Task::Kind::CopyOut, prefix + "/copy out", lane, clock);
  builder.add_operands(replica.read_back, copies);
  builder.add_edge(sum, replica.read_back, 0, Needs::Issued, Why::Data, "tally");
  builder.add_edge(replica.read_back, sum, 1, Needs::Issued, Why::Reuse, "tally");
  builder.add_lane_order(replica.read_back);
}

void add_hand_out(PlanBuilder& builder, const PlanInputs& in, const Lanes& lanes, const Loop& loop,
                  const std::string& prefix, Replica& replica) {
  if (loop.outputs.empty()) return;
  const TaskId step = replica.step.back();
  const ClockId clock = builder.task(step).clock;
  const ArenaId pinned = builder.add_arena(prefix + "/pinned outputs", replica.device, Arena::Memory::Pinned);
  std::vector<Operand> copies;  // from, to
  for (const ValueId output : loop.outputs) {
    const Value& value = loop.graph.values[size_t(output)];
    replica.outputs.push_back(
        add_buffer(builder.plan, pinned, prefix + "/pinned " + value.name, value.type.bytes(), kReadBackSlots, clock));
    copies.insert(copies.end(), {replica.placement.of[size_t(output)], {replica.outputs.back(), 0, 0}});
  }
  const LaneId lane = lanes.copy_out[size_t(replica.device)];
  const TaskId copy = builder.add_task(Task::Kind::CopyOut, prefix + "/copy outputs", lane, clock);
  builder.add_operands(copy, copies);
  replica.hand_out = builder.add_task(Task::Kind::HandOut, prefix + "/hand out", lanes.host, clock);
  builder.task(replica.hand_out).device = replica.device;
  builder.add_edge(step, copy, 0, Needs::Issued, Why::Data, "outputs");
  builder.add_edge(copy, replica.step.front(), 1, Needs::Issued, Why::Reuse, "outputs");
  // An output that is part of the batch itself must stay in the batch's slot until it is copied, which may be after the
  // step.
  const auto in_batch = [&](ValueId output) { return replica.placement.of[size_t(output)].buffer == replica.slots; };
  if (std::any_of(loop.outputs.begin(), loop.outputs.end(), in_batch)) {
    builder.add_edge(copy, replica.copy, in.request.device_slots, Needs::Issued, Why::Reuse, "batch");
  }
  builder.add_lane_order(copy);
  builder.add_edge(copy, replica.hand_out, 0, Needs::Done, Why::Data, "pinned outputs");
  builder.add_edge(replica.hand_out, copy, kReadBackSlots, Needs::Done, Why::Reuse, "pinned outputs");
  builder.add_edge(replica.hand_out, replica.hand_out, 1, Needs::Done, Why::Self);
}

std::vector<const Replica*> on_device(const std::vector<Replica>& learners, int32_t device) {
  std::vector<const Replica*> found;
  for (const Replica& replica : learners) {
    if (replica.device == device) found.push_back(&replica);
  }
  return found;
}

TaskId add_all_reduce(PlanBuilder& builder, const Lanes& lanes, const std::string& name, ClockId clock,
                      const std::vector<Term>& operands, bool mean) {
  const TaskId task = builder.add_task(Task::Kind::Collective, name, lanes.collectives, clock);
  builder.add_node(task, "arbalest.AllReduce", name, operands, operands, {{"mean", int64_t{mean}}});
  builder.add_lane_order(task);
  return task;
}

}  // namespace arbalest
