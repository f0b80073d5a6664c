// SPDX-License-Identifier: Apache-2.0
#include "executor/sweep/run_jobs.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "base/error.h"
#include "executor/devices/threads.h"

namespace arbalest {

void JobLanes::allow(int lanes) {
  const std::scoped_lock lock(mutex_);
  allowed_ = lanes;
  changed_.notify_all();
}

int JobLanes::busy() const {
  const std::scoped_lock lock(mutex_);
  return busy_;
}

void JobLanes::run(const std::stop_token& stop) {
  std::vector<std::thread> threads;
  const struct Join {
    JobLanes& lanes;
    std::vector<std::thread>& threads;
    ~Join() {
      if (threads.size() < size_t(lanes.lanes_)) lanes.end();  // a thread was refused
      for (std::thread& thread : threads) {
        if (thread.joinable()) thread.join();
      }
    }
  } join{*this, threads};
  for (int lane = 0; lane < lanes_; ++lane) {
    threads.push_back(start_thread("a lane of the sweep", [this, lane, stop] {
      while (const auto job = take(lane, stop)) {
        if (!give_back(*job, run_(*job, lane))) return;
      }
    }));
  }
  for (std::thread& thread : threads) thread.join();
  if (!error_.empty()) throw RunError(error_);
}

void JobLanes::end() {
  const std::scoped_lock lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

// The next job of the lane, once there is one and the lane may have it; nothing if none will come.
std::optional<SweepJob> JobLanes::take(int lane, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  const auto settled = [&] {
    if (ended_ || (schedule_.over() && again_.empty())) return true;
    return lane < allowed_ && (!again_.empty() || schedule_.has_next());
  };
  if (!changed_.wait(lock, stop, settled) || ended_ || stop.stop_requested()) return std::nullopt;
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
bool JobLanes::give_back(const SweepJob& job, const JobEnd& end) {
  const std::scoped_lock lock(mutex_);
  --busy_;
  bool goes_on = end.kind == JobEnd::Kind::Judged;
  if (goes_on) schedule_.ended(job, end.score);
  if (end.kind == JobEnd::Kind::LacksMemory) {
    again_.push_back(job);
    --open_;
    // Lanes that are left take it, whatever their numbers.
    allowed_ = std::max(allowed_, lanes_);
    if (busy_ > 0 && closed_) closed_(open_, end.why);
    if (busy_ == 0) {
      error_ = end.why;
      ended_ = true;
    }
  }
  changed_.notify_all();
  return goes_on;
}

}  // namespace arbalest
