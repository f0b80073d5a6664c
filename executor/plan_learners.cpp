// Learners: how batches reach a device, and the tasks of a training step.

#include <fmt/format.h>

#include <algorithm>

#include "executor/lowering.h"
#include "graph/op.h"

namespace arbalest {
namespace {

// Pinned slots of what travels from devices to the log: one is written while the other is read.
constexpr int32_t kReadBackSlots = 2;

}  // namespace

// source → fill (host) → pinned slots → copy → device slots. Double buffering and read-ahead are the Reuse edges.
Lowering::Reader Lowering::add_reader(const Loop& loop, bool resident, const std::string& prefix, int32_t device,
                                      ClockId clock) {
  Reader reader;
  const int64_t bytes = batch_layout(loop, resident).bytes;
  const auto depth = int32_t(loop.depth);
  const ArenaId pinned = add_arena(prefix + "/pinned batches", device, Arena::Memory::Pinned);
  const ArenaId resident_slots = add_arena(prefix + "/batches", device, Arena::Memory::Device);
  const BufferId from = add_buffer(plan_, pinned, prefix + "/pinned batch slots", bytes, depth, clock);
  reader.slot = add_buffer(plan_, resident_slots, prefix + "/batch slots", bytes, request_.device_slots, clock);

  reader.fill = add_task(Task::Kind::Fill, prefix + "/fill", host_, clock, std::min(depth, 4));
  add_operands(reader.fill, {{from, 0, 0}});
  plan_.tasks[size_t(reader.fill)].device = device;
  reader.copy = add_task(Task::Kind::CopyIn, prefix + "/copy in", copy_in_[size_t(device)], clock);
  add_operands(reader.copy, {{from, 0, 0}, {reader.slot, 0, 0}});

  const int32_t width = plan_.tasks[size_t(reader.fill)].width;
  add_edge(reader.fill, reader.fill, width, Needs::Done, Why::Self);
  add_edge(reader.fill, reader.copy, 0, Needs::Done, Why::Data, "pinned batch");
  add_edge(reader.copy, reader.fill, depth, Needs::Done, Why::Reuse, "pinned batch");
  add_lane_order(reader.copy);
  return reader;
}

void Lowering::add_launches(TaskId task, int32_t program, const Placement& placement, NodeId begin, NodeId end) {
  const Graph& graph = plan_.graphs[size_t(program)];
  const auto place_of = [&](ValueId v) { return v == kNone ? Operand{} : placement.of[size_t(v)]; };
  for (NodeId n = begin; n < end; ++n) {
    const Node& node = graph.nodes[size_t(n)];
    plan_.launches.push_back(
        {program, n, int32_t(plan_.operands.size()), int32_t(node.inputs.size()), int32_t(node.outputs.size())});
    for (const ValueId v : node.inputs) plan_.operands.push_back(place_of(v));
    for (const ValueId v : node.outputs) plan_.operands.push_back(place_of(v));
  }
  plan_.tasks[size_t(task)].launches += end - begin;
}

// The task that runs nodes [begin, end) of a loop's graph on a device slot.
TaskId Lowering::add_part(const Loop& loop, int32_t program, const Placement& placement, const std::string& name,
                          LaneId lane, const Reader& reader, NodeId begin, NodeId end) {
  const TaskId task = add_task(Task::Kind::Compute, name, lane, plan_.tasks[size_t(reader.copy)].clock);
  plan_.tasks[size_t(task)].scalars = reader.slot;
  add_launches(task, program, placement, begin, std::min(end, NodeId(loop.graph.nodes.size())));
  return task;
}

// Ties the parts of a step to each other and to their batch.
void Lowering::close_step(const Reader& reader, const std::vector<TaskId>& step) {
  add_edge(reader.copy, step.front(), 0, Needs::Issued, Why::Data, "batch");
  add_edge(step.back(), reader.copy, request_.device_slots, Needs::Issued, Why::Reuse, "batch");
  add_edge(step.back(), reader.copy, request_.run_ahead, Needs::Done, Why::Pace);
  for (size_t i = 0; i + 1 < step.size(); ++i) add_edge(step[i], step[i + 1], 0, Needs::Issued, Why::Lane);
  add_edge(step.back(), step.front(), 1, Needs::Issued, Why::Lane);
}

// What a device sums up goes to the host at the ticks of `clock`, coarser than the summing task's.
TaskId Lowering::add_read_back(TaskId sum, const Operand& tally, int64_t bytes, const std::string& prefix,
                               int32_t device, ClockId clock) {
  const ArenaId pinned = add_arena(prefix + "/pinned tally", device, Arena::Memory::Pinned);
  const BufferId to = add_buffer(plan_, pinned, prefix + "/pinned tally", bytes, kReadBackSlots, clock);
  const TaskId copy = add_task(Task::Kind::CopyOut, prefix + "/copy out", copy_out_[size_t(device)], clock);
  add_operands(copy, {tally, {to, 0, 0}});
  add_edge(sum, copy, 0, Needs::Issued, Why::Data, "tally");
  add_edge(copy, sum, 1, Needs::Issued, Why::Reuse, "tally");
  add_lane_order(copy);
  return copy;
}

void Lowering::add_learner(int32_t device, int32_t index) {
  Replica replica;
  replica.device = device;
  replica.learner = device * request_.learners + index;
  const std::string prefix = fmt::format("{}/learner {}", device_name(device), replica.learner);
  const Loop& loop = program_.training;
  replica.lane = add_lane(Lane::Kind::Compute, device, replica.learner, prefix);
  replica.reader = add_reader(loop, request_.training_resident, prefix, device, batch_);

  std::vector<std::pair<ValueId, Operand>> given;
  if (!averages_.empty()) {  // averaging n reads z_n and makes z_n+1 in the place of z_n−1, which updates still read
    given = {{loop.arenas.average, {averages_[size_t(device)], 0, 1}},
             {loop.arenas.averaged, {averages_[size_t(device)], 0, 0}}};
  }
  replica.placement =
      place(plan_, loop, prefix, device, replica.reader.slot, batch_layout(loop, request_.training_resident), given);

  const auto end = NodeId(loop.graph.nodes.size());
  const std::vector<NodeId> cuts = step_cuts();
  NodeId begin = 0;
  for (size_t i = 0; i < cuts.size(); ++i) {
    const std::string part = cuts.size() > 1 ? fmt::format("{}/step {}", prefix, i) : prefix + "/step";
    replica.step.push_back(add_part(loop, 0, replica.placement, part, replica.lane, replica.reader, begin, cuts[i]));
    if (accumulate_ != kNone) add_accumulation(replica, i);
    begin = cuts[i];
  }
  Placement for_update = replica.placement;
  if (!gradient_averages_.empty()) {
    for_update.of[size_t(averaged_gradients())] = {gradient_averages_[size_t(device)], 0, 0};
  }
  if (begin < end) {  // without the accumulate node, whose parts are behind those of the step
    const NodeId until = accumulate_ == kNone ? end : accumulate_;
    replica.step.push_back(
        add_part(loop, 0, for_update, prefix + "/update", replica.lane, replica.reader, begin, until));
    if (accumulate_ != kNone) add_launches(replica.update(), 0, for_update, accumulate_ + 1, end);
  }
  close_step(replica.reader, replica.step);

  const auto tally = size_t(loop.arenas.tally);
  const TaskId copy = add_read_back(replica.update(), replica.placement.of[tally],
                                    loop.graph.values[tally].type.bytes(), prefix, device, report_clock_);
  for (const TaskId task : replica.step) plan_.tasks[size_t(task)].learner = replica.learner;
  for (const TaskId task : {replica.reader.fill, replica.reader.copy, copy}) {
    plan_.tasks[size_t(task)].learner = replica.learner;
  }
  add_edge(copy, report_, 0, Needs::Done, Why::Data, "tally");
  add_edge(report_, copy, kReadBackSlots, Needs::Done, Why::Reuse, "pinned tally");
  replicas_.push_back(std::move(replica));
}

NodeId Lowering::find_accumulate() const {
  const std::vector<Node>& nodes = program_.training.graph.nodes;
  const auto found = std::find_if(nodes.begin(), nodes.end(), [](const Node& node) {
    return node.stage == Stage::Update && node.op->qualified_name() == "arbalest.Accumulate";
  });
  return found == nodes.end() ? kNone : NodeId(found - nodes.begin());
}

// The part of the graph's accumulate node that a bucket needs, at the end of the part of the step that completes it: so
// the bucket's sum can travel while backward is at work on the next.
void Lowering::add_accumulation(const Replica& replica, size_t index) {
  const Node& whole = program_.training.graph.nodes[size_t(accumulate_)];
  const Bucket& bucket = buckets_[index];
  const auto term = [&](ValueId value) {
    return part(replica.placement.of[size_t(value)], DataType::Float32, bucket.offset, bucket.bytes);
  };
  add_node(replica.step.back(), whole.op->qualified_name(), fmt::format("{} {}", whole.name, index),
           {term(whole.inputs[0]), term(whole.inputs[1])}, {term(whole.outputs[0])}, whole.attributes);
}

// Where a step's nodes are cut into tasks, so that others can come in between: ends of all tasks but the last.
std::vector<NodeId> Lowering::step_cuts() const {
  const Graph& graph = program_.training.graph;
  const auto update = std::find_if(graph.nodes.begin(), graph.nodes.end(),
                                   [](const Node& node) { return node.stage == Stage::Update; });
  switch (request_.strategy.kind) {
    case Strategy::Kind::None:
    case Strategy::Kind::Local: break;
    case Strategy::Kind::Sma: return {NodeId(update - graph.nodes.begin())};
    case Strategy::Kind::Ssgd: {
      std::vector<NodeId> cuts;
      for (const Bucket& bucket : buckets_) cuts.push_back(bucket.last + 1);
      return cuts;
    }
  }
  return {NodeId(graph.nodes.size())};
}

// Consecutive gradients of at least bucket_bytes each, in the order in which backward finishes them. Between devices
// the last bucket has no backward left to travel under, so it is cut off small: a sixteenth of bucket_bytes, at least,
// where as much is left before it.
std::vector<Lowering::Bucket> Lowering::find_buckets() const {
  const Graph& graph = program_.training.graph;
  const ValueId arena = program_.training.arenas.gradients;
  struct Member {
    int64_t offset;
    NodeId producer;
  };
  std::vector<Member> members;
  for (const Value& value : graph.values) {
    if (value.view.base == arena) members.push_back({value.view.offset_bytes, value.producer});
  }
  std::sort(members.begin(), members.end(), [](const Member& a, const Member& b) { return a.offset < b.offset; });
  const int64_t whole = graph.values[size_t(arena)].type.bytes(), size = request_.strategy.bucket_bytes;
  int64_t tail = whole;  // where the last bucket begins
  for (auto member = members.rbegin(); device_count() > 1 && member != members.rend(); ++member) {
    tail = member->offset;
    if (whole - tail >= size / 16) break;
  }

  std::vector<Bucket> found;
  Bucket open;
  for (size_t i = 0; i < members.size(); ++i) {
    const int64_t end = i + 1 < members.size() ? members[i + 1].offset : whole;
    open.bytes = end - open.offset;
    open.last = std::max(open.last, members[i].producer);
    // A part of a task between two buckets is at least one node; what is left over joins the bucket before.
    const int64_t rest = (end <= tail ? tail : whole) - end;
    const bool enough = rest == 0 ? open.bytes >= size / 16 : open.bytes >= size && rest >= size;
    const bool complete = i + 1 == members.size() || (enough && members[i + 1].producer > open.last);
    if (!complete) continue;
    found.push_back(open);
    open = {end, 0, kNone};
  }
  return found;
}

}  // namespace arbalest
