// SPDX-License-Identifier: Apache-2.0
#pragma once
// Deadlines: one thread of the process looks at what may take too long, and sleeps until the next look is due. Decision
// 115 (docs/decisions) lists what has a thread or a wait of its own instead.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>

namespace arbalest {

// When looks are due. It knows no clock: the caller says what time it is.
class Timetable {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Interval = std::chrono::steady_clock::duration;

  // The look `id` is first due at `at`, then at intervals; without an interval once.
  void add(int64_t id, Time at, std::optional<Interval> interval);
  void remove(int64_t id) { entries_.erase(id); }
  // The time at which the next look is due; nullopt: none is.
  std::optional<Time> next() const;
  // A look that is due at `now`, the one that has been due for longest; nullopt: none is. It is due again one interval
  // after `now`: what was missed while the process stood still is not made up for.
  std::optional<int64_t> take(Time now);

 private:
  struct Entry {
    Time at;
    std::optional<Interval> interval;
  };
  std::map<int64_t, Entry> entries_;
};

class Deadlines;

// A look that is made in time as long as this lives.
class [[nodiscard]] TimedLook {
 public:
  TimedLook();  // at nothing
  TimedLook(TimedLook&& other) noexcept;
  TimedLook& operator=(TimedLook&& other) noexcept;
  // Waits for the look if it is being made; so no look may destroy itself.
  ~TimedLook();
  explicit operator bool() const { return deadlines_ != nullptr; }  // false: at nothing

 private:
  friend class Deadlines;
  TimedLook(std::shared_ptr<Deadlines> deadlines, int64_t id);

  std::shared_ptr<Deadlines> deadlines_;
  int64_t id_ = 0;
};

// Looks after each `interval`, or once after `time`. Looks do not throw. They do not wait for what they look at, since
// all others wait for them: they may take a lock that nobody holds for long. One that ends the process
// (base/process.h) takes the time that handlers take. If the system refuses the thread, the result looks at nothing.
TimedLook look_each(std::chrono::duration<double> interval, std::function<void()> look);
TimedLook look_after(std::chrono::duration<double> time, std::function<void()> look);

}  // namespace arbalest
