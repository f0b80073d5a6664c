// SPDX-License-Identifier: Apache-2.0
#pragma once
// Carries out the jobs of a sweep: so many lanes, each a thread that runs one job after the other.

#include <functional>
#include <optional>
#include <stop_token>
#include <string>

#include "executor/sweep/sweep_schedule.h"

namespace arbalest {

// How a job has ended.
struct JobEnd {
  enum class Kind : uint8_t {
    Judged,      // it has a score, or has failed for good
    Stopped,     // the sweep was asked to end
    LacksMemory  // it runs once other jobs have ended, and its lane is closed, unless it was the only one
  };
  Kind kind = Kind::Judged;
  std::optional<double> score;
  std::string why;  // LacksMemory: the error
};

struct JobRunner {
  int lanes = 1;
  // Called on a lane's thread, several at once; must not throw. The lane counts from 0.
  std::function<JobEnd(const SweepJob& job, int lane)> run;
  // Called when a lane is closed, with the number of those that are left. One call at a time.
  std::function<void(int left, const std::string& why)> closed;
};

// Runs until the schedule is over, a stop is requested, or a job lacks memory although no other runs; the last throws
// RunError with the job's error. Whatever is under way ends first. Throws RunError if the system refuses a thread.
void run_jobs(SweepSchedule& schedule, const JobRunner& runner, const std::stop_token& stop);

}  // namespace arbalest
