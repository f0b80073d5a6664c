// SPDX-License-Identifier: Apache-2.0

// A plan for reading, from prefetch to update.

#include <fmt/format.h>

#include <array>

#include "executor/plan/make_plan.h"
#include "graph/op.h"

namespace arbalest {
namespace {

std::string_view name_of(Edge::Why why) {
  static constexpr std::array<std::string_view, 6> names = {"data", "reuse", "lane", "self", "pace", "clock"};
  return names[size_t(why)];
}

// "needs cuda:0/learner 0/copy in [i] issued (data: batch)"
std::string describe(const Plan& plan, const Edge& edge) {
  std::string instance = "i";
  if (edge.relation != kNone) {
    const ClockRelation& relation = plan.relations[edge.relation];
    const bool from_fine = plan.tasks[edge.from].clock == relation.fine;
    instance = from_fine ? fmt::format("the last {} of i", printable(plan.clocks[relation.fine].name))
                         : fmt::format("the {} of i", printable(plan.clocks[relation.coarse].name));
  }
  if (edge.distance > 0 && edge.relation != kNone) instance = "(" + instance + ")";
  if (edge.distance > 0) instance += fmt::format(" - {}", edge.distance);
  return fmt::format("needs {} [{}] {} ({}{}{})", printable(plan.tasks[edge.from].name), instance,
                     edge.needs == Edge::Needs::Done ? "done" : "issued", name_of(edge.why),
                     edge.what.empty() ? "" : ": ", printable(edge.what));
}

std::string place(const Plan& plan, const Operand& operand) {
  if (operand.buffer == kNone) return "another process";
  const Buffer& buffer = plan.buffers[operand.buffer];
  const std::string arena = printable(plan.arenas[buffer.arena].name);
  std::string text = fmt::format("{}+{}", arena.substr(arena.rfind('/') + 1), buffer.offset + operand.offset);
  if (buffer.slots > 1) text += fmt::format(" of slot i mod {}", buffer.slots);
  return text;
}

std::string describe(const Plan& plan, const Launch& launch) {
  const Graph& graph = plan.graphs[size_t(launch.program)];
  const Node& node = graph.nodes[launch.node];
  std::string text = fmt::format("      {:<8} {:<34} {}{}", name_of(node.stage), node.op->qualified_name(),
                                 printable(node.name), launch.aside ? ", aside" : "");
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (node.inputs[i] == kNone) continue;
    const Value& value = graph.values[node.inputs[i]];
    text += fmt::format("\n        in   {} {}  @ {}", to_string(value.type), printable(value.name),
                        place(plan, plan.operands[size_t(launch.first_operand) + i]));
  }
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] == kNone) continue;
    const Value& value = graph.values[node.outputs[i]];
    text += fmt::format("\n        out  {} {}  @ {}", to_string(value.type), printable(value.name),
                        place(plan, plan.operands[size_t(launch.first_operand + launch.inputs) + i]));
  }
  return text + "\n";
}

}  // namespace

std::string bytes_text(int64_t bytes) {
  if (bytes >= 1 << 30) return fmt::format("{:.2f} GiB", double(bytes) / (1 << 30));
  if (bytes >= 1 << 20) return fmt::format("{:.1f} MiB", double(bytes) / (1 << 20));
  if (bytes >= 1 << 10) return fmt::format("{:.1f} KiB", double(bytes) / (1 << 10));
  return fmt::format("{} B", bytes);
}

PlanText::PlanText(const Plan& plan) : plan_(plan), edges_(plan.tasks.size()) {
  for (const Edge& edge : plan.edges) edges_[edge.to].push_back(&edge);
}

std::string PlanText::part(size_t index) const {
  return index == 0 ? head() : task(TaskId(int32_t(index - 1)));
}

std::string PlanText::head() const {
  std::string text = "clocks\n";
  for (const Clock& clock : plan_.clocks) text += fmt::format("  {}: {} ticks\n", printable(clock.name), clock.ticks);
  for (const ClockRelation& relation : plan_.relations) {
    text += fmt::format("  {} {} make one {}", relation.group, printable(plan_.clocks[relation.fine].name),
                        printable(plan_.clocks[relation.coarse].name));
    text += relation.group == relation.period ? "\n" : fmt::format(", anew every {}\n", relation.period);
  }
  text += "lanes\n";
  for (const Lane& lane : plan_.lanes) text += fmt::format("  {}\n", printable(lane.name));
  text += "memory\n";
  for (size_t d = 0; d < plan_.devices.size(); ++d) {
    text += fmt::format("  {}: {}\n", to_string(plan_.devices[d]), bytes_text(planned_bytes(plan_, int32_t(d))));
    for (const Arena& arena : plan_.arenas) {
      if (arena.device != int32_t(d) || arena.bytes == 0) continue;
      text += fmt::format("    {:>11}  {}{}\n", bytes_text(arena.bytes), printable(arena.name),
                          arena.memory == Arena::Memory::Pinned ? " (host)" : "");
    }
  }
  return text + "tasks\n";
}

std::string PlanText::task(TaskId id) const {
  const Task& task = plan_.tasks[id];
  std::string text = fmt::format("  {}  on {}, each {}", printable(task.name), printable(plan_.lanes[task.lane].name),
                                 printable(plan_.clocks[task.clock].name));
  if (task.width > 1) text += fmt::format(", up to {} at once", task.width);
  if (task.every > 1) text += fmt::format(", with work for the last of every {}", task.every);
  text += '\n';
  for (const Edge* edge : edges_[id]) text += "    " + describe(plan_, *edge) + "\n";
  if (task.kind == Task::Kind::Fill) {
    const std::string part = task.parts == 1 ? "" : fmt::format("part {} of {} of ", task.part + 1, task.parts);
    text += fmt::format("    fills {}{}\n", part, place(plan_, plan_.operands[size_t(task.first_operand)]));
  } else {
    for (int32_t i = 0; i + 1 < task.operands; i += 2) {
      const Operand &from = plan_.operands[size_t(task.first_operand + i)],
                    &to = plan_.operands[size_t(task.first_operand + i + 1)];
      text += fmt::format("    copies {} from {} to {}\n", bytes_text(plan_.buffers[to.buffer].bytes),
                          place(plan_, from), place(plan_, to));
    }
  }
  for (int32_t i = 0; i < task.launches; ++i) text += describe(plan_, plan_.launches[size_t(task.first_launch + i)]);
  return text;
}

std::string print_plan(const Plan& plan) {
  const PlanText parts(plan);
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) text += parts.part(i);
  return text;
}

}  // namespace arbalest
