// Synchronisation: the tasks that average gradients (S-SGD) or models (SMA, local SGD), within a device and over all.
//
// Averaging n of SMA follows the updates of group n of `every` iterations and runs while group n + 1 begins. Forward
// and backward go on, and only the first update of that group waits for it. It reads w_j, z_n and z_n−1 and puts z_n+1
// into the place of z_n−1; the update reads z_n. Between devices w_j are read when the device's own sum is made. The
// update waits no longer than for that and for z_n, unless it may have to start again from z_n+1.

#include <fmt/format.h>

#include <functional>

#include "executor/plan/phases.h"

namespace arbalest {
namespace {

using Needs = Edge::Needs;
using Why = Edge::Why;

struct SynchronisationInputs : PlanSoFar {
  const StepCut& cut;
};

using SumWriter = std::function<void(TaskId task, int32_t device, const std::vector<Term>& terms,
                                     const std::vector<double>& coefficients)>;

std::vector<double> repeated(double coefficient, size_t count) {
  return std::vector<double>(count, coefficient);
}

Term weights_of(const SynchronisationInputs& given, const Replica& replica) {
  const ValueId weights = given.in.training().arenas.weights;
  return {replica.placement.of[size_t(weights)], given.in.type_of(weights)};
}

int32_t batches_averaged(const SynchronisationInputs& given) {
  return given.cut.accumulate == kNone ? 1 : int32_t(given.in.program.accumulate);
}

struct Averaged {
  std::vector<TaskId> reads, writes;  // by device: the task that reads its replicas, and the one that has the whole sum
};

// Share · Σ w_j over all learners, as tasks at the ticks of averaging. They are one a device that reads its replicas;
// or a sum on each device, an all-reduce, and one a device that reads the whole. `write` adds the node that makes
// something of it.
Averaged sum_models(const SynchronisationInputs& given, const std::string& name, double share, const SumWriter& write) {
  const TensorType type = given.in.type_of(given.in.training().arenas.weights);
  const bool alone = given.in.devices() == 1;
  std::vector<Term> sums;
  std::vector<TaskId> reads;
  for (int32_t d = 0; d < given.in.devices(); ++d) {
    std::vector<Term> models;
    for (const Replica* replica : on_device(given.learners, d)) models.push_back(weights_of(given, *replica));
    const std::vector<double> shares = repeated(share, models.size());
    const std::string task_name = given.in.device_name(d) + "/" + (alone ? name : "sum");
    const TaskId task =
        given.builder.add_task(Task::Kind::Average, task_name, given.lanes.averaging[size_t(d)], given.clocks.sync);
    if (alone) {
      write(task, d, models, shares);
    } else {
      sums.push_back(
          {{given.builder.add_device_buffer(task_name + " of models", d, type.bytes(), 1, kNone), 0, 0}, type});
      given.builder.add_node(task, "arbalest.Combine", task_name, models, {sums.back()}, {{"coefficients", shares}});
    }
    given.builder.add_lane_order(task);
    for (const Replica* replica : on_device(given.learners, d)) {
      given.builder.add_edge(replica->update(), task, 0, Needs::Issued, Why::Data, "weights");
    }
    reads.push_back(task);
  }
  if (alone) return {reads, reads};
  const TaskId all = add_all_reduce(given.builder, given.lanes, "all-reduce models", given.clocks.sync, sums, false);
  std::vector<TaskId> writes;
  for (int32_t d = 0; d < given.in.devices(); ++d) {
    const TaskId task = given.builder.add_task(Task::Kind::Average, given.in.device_name(d) + "/" + name,
                                               given.lanes.averaging[size_t(d)], given.clocks.sync);
    write(task, d, {sums[size_t(d)]}, {1.0});
    given.builder.add_edge(reads[size_t(d)], all, 0, Needs::Issued, Why::Data, "sum of models");
    given.builder.add_edge(all, task, 0, Needs::Issued, Why::Data, "sum of models");
    given.builder.add_edge(task, reads[size_t(d)], 1, Needs::Issued, Why::Reuse, "sum of models");
    writes.push_back(task);
  }
  return {reads, writes};
}

// z' = z + β (mean w_j − z) + μ (z − z_prev), as one sum of arrays.
std::vector<TaskId> average_models(const SynchronisationInputs& given) {
  const double momentum = given.in.strategy().momentum, keep = 1 - given.in.strategy().beta + momentum;
  const TensorType type = given.in.type_of(given.in.training().arenas.weights);
  const auto write = [&](TaskId task, int32_t d, std::vector<Term> terms, std::vector<double> coefficients) {
    const Term now{{given.memory.models[size_t(d)], 0, 0}, type}, other{{given.memory.models[size_t(d)], 0, 1}, type};
    terms.insert(terms.begin(), {now, other});
    coefficients.insert(coefficients.begin(), {keep, -momentum});
    given.builder.add_node(task, "arbalest.Combine", given.builder.task(task).name, terms, {other},
                           {{"coefficients", coefficients}});
    add_moving_average(given.builder, given.in, given.memory, d, task, other);
  };
  const auto [reads, writes] =
      sum_models(given, "average", given.in.strategy().beta / double(given.in.learners()), write);
  const bool restarts = given.in.training().arenas.averaged != kNone;
  for (const Replica& replica : given.learners) {
    const TaskId read = reads[size_t(replica.device)], written = writes[size_t(replica.device)];
    // If learners do not restart from the average, updates need not wait for the task that writes it. The task that
    // made z_n precedes the sum of models that follows it.
    const bool whole = restarts || read == written;
    given.builder.add_edge(whole ? written : read, replica.update(), 1, Needs::Issued, Why::Reuse,
                           whole ? "average" : "weights");
  }
  return writes;
}

// Returns the place of bucket `index` of a device's gradients, and the task that completes it: the step of its only
// learner, or the mean of its learners' gradients.
std::pair<Term, TaskId> bucket_on(const SynchronisationInputs& given, int32_t device, size_t index) {
  const Bucket& bucket = given.cut.buckets[index];
  const ValueId gradients = given.cut.averaged_gradients(given.in.training());
  std::vector<Term> terms;
  for (const Replica* replica : on_device(given.learners, device)) {
    terms.push_back(part(replica->placement.of[size_t(gradients)], DataType::Float32, bucket.offset, bucket.bytes));
  }
  if (given.in.request.learners == 1) return {terms.front(), on_device(given.learners, device).front()->step[index]};
  const std::string name = fmt::format("{}/mean gradients {}", given.in.device_name(device), index);
  const TaskId task =
      given.builder.add_task(Task::Kind::Average, name, given.lanes.averaging[size_t(device)], given.clocks.batch);
  given.builder.task(task).every = batches_averaged(given);
  const Term mean =
      part({given.memory.gradients[size_t(device)], 0, 0}, DataType::Float32, bucket.offset, bucket.bytes);
  given.builder.add_node(task, "arbalest.Combine", name, terms, {mean},
                         {{"coefficients", repeated(1.0 / double(given.in.learners()), terms.size())}});
  given.builder.add_lane_order(task);
  for (const Replica* replica : on_device(given.learners, device)) {
    given.builder.add_edge(replica->step[index], task, 0, Needs::Issued, Why::Data, "gradients");
    given.builder.add_edge(replica->update(), task, 1, Needs::Issued, Why::Reuse, "mean gradients");
  }
  return {mean, task};
}

// Buckets of gradients travel while backward is still at work on the next.
void average_gradients(const SynchronisationInputs& given) {
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
      const TaskId all = add_all_reduce(given.builder, given.lanes, fmt::format("all-reduce gradients {}", b),
                                        given.clocks.batch, reduced, given.in.request.learners == 1);
      given.builder.task(all).every = batches_averaged(given);
      for (const TaskId task : ready) given.builder.add_edge(task, all, 0, Needs::Issued, Why::Data, "gradients");
      // Collectives run in the order of buckets, whichever bucket becomes ready first.
      if (last_collective != kNone) given.builder.add_edge(last_collective, all, 0, Needs::Issued, Why::Lane);
      if (first_collective == kNone) first_collective = all;
      last_collective = all;
      ready.assign(ready.size(), all);
    }
    if (given.in.learners() == 1) continue;  // the step itself makes what its update reads
    for (const Replica& replica : given.learners) {
      given.builder.add_edge(ready[size_t(replica.device)], replica.step[given.cut.reader_of(b)], 0, Needs::Issued,
                             Why::Data, "mean gradients");
    }
  }
  if (last_collective != first_collective)
    given.builder.add_edge(last_collective, first_collective, 1, Needs::Issued, Why::Lane);
}

