// SPDX-License-Identifier: Apache-2.0
#pragma once
// Faults and notes of a run at its start: what cannot be meant, and what probably is not.

#include <string>
#include <vector>

#include "executor/session/session.h"

namespace arbalest {

struct Plan;

// Throws GraphError for rules that act on validations if a run under `plan` makes none, and if the learning rate's
// schedule brings it to 0 an epoch or more before the run ends.
void check_rules(const Prepared& prepared, const SessionOptions& options, const Plan& plan);

struct RunBeginning {
  const Prepared& prepared;
  const SessionOptions& options;
  const std::vector<std::string>& changes;  // of the learning rate, since the run began
  bool complete = false;                    // nothing is left to train
};

// All notes, with semicolons between them; "": there are none.
std::string notes_on(const RunBeginning& run);

}  // namespace arbalest
