// SPDX-License-Identifier: Apache-2.0
#pragma once
// Carries out the jobs of a sweep: so many lanes, each a thread that runs one job after the other.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>

#include "executor/sweep/sweep_schedule.h"

namespace arbalest {

// How a job has ended.
struct JobEnd {
  enum class Kind : uint8_t {
    Judged,      // it has a score, or has failed for good
    Stopped,     // it was asked to end, and so is the sweep
    LacksMemory  // it runs once more: after another job has ended, and then by itself
  };
  Kind kind = Kind::Judged;
  std::optional<double> score;
  std::string why;  // LacksMemory: the error
};

class JobLanes {
 public:
  // Called on a lane's thread, several at once; must not throw. The lane counts from 0.
  using Run = std::function<JobEnd(const SweepJob& job, int lane)>;
  struct Memory {
    // Fewer jobs run at once from here on.
    std::function<void(int at_once, const std::string& why)> shrunk;
    // The job lacks memory although no other runs. It counts as failed.
    std::function<void(const SweepJob& job, const std::string& why)> too_large;
  };

  // The schedule outlives this.
  JobLanes(SweepSchedule& schedule, int lanes, Run run, Memory memory = {})
      : schedule_(schedule), lanes_(lanes), run_(std::move(run)), memory_(std::move(memory)), allowed_(lanes) {}

  // So many jobs at once from here on; what is under way goes on. Any thread may call it, but none of the functions
  // above.
  void allow(int at_once);

  // Runs until the schedule is over or a stop is requested. Whatever is under way ends first. Throws RunError if the
  // system refuses a thread.
  void run(const std::stop_token& stop);

 private:
  struct Again {  // a job that lacked memory
    SweepJob job;
    int64_t after = 0;  // so many jobs have to have ended
    bool alone = false;
  };
  // The next job of a lane, and how it was taken.
  struct Taken {
    SweepJob job;
    int64_t ended = 0;  // jobs by then
    bool again = false, alone = false;
  };

  std::optional<Taken> take(const std::stop_token& stop);
  std::optional<size_t> next_again() const;
  void give_back(const Taken& taken, const JobEnd& end);
  void lacks_memory(const Taken& taken, const std::string& why);
  void end();

  SweepSchedule& schedule_;
  const int lanes_;
  const Run run_;
  const Memory memory_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Again> again_;
  int allowed_, busy_ = 0;
  int64_t ended_jobs_ = 0;
  bool ended_ = false;
};

}  // namespace arbalest
