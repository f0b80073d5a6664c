// SPDX-License-Identifier: Apache-2.0

// Learners: the tasks of each, and the memory that those of a device share.

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>

#include "executor/plan/replica_builder.h"
#include "executor/plan/strategy.h"
#include "graph/op.h"
#include "graph/optimizer.h"
#include "ops/names.h"

namespace arbalest {
namespace {

using Needs = Edge::Needs;
using Why = Edge::Why;

// Builds a learner: its reader, its memory, its step as it is cut, and the copy of its sums.
class LearnerBuilder {
 public:
  LearnerBuilder(const PlanSoFar& plan, const StepCut& cut, int32_t device, int32_t learner)
      : builder_(plan.builder),
        in_(plan.in),
        clocks_(plan.clocks),
        memory_(plan.memory),
        cut_(cut),
        loop_(plan.in.training()),
        parts_(builder_, in_, plan.lanes, loop_, fmt::format("{}/learner {}", in_.device_name(device), learner), {}) {
    Replica& replica = parts_.replica;
    replica.device = device;
    replica.learner = learner;
    replica.lane = builder_.add_lane(Lane::Kind::Compute, device, learner, parts_.prefix());
  }

  Replica build() {
    const Replica& replica = parts_.replica;
    parts_.add_reader(clocks_.batch);
    GivenMemory given;
    if (loop_.arenas.average != kNone) {
      // Averaging n reads z_n and makes z_n+1 in the place of z_n−1, which updates still read. They correct towards
      // z_n, or towards z_n+1 if the strategy draws to the mean.
      const BufferId models = memory_.models[size_t(replica.device)];
      given = {{loop_.arenas.average, {models, 0, in_.strategy_facts().draws_to_mean ? 0 : 1}}};
      if (loop_.arenas.averaged != kNone) given.emplace_back(loop_.arenas.averaged, Operand{models, 0, 0});
    }
    memory_.place_frozen(loop_, replica.device, given);
    parts_.place(given, has_branches(in_, replica.device), cut_.updates);
    add_step();
    parts_.add_read_back(clocks_.report);
    for (const TaskId task : replica.step) builder_.task(task).learner = replica.learner;
    for (const TaskId task : {replica.copy, replica.read_back}) builder_.task(task).learner = replica.learner;
    return replica;
  }

 private:
  // A part of the graph's update node, at the end of what the step has so far. `gradients`: where the part's lie, if
  // not in the arena of all.
  void add_update_part(size_t index, const UpdatePart& part_of_all, const Placement& placement,
                       std::optional<Operand> gradients = {}) {
    const Node& whole = loop_.graph.nodes[cut_.update];
    const int64_t all = in_.type_of(loop_.arenas.weights).elements();
    const auto term = [&](ValueId value) {
      if (value == kNone) return Term{{}, {DataType::Token, {}}};
      // One for each element, or for each block of them.
      const TensorType& type = in_.type_of(value);
      const int64_t of_element = all / type.elements(), bytes = int64_t(size_of(type.dtype));
      const int64_t count = (part_of_all.elements + of_element - 1) / of_element;
      return part(placement.of[value], type.dtype, part_of_all.offset / of_element * bytes, count * bytes);
    };
    std::vector<Term> inputs, outputs;
    for (const ValueId input : whole.inputs) inputs.push_back(term(input));
    for (const ValueId output : whole.outputs) outputs.push_back(term(output));
    if (gradients) {
      Term& own = inputs[UpdateOperands::kGradients];
      own.operand = *gradients;
      if (!part_of_all.gaps.empty()) add_cleared_gaps(index, part_of_all, own);
    }
    builder_.add_node(parts_.replica.step.back(), whole.op->qualified_name(), fmt::format("{} {}", whole.name, index),
                      inputs, outputs, whole.attributes);
  }

  void add_cleared_gaps(size_t index, const UpdatePart& part, const Term& gradients) {
    std::vector<int64_t> firsts, counts;
    for (const auto& [first, count] : part.gaps) {
      firsts.push_back(first);
      counts.push_back(count);
    }
    builder_.add_node(parts_.replica.step.back(), op::ClearGaps, fmt::format("gaps {}", index), {gradients},
                      {gradients}, {{"firsts", firsts}, {"counts", counts}});
    builder_.plan.launches.back().aside = has_branches(in_, parts_.replica.device);
  }

  // The place of a part's gradients. They have memory of their own rather than a range of the gradients' arena.
  Operand gradients_of(const UpdatePart& part) const {
    const ValueId gradients = loop_.arenas.gradients;
    const Table<ValueId, Value>& values = loop_.graph.values;
    const auto first = std::find_if(values.begin(), values.end(), [&](const Value& value) {
      const int64_t bytes = part.offset * int64_t(sizeof(float));
      return value.view.base == gradients && value.view.offset_bytes == bytes;
    });
    return parts_.replica.placement.of[values.id_of(first)];
  }

  // One task: the step with its update in parts, each where it may come.
  void add_step_with_updates() {
    std::vector<size_t> order(cut_.updates.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const auto after = [&](size_t i) { return cut_.updates[i].after; };
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return after(a) < after(b); });
    NodeId begin = 0;
    parts_.add_part("/step", 0, 0);
    const auto run_until = [&](NodeId end) {
      if (begin <= cut_.update && cut_.update < end) {
        parts_.add_launches(begin, cut_.update);
        begin = cut_.update + 1;
      }
      parts_.add_launches(begin, end);
      begin = std::max(begin, end);
    };
    for (const size_t index : order) {
      run_until(after(index) + 1);
      const UpdatePart& part = cut_.updates[index];
      add_update_part(index, part, parts_.replica.placement, gradients_of(part));
      builder_.plan.launches.back().aside = has_branches(in_, parts_.replica.device);
    }
    run_until(parts_.nodes());
  }

