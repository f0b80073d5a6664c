// SPDX-License-Identifier: Apache-2.0
#pragma once
// A plan on a screen: how often what is repeated, what each device computes, and where memory goes.

#include <nlohmann/json.hpp>
#include <string>

#include "executor/limit/recomputation.h"
#include "executor/plan/plan.h"

namespace arbalest {

// `again`: what a memory limit has cost.
std::string summarize_plan(const Plan& plan, const Recomputation& again = {});

// For commands that print JSON.
nlohmann::ordered_json recomputation_record(const Recomputation& again);

}  // namespace arbalest
