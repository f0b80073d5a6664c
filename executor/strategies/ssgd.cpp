// SPDX-License-Identifier: Apache-2.0

// S-SGD: the gradients of all learners are averaged before every update. Buckets of them travel while backward is still
// at work on the next.

#include <fmt/format.h>

#include <algorithm>

#include "executor/plan/strategy.h"
#include "executor/session/run_state.h"
#include "graph/op.h"
#include "ops/names.h"

namespace arbalest {
namespace {

class Ssgd final : public Strategy {
 public:
  Ssgd() : Strategy({.name = "ssgd", .sums_gradients = true, .reads = {"every", "bucket_mib"}}) {}

  StepCut cut_step(const PlanInputs& in) const override;
  void add_memory(PlanBuilder& builder, const PlanInputs& in, const Clocks& clocks,
                  SharedMemory& memory) const override;
  std::vector<TaskId> add_tasks(const PlanSoFar& plan, const StepCut& cut) const override;

  // All learners are alike.
  void carry_over(const CarryOver& from, RunState& next) const override {
    const LearnerState& first = from.state.learners.front();
    for (LearnerState& learner : next.learners) {
      learner.weights = from.model.weights;
      learner.slots = first.slots;
      learner.updates = first.updates;
    }
  }
};

NodeId find_accumulate(const PlanInputs& in) {
  const Table<NodeId, Node>& nodes = in.training().graph.nodes;
  const auto found = std::find_if(nodes.begin(), nodes.end(), [](const Node& node) {
    return node.stage == Stage::Update && node.is(op::Accumulate);
  });
  return found == nodes.end() ? kNone : nodes.id_of(found);
}

// Consecutive gradients of at least bucket_bytes each, in the order in which backward finishes them. Between devices
// the last bucket has no backward left to travel under, so it is cut off small: a sixteenth of bucket_bytes, at least,
// where as much is left before it.
std::vector<Bucket> find_buckets(const PlanInputs& in) {
  const Graph& graph = in.training().graph;
  const ValueId arena = in.training().arenas.gradients;
  struct Member {
    int64_t offset;
    NodeId producer;
  };
  std::vector<Member> members;
  for (const Value& value : graph.values) {
    if (value.view.base == arena) members.push_back({value.view.offset_bytes, value.producer});
  }
  std::sort(members.begin(), members.end(), [](const Member& a, const Member& b) { return a.offset < b.offset; });
  const int64_t whole = graph.values[arena].type.bytes(), size = in.request.strategy.bucket_bytes;
  int64_t tail = whole;  // where the last bucket begins
  for (auto member = members.rbegin(); in.devices() > 1 && member != members.rend(); ++member) {
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

StepCut Ssgd::cut_step(const PlanInputs& in) const {
  StepCut cut;
  cut.buckets = find_buckets(in);
  cut.accumulate = find_accumulate(in);
  for (const Bucket& bucket : cut.buckets) cut.ends.push_back(bucket.last + 1);
  if (cut.accumulate != kNone || in.devices() == 1 || cut.buckets.size() == 1) return cut;
  cut.update = find_update_by_element(in);
  if (cut.update != kNone) cut.early = cut.buckets.back().offset / int64_t(sizeof(float));
  return cut;
}

void Ssgd::add_memory(PlanBuilder& builder, const PlanInputs& in, const Clocks& /*clocks*/,
                      SharedMemory& memory) const {
  if (in.request.learners == 1) return;  // a learner's own gradients become the mean
  const int64_t bytes = in.type_of(in.training().arenas.gradients).bytes();
  for (int32_t d = 0; d < in.devices(); ++d) {
    memory.gradients.push_back(builder.add_device_buffer(in.device_name(d) + "/mean gradients", d, bytes, 1, kNone));
  }
}

struct GradientInputs : PlanSoFar {
  const StepCut& cut;
};

int32_t batches_averaged(const GradientInputs& given) {
  return given.cut.accumulate == kNone ? 1 : int32_t(given.in.program.accumulate);
}

// Returns the place of bucket `index` of a device's gradients, and the task that completes it: the step of its only
// learner, or the mean of its learners' gradients.
std::pair<Term, TaskId> bucket_on(const GradientInputs& given, int32_t device, size_t index) {
  const Bucket& bucket = given.cut.buckets[index];
  const ValueId gradients = given.cut.averaged_gradients(given.in.training());
  std::vector<Term> terms;
  for (const Replica* replica : on_device(given.learners, device)) {
    terms.push_back(part(replica->placement.of[gradients], DataType::Float32, bucket.offset, bucket.bytes));
  }
  if (given.in.request.learners == 1) return {terms.front(), on_device(given.learners, device).front()->step[index]};
  const std::string name = fmt::format("{}/mean gradients {}", given.in.device_name(device), index);
  const TaskId task =
      given.builder.add_task(Task::Kind::Average, name, given.lanes.averaging[size_t(device)], given.clocks.batch);
  given.builder.task(task).every = batches_averaged(given);
  const Term mean =
      part({given.memory.gradients[size_t(device)], 0, 0}, DataType::Float32, bucket.offset, bucket.bytes);
  given.builder.add_node(task, op::Combine, name, terms, {mean},
                         {{"coefficients", std::vector<double>(terms.size(), 1.0 / double(given.in.learners()))}});
  given.builder.add_lane_order(task);
  for (const Replica* replica : on_device(given.learners, device)) {
    given.builder.add_edge(replica->step[index], task, 0, Edge::Needs::Issued, Edge::Why::Data, "gradients");
    given.builder.add_edge(replica->update(), task, 1, Edge::Needs::Issued, Edge::Why::Reuse, "mean gradients");
  }
  return {mean, task};
}

std::vector<TaskId> Ssgd::add_tasks(const PlanSoFar& plan, const StepCut& cut) const {
  const GradientInputs given{plan, cut};
  TaskId last_collective = kNone, first_collective = kNone;
  for (size_t b = 0; b < given.cut.buckets.size(); ++b) {
    std::vector<Term> reduced;
    std::vector<TaskId> ready;  // by device, what makes its bucket
    for (int32_t d = 0; d < given.in.devices(); ++d) {
      const auto [bucket, task] = bucket_on(given, d, b);
      reduced.push_back(bucket);
      ready.push_back(task);
    }
    if (given.in.devices() > 1) {
      const TaskId all =
          add_all_reduce(given.builder, given.lanes.collectives, fmt::format("all-reduce gradients {}", b),
                         given.clocks.batch, reduced, given.in.request.learners == 1);
      given.builder.task(all).every = batches_averaged(given);
      for (const TaskId task : ready)
        given.builder.add_edge(task, all, 0, Edge::Needs::Issued, Edge::Why::Data, "gradients");
      // Collectives run in the order of buckets, whichever bucket becomes ready first.
      if (last_collective != kNone)
        given.builder.add_edge(last_collective, all, 0, Edge::Needs::Issued, Edge::Why::Lane);
      if (first_collective == kNone) first_collective = all;
      last_collective = all;
      ready.assign(ready.size(), all);
    }
    if (given.in.learners() == 1) continue;  // the step itself makes what its update reads
    for (const Replica& replica : given.learners) {
      given.builder.add_edge(ready[size_t(replica.device)], replica.step[given.cut.reader_of(b)], 0,
                             Edge::Needs::Issued, Edge::Why::Data, "mean gradients");
    }
  }
  if (last_collective != first_collective)
    given.builder.add_edge(last_collective, first_collective, 1, Edge::Needs::Issued, Edge::Why::Lane);
  return {};
}

}  // namespace

std::unique_ptr<const Strategy> make_ssgd() {
  return std::make_unique<Ssgd>();
}

}  // namespace arbalest
