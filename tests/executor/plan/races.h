// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether a plan's edges order all tasks that touch the same bytes: what each instance reads and writes, and which
// instances have ended for certain when it starts.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "executor/plan/plan.h"
#include "graph/op.h"
#include "ops/definition.h"

namespace arbalest::test {

// The tick of `clock` that instance n of a task of clock `of` belongs to. That is n itself, the coarser tick around it,
// or the last of the finer ones in it. Throws std::logic_error if the clocks have no relation.
inline int64_t tick_at(const Plan& plan, ClockId of, ClockId clock, int64_t n) {
  if (of == clock) return n;
  for (const ClockRelation& relation : plan.relations) {
    if (relation.fine == of && relation.coarse == clock) return relation.coarse_of(n);
    if (relation.coarse == of && relation.fine == clock) return relation.last_of(n);
  }
  throw std::logic_error("no relation between clocks " + plan.clocks[of].name + " and " + plan.clocks[clock].name);
}

class Races {
 public:
  explicit Races(const Plan& plan) : plan_(plan), in_edges_(plan.tasks.size()), ended_(plan.tasks.size()) {
    for (const Edge& edge : plan.edges) in_edges_[edge.to].push_back(&edge);
    for (const TaskId task : plan.tasks.ids()) {
      ended_[task].resize(size_t(plan.clocks[plan.tasks[task].clock].ticks));
    }
  }

  // Two instances that touch the same bytes, one of them to write, with no order between them; "" if none do.
  std::string first() {
    for (const TaskId task : plan_.tasks.ids()) add_accesses(task);
    for (const LoopPlan& loop : plan_.handles.loops) {
      for (const Replica& replica : loop.replicas) add_host_reads(loop, replica);
    }
    for (auto& [arena, accesses] : accesses_) {
      std::sort(accesses.begin(), accesses.end(), [](const Access& a, const Access& b) { return a.begin < b.begin; });
      for (size_t a = 0; a < accesses.size(); ++a) {
        for (size_t b = a + 1; b < accesses.size() && accesses[b].begin < accesses[a].end; ++b) {
          if (!may_be_together(accesses[a], accesses[b])) return describe(arena, accesses[a], accesses[b]);
        }
      }
    }
    return "";
  }

  size_t count() const {
    size_t sum = 0;
    for (const auto& [arena, accesses] : accesses_) sum += accesses.size();
    return sum;
  }

 private:
  struct Access {
    int64_t begin = 0, end = 0;  // bytes of the arena
    TaskId task = kNone;
    int64_t instance = 0;
    bool writes = false;
  };
  using Ended = Table<TaskId, int64_t>;  // the last instance that has ended, -1 for none

  // Instances of a task end in order, as the dependencies count them.
  const Ended& ended_before(TaskId task, int64_t instance) {
    Ended& ended = ended_[task][size_t(instance)];
    if (!ended.empty()) return ended;
    Ended found(plan_.tasks.size(), -1);
    for (const Edge* edge : in_edges_[task]) {
      const int64_t needed = needed_instance(plan_, *edge, instance);
      if (needed < 0) continue;
      const Ended& before = ended_before(edge->from, needed);
      for (const TaskId t : found.ids()) found[t] = std::max(found[t], before[t]);
      found[edge->from] = std::max(found[edge->from], needed);
    }
    ended = std::move(found);
    return ended;
  }

  bool may_be_together(const Access& a, const Access& b) {
    if (!a.writes && !b.writes) return true;
    if (a.task == b.task && a.instance == b.instance) return true;
    const Task &one = plan_.tasks[a.task], &other = plan_.tasks[b.task];
    const bool parts = one.kind == Task::Kind::Fill && other.kind == Task::Kind::Fill && one.part != other.part;
    if (parts && a.instance == b.instance) return true;  // each writes samples of its own
    return ended_before(a.task, a.instance)[b.task] >= b.instance ||
           ended_before(b.task, b.instance)[a.task] >= a.instance;
  }

  int64_t instances(TaskId task) const { return int64_t(ended_[task].size()); }

