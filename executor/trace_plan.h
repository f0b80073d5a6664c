#pragma once
// The part of a plan that a trace carries, as JSON.

#include <nlohmann/json.hpp>

#include "executor/plan.h"

namespace arbalest {

nlohmann::json plan_record(const Plan& plan);

// The inverse. Throws GraphError that names the field which is missing or wrong.
Plan plan_of_record(const nlohmann::json& record);

}  // namespace arbalest
