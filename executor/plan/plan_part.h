// SPDX-License-Identifier: Apache-2.0
#pragma once
// The part of a plan that one process runs, if the plan's devices are those of several.

#include "executor/plan/plan.h"

namespace arbalest {

// Number of processes that the devices belong to.
int32_t rank_count(const Plan& plan);

// A plan of this rank's devices alone, with their lanes, tasks and memory, in the same order. Host tasks and
// collectives over all devices are in every rank's plan, those over a host's devices in the plans of its ranks. A
// collective has the operands of all devices, and those elsewhere are kNone: it waits for this rank's devices, and its
// kernel for the others. Host tasks that hear of all devices (reports, ends of validations) are deferred, because the
// other ranks' part of the news comes later. Clocks, relations and graphs stay. The plan of one process stays as it is.
//
// An edge between tasks of different ranks is left out; each must be implied by a collective, or by a host task that
// waits for all ranks. Throws std::logic_error if one leads from device to device.
Plan part_of(const Plan& plan, int32_t rank);

// The rank of each device that a lane of collectives spans, in the order of its collectives' arrays.
std::vector<int> ranks_of(const Plan& part, LaneId lane);

}  // namespace arbalest
