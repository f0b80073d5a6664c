// SPDX-License-Identifier: Apache-2.0
#include "executor/sweep/run_jobs.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "executor/devices/threads.h"

namespace arbalest {

void JobLanes::allow(int at_once) {
  const std::scoped_lock lock(mutex_);
  allowed_ = at_once;
  changed_.notify_all();
}

void JobLanes::run(const std::stop_token& stop) {
  std::vector<std::thread> threads;
  const struct Join {
    JobLanes& lanes;
    std::vector<std::thread>& threads;
    ~Join() {
      if (threads.size() < size_t(lanes.lanes_)) lanes.end();  // a thread was refused
      for (std::thread& thread : threads) thread.join();
    }
  } join{*this, threads};
  for (int lane = 0; lane < lanes_; ++lane) {
    threads.push_back(start_thread("a lane of the sweep", [this, lane, stop] {
      while (const auto taken = take(stop)) give_back(*taken, run_(taken->job, lane));
    }));
  }
}

void JobLanes::end() {
  const std::scoped_lock lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

// The place of a job that may run again now.
std::optional<size_t> JobLanes::next_again() const {
  for (size_t place = 0; place < again_.size(); ++place) {
    const Again& again = again_[place];
    if (again.alone ? busy_ == 0 : ended_jobs_ >= again.after || busy_ == 0) return place;
  }
  return std::nullopt;
}

// Nothing if no job will come.
std::optional<JobLanes::Taken> JobLanes::take(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  const auto settled = [&] {
    if (ended_ || schedule_.over()) return true;
    return busy_ < allowed_ && (schedule_.has_next() || next_again());
  };
  if (!changed_.wait(lock, stop, settled) || ended_ || stop.stop_requested()) return std::nullopt;
  std::optional<Taken> taken;
  if (const auto place = next_again()) {
    const Again& again = again_[*place];
    taken = Taken{again.job, ended_jobs_, true, again.alone || busy_ == 0};
    again_.erase(again_.begin() + std::ptrdiff_t(*place));
  } else if (const auto job = schedule_.next()) {
    taken = Taken{*job, ended_jobs_};
  }
  if (!taken) return std::nullopt;
  ++busy_;
  return taken;
}

void JobLanes::give_back(const Taken& taken, const JobEnd& end) {
  if (end.kind == JobEnd::Kind::LacksMemory) return lacks_memory(taken, end.why);
  const std::scoped_lock lock(mutex_);
  --busy_;
  ++ended_jobs_;
  if (end.kind == JobEnd::Kind::Judged) schedule_.ended(taken.job, end.score);
  if (end.kind == JobEnd::Kind::Stopped) ended_ = true;
  changed_.notify_all();
}

void JobLanes::lacks_memory(const Taken& taken, const std::string& why) {
  std::optional<int> shrunk;
  bool too_large = false;
  {
    const std::scoped_lock lock(mutex_);
    --busy_;
    // No other ran, and none ended meanwhile and gave memory back.
    too_large = busy_ == 0 && ended_jobs_ == taken.ended;
    if (!too_large) {
      again_.push_back({taken.job, ended_jobs_ + 1, taken.again});
      const int fits = std::max(1, busy_);
      if (fits < allowed_) shrunk = allowed_ = fits;
    }
  }
  if (too_large && memory_.too_large) memory_.too_large(taken.job, why);
  if (shrunk && memory_.shrunk) memory_.shrunk(*shrunk, why);
  const std::scoped_lock lock(mutex_);
  if (too_large) {
    ++ended_jobs_;
    schedule_.ended(taken.job, std::nullopt);
  }
  changed_.notify_all();
}

}  // namespace arbalest
