// SPDX-License-Identifier: Apache-2.0

// Learners: the tasks of each, and the memory that those of a device share.

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>

#include "executor/plan/strategy.h"
#include "graph/op.h"
#include "graph/optimizer.h"

namespace arbalest {
namespace {

using Needs = Edge::Needs;
using Why = Edge::Why;

// A part of the graph's update node, at the end of what `replica`'s step has so far. `gradients`: where the part's lie,
// if not in the arena of all.
void add_update_part(PlanBuilder& builder, const PlanInputs& in, const StepCut& cut, size_t index,
                     const UpdatePart& part_of_all, const Placement& placement, const Replica& replica,
                     std::optional<Operand> gradients = {}) {
  const Node& whole = in.training().graph.nodes[size_t(cut.update)];
  const int64_t all = in.type_of(in.training().arenas.weights).elements();
  const auto term = [&](ValueId value) {
    if (value == kNone) return Term{{}, {DataType::Token, {}}};
    // One for each element, or for each block of them.
    const TensorType& type = in.type_of(value);
    const int64_t of_element = all / type.elements(), bytes = int64_t(size_of(type.dtype));
    const int64_t count = (part_of_all.elements + of_element - 1) / of_element;
    return part(placement.of[size_t(value)], type.dtype, part_of_all.offset / of_element * bytes, count * bytes);
  };
  std::vector<Term> inputs, outputs;
  for (const ValueId input : whole.inputs) inputs.push_back(term(input));
  for (const ValueId output : whole.outputs) outputs.push_back(term(output));
  if (gradients) inputs[UpdateOperands::kGradients].operand = *gradients;
  builder.add_node(replica.step.back(), whole.op->qualified_name(), fmt::format("{} {}", whole.name, index), inputs,
                   outputs, whole.attributes);
}

// The place of a part's gradients. They have memory of their own rather than a range of the gradients' arena.
Operand gradients_of(const PlanInputs& in, const UpdatePart& part, const Placement& placement) {
  const ValueId gradients = in.training().arenas.gradients;
  const std::vector<Value>& values = in.training().graph.values;
  const auto first = std::find_if(values.begin(), values.end(), [&](const Value& value) {
    const int64_t bytes = part.offset * int64_t(sizeof(float));
    return value.view.base == gradients && value.view.offset_bytes == bytes;
  });
  return placement.of[size_t(first - values.begin())];
}

// One task: the step with its update in parts, each where it may come.
void add_step_with_updates(PlanBuilder& builder, const PlanInputs& in, const StepCut& cut, const std::string& prefix,
                           Replica& replica) {
  const Loop& loop = in.training();
  std::vector<size_t> order(cut.updates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto after = [&](size_t i) { return cut.updates[i].after; };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return after(a) < after(b); });
  NodeId begin = 0;
  add_part(builder, in, loop, replica.placement, prefix + "/step", 0, 0, replica);
  const auto run_until = [&](NodeId end) {
    if (begin <= cut.update && cut.update < end) {
      add_launches(builder, in, loop, replica.placement, replica.step.back(), begin, cut.update);
      begin = cut.update + 1;
    }
    add_launches(builder, in, loop, replica.placement, replica.step.back(), begin, end);
    begin = std::max(begin, end);
  };
  for (const size_t index : order) {
    run_until(after(index) + 1);
    const UpdatePart& part = cut.updates[index];
    add_update_part(builder, in, cut, index, part, replica.placement, replica,
                    gradients_of(in, part, replica.placement));
    builder.plan.launches.back().aside = has_branches(in, replica.device);
  }
  run_until(NodeId(loop.graph.nodes.size()));
}

// The part of the graph's accumulate node that a bucket needs, at the end of the part of the step that completes it. So
// the bucket's sum can travel while backward is at work on the next.
void add_accumulation(PlanBuilder& builder, const PlanInputs& in, const StepCut& cut, size_t index,
                      const Replica& replica) {
  const Node& whole = in.training().graph.nodes[size_t(cut.accumulate)];
  const Bucket& bucket = cut.buckets[index];
  const auto term = [&](ValueId value) {
    return part(replica.placement.of[size_t(value)], DataType::Float32, bucket.offset, bucket.bytes);
  };
  builder.add_node(replica.step.back(), whole.op->qualified_name(), fmt::format("{} {}", whole.name, index),
                   {term(whole.inputs[0]), term(whole.inputs[1])}, {term(whole.outputs[0])}, whole.attributes);
}

// The nodes from `begin` on, where the step's parts end, with the update in two tasks: the first need not wait for the
// last bucket.
void add_update_in_two(PlanBuilder& builder, const PlanInputs& in, const StepCut& cut, const Placement& placement,
                       const std::string& prefix, NodeId begin, Replica& replica) {
  const Loop& loop = in.training();
  const int64_t all = in.type_of(loop.arenas.weights).elements();
  add_part(builder, in, loop, placement, prefix + "/update 0", begin, cut.update, replica);
  add_update_part(builder, in, cut, 0, {.elements = cut.early}, placement, replica);
  add_part(builder, in, loop, placement, prefix + "/update 1", cut.update, cut.update, replica);
  add_update_part(builder, in, cut, 1, {.offset = cut.early, .elements = all - cut.early}, placement, replica);
  add_launches(builder, in, loop, placement, replica.step.back(), cut.update + 1, NodeId(loop.graph.nodes.size()));
}

// The parts of the step, each on the nodes up to a cut, then the update.
void add_step(PlanBuilder& builder, const PlanInputs& in, const StepCut& cut, const SharedMemory& memory,
              const std::string& prefix, Replica& replica) {
  const Loop& loop = in.training();
  const auto end = NodeId(loop.graph.nodes.size());
  NodeId begin = 0;
  const bool in_parts = !cut.updates.empty();
  if (in_parts) add_step_with_updates(builder, in, cut, prefix, replica);
  for (size_t i = 0; !in_parts && i < cut.ends.size(); ++i) {
    const std::string name = cut.ends.size() > 1 ? fmt::format("{}/step {}", prefix, i) : prefix + "/step";
    add_part(builder, in, loop, replica.placement, name, begin, cut.ends[i], replica);
    if (cut.accumulate != kNone) add_accumulation(builder, in, cut, i, replica);
    begin = cut.ends[i];
  }
  if (!in_parts && begin < end) {  // without the accumulate node, whose parts are after those of the step
    Placement for_update = replica.placement;
    if (!memory.gradients.empty()) {
      for_update.of[size_t(cut.averaged_gradients(loop))] = {memory.gradients[size_t(replica.device)], 0, 0};
    }
    if (cut.early > 0) {
      add_update_in_two(builder, in, cut, for_update, prefix, begin, replica);
    } else if (cut.accumulate == kNone) {
      add_part(builder, in, loop, for_update, prefix + "/update", begin, end, replica);
    } else {
      add_part(builder, in, loop, for_update, prefix + "/update", begin, cut.accumulate, replica);
      add_launches(builder, in, loop, for_update, replica.step.back(), cut.accumulate + 1, end);
    }
  }
  // If learners average models, the averaging task updates the moving average instead.
  const bool averages_models = builder.plan.handles.by_sync != kNone;
  if (!averages_models && replica.learner % in.request.learners == 0) {
    const ValueId weights = loop.arenas.weights;
    add_moving_average(builder, in, memory, replica.device, replica.update(),
                       {replica.placement.of[size_t(weights)], in.type_of(weights)});
  }
  close_step(builder, in, replica);
}

Replica add_learner(PlanBuilder& builder, const PlanInputs& in, const Clocks& clocks, const Lanes& lanes,
                    const StepCut& cut, const SharedMemory& memory, int32_t device, int32_t learner) {
  const Loop& loop = in.training();
  const BatchOrigin origin = in.request.training_batches;
  const std::string prefix = fmt::format("{}/learner {}", in.device_name(device), learner);
  Replica replica;
  replica.device = device;
  replica.learner = learner;
  replica.lane = builder.add_lane(Lane::Kind::Compute, device, learner, prefix);
  add_reader(builder, in, lanes, loop, origin, prefix, clocks.batch, replica);
  std::vector<std::pair<ValueId, Operand>> given;
  if (!memory.models.empty()) {
    // Averaging n reads z_n and makes z_n+1 in the place of z_n−1, which updates still read.
    const BufferId models = memory.models[size_t(device)];
    given = {{loop.arenas.average, {models, 0, 1}}};
    if (loop.arenas.averaged != kNone) given.emplace_back(loop.arenas.averaged, Operand{models, 0, 0});
  }
  memory.place_frozen(loop, device, given);
  replica.placement = place(builder.plan, loop, prefix, device, replica.slots, batch_layout(loop, origin), given,
                            has_branches(in, device), cut.updates);
  add_step(builder, in, cut, memory, prefix, replica);
  add_read_back(builder, lanes, loop, prefix, clocks.report, replica);
  for (const TaskId task : replica.step) builder.task(task).learner = learner;
  for (const TaskId task : {replica.copy, replica.read_back}) builder.task(task).learner = learner;
  return replica;
}

void add_frozen(PlanBuilder& builder, const PlanInputs& in, SharedMemory& memory) {
  const auto add = [&](ValueId ArenaValues::*arena, const char* name, std::vector<BufferId>& buffers) {
    for (const Loop& loop : in.program.loops) {
      const ValueId value = loop.arenas.*arena;
      if (value == kNone) continue;
      const int64_t bytes = loop.graph.values[size_t(value)].type.bytes();
      for (int32_t d = 0; d < in.devices(); ++d) {
        buffers.push_back(builder.add_device_buffer(in.device_name(d) + name, d, bytes, 1, kNone));
      }
      return;
    }
  };
  add(&ArenaValues::frozen, "/frozen", memory.frozen);
  add(&ArenaValues::frozen_lowered, "/frozen.bf16", memory.frozen_lowered);
}

}  // namespace

