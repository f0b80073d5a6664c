// SPDX-License-Identifier: Apache-2.0
#pragma once
// Places kernels' workspaces: most in gaps of their replica's activations, the others in an arena of their lane.

#include <cstdint>
#include <vector>

#include "executor/plan/make_plan.h"
#include "executor/plan/plan.h"

namespace arbalest {

struct Workspace {
  ArenaId arena = kNone;  // kNone: none is needed
  int64_t offset = 0;     // bytes into the arena
};

// The range of nodes, beginning with the launch's own, during which no other launch may use this launch's workspace.
Lifetime life_of(const Launch& launch, int64_t workspace);

// Assigns a workspace to every launch; `bytes[i]` is the size that launch i needs. A workspace that fits no gap gets an
// arena of the launch's lane, or of its branch, which is added to the plan. Other launches of that lane use the arena
// too if it is large enough.
std::vector<Workspace> place_workspaces(Plan& plan, const std::vector<int64_t>& bytes);

}  // namespace arbalest