  // The part of the graph's accumulate node that a bucket needs, at the end of the part of the step that completes it.
  // So the bucket's sum can travel while backward is at work on the next.
  void add_accumulation(size_t index) {
    const Node& whole = loop_.graph.nodes[cut_.accumulate];
    const Bucket& bucket = cut_.buckets[index];
    const auto term = [&](ValueId value) {
      return part(parts_.replica.placement.of[value], DataType::Float32, bucket.offset, bucket.bytes);
    };
    builder_.add_node(parts_.replica.step.back(), whole.op->qualified_name(), fmt::format("{} {}", whole.name, index),
                      {term(whole.inputs[AccumulateInput::Gradients]), term(whole.inputs[AccumulateInput::Sum])},
                      {term(whole.output())}, whole.attributes);
  }

  // The nodes from `begin` on, where the step's parts end. If the update is two tasks, the first need not wait for the
  // last bucket. The accumulate node is left out, because its parts are after those of the step.
  void add_update(NodeId begin) {
    Placement placed = parts_.replica.placement;
    if (!memory_.gradients.empty()) {
      placed.of[cut_.averaged_gradients(loop_)] = {memory_.gradients[size_t(parts_.replica.device)], 0, 0};
    }
    const NodeId end = parts_.nodes();
    if (cut_.early > 0) {
      const int64_t all = in_.type_of(loop_.arenas.weights).elements();
      parts_.add_part("/update 0", begin, cut_.update, &placed);
      add_update_part(0, {.elements = cut_.early}, placed);
      parts_.add_part("/update 1", cut_.update, cut_.update, &placed);
      add_update_part(1, {.offset = cut_.early, .elements = all - cut_.early}, placed);
      parts_.add_launches(cut_.update + 1, end, &placed);
    } else if (cut_.accumulate == kNone) {
      parts_.add_part("/update", begin, end, &placed);
    } else {
      parts_.add_part("/update", begin, cut_.accumulate, &placed);
      parts_.add_launches(cut_.accumulate + 1, end, &placed);
    }
  }

  // The parts of the step, each on the nodes up to a cut, then the update.
  void add_step() {
    if (!cut_.updates.empty()) {
      add_step_with_updates();
    } else {
      NodeId begin = 0;
      for (size_t i = 0; i < cut_.ends.size(); ++i) {
        parts_.add_part(cut_.ends.size() > 1 ? fmt::format("/step {}", i) : "/step", begin, cut_.ends[i]);
        if (cut_.accumulate != kNone) add_accumulation(i);
        begin = cut_.ends[i];
      }
      if (begin < parts_.nodes()) add_update(begin);
    }
    // If learners average models, the averaging task updates the moving average instead.
    const Replica& replica = parts_.replica;
    const bool averages_models = builder_.plan.handles.by_sync != kNone;
    if (!averages_models && replica.learner % in_.request.learners == 0) {
      const ValueId weights = loop_.arenas.weights;
      add_moving_average(builder_, in_, memory_, replica.device, replica.update(),
                         {replica.placement.of[weights], in_.type_of(weights)});
    }
    parts_.close_step();
  }

  PlanBuilder& builder_;
  const PlanInputs& in_;
  const Clocks& clocks_;
  const SharedMemory& memory_;
  const StepCut& cut_;
  const Loop& loop_;
  ReplicaBuilder parts_;
};

void add_frozen(PlanBuilder& builder, const PlanInputs& in, SharedMemory& memory) {
  const auto add = [&](ValueId ArenaValues::*arena, const char* name, std::vector<BufferId>& buffers) {
    for (const Loop& loop : in.program.loops) {
      const ValueId value = loop.arenas.*arena;
      if (value == kNone) continue;
      const int64_t bytes = loop.graph.values[value].type.bytes();
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
  return accumulate == kNone ? training.arenas.gradients : training.graph.nodes[accumulate].outputs[0];
}

NodeId find_update_by_element(const PlanInputs& in) {
  const Table<NodeId, Node>& nodes = in.training().graph.nodes;
  const auto is_rule = [](const Node& node) { return node.op->optimizer.has_value(); };
  const auto update = std::find_if(nodes.begin(), nodes.end(), is_rule);
  const bool in_parts = update != nodes.end() && updates_in_parts(*update, in.training().arenas);
  return in_parts ? nodes.id_of(update) : kNone;
}

void add_learners(const PlanSoFar& plan, const StepCut& cut, TaskId report, std::vector<Replica>& learners) {
  for (int32_t learner = 0; learner < int32_t(plan.in.learners()); ++learner) {
    const Replica& replica =
        learners.emplace_back(LearnerBuilder(plan, cut, learner / plan.in.request.learners, learner).build());
    plan.builder.add_edge(replica.read_back, report, 0, Needs::Done, Why::Data, "tally");
    plan.builder.add_edge(report, replica.read_back, kReadBackSlots, Needs::Done, Why::Reuse, "pinned tally");
  }
  plan.builder.plan.handles.loops.push_back(
      {LoopRole::Train, plan.in.graph_of(plan.in.training()), plan.clocks.batch, learners});
}

}  // namespace arbalest
