// SPDX-License-Identifier: Apache-2.0
#pragma once
// Notes of a run at its start about what is probably not meant.

#include <string>
#include <vector>

#include "executor/session/session.h"

namespace arbalest {

struct RunBeginning {
  const Prepared& prepared;
  const SessionOptions& options;
  const std::vector<std::string>& changes;  // of the learning rate, since the run began
  bool complete = false;                    // nothing is left to train
};

// All notes, with semicolons between them; "": there are none.
std::string notes_on(const RunBeginning& run);

}  // namespace arbalest
