// SPDX-License-Identifier: Apache-2.0
#include "executor/plan/plan_part.h"

#include <algorithm>
#include <stdexcept>

namespace arbalest {
namespace {

class PartOfPlan {
 public:
  PartOfPlan(const Plan& whole, int32_t rank) : whole_(whole), rank_(rank) {}

  Plan make() {
    part_.clocks = whole_.clocks;
    part_.relations = whole_.relations;
    part_.graphs = whole_.graphs;
    take_places();
    for (const Buffer& buffer : whole_.buffers) {
      const ArenaId arena = arenas_[buffer.arena];
      buffers_.push_back(arena == kNone ? kNone : part_.buffers.end_id());
      if (arena == kNone) continue;
      part_.buffers.push_back(buffer);
      part_.buffers.back().arena = arena;
    }
    for (const Task& task : whole_.tasks) take_task(task);
    for (const Edge& edge : whole_.edges) take_edge(edge);
    take_handles();
    return std::move(part_);
  }

 private:
  template <class Key>
  static Key at(const Table<Key, Key>& ids, Key id) {
    return id == kNone ? id : ids[id];
  }
  static int32_t at(const std::vector<int32_t>& ids, int32_t id) { return id == kNone ? kNone : ids[size_t(id)]; }
  bool here(int32_t device) const { return device == kNone || devices_[size_t(device)] != kNone; }
  bool has(const Arena& arena) const { return here(arena.device); }
  bool has(const Lane& lane) const {
    const auto is_here = [&](int32_t device) { return here(device); };
    return here(lane.device) && (lane.spans.empty() || std::any_of(lane.spans.begin(), lane.spans.end(), is_here));
  }

  // Devices, lanes and arenas.
  void take_places() {
    for (const PlanDevice& device : whole_.devices) {
      part_.ranks_of_devices.push_back(device.rank);
      devices_.push_back(device.rank == rank_ ? int32_t(part_.devices.size()) : kNone);
      if (device.rank == rank_) part_.devices.push_back(device);
    }
    const auto take = [&](const auto& from, auto& to, auto& ids) {
      for (const auto& each : from) {
        ids.push_back(has(each) ? to.end_id() : kNone);
        if (ids.back() == kNone) continue;
        to.push_back(each);
        to.back().device = at(devices_, each.device);
      }
    };
    take(whole_.lanes, part_.lanes, lanes_);
    take(whole_.arenas, part_.arenas, arenas_);
  }

  Operand operand(Operand operand) const {
    operand.buffer = at(buffers_, operand.buffer);
    return operand.buffer == kNone ? Operand{} : operand;
  }

  void take_task(const Task& whole) {
    const bool stays = lanes_[whole.lane] != kNone && here(whole.device);
    tasks_.push_back(stays ? part_.tasks.end_id() : kNone);
    if (!stays) return;
    Task task = whole;
    task.lane = lanes_[whole.lane];
    task.device = at(devices_, whole.device);
    task.scalars = at(buffers_, whole.scalars);
    task.first_launch = int32_t(part_.launches.size());
    task.first_operand = int32_t(part_.operands.size());
    task.deferred = whole.kind == Task::Kind::Report || whole.kind == Task::Kind::ValidationEnd || whole.deferred;
    for (int32_t o = 0; o < whole.operands; ++o) {
      part_.operands.push_back(operand(whole_.operands[size_t(whole.first_operand + o)]));
    }
    for (int32_t l = 0; l < whole.launches; ++l) {
      Launch launch = whole_.launches[size_t(whole.first_launch + l)];
      const int32_t first = launch.first_operand;
      launch.first_operand = int32_t(part_.operands.size());
      launch.gaps = at(arenas_, launch.gaps);
      for (int32_t o = 0; o < launch.inputs + launch.outputs; ++o) {
        part_.operands.push_back(operand(whole_.operands[size_t(first + o)]));
      }
      part_.launches.push_back(launch);
    }
    part_.tasks.push_back(std::move(task));
  }

