// SPDX-License-Identifier: Apache-2.0
#pragma once
// The costs of a plan that has not run, from a trace of the same training step on one device: a profile.

#include <cstdint>
#include <optional>

#include "executor/plan/plan.h"
#include "executor/trace/link_model.h"
#include "executor/trace/trace_costs.h"
#include "executor/trace/trace_file.h"

namespace arbalest {

struct Profile {
  TraceFile trace;
  Plan plan;  // what was traced, made again: a trace does not carry graphs
};

// A task takes as long as the task of the same name in the profile, whatever its device and learner.
//  - A task that is cut in another way takes the time of its nodes, by their names. Nodes of a GPU that were timed one
//    after the other count without the time between two launches, so that they add up to the step.
//  - Nodes that the profile does not have, or of another size, take the time of their bytes, at the rate of the
//    operator's nodes in the profile, or else at that of its largest node.
//  - Averages of the learners on a device grow with the number of models that they read and write.
//  - Learners of a GPU slow each other down as those of the profile do (trace_costs.h); those of a profile with a
//    single learner are taken to share the GPU's throughput.
//  - Hosts, each of one process, are alike: their learners vary at the same time in the same way. So the part of one
//    of them (part_of) takes as long as the whole plan.
//  - Collectives take what the links say, and a share of what their GPUs compute (Costs::collective_share).
// `plan`: of all hosts, or the part of the first. `learners`: on each device; the profile's are in its record. Throws
// GraphError if the profile has no steady state, or no training step.
Costs costs_of_plan(const Plan& plan, int64_t learners, const Profile& profile, const WorldLinks& links);

// Seconds of a core that the profile's process took for an image, by its samples of cores in use; none: it has none.
std::optional<double> core_seconds_of_image(const Profile& profile);

// The share of a training step that its forward pass takes, from the nodes of the profile; 1/3 if it knows none.
double forward_share(const TraceFile& profile);

}  // namespace arbalest
