// SPDX-License-Identifier: Apache-2.0
#include "executor/strategies/sum_models.h"

#include <fmt/format.h>

#include "ops/names.h"

namespace arbalest {

Term weights_of(const PlanSoFar& plan, const Replica& replica) {
  const ValueId weights = plan.in.training().arenas.weights;
  return {replica.placement.of[weights], plan.in.type_of(weights)};
}

namespace {

// Devices whose learners are summed: those of a host, or all.
struct Group {
  const std::vector<int32_t>& devices;
  LaneId collectives = kNone;
  std::string prefix;  // of the name of their collective
  double share = 0;
};

void sum_models(const PlanSoFar& plan, const std::string& name, const Group& group, const SumWriter& write,
                SummedModels& summed) {
  const TensorType type = plan.in.type_of(plan.in.training().arenas.weights);
  const bool alone = group.devices.size() == 1;
  std::vector<Term> sums;
  for (const int32_t d : group.devices) {
    std::vector<Term> models;
    for (const Replica* replica : on_device(plan.learners, d)) models.push_back(weights_of(plan, *replica));
    const std::vector<double> shares(models.size(), group.share);
    const std::string task_name = plan.in.device_name(d) + "/" + (alone ? name : "sum");
    const TaskId task =
        plan.builder.add_task(Task::Kind::Average, task_name, plan.lanes.averaging[size_t(d)], plan.clocks.sync);
    if (alone) {
      write(task, d, models, shares);
    } else {
      sums.push_back(
          {{plan.builder.add_device_buffer(task_name + " of models", d, type.bytes(), 1, kNone), 0, 0}, type});
      plan.builder.add_node(task, op::Combine, task_name, models, {sums.back()}, {{"coefficients", shares}});
    }
    plan.builder.add_lane_order(task);
    for (const Replica* replica : on_device(plan.learners, d)) {
      plan.builder.add_edge(replica->update(), task, 0, Edge::Needs::Issued, Edge::Why::Data, "weights");
    }
    summed.reads[size_t(d)] = summed.writes[size_t(d)] = task;
  }
  if (alone) return;
  const TaskId all = add_all_reduce(plan.builder, group.collectives, group.prefix + "all-reduce models",
                                    plan.clocks.sync, sums, false);
  for (size_t i = 0; i < group.devices.size(); ++i) {
    const int32_t d = group.devices[i];
    const TaskId task = plan.builder.add_task(Task::Kind::Average, plan.in.device_name(d) + "/" + name,
                                              plan.lanes.averaging[size_t(d)], plan.clocks.sync);
    write(task, d, {sums[i]}, {1.0});
    const TaskId read = summed.reads[size_t(d)];
    plan.builder.add_edge(read, all, 0, Edge::Needs::Issued, Edge::Why::Data, "sum of models");
    plan.builder.add_edge(all, task, 0, Edge::Needs::Issued, Edge::Why::Data, "sum of models");
    plan.builder.add_edge(task, read, 1, Edge::Needs::Issued, Edge::Why::Reuse, "sum of models");
    summed.writes[size_t(d)] = task;
  }
}

}  // namespace

SummedModels sum_models(const PlanSoFar& plan, const std::string& name, double share, const SumWriter& write) {
  const auto devices = size_t(plan.in.devices());
  SummedModels summed{std::vector<TaskId>(devices, kNone), std::vector<TaskId>(devices, kNone)};
  const bool apart = plan.in.hosts_average_apart();
  const std::vector<std::vector<int32_t>> groups = plan.in.averaging_groups();
  for (size_t g = 0; g < groups.size(); ++g) {
    if (apart) {
      const double of_host = share * double(devices) / double(groups[g].size());
      sum_models(plan, name, {groups[g], plan.lanes.within_hosts[g], fmt::format("host {}/", g), of_host}, write,
                 summed);
    } else {
      sum_models(plan, name, {groups[g], plan.lanes.collectives, "", share}, write, summed);
    }
  }
  return summed;
}

std::vector<BufferId> add_model_slots(PlanBuilder& builder, const PlanInputs& in, const Clocks& clocks) {
  constexpr int32_t kModels = 2;
  const int64_t bytes = in.type_of(in.training().arenas.weights).bytes();
  std::vector<BufferId> slots;
  for (int32_t d = 0; d < in.devices(); ++d) {
    slots.push_back(builder.add_device_buffer(in.device_name(d) + "/average", d, bytes, kModels, clocks.sync));
  }
  return slots;
}

Term replace_models(const PlanSoFar& plan, TaskId task, int32_t device, const std::vector<Term>& terms,
                    const std::vector<double>& coefficients) {
  const ValueId copy = plan.in.training().arenas.weights_lowered;
  std::vector<Term> models, lowered;
  for (const Replica* replica : on_device(plan.learners, device)) {
    models.push_back(weights_of(plan, *replica));
    if (copy != kNone) lowered.push_back({replica->placement.of[copy], plan.in.type_of(copy)});
  }
  const auto count = int64_t(lowered.size());
  models.insert(models.end(), lowered.begin(), lowered.end());
  plan.builder.add_node(task, op::Combine, plan.builder.task(task).name, terms, models,
                        {{"coefficients", coefficients}, {"lowered", count}});
  return models.front();
}

void wait_for_models(const PlanSoFar& plan, const std::vector<TaskId>& replaced) {
  for (const Replica& replica : plan.learners) {
    plan.builder.add_edge(replaced[size_t(replica.device)], replica.first(), 1, Edge::Needs::Issued, Edge::Why::Data,
                          "weights");
  }
}

HostsMean add_hosts_mean(const PlanSoFar& plan, const std::string& name, const std::vector<Term>& arrays,
                         const std::vector<TaskId>& after) {
  HostsMean mean;
  std::vector<TaskId> copies;
  for (int32_t d = 0; d < plan.in.devices(); ++d) {
    const std::string task_name = plan.in.device_name(d) + "/copy " + name;
    const TensorType& type = arrays[size_t(d)].type;
    const TaskId copy =
        plan.builder.add_task(Task::Kind::Average, task_name, plan.lanes.averaging[size_t(d)], plan.clocks.hosts);
    const BufferId buffer =
        plan.builder.add_device_buffer(plan.in.device_name(d) + "/" + name + " of hosts", d, type.bytes(), 1, kNone);
    mean.means.push_back({{buffer, 0, 0}, type});
    plan.builder.add_node(copy, op::Combine, task_name, {arrays[size_t(d)]}, {mean.means.back()},
                          {{"coefficients", std::vector<double>{1}}});
    plan.builder.add_edge(after[size_t(d)], copy, 0, Edge::Needs::Issued, Edge::Why::Data, name);
    copies.push_back(copy);
  }
  mean.all = add_all_reduce(plan.builder, plan.lanes.collectives, "mean " + name + " of hosts", plan.clocks.hosts,
                            mean.means, true);
  for (const TaskId copy : copies) {
    plan.builder.add_edge(copy, mean.all, 0, Edge::Needs::Issued, Edge::Why::Data, name);
  }
  return mean;
}

TaskId add_model_move(const PlanSoFar& plan, const std::string& name, int32_t device, const ModelWriter& write) {
  const ValueId lowered = plan.in.training().arenas.weights_lowered;
  const TaskId task = plan.builder.add_task(Task::Kind::Average, plan.in.device_name(device) + "/" + name,
                                            plan.lanes.averaging[size_t(device)], plan.clocks.hosts);
  for (const Replica* replica : on_device(plan.learners, device)) {
    std::vector<Term> models = {weights_of(plan, *replica)};
    if (lowered != kNone) models.push_back({replica->placement.of[lowered], plan.in.type_of(lowered)});
    write(task, *replica, models);
    plan.builder.add_edge(task, replica->first(), 1, Edge::Needs::Issued, Edge::Why::Data, "weights");
  }
  return task;
}

}  // namespace arbalest