SharedMemory add_shared_memory(PlanBuilder& builder, const PlanInputs& in, const Clocks& clocks) {
  SharedMemory memory;
  in.strategy().add_memory(builder, in, clocks, memory);
  builder.plan.handles.averages = memory.models;
  builder.plan.handles.moving_averages = memory.moving_averages = add_moving_average_memory(builder, in);
  add_frozen(builder, in, memory);
  return memory;
}

void SharedMemory::place_frozen(const Loop& loop, int32_t device,
                                std::vector<std::pair<ValueId, Operand>>& given) const {
  const auto add = [&](ValueId value, const std::vector<BufferId>& buffers) {
    if (value != kNone) given.emplace_back(value, Operand{buffers[size_t(device)], 0, 0});
  };
  add(loop.arenas.frozen, frozen);
  add(loop.arenas.frozen_lowered, frozen_lowered);
}

ValueId StepCut::averaged_gradients(const Loop& training) const {
  return accumulate == kNone ? training.arenas.gradients : training.graph.nodes[size_t(accumulate)].outputs[0];
}

NodeId find_update_by_element(const PlanInputs& in) {
  const std::vector<Node>& nodes = in.training().graph.nodes;
  const auto is_rule = [](const Node& node) { return node.op->optimizer.has_value(); };
  const auto update = std::find_if(nodes.begin(), nodes.end(), is_rule);
  const bool in_parts = update != nodes.end() && updates_in_parts(*update, in.training().arenas);
  return in_parts ? NodeId(update - nodes.begin()) : kNone;
}

std::vector<Replica> add_learners(PlanBuilder& builder, const PlanInputs& in, const Clocks& clocks, const Lanes& lanes,
                                  const StepCut& cut, const SharedMemory& memory, TaskId report) {
  std::vector<Replica> learners;
  for (int32_t learner = 0; learner < int32_t(in.learners()); ++learner) {
    const int32_t device = learner / in.request.learners;
    const Replica& replica =
        learners.emplace_back(add_learner(builder, in, clocks, lanes, cut, memory, device, learner));
    builder.add_edge(replica.read_back, report, 0, Needs::Done, Why::Data, "tally");
    builder.add_edge(report, replica.read_back, kReadBackSlots, Needs::Done, Why::Reuse, "pinned tally");
  }
  builder.plan.handles.loops.push_back({LoopRole::Train, in.graph_of(in.training()), clocks.batch, learners});
  return learners;
}

}  // namespace arbalest
