// SPDX-License-Identifier: Apache-2.0
#pragma once
// Carries out the jobs of a sweep: so many lanes, each a thread that runs one job after the other.

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
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

class JobLanes {
 public:
  // Called on a lane's thread, several at once; must not throw. The lane counts from 0.
  using Run = std::function<JobEnd(const SweepJob& job, int lane)>;
  // Called when a lane is closed, with the number of those that are left. One call at a time.
  using Closed = std::function<void(int left, const std::string& why)>;

  // The schedule outlives this.
  JobLanes(SweepSchedule& schedule, int lanes, Run run, Closed closed = {})
      : schedule_(schedule), lanes_(lanes), run_(std::move(run)), closed_(std::move(closed)), open_(lanes) {}

  // So many lanes take jobs from here on; what others have under way goes on. Any thread may call it.
  void allow(int lanes);
  int busy() const;  // lanes with a job

  // Runs until the schedule is over, a stop is requested, or a job lacks memory although no other runs; the last throws
  // RunError with the job's error. Whatever is under way ends first. Throws RunError if the system refuses a thread.
  void run(const std::stop_token& stop);

 private:
  std::optional<SweepJob> take(int lane, const std::stop_token& stop);
  bool give_back(const SweepJob& job, const JobEnd& end);
  void end();

  SweepSchedule& schedule_;
  const int lanes_;
  const Run run_;
  const Closed closed_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<SweepJob> again_;  // lacked memory
  int open_, allowed_ = INT32_MAX, busy_ = 0;
  bool ended_ = false;
  std::string error_;
};

}  // namespace arbalest
