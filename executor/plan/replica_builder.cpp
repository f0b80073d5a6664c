// SPDX-License-Identifier: Apache-2.0
#include "executor/plan/replica_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "ops/names.h"

namespace arbalest {
namespace {

using Needs = Edge::Needs;
using Why = Edge::Why;

constexpr double kLeastPart = 250;  // µs of work; handing it over takes about one

}  // namespace

int32_t fill_parts(int64_t samples, double fill_time, int32_t threads) {
  const double worth = double(samples) * fill_time / kLeastPart;
  const double most = double(std::min<int64_t>({samples, threads, kWidest}));
  return std::max(1, int32_t(std::min(worth, most)));
}

// The samples of the loop's split in the memory of the device. Adds their arena and the buffers that are still missing:
// loops of a split may read different fields.
SamplesOnDevice& ReplicaBuilder::samples() {
  const int32_t device = replica.device;
  std::vector<SamplesOnDevice>& all = builder_.plan.handles.samples;
  const bool validation = loop_.role == LoopRole::Validate;
  auto here = std::find_if(all.begin(), all.end(), [&](const SamplesOnDevice& samples) {
    return samples.validation == validation && samples.device == device;
  });
  const std::string name = in_.device_name(device) + (validation ? "/validation samples" : "/training samples");
  if (here == all.end()) {
    const ArenaId arena = builder_.add_arena(name, device, Arena::Memory::Device);
    builder_.plan.arenas[arena].kept = true;
    here = all.insert(all.end(), {validation, device, arena, std::vector<BufferId>(loop_.fields.size(), kNone)});
  }
  const int64_t count = validation ? in_.request.validation_samples : in_.request.training_samples;
  for (size_t field = 0; field < loop_.fields.size(); ++field) {
    if (loop_.fields[field] == kNone || here->fields[field] != kNone) continue;
    const Value& value = loop_.graph.values[loop_.fields[field]];
    const int64_t bytes = memory_of(value.type.bytes() / loop_.batch, count, name.c_str());
    here->fields[field] = add_buffer(builder_.plan, here->arena, name + "/" + value.name, bytes, 1, kNone);
  }
  return *here;
}

// Makes the copy task gather a device slot from samples in the device's memory, instead of copying. `from`: the pinned
// slot, with the batch's scalars and the indices of its samples.
void ReplicaBuilder::add_taking(BufferId from, const std::string& name) {
  const SamplesOnDevice& samples = this->samples();
  const auto words = [](int64_t bytes) { return TensorType{DataType::Int64, {bytes / int64_t(sizeof(int64_t))}}; };
  std::vector<Term> inputs = {{{from, 0, 0}, words(layout_.pinned_bytes)}};
  std::vector<Term> outputs = {{{replica.slots, 0, 0}, words(sizeof(StepScalars))}};
  for (size_t field = 0; field < loop_.fields.size(); ++field) {
    if (loop_.fields[field] == kNone) continue;
    const int64_t bytes = loop_.graph.values[loop_.fields[field]].type.bytes() / loop_.batch;  // of a sample
    const BufferId all = samples.fields[field];
    const int64_t count = builder_.plan.buffers[all].bytes / bytes;
    inputs.push_back({{all, 0, 0}, {DataType::Uint8, {count, bytes}}});
    outputs.push_back({{replica.slots, layout_.offsets[field], 0}, {DataType::Uint8, {loop_.batch, bytes}}});
  }
  builder_.add_node(replica.copy, op::TakeSamples, name, inputs, outputs, {}, Stage::Forward);
}

ReplicaBuilder::ReplicaBuilder(PlanBuilder& builder, const PlanInputs& in, const Lanes& lanes, const Loop& loop,
                               std::string prefix, Replica start)
    : replica(std::move(start)),
      builder_(builder),
      in_(in),
      lanes_(lanes),
      loop_(loop),
      prefix_(std::move(prefix)),
      origin_(loop.role == LoopRole::Validate ? in.request.validation_batches : in.request.training_batches),
      layout_(batch_layout(loop, origin_)) {}

void ReplicaBuilder::add_reader(ClockId clock) {
  const int32_t device = replica.device;
  const int32_t slots = std::max(int32_t(loop_.depth), 1);
  const ArenaId pinned = builder_.add_arena(prefix_ + "/pinned batches", device, Arena::Memory::Pinned);
  const ArenaId batches = builder_.add_arena(prefix_ + "/batches", device, Arena::Memory::Device);
  const BufferId from =
      add_buffer(builder_.plan, pinned, prefix_ + "/pinned batch slots", layout_.pinned_bytes, slots, clock);
  replica.slots =
      add_buffer(builder_.plan, batches, prefix_ + "/batch slots", layout_.bytes, in_.request.device_slots, clock);

  const bool validates = loop_.role == LoopRole::Validate;
  const double fill_time = validates ? in_.request.validation_fill_time : in_.request.training_fill_time;
  const int32_t parts = origin_ == BatchOrigin::Host ? fill_parts(loop_.batch, fill_time, in_.request.host_threads) : 1;
  const int32_t width = std::min(slots, kWidest);
  for (int32_t part = 0; part < parts; ++part) {
    const std::string name = parts == 1 ? prefix_ + "/fill" : fmt::format("{}/fill {}", prefix_, part);
    const TaskId fill = builder_.add_task(Task::Kind::Fill, name, lanes_.host, clock, width);
    builder_.add_operands(fill, {{from, 0, 0}});
    Task& task = builder_.task(fill);
    task.device = device;
    task.learner = replica.learner;
    task.part = part;
    task.parts = parts;
    replica.fills.push_back(fill);
  }
  const std::string name = prefix_ + (origin_ == BatchOrigin::Samples ? "/take samples" : "/copy in");
  replica.copy = builder_.add_task(Task::Kind::CopyIn, name, lanes_.copy_in[size_t(device)], clock);
  if (origin_ == BatchOrigin::Samples) {
    add_taking(from, name);
  } else {
    builder_.add_operands(replica.copy, {{from, 0, 0}, {replica.slots, 0, 0}});
  }

  for (const TaskId fill : replica.fills) {
    builder_.add_edge(fill, fill, width, Needs::Done, Why::Self);
    builder_.add_edge(fill, replica.copy, 0, Needs::Done, Why::Data, "pinned batch");
    if (loop_.depth > 0) builder_.add_edge(replica.copy, fill, slots, Needs::Done, Why::Reuse, "pinned batch");
  }
  builder_.add_lane_order(replica.copy);
}

void ReplicaBuilder::place(const GivenMemory& given, bool branch, const std::vector<UpdatePart>& updates) {
  MemoryPlacement memory(builder_.plan, loop_, prefix_, branch, updates);
  memory.put(given);
  memory.put_batch(replica.slots, layout_);
  replica.placement = memory.place(replica.device);
}

void ReplicaBuilder::add_launches(NodeId begin, NodeId end, const Placement* placement) {
  Plan& plan = builder_.plan;
  const TaskId task = replica.step.back();
  const Placement& placed = placement ? *placement : replica.placement;
  const auto place_of = [&](ValueId v) { return v == kNone ? Operand{} : placed.of[v]; };
  const bool branches = loop_.role == LoopRole::Train && has_branches(in_, builder_.task(task).device);
  if (branches && aside_.empty()) aside_ = nodes_aside(loop_.graph);
  for (NodeId n = begin; n < end; ++n) {
    const Node& node = loop_.graph.nodes[n];
    const bool aside = branches && aside_[n];
    plan.launches.push_back({in_.graph_of(loop_), n, int32_t(plan.operands.size()), int32_t(node.inputs.size()),
                             int32_t(node.outputs.size()), aside, placed.activations});
    for (const ValueId v : node.inputs) plan.operands.push_back(place_of(v));
    for (const ValueId v : node.outputs) plan.operands.push_back(place_of(v));
  }
  builder_.task(task).launches += end - begin;
}

bool has_branches(const PlanInputs& in, int32_t device) {
  return in.request.branches && in.request.devices[size_t(device)].kind == PlanDevice::Kind::Cuda &&
         has_few_learners(int64_t{in.request.learners} * in.request.at_once);
}

void ReplicaBuilder::add_part(const std::string& name, NodeId begin, NodeId end, const Placement* placement) {
  const ClockId clock = builder_.task(replica.copy).clock;
  replica.step.push_back(builder_.add_task(Task::Kind::Compute, prefix_ + name, replica.lane, clock));
  builder_.task(replica.step.back()).scalars = replica.slots;
  add_launches(begin, std::min(end, nodes()), placement);
}

void ReplicaBuilder::close_step() {
  const std::vector<TaskId>& step = replica.step;
  builder_.add_edge(replica.copy, step.front(), 0, Needs::Issued, Why::Data, "batch");
  builder_.add_edge(step.back(), replica.copy, in_.request.device_slots, Needs::Issued, Why::Reuse, "batch");
  builder_.add_edge(step.back(), replica.copy, in_.request.run_ahead, Needs::Done, Why::Pace);
  for (size_t i = 0; i + 1 < step.size(); ++i) builder_.add_edge(step[i], step[i + 1], 0, Needs::Issued, Why::Lane);
  builder_.add_edge(step.back(), step.front(), 1, Needs::Issued, Why::Lane);
  if (loop_.depth > 0) return;
  for (const TaskId fill : replica.fills) {
    builder_.add_edge(step.back(), fill, 1, Needs::Done, Why::Reuse, "pinned batch");
  }
}

void ReplicaBuilder::add_read_back(ClockId clock) {
  const TaskId sum = replica.step.back();
  const ArenaId pinned = builder_.add_arena(prefix_ + "/pinned tally", replica.device, Arena::Memory::Pinned);
  std::vector<Operand> copies;  // from, to
  const auto copy = [&](ValueId value, const std::string& name) {
    const int64_t bytes = loop_.graph.values[value].type.bytes();
    const BufferId to = add_buffer(builder_.plan, pinned, prefix_ + "/pinned " + name, bytes, kReadBackSlots, clock);
    copies.insert(copies.end(), {replica.placement.of[value], {to, 0, 0}});
    return to;
  };
  replica.tally = copy(loop_.arenas.tally, "tally");
  for (const LoopMetric& metric : loop_.metrics) {
    if (metric.rows != kNone) replica.rows.push_back(copy(metric.rows, metric.name + ".rows"));
  }
  const LaneId lane = lanes_.copy_out[size_t(replica.device)];
  replica.read_back = builder_.add_task(Task::Kind::CopyOut, prefix_ + "/copy out", lane, clock);
  builder_.add_operands(replica.read_back, copies);
  builder_.add_edge(sum, replica.read_back, 0, Needs::Issued, Why::Data, "tally");
  builder_.add_edge(replica.read_back, sum, 1, Needs::Issued, Why::Reuse, "tally");
  builder_.add_lane_order(replica.read_back);
}

void ReplicaBuilder::add_hand_out() {
  if (loop_.outputs.empty()) return;
  const TaskId step = replica.step.back();
  const ClockId clock = builder_.task(step).clock;
  const ArenaId pinned = builder_.add_arena(prefix_ + "/pinned outputs", replica.device, Arena::Memory::Pinned);
  std::vector<Operand> copies;  // from, to
  for (const ValueId output : loop_.outputs) {
    const Value& value = loop_.graph.values[output];
    replica.outputs.push_back(add_buffer(builder_.plan, pinned, prefix_ + "/pinned " + value.name, value.type.bytes(),
                                         kReadBackSlots, clock));
    copies.insert(copies.end(), {replica.placement.of[output], {replica.outputs.back(), 0, 0}});
  }
  const LaneId lane = lanes_.copy_out[size_t(replica.device)];
  const TaskId copy = builder_.add_task(Task::Kind::CopyOut, prefix_ + "/copy outputs", lane, clock);
  builder_.add_operands(copy, copies);
  replica.hand_out = builder_.add_task(Task::Kind::HandOut, prefix_ + "/hand out", lanes_.host, clock);
  builder_.task(replica.hand_out).device = replica.device;
  builder_.add_edge(step, copy, 0, Needs::Issued, Why::Data, "outputs");
  builder_.add_edge(copy, replica.step.front(), 1, Needs::Issued, Why::Reuse, "outputs");
  // An output that is part of the batch itself must stay in the batch's slot until it is copied, which may be after the
  // step.
  const auto in_batch = [&](ValueId output) { return replica.placement.of[output].buffer == replica.slots; };
  if (std::any_of(loop_.outputs.begin(), loop_.outputs.end(), in_batch)) {
    builder_.add_edge(copy, replica.copy, in_.request.device_slots, Needs::Issued, Why::Reuse, "batch");
  }
  builder_.add_lane_order(copy);
  builder_.add_edge(copy, replica.hand_out, 0, Needs::Done, Why::Data, "pinned outputs");
  builder_.add_edge(replica.hand_out, copy, kReadBackSlots, Needs::Done, Why::Reuse, "pinned outputs");
  builder_.add_edge(replica.hand_out, replica.hand_out, 1, Needs::Done, Why::Self);
}

std::vector<const Replica*> on_device(const std::vector<Replica>& learners, int32_t device) {
  std::vector<const Replica*> found;
  for (const Replica& replica : learners) {
    if (replica.device == device) found.push_back(&replica);
  }
  return found;
}

TaskId add_all_reduce(PlanBuilder& builder, LaneId lane, const std::string& name, ClockId clock,
                      const std::vector<Term>& operands, bool mean) {
  const TaskId task = builder.add_task(Task::Kind::Collective, name, lane, clock);
  builder.add_node(task, op::AllReduce, name, operands, operands, {{"mean", int64_t{mean}}});
  builder.task(task).reduced_bytes = operands.front().type.bytes();
  builder.add_lane_order(task);
  return task;
}

}  // namespace arbalest
