// SPDX-License-Identifier: Apache-2.0
#include "executor/plan/plan_builder.h"

#include <fmt/format.h>

#include "graph/op.h"

namespace arbalest {

Term part(const Operand& whole, DataType type, int64_t offset, int64_t bytes) {
  Term term{whole, {type, {bytes / int64_t(size_of(type))}}};
  term.operand.offset += offset;
  return term;
}

ClockId PlanBuilder::add_clock(std::string name, int64_t ticks) {
  return plan.clocks.push_back({std::move(name), ticks});
}

std::pair<ClockId, RelationId> PlanBuilder::add_coarser(std::string name, ClockId fine, int64_t group, int64_t period) {
  ClockRelation relation{fine, plan.clocks.end_id(), group, period};
  const int64_t ticks = plan.clocks[fine].ticks;
  int64_t complete = relation.coarse_of(ticks - 1);
  if (relation.last_of(complete) < ticks) ++complete;
  add_clock(std::move(name), complete);
  return {relation.coarse, plan.relations.push_back(relation)};
}

LaneId PlanBuilder::add_lane(Lane::Kind kind, int32_t device, int32_t learner, std::string name) {
  return plan.lanes.push_back({kind, device, learner, std::move(name)});
}

TaskId PlanBuilder::add_task(Task::Kind kind, std::string name, LaneId lane, ClockId clock, int32_t width) {
  Task task;
  task.kind = kind;
  task.name = std::move(name);
  task.lane = lane;
  task.clock = clock;
  task.width = width;
  task.device = plan.lanes[lane].device;
  task.first_launch = int32_t(plan.launches.size());
  task.first_operand = int32_t(plan.operands.size());
  return plan.tasks.push_back(std::move(task));
}

void PlanBuilder::add_edge(TaskId from, TaskId to, int64_t distance, Edge::Needs needs, Edge::Why why,
                           std::string what) {
  const ClockId a = task(from).clock, b = task(to).clock;
  RelationId relation = kNone;
  for (const RelationId id : plan.relations.ids()) {
    const ClockRelation& known = plan.relations[id];
    if ((known.fine == a && known.coarse == b) || (known.fine == b && known.coarse == a)) relation = id;
  }
  plan.edges.push_back({from, to, distance, relation, needs, why, std::move(what)});
}

void PlanBuilder::add_operands(TaskId id, const std::vector<Operand>& operands) {
  task(id).first_operand = int32_t(plan.operands.size());
  task(id).operands = int32_t(operands.size());
  plan.operands.insert(plan.operands.end(), operands.begin(), operands.end());
}

ArenaId PlanBuilder::add_arena(std::string name, int32_t device, Arena::Memory memory) {
  return plan.arenas.push_back({std::move(name), device, memory, 0});
}

BufferId PlanBuilder::add_device_buffer(const std::string& name, int32_t device, int64_t bytes, int32_t slots,
                                        ClockId clock) {
  return add_buffer(plan, add_arena(name, device, Arena::Memory::Device), name, bytes, slots, clock);
}

void PlanBuilder::add_node(TaskId id, std::string_view op, std::string name, const std::vector<Term>& inputs,
                           const std::vector<Term>& outputs, Attributes attributes, Stage stage) {
  if (own_graph_ == kNone) {
    own_graph_ = int32_t(plan.graphs.size());
    const OpRegistry* registry = plan.graphs.front().registry;
    plan.graphs.emplace_back().name = "synchronisation";
    plan.graphs.back().registry = registry;
  }
  Graph& graph = plan.graphs[size_t(own_graph_)];
  const auto buffer_name = [&](const Term& term) { return plan.buffers[term.operand.buffer].name; };
  Launch launch{own_graph_, kNone, int32_t(plan.operands.size()), int32_t(inputs.size()), int32_t(outputs.size())};
  std::vector<ValueId> values;
  for (const Term& input : inputs) {
    plan.operands.push_back(input.operand);
    const bool left_out = input.operand.buffer == kNone;
    values.push_back(left_out ? kNone : graph.add_value(buffer_name(input), input.type, Role::State));
  }
  for (const Term& output : outputs) plan.operands.push_back(output.operand);
  launch.node = graph.add_node(graph.op(op), name, std::move(values), int(outputs.size()), std::move(attributes));
  graph.nodes[launch.node].name = std::move(name);  // the same for all learners, whose tasks tell them apart
  graph.nodes[launch.node].stage = stage;
  infer(graph, launch.node);
  for (size_t i = 0; i < outputs.size(); ++i) {
    ValueId& output = graph.nodes[launch.node].outputs[i];
    if (outputs[i].operand.buffer == kNone) output = kNone;
    if (output == kNone) continue;
    const Value& value = graph.values[output];
    if (!(value.type == outputs[i].type)) {
      throw std::logic_error(fmt::format("{}: output {} is {}, its memory {}", task(id).name, i, to_string(value.type),
                                         to_string(outputs[i].type)));
    }
  }
  plan.launches.push_back(launch);
  ++task(id).launches;
}

}  // namespace arbalest
