// Synchronisation: the tasks that average gradients (S-SGD) or models (SMA, local SGD), within a device and over all.
//
// Averaging n of SMA follows the updates of group n of `every` iterations and runs while group n + 1 begins: forward
// and backward go on, and only the first update of that group waits for it. It reads w_j, z_n and z_n−1 and puts z_n+1
// into the place of z_n−1; the update reads z_n.

#include <fmt/format.h>

#include "executor/lowering.h"

namespace arbalest {
namespace {

std::vector<double> repeated(double coefficient, size_t count) {
  return std::vector<double>(count, coefficient);
}

}  // namespace

void Lowering::make_average_memory() {
  const Graph& graph = program_.training.graph;
  const int64_t bytes = graph.values[size_t(program_.training.arenas.weights)].type.bytes();
  for (int32_t d = 0; d < device_count(); ++d) {
    const std::string prefix = device_name(d);
    if (request_.strategy.kind == Strategy::Kind::Sma) {
      constexpr int32_t kModels = 2;  // z and z_prev; z' takes the latter's place
      averages_.push_back(add_device_buffer(prefix + "/average", d, bytes, kModels, sync_));
    } else if (request_.strategy.kind == Strategy::Kind::Ssgd && request_.learners > 1) {
      gradient_averages_.push_back(add_device_buffer(prefix + "/mean gradients", d, bytes, 1, kNone));
    }
  }
}

void Lowering::synchronize() {
  switch (request_.strategy.kind) {
    case Strategy::Kind::None: break;
    case Strategy::Kind::Sma: average_models(); break;
    case Strategy::Kind::Ssgd: average_gradients(); break;
    case Strategy::Kind::Local: replace_models(); break;
  }
}

Lowering::Term Lowering::weights_of(const Replica& replica) const {
  const ValueId weights = program_.training.arenas.weights;
  return {replica.placement.of[size_t(weights)], program_.training.graph.values[size_t(weights)].type};
}

TaskId Lowering::add_all_reduce(const std::string& name, ClockId clock, const std::vector<Term>& operands, bool mean) {
  const TaskId task = add_task(Task::Kind::Collective, name, fabric_, clock);
  add_node(task, "arbalest.AllReduce", name, operands, operands, {{"mean", int64_t{mean}}});
  add_lane_order(task);
  return task;
}

// Share · Σ w_j over all learners, as tasks at the ticks of averaging: one a device that reads its replicas; or a sum
// on each device, an all-reduce, and one a device that reads the whole. `write` adds the node that makes something of
// it.
void Lowering::sum_models(const std::string& name, double share, const SumWriter& write) {
  const TensorType type = program_.training.graph.values[size_t(program_.training.arenas.weights)].type;
  const bool alone = device_count() == 1;
  std::vector<Term> sums;
  for (int32_t d = 0; d < device_count(); ++d) {
    std::vector<Term> models;
    for (const Replica* replica : replicas_on(d)) models.push_back(weights_of(*replica));
    const std::vector<double> shares = repeated(share, models.size());
    const std::string task_name = device_name(d) + "/" + (alone ? name : "sum");
    const TaskId task = add_task(Task::Kind::Average, task_name, collectives_[size_t(d)], sync_);
    if (alone) {
      write(task, d, models, shares);
    } else {
      sums.push_back({{add_device_buffer(task_name + " of models", d, type.bytes(), 1, kNone), 0, 0}, type});
      add_node(task, "arbalest.Combine", task_name, models, {sums.back()}, {{"coefficients", shares}});
    }
    add_lane_order(task);
    for (const Replica* replica : replicas_on(d)) {
      add_edge(replica->update(), task, 0, Needs::Issued, Why::Data, "weights");
    }
    averaged_.push_back(task);
  }
  if (alone) return;
  const TaskId all = add_all_reduce("all-reduce models", sync_, sums, false);
  for (int32_t d = 0; d < device_count(); ++d) {
    const TaskId task = add_task(Task::Kind::Average, device_name(d) + "/" + name, collectives_[size_t(d)], sync_);
    write(task, d, {sums[size_t(d)]}, {1.0});
    TaskId& summed = averaged_[size_t(d)];
    add_edge(summed, all, 0, Needs::Issued, Why::Data, "sum of models");
    add_edge(all, task, 0, Needs::Issued, Why::Data, "sum of models");
    add_edge(task, summed, 1, Needs::Issued, Why::Reuse, "sum of models");
    summed = task;
  }
}

// z' = z + β (mean w_j − z) + μ (z − z_prev), as one sum of arrays.
void Lowering::average_models() {
  const double momentum = request_.strategy.momentum, keep = 1 - request_.strategy.beta + momentum;
  const TensorType type = program_.training.graph.values[size_t(program_.training.arenas.weights)].type;
  const auto write = [&](TaskId task, int32_t d, std::vector<Term> terms, std::vector<double> coefficients) {
    const Term now{{averages_[size_t(d)], 0, 0}, type}, other{{averages_[size_t(d)], 0, 1}, type};
    terms.insert(terms.begin(), {now, other});
    coefficients.insert(coefficients.begin(), {keep, -momentum});
    add_node(task, "arbalest.Combine", plan_.tasks[size_t(task)].name, terms, {other},
             {{"coefficients", coefficients}});
  };
  sum_models("average", request_.strategy.beta / double(learner_count()), write);
  for (const Replica& replica : replicas_) {
    add_edge(averaged_[size_t(replica.device)], replica.update(), 1, Needs::Issued, Why::Reuse, "average");
  }
}

ValueId Lowering::averaged_gradients() const {
  const Loop& loop = program_.training;
  return accumulate_ == kNone ? loop.arenas.gradients : loop.graph.nodes[size_t(accumulate_)].outputs[0];
}

// Where bucket `index` of a device's gradients lies and the task that completes it: the step of its only learner, or
// the mean of its learners' gradients.
std::pair<Lowering::Term, TaskId> Lowering::bucket_on(int32_t device, size_t index) {
  const Bucket& bucket = buckets_[index];
  const ValueId gradients = averaged_gradients();
  std::vector<Term> terms;
  for (const Replica* replica : replicas_on(device)) {
    terms.push_back(part(replica->placement.of[size_t(gradients)], DataType::Float32, bucket.offset, bucket.bytes));
  }
  if (request_.learners == 1) return {terms.front(), replicas_on(device).front()->step[index]};
  const std::string name = fmt::format("{}/mean gradients {}", device_name(device), index);
  const TaskId task = add_task(Task::Kind::Average, name, collectives_[size_t(device)], batch_);
  plan_.tasks[size_t(task)].every = batches_averaged();
  const Term mean = part({gradient_averages_[size_t(device)], 0, 0}, DataType::Float32, bucket.offset, bucket.bytes);
  add_node(task, "arbalest.Combine", name, terms, {mean},
           {{"coefficients", repeated(1.0 / double(learner_count()), terms.size())}});
  add_lane_order(task);
  for (const Replica* replica : replicas_on(device)) {
    add_edge(replica->step[index], task, 0, Needs::Issued, Why::Data, "gradients");
    add_edge(replica->update(), task, 1, Needs::Issued, Why::Reuse, "mean gradients");
  }
  return {mean, task};
}

// Buckets of gradients travel while backward is still at work on the next.
void Lowering::average_gradients() {
  TaskId last_collective = kNone, first_collective = kNone;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    std::vector<Term> reduced;
    std::vector<TaskId> ready;  // by device, what makes its bucket
    for (int32_t d = 0; d < device_count(); ++d) {
      const auto [bucket, task] = bucket_on(d, b);
      reduced.push_back(bucket);
      ready.push_back(task);
    }
    if (device_count() > 1) {
      const TaskId all =
          add_all_reduce(fmt::format("all-reduce gradients {}", b), batch_, reduced, request_.learners == 1);
      plan_.tasks[size_t(all)].every = batches_averaged();
      for (const TaskId task : ready) add_edge(task, all, 0, Needs::Issued, Why::Data, "gradients");
      // One chain, whatever becomes ready first.
      if (last_collective != kNone) add_edge(last_collective, all, 0, Needs::Issued, Why::Lane);
      if (first_collective == kNone) first_collective = all;
      last_collective = all;
      ready.assign(ready.size(), all);
    }
    if (learner_count() == 1) continue;  // the step itself makes what its update reads
    for (const Replica& replica : replicas_) {
      add_edge(ready[size_t(replica.device)], replica.update(), 0, Needs::Issued, Why::Data, "mean gradients");
    }
  }
  if (last_collective != first_collective) add_edge(last_collective, first_collective, 1, Needs::Issued, Why::Lane);
}

