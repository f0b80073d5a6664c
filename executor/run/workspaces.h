#pragma once
// Where kernels work: in gaps of their replica's activations, which most of them find, else in an arena of their lane.

#include <cstdint>
#include <vector>

#include "executor/plan/make_plan.h"
#include "executor/plan/plan.h"

namespace arbalest {

struct Workspace {
  ArenaId arena = kNone;  // kNone: none is needed
  int64_t offset = 0;     // bytes into the arena
};

// From the launch's node to the one before which launches behind it are to leave its workspace of so many bytes alone.
Lifetime life_of(const Launch& launch, int64_t workspace);

// By launch, of which each needs so many bytes. Launches whose node finds no gap have an arena of their lane, or of its
// branch, which is added to the plan; others of that lane are there as well where it is large enough.
std::vector<Workspace> place_workspaces(Plan& plan, const std::vector<int64_t>& bytes);

}  // namespace arbalest
