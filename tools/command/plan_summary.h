#pragma once
// A plan on a screen: how often what is repeated, what each device computes, and where memory goes.

#include <string>

#include "executor/plan/plan.h"

namespace arbalest {

std::string summarize_plan(const Plan& plan);

}  // namespace arbalest
