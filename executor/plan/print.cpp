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

std::string describe(const Plan& plan, TaskId id) {
  const Task& task = plan.tasks[id];
  std::string text = fmt::format("  {}  on {}, each {}", printable(task.name), printable(plan.lanes[task.lane].name),
                                 printable(plan.clocks[task.clock].name));
  if (task.width > 1) text += fmt::format(", up to {} at once", task.width);
  if (task.every > 1) text += fmt::format(", with work for the last of every {}", task.every);
  text += '\n';
  for (const Edge& edge : plan.edges) {
    if (edge.to == id) text += "    " + describe(plan, edge) + "\n";
  }
  if (task.kind == Task::Kind::Fill) {
    const std::string part = task.parts == 1 ? "" : fmt::format("part {} of {} of ", task.part + 1, task.parts);
    text += fmt::format("    fills {}{}\n", part, place(plan, plan.operands[size_t(task.first_operand)]));
  } else {
    for (int32_t i = 0; i + 1 < task.operands; i += 2) {
      const Operand &from = plan.operands[size_t(task.first_operand + i)],
                    &to = plan.operands[size_t(task.first_operand + i + 1)];
      text += fmt::format("    copies {} from {} to {}\n", bytes_text(plan.buffers[to.buffer].bytes), place(plan, from),
                          place(plan, to));
    }
  }
  for (int32_t i = 0; i < task.launches; ++i) text += describe(plan, plan.launches[size_t(task.first_launch + i)]);
  return text;
}

}  // namespace

std::string bytes_text(int64_t bytes) {
  if (bytes >= 1 << 30) return fmt::format("{:.2f} GiB", double(bytes) / (1 << 30));
  if (bytes >= 1 << 20) return fmt::format("{:.1f} MiB", double(bytes) / (1 << 20));
  if (bytes >= 1 << 10) return fmt::format("{:.1f} KiB", double(bytes) / (1 << 10));
  return fmt::format("{} B", bytes);
}

std::string print_plan(const Plan& plan) {
  std::string text = "clocks\n";
  for (const Clock& clock : plan.clocks) text += fmt::format("  {}: {} ticks\n", printable(clock.name), clock.ticks);
  for (const ClockRelation& relation : plan.relations) {
    text += fmt::format("  {} {} make one {}", relation.group, printable(plan.clocks[relation.fine].name),
                        printable(plan.clocks[relation.coarse].name));
    text += relation.group == relation.period ? "\n" : fmt::format(", anew every {}\n", relation.period);
  }
  text += "lanes\n";
  for (const Lane& lane : plan.lanes) text += fmt::format("  {}\n", printable(lane.name));
  text += "memory\n";
  for (size_t d = 0; d < plan.devices.size(); ++d) {
    text += fmt::format("  {}: {}\n", to_string(plan.devices[d]), bytes_text(planned_bytes(plan, int32_t(d))));
    for (const Arena& arena : plan.arenas) {
      if (arena.device != int32_t(d) || arena.bytes == 0) continue;
      text += fmt::format("    {:>11}  {}{}\n", bytes_text(arena.bytes), printable(arena.name),
                          arena.memory == Arena::Memory::Pinned ? " (host)" : "");
    }
  }
  text += "tasks\n";
  for (const TaskId task : plan.tasks.ids()) text += describe(plan, task);
  return text;
}

}  // namespace arbalest
