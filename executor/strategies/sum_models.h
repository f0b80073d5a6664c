// SPDX-License-Identifier: Apache-2.0
#pragma once
// The sum of the learners' models, as strategies that average models need it.

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
SummedModels sum_models(const PlanSoFar& plan, const std::string& name, double share, const SumWriter& write);

}  // namespace arbalest