  void add(TaskId task, const Operand& operand, int64_t bytes, bool writes) {
    if (operand.buffer == kNone || bytes == 0) return;
    const Buffer& buffer = plan_.buffers[operand.buffer];
    const Task& toucher = plan_.tasks[task];
    for (int64_t n = 0; n < instances(task); ++n) {
      if (!has_work(n, toucher.every)) continue;
      const int64_t tick = buffer.clock == kNone ? 0 : tick_at(plan_, toucher.clock, buffer.clock, n);
      const int64_t begin = buffer.offset + (tick + operand.shift) % buffer.slots * buffer.stride + operand.offset;
      accesses_[buffer.arena].push_back({begin, begin + bytes, task, n, writes});
    }
  }

  int64_t whole(const Operand& operand) const {
    return operand.buffer == kNone ? 0 : plan_.buffers[operand.buffer].bytes - operand.offset;
  }

  void add_accesses(TaskId id) {
    const Task& task = plan_.tasks[id];
    const auto operand = [&](int32_t i) { return plan_.operands[size_t(task.first_operand + i)]; };
    if (task.kind == Task::Kind::Fill) {
      add(id, operand(0), whole(operand(0)), true);
    } else {
      for (int32_t i = 0; i + 1 < task.operands; i += 2) {
        const int64_t bytes = std::min(whole(operand(i)), whole(operand(i + 1)));
        add(id, operand(i), bytes, false);
        add(id, operand(i + 1), bytes, true);
      }
    }
    if (task.scalars != kNone) add(id, {task.scalars, 0, 0}, int64_t(sizeof(StepScalars)), false);
    for (int32_t l = task.first_launch; l < task.first_launch + task.launches; ++l) add_launch(id, l);
  }

  void add_launch(TaskId id, int32_t index) {
    const Launch& launch = plan_.launches[size_t(index)];
    const Graph& graph = plan_.graphs[size_t(launch.program)];
    const Node& node = graph.nodes[launch.node];
    for (int32_t i = 0; i < launch.inputs + launch.outputs; ++i) {
      const bool writes = i >= launch.inputs;
      const ValueId value = writes ? node.outputs[size_t(i - launch.inputs)] : node.inputs[size_t(i)];
      if (value == kNone || (writes && restarts(graph, value))) continue;
      add(id, plan_.operands[size_t(launch.first_operand + i)], graph.values[value].type.bytes(), writes);
    }
  }

  // SMA's average begins anew with the averaged model: every learner of a device writes that, and then none reads it.
  static bool restarts(const Graph& graph, ValueId value) {
    return std::any_of(graph.carries.begin(), graph.carries.end(), [&](const auto& carry) {
      return carry.next == value && graph.values[carry.current].name == "average";
    });
  }

  // Adds the reads of host tasks, which have no operands.
  void add_host_reads(const LoopPlan& loop, const Replica& replica) {
    const auto read = [&](TaskId task, BufferId buffer) {
      if (task != kNone && buffer != kNone) add(task, {buffer, 0, 0}, plan_.buffers[buffer].bytes, false);
    };
    for (const BufferId output : replica.outputs) read(replica.hand_out, output);
    const TaskId reader = loop.role == LoopRole::Train      ? plan_.handles.report
                          : loop.role == LoopRole::Validate ? plan_.handles.validation_end
                                                            : kNone;
    read(reader, replica.tally);
    for (const BufferId rows : replica.rows) read(reader, rows);
    if (loop.role != LoopRole::Validate) return;
    read(reader, plan_.handles.kept_weights);
    read(reader, plan_.handles.kept_statistics);
  }

  std::string describe(ArenaId arena, const Access& a, const Access& b) const {
    const auto name = [&](const Access& access) {
      return fmt::format("instance {} of '{}' {} [{}, {})", access.instance, plan_.tasks[access.task].name,
                         access.writes ? "writes" : "reads", access.begin, access.end);
    };
    return fmt::format("{}: {} and {}", plan_.arenas[arena].name, name(a), name(b));
  }

  const Plan& plan_;
  Table<TaskId, std::vector<const Edge*>> in_edges_;
  Table<TaskId, std::vector<Ended>> ended_;  // by task and instance, as far as asked for
  std::map<ArenaId, std::vector<Access>> accesses_;
};

}  // namespace arbalest::test
