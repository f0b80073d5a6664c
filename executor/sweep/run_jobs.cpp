// SPDX-License-Identifier: Apache-2.0
#include "executor/sweep/run_jobs.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "executor/devices/threads.h"

namespace arbalest {
namespace {

class JobLanes {
 public:
  JobLanes(SweepSchedule& schedule, const JobRunner& runner, const std::stop_token& stop)
      : schedule_(schedule), runner_(runner), stop_(stop) {}

  void run() {
    open_ = runner_.lanes;
    std::vector<std::thread> threads;
    const struct Join {
      JobLanes& lanes;
      std::vector<std::thread>& threads;
      ~Join() {
        if (threads.size() < size_t(lanes.runner_.lanes)) lanes.end();  // a thread was refused
        for (std::thread& thread : threads) thread.join();
      }
    } join{*this, threads};
    for (int lane = 0; lane < runner_.lanes; ++lane) {
      threads.push_back(start_thread("a lane of the sweep", [this, lane] { work(lane); }));
    }
  }
  const std::string& error() const { return error_; }

 private:
  void end() {
    const std::scoped_lock lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

  // The next job of the lane, once there is one; nothing if none will come.
  std::optional<SweepJob> take() {
    std::unique_lock lock(mutex_);
    const auto settled = [this] { return ended_ || !again_.empty() || schedule_.has_next() || schedule_.over(); };
    if (!changed_.wait(lock, stop_, settled) || ended_ || stop_.stop_requested()) return std::nullopt;
    std::optional<SweepJob> job;
    if (!again_.empty()) {
      job = again_.front();
      again_.pop_front();
    } else {
      job = schedule_.next();
    }
    if (job) ++busy_;
    return job;
  }

  // Returns whether the lane goes on.
  bool give_back(const SweepJob& job, const JobEnd& end) {
    const std::scoped_lock lock(mutex_);
    --busy_;
    bool goes_on = true;
    if (end.kind == JobEnd::Kind::Judged) schedule_.ended(job, end.score);
    if (end.kind == JobEnd::Kind::Stopped) goes_on = false;
    if (end.kind == JobEnd::Kind::LacksMemory) {
      again_.push_back(job);
      goes_on = false;
      if (--open_ > 0 && busy_ > 0) {
        runner_.closed(open_, end.why);
      } else if (busy_ == 0) {
        error_ = end.why;
        ended_ = true;
      }
    }
    changed_.notify_all();
    return goes_on;
  }

  void work(int lane) {
    while (const auto job = take()) {
      if (!give_back(*job, runner_.run(*job, lane))) return;
    }
  }

  SweepSchedule& schedule_;
  const JobRunner& runner_;
  const std::stop_token stop_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<SweepJob> again_;  // lacked memory
  int open_ = 0, busy_ = 0;
  bool ended_ = false;
  std::string error_;
};

}  // namespace

void run_jobs(SweepSchedule& schedule, const JobRunner& runner, const std::stop_token& stop) {
  JobLanes lanes(schedule, runner, stop);
  lanes.run();
  if (!lanes.error().empty()) throw RunError(lanes.error());
}

}  // namespace arbalest
