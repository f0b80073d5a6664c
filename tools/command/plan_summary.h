// SPDX-License-Identifier: Apache-2.0
#pragma once
// A plan on a screen: how often what is repeated, what each device computes, and where memory goes.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "executor/limit/recomputation.h"
#include "executor/plan/plan.h"
#include "executor/session/session.h"

namespace arbalest {

// `again`: what a memory limit has cost.
std::string summarize_plan(const Plan& plan, const Recomputation& again = {});

// Notes on memories that are smaller than what a plan takes of them, whatever uses the rest. `gpu_memory`: of each GPU,
// in bytes; 0: that of those which are here.
std::vector<std::string> memory_notes(const Plan& plan, const Prepared& prepared, int64_t gpu_memory = 0);

// For commands that print JSON.
nlohmann::ordered_json recomputation_record(const Recomputation& again);

}  // namespace arbalest
