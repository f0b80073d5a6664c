// SPDX-License-Identifier: Apache-2.0
#pragma once
// The part of a plan that a trace carries, as JSON.

#include <nlohmann/json.hpp>

#include "executor/plan/plan.h"

namespace arbalest {

// Limits of the numbers in a trace, which keep everything computed from them from overflowing, from dividing by zero
// and from needing excessive memory.
inline constexpr int64_t kMostTraceTicks = int64_t{1} << 44;
inline constexpr int64_t kMostTraceThreads = 1 << 16;

// object[key] as a whole number within bounds. Throws GraphError that names the key, what was found and the bounds.
int64_t integer_of(const nlohmann::json& object, const char* key, int64_t least, int64_t most);
int64_t whole_number(const nlohmann::json& value, const char* name, int64_t least, int64_t most);

nlohmann::json plan_record(const Plan& plan);

// The inverse. Throws GraphError that names the field which is missing or wrong.
Plan plan_of_record(const nlohmann::json& record);

}  // namespace arbalest