  void take_edge(const Edge& whole) {
    const TaskId from = tasks_[whole.from], to = tasks_[whole.to];
    if (from != kNone && to != kNone) {
      part_.edges.push_back(whole);
      part_.edges.back().from = from;
      part_.edges.back().to = to;
      return;
    }
    const auto rank_of = [&](TaskId task) {
      const int32_t device = whole_.lanes[whole_.tasks[task].lane].device;
      const int32_t given = device == kNone ? whole_.tasks[task].device : device;
      return given == kNone ? kNone : whole_.devices[size_t(given)].rank;
    };
    const int32_t a = rank_of(whole.from), b = rank_of(whole.to);
    if (a == kNone || b == kNone || a == b) return;
    throw std::logic_error(whole_.tasks[whole.to].name + " on one rank waits for " + whole_.tasks[whole.from].name +
                           " on another");
  }

  Replica take(const Replica& whole) const {
    Replica replica = whole;
    replica.device = at(devices_, whole.device);
    replica.lane = at(lanes_, whole.lane);
    for (std::vector<TaskId>* tasks : {&replica.fills, &replica.step}) {
      for (TaskId& task : *tasks) task = at(tasks_, task);
    }
    for (TaskId* task : {&replica.copy, &replica.read_back, &replica.hand_out}) *task = at(tasks_, *task);
    for (BufferId* buffer : {&replica.slots, &replica.tally}) *buffer = at(buffers_, *buffer);
    for (std::vector<BufferId>* buffers : {&replica.rows, &replica.outputs}) {
      for (BufferId& buffer : *buffers) buffer = at(buffers_, buffer);
    }
    for (Operand& place : replica.placement.of) place = operand(place);
    replica.placement.activations = at(arenas_, whole.placement.activations);
    return replica;
  }

  void take_handles() {
    const PlanHandles& whole = whole_.handles;
    PlanHandles& handles = part_.handles;
    handles = whole;
    for (LoopPlan& loop : handles.loops) {
      std::erase_if(loop.replicas, [&](const Replica& replica) { return !here(replica.device); });
      for (Replica& replica : loop.replicas) replica = take(replica);
    }
    for (TaskId* task : {&handles.report, &handles.validation_begin, &handles.validation_end}) {
      *task = at(tasks_, *task);
    }
    for (BufferId* buffer : {&handles.kept_weights, &handles.kept_statistics}) *buffer = at(buffers_, *buffer);
    for (BufferId& buffer : handles.averages) buffer = at(buffers_, buffer);
    std::erase(handles.averages, kNone);
    for (MovingAverageBuffers& average : handles.moving_averages) {
      average = {at(buffers_, average.weights), at(buffers_, average.progress)};
    }
    std::erase_if(handles.moving_averages, [](const MovingAverageBuffers& each) { return each.weights == kNone; });
    std::erase_if(handles.samples, [&](const SamplesOnDevice& samples) { return !here(samples.device); });
    for (SamplesOnDevice& samples : handles.samples) {
      samples.device = at(devices_, samples.device);
      samples.arena = at(arenas_, samples.arena);
      for (BufferId& field : samples.fields) field = at(buffers_, field);
    }
  }

  const Plan& whole_;
  const int32_t rank_;
  Plan part_;
  // By the whole plan's numbers; kNone: elsewhere.
  std::vector<int32_t> devices_;
  Table<LaneId, LaneId> lanes_;
  Table<ArenaId, ArenaId> arenas_;
  Table<BufferId, BufferId> buffers_;
  Table<TaskId, TaskId> tasks_;
};

}  // namespace

int32_t rank_count(const Plan& plan) {
  int32_t most = 0;
  for (const PlanDevice& device : plan.devices) most = std::max(most, device.rank);
  return most + 1;
}

std::vector<int> ranks_of(const Plan& part, LaneId lane) {
  const std::vector<int32_t>& spans = part.lanes[lane].spans;
  if (spans.empty()) return part.ranks_of_devices;
  std::vector<int> ranks;
  for (const int32_t device : spans) ranks.push_back(part.ranks_of_devices[size_t(device)]);
  return ranks;
}

Plan part_of(const Plan& plan, int32_t rank) {
  if (rank_count(plan) == 1) return plan;
  Plan part = PartOfPlan(plan, rank).make();
  verify(part);
  return part;
}

}  // namespace arbalest
