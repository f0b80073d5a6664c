// SPDX-License-Identifier: Apache-2.0
#pragma once
// A run as the options of `arbalest run` say: its graph, its checkpoints and the files that are written of it.

#include <functional>
#include <memory>
#include <stop_token>
#include <vector>

#include "executor/session/session.h"
#include "tools/command/options.h"

namespace arbalest {

// Throws GraphError if two of the files that the run reads and writes are the same, or if one of them is also the
// folder of checkpoints or of TensorBoard.
void check_paths(const RunOptions& options);

// The surroundings of a run: other processes, other runs, and who hears of it.
struct RunSurroundings {
  std::shared_ptr<Ranks> ranks;             // nullptr: this process alone
  std::shared_ptr<SharedResources> shared;  // nullptr: no other run at the same time
  std::vector<RunObserver*> observers;      // besides those that write what the options name
  // Called when training is about to begin; returns what asks it to end.
  std::function<std::stop_token()> begins;
};

struct RunOutcome {
  RunFinished end;
  bool logged = true;   // false: what watches the run could not be written
  bool written = true;  // false: a file that was asked for is not there, or not whole
};

// Throws as run_training() does, and for options that exclude each other.
RunOutcome run_as_told(const RunOptions& options, const RunSurroundings& around);

}  // namespace arbalest