// Local SGD: every replica becomes the mean of all; nothing can run at the same time.
std::vector<TaskId> replace_models(const SynchronisationInputs& given) {
  const ValueId copy = given.in.training().arenas.weights_lowered;
  const auto write = [&](TaskId task, int32_t d, const std::vector<Term>& terms,
                         const std::vector<double>& coefficients) {
    std::vector<Term> masters, lowered;
    for (const Replica* replica : on_device(given.learners, d)) {
      masters.push_back(weights_of(given, *replica));
      if (copy != kNone) lowered.push_back({replica->placement.of[size_t(copy)], given.in.type_of(copy)});
    }
    const auto count = int64_t(lowered.size());
    masters.insert(masters.end(), lowered.begin(), lowered.end());
    given.builder.add_node(task, "arbalest.Combine", given.builder.task(task).name, terms, masters,
                           {{"coefficients", coefficients}, {"lowered", count}});
    add_moving_average(given.builder, given.in, given.memory, d, task, masters.front());
  };
  const std::vector<TaskId> replaced =
      sum_models(given, "replace models", 1.0 / double(given.in.learners()), write).writes;
  for (const Replica& replica : given.learners) {
    given.builder.add_edge(replaced[size_t(replica.device)], replica.first(), 1, Needs::Issued, Why::Data, "weights");
  }
  return replaced;
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
  const int64_t bytes = in.type_of(in.training().arenas.weights).bytes();
  for (int32_t d = 0; d < in.devices(); ++d) {
    const std::string prefix = in.device_name(d);
    if (in.strategy().kind == Strategy::Kind::Sma) {
      constexpr int32_t kModels = 2;  // z and z_prev; z' takes the latter's place
      memory.models.push_back(builder.add_device_buffer(prefix + "/average", d, bytes, kModels, clocks.sync));
    } else if (in.strategy().kind == Strategy::Kind::Ssgd && in.request.learners > 1) {
      const int64_t all = in.type_of(in.training().arenas.gradients).bytes();
      memory.gradients.push_back(builder.add_device_buffer(prefix + "/mean gradients", d, all, 1, kNone));
    }
  }
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

TaskId add_all_reduce(PlanBuilder& builder, const Lanes& lanes, const std::string& name, ClockId clock,
                      const std::vector<Term>& operands, bool mean) {
  const TaskId task = builder.add_task(Task::Kind::Collective, name, lanes.collectives, clock);
  builder.add_node(task, "arbalest.AllReduce", name, operands, operands, {{"mean", int64_t{mean}}});
  builder.add_lane_order(task);
  return task;
}

std::vector<TaskId> add_synchronisation(const PlanSoFar& plan, const StepCut& cut) {
  const SynchronisationInputs given{plan, cut};
  switch (plan.in.strategy().kind) {
    case Strategy::Kind::None: break;
    case Strategy::Kind::Sma: return average_models(given);
    case Strategy::Kind::Ssgd: average_gradients(given); break;
    case Strategy::Kind::Local: return replace_models(given);
  }
  return {};
}

}  // namespace arbalest
