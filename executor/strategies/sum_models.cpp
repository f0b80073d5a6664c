// SPDX-License-Identifier: Apache-2.0
#include "executor/strategies/sum_models.h"

namespace arbalest {

Term weights_of(const PlanSoFar& plan, const Replica& replica) {
  const ValueId weights = plan.in.training().arenas.weights;
  return {replica.placement.of[size_t(weights)], plan.in.type_of(weights)};
}

SummedModels sum_models(const PlanSoFar& plan, const std::string& name, double share, const SumWriter& write) {
  const TensorType type = plan.in.type_of(plan.in.training().arenas.weights);
  const bool alone = plan.in.devices() == 1;
  std::vector<Term> sums;
  std::vector<TaskId> reads;
  for (int32_t d = 0; d < plan.in.devices(); ++d) {
    std::vector<Term> models;
    for (const Replica* replica : on_device(plan.learners, d)) models.push_back(weights_of(plan, *replica));
    const std::vector<double> shares(models.size(), share);
    const std::string task_name = plan.in.device_name(d) + "/" + (alone ? name : "sum");
    const TaskId task =
        plan.builder.add_task(Task::Kind::Average, task_name, plan.lanes.averaging[size_t(d)], plan.clocks.sync);
    if (alone) {
      write(task, d, models, shares);
    } else {
      sums.push_back(
          {{plan.builder.add_device_buffer(task_name + " of models", d, type.bytes(), 1, kNone), 0, 0}, type});
      plan.builder.add_node(task, "arbalest.Combine", task_name, models, {sums.back()}, {{"coefficients", shares}});
    }
    plan.builder.add_lane_order(task);
    for (const Replica* replica : on_device(plan.learners, d)) {
      plan.builder.add_edge(replica->update(), task, 0, Edge::Needs::Issued, Edge::Why::Data, "weights");
    }
    reads.push_back(task);
  }
  if (alone) return {reads, reads};
  const TaskId all =
      add_all_reduce(plan.builder, plan.lanes.collectives, "all-reduce models", plan.clocks.sync, sums, false);
  std::vector<TaskId> writes;
  for (int32_t d = 0; d < plan.in.devices(); ++d) {
    const TaskId task = plan.builder.add_task(Task::Kind::Average, plan.in.device_name(d) + "/" + name,
                                              plan.lanes.averaging[size_t(d)], plan.clocks.sync);
    write(task, d, {sums[size_t(d)]}, {1.0});
    plan.builder.add_edge(reads[size_t(d)], all, 0, Edge::Needs::Issued, Edge::Why::Data, "sum of models");
    plan.builder.add_edge(all, task, 0, Edge::Needs::Issued, Edge::Why::Data, "sum of models");
    plan.builder.add_edge(task, reads[size_t(d)], 1, Edge::Needs::Issued, Edge::Why::Reuse, "sum of models");
    writes.push_back(task);
  }
  return {reads, writes};
}

}  // namespace arbalest
