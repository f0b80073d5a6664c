// SPDX-License-Identifier: Apache-2.0
#include "base/time/deadlines.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/process.h"

namespace arbalest {
namespace {

constexpr auto kSooner = [](const auto& a, const auto& b) { return a.second.at < b.second.at; };  // of entries

}  // namespace

void Timetable::add(int64_t id, Time at, std::optional<Interval> interval) {
  entries_[id] = {at, interval};
}

std::optional<Timetable::Time> Timetable::next() const {
  const auto first = std::min_element(entries_.begin(), entries_.end(), kSooner);
  return first == entries_.end() ? std::nullopt : std::optional(first->second.at);
}

std::optional<int64_t> Timetable::take(Time now) {
  const auto first = std::min_element(entries_.begin(), entries_.end(), kSooner);
  if (first == entries_.end() || first->second.at > now) return std::nullopt;
  const int64_t id = first->first;
  if (first->second.interval) {
    first->second.at = now + *first->second.interval;
  } else {
    entries_.erase(first);
  }
  return id;
}

// The thread that looks. It lives as long as something is watched, so that a process that watches nothing may fork.
class Deadlines : public std::enable_shared_from_this<Deadlines> {
 public:
  // Throws std::system_error if the system refuses the thread.
  static std::shared_ptr<Deadlines> of_process() {
    static std::mutex mutex;
    static std::weak_ptr<Deadlines> shared;
    const std::scoped_lock lock(mutex);
    std::shared_ptr<Deadlines> deadlines = shared.lock();
    if (!deadlines) shared = deadlines = std::make_shared<Deadlines>();
    return deadlines;
  }

  Deadlines()
      : thread_([this] {
          name_thread("deadlines");
          work();
        }) {}
  ~Deadlines() {
    {
      const std::scoped_lock lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Deadlines(const Deadlines&) = delete;
  Deadlines& operator=(const Deadlines&) = delete;

  TimedLook add(Timetable::Interval first, std::optional<Timetable::Interval> interval, std::function<void()> look) {
    const std::scoped_lock lock(mutex_);
    const int64_t id = ++latest_;
    looks_[id] = std::move(look);
    due_.add(id, std::chrono::steady_clock::now() + first, interval);
    changed_.notify_all();
    return {shared_from_this(), id};
  }

  void remove(int64_t id) {
    std::unique_lock lock(mutex_);
    due_.remove(id);
    looked_.wait(lock, [&] { return looking_ != id; });
    looks_.erase(id);
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (!ending_) {
      if (const std::optional<int64_t> id = due_.take(std::chrono::steady_clock::now())) {
        looking_ = *id;
        const std::function<void()>& look = looks_.at(*id);  // stays while it is being made
        lock.unlock();
        look();
        lock.lock();
        looking_ = 0;
        looked_.notify_all();
      } else if (const std::optional<Timetable::Time> next = due_.next()) {
        changed_.wait_until(lock, *next);
      } else {
        changed_.wait(lock);
      }
    }
  }

  std::mutex mutex_;  // of all but the thread
  std::condition_variable changed_, looked_;
  Timetable due_;
  std::map<int64_t, std::function<void()>> looks_;
  int64_t latest_ = 0, looking_ = 0;  // ids, which count from 1
  bool ending_ = false;
  std::thread thread_;  // last: it uses all of the above
};

TimedLook::TimedLook() = default;

TimedLook::TimedLook(std::shared_ptr<Deadlines> deadlines, int64_t id) : deadlines_(std::move(deadlines)), id_(id) {}

TimedLook::TimedLook(TimedLook&& other) noexcept : deadlines_(std::move(other.deadlines_)), id_(other.id_) {}

TimedLook& TimedLook::operator=(TimedLook&& other) noexcept {
  std::swap(deadlines_, other.deadlines_);
  std::swap(id_, other.id_);
  return *this;
}

TimedLook::~TimedLook() {
  if (deadlines_) deadlines_->remove(id_);
}

namespace {

// Longer times never come to be due, and would not fit.
Timetable::Interval interval_of(std::chrono::duration<double> time) {
  constexpr std::chrono::duration<double> kLongest = std::chrono::hours(24 * 365 * 100);
  return std::chrono::duration_cast<Timetable::Interval>(std::min(time, kLongest));
}

TimedLook watched(Timetable::Interval first, std::optional<Timetable::Interval> interval, std::function<void()> look) {
  try {
    return Deadlines::of_process()->add(first, interval, std::move(look));
  } catch (const std::system_error&) {
    return {};
  }
}

}  // namespace

TimedLook look_each(std::chrono::duration<double> interval, std::function<void()> look) {
  return watched(interval_of(interval), interval_of(interval), std::move(look));
}

TimedLook look_after(std::chrono::duration<double> time, std::function<void()> look) {
  return watched(interval_of(time), std::nullopt, std::move(look));
}

}  // namespace arbalest