std::vector<Lowering::Term> Lowering::weights_written(const Replica& replica) const {
  std::vector<Term> terms = {weights_of(replica)};
  const ValueId lowered = program_.training.arenas.weights_lowered;
  if (lowered != kNone) {
    terms.push_back({replica.placement.of[size_t(lowered)], program_.training.graph.values[size_t(lowered)].type});
  }
  return terms;
}

// Local SGD: every replica becomes the mean of all, which nothing can run beside.
void Lowering::replace_models() {
  const auto write = [&](TaskId task, int32_t d, const std::vector<Term>& terms,
                         const std::vector<double>& coefficients) {
    std::vector<Term> masters, lowered;
    for (const Replica* replica : replicas_on(d)) {
      const std::vector<Term> written = weights_written(*replica);
      masters.push_back(written.front());
      lowered.insert(lowered.end(), written.begin() + 1, written.end());
    }
    const auto count = int64_t(lowered.size());
    masters.insert(masters.end(), lowered.begin(), lowered.end());
    add_node(task, "arbalest.Combine", plan_.tasks[size_t(task)].name, terms, masters,
             {{"coefficients", coefficients}, {"lowered", count}});
  };
  sum_models("replace models", 1.0 / double(learner_count()), write);
  for (const Replica& replica : replicas_) {
    add_edge(averaged_[size_t(replica.device)], replica.first(), 1, Needs::Issued, Why::Data, "weights");
  }
}

}  // namespace arbalest
