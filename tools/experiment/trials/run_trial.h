// SPDX-License-Identifier: Apache-2.0
#pragma once
// One trial: the process that measures it, and its result.

#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>

#include "tools/experiment/cells/bench_file.h"
#include "tools/experiment/trials/child_process.h"
#include "tools/experiment/trials/trials.h"

namespace arbalest {

// The reason that a process gives for its failure: the error in its lines of JSON, or the last line of its standard
// error without the program's name. If it says nothing, how it ended.
std::string why_failed(const ChildEnd& end);

struct TrialRun {
  const BenchFile& file;
  std::string program;           // arbalest
  std::filesystem::path folder;  // of the trial's log and checkpoints
};

// The result; none, and why, if the process was ended from outside, or failed to begin.
std::optional<TrialResult> run_trial(const TrialRun& run, const Trial& trial, const std::stop_token& stop,
                                     std::string& why);

}  // namespace arbalest
