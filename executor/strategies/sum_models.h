// SPDX-License-Identifier: Apache-2.0
#pragma once
// The sum of the learners' models, as strategies that average models need it, and what hosts average apart.

#include <functional>
#include <string>
#include <vector>

#include "executor/plan/phases.h"

namespace arbalest {

// A learner's weights, float[P].
Term weights_of(const PlanSoFar& plan, const Replica& replica);

// Adds the node of `task` that makes something of Σ coefficient · term: the models of the device's learners, or one
// term that is the sum of all models.
using SumWriter = std::function<void(TaskId task, int32_t device, const std::vector<Term>& terms,
                                     const std::vector<double>& coefficients)>;

// Tasks by device: the one that reads the models of its learners, and the one that has the whole sum.
struct SummedModels {
  std::vector<TaskId> reads, writes;
};

// Makes share · Σ w_j over all learners, as tasks at the ticks of the sync clock: one a device that reads its replicas;
// or a sum on each device, an all-reduce, and one a device that reads the whole. The tasks that have the whole sum are
// called "DEVICE/`name`". The caller adds the edges that protect the models and what `write` writes.
//
// If hosts average apart, the sum on the devices of each is that of its own learners, whose shares are greater in
// proportion: 1 / k becomes 1 / k_h.
SummedModels sum_models(const PlanSoFar& plan, const std::string& name, double share, const SumWriter& write);

// Two slots of the sync clock on each device, by device: a model before and after each averaging.
std::vector<BufferId> add_model_slots(PlanBuilder& builder, const PlanInputs& in, const Clocks& clocks);

// Adds the node of `task` that makes Σ coefficient · term the model of all learners of a device, lowered copies
// included. Returns where the first of them has it.
Term replace_models(const PlanSoFar& plan, TaskId task, int32_t device, const std::vector<Term>& terms,
                    const std::vector<double>& coefficients);

// Adds the edges by which the next step of every learner waits for the task that replaces its device's models.
void wait_for_models(const PlanSoFar& plan, const std::vector<TaskId>& replaced);

// The mean of an array over all devices, which is that over learners, at the ticks of the hosts' clock.
struct HostsMean {
  std::vector<Term> means;  // by device: memory of its own
  TaskId all = kNone;       // the collective after which it is there
};

// Makes the mean of arrays[d], which device d has once after[d] has run; `name` says what it is: "average". `after` is
// a task at the last tick of a group of the sync clock, whose learners' updates it waits for.
HostsMean add_hosts_mean(const PlanSoFar& plan, const std::string& name, const std::vector<Term>& arrays,
                         const std::vector<TaskId>& after);

// Adds the node of `task` that writes one learner's model, to the places that hold its weights, the lowered ones last.
using ModelWriter = std::function<void(TaskId task, const Replica& replica, const std::vector<Term>& models)>;

// Adds a task "DEVICE/`name`" at the ticks of the hosts' clock, which writes the models of the device's learners by
// `write`, and which their next step waits for.
TaskId add_model_move(const PlanSoFar& plan, const std::string& name, int32_t device, const ModelWriter& write);

}  // namespace arbalest
