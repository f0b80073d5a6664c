// SPDX-License-Identifier: Apache-2.0
#pragma once
// The runs of a sweep's trials: each is what `arbalest run` is with the words of the sweep and the trial's settings.

#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "executor/sweep/run_jobs.h"
#include "tools/command/options.h"
#include "tools/sweep/sweep_log.h"

namespace arbalest {

// Everything that the runs of a sweep have in common.
struct SweepSurroundings {
  std::string folder;
  std::vector<PlanDevice> devices;  // one a lane, in turn
  int threads = 1;                  // of each run
  // Samples are prepared once for all and kept on the host, although neither the graph nor an option says so.
  bool keeps_samples = false;
  std::shared_ptr<SharedResources> shared;
  std::stop_token stop;
  // Called a few times a second, on a thread of the run, with what the run has found so far.
  std::function<void(const SweepResult&)> progress;
  std::function<void(int trial, const std::string& note)> noted;  // about settings that are probably not meant
};

// The options of a job's run on a lane. Throws GraphError as the command line does.
RunOptions options_of_job(const SweepPlan& plan, const SweepJob& job, int lane, const SweepSurroundings& around);

// Runs a job to its end. The result is there if the job is judged. Does not throw.
struct TrialEnd {
  JobEnd end;
  SweepResult result;
};
TrialEnd run_trial(const SweepPlan& plan, const SweepJob& job, int lane, const SweepSurroundings& around);

// The files of a trial in its folder.
std::string trial_model(const std::string& folder, int trial);  // weights of the epoch that it is ranked by
std::string trial_checkpoints(const std::string& folder, int trial);

}  // namespace arbalest
