#pragma once
// Decides when a collective hangs. It knows no clock and no device: who looks tells what was seen, and when.

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "executor/plan/plan.h"

namespace arbalest {

// A collective hangs when, for longer than a limit, it was the oldest under way, every participant could have started
// (its inputs are ready on every device), and nothing else of the run completed. So neither a step that takes longer
// than the limit nor a collective that waits for compute is taken for one that hangs.
class CollectiveWatch {
 public:
  using Seconds = std::chrono::duration<double>;
  using Time = std::chrono::steady_clock::time_point;

  struct Look {
    TaskId task = kNone;  // the oldest collective that is under way
    int64_t instance = -1;
    bool ready = false;     // every participant could have started
    bool progress = false;  // something of the run has completed since the look before
  };

  explicit CollectiveWatch(Seconds limit) : limit_(limit) {}

  // True once the collective has hung for longer than the limit. Between two looks at most a second counts: where the
  // process itself stood still (stopped, or its machine asleep), nothing was watched.
  bool hangs(const Look& look, Time now) {
    constexpr Seconds kLongestStep{1};
    const bool same = look.task == task_ && look.instance == instance_;
    const Seconds step = std::min<Seconds>(now - last_, kLongestStep);
    waited_ = same && ready_ && look.ready && !look.progress ? waited_ + step : Seconds{0};
    task_ = look.task;
    instance_ = look.instance;
    ready_ = look.ready;
    last_ = now;
    return waited_ > limit_;
  }

  Seconds limit() const { return limit_; }

 private:
  const Seconds limit_;
  TaskId task_ = kNone;
  int64_t instance_ = -1;
  bool ready_ = false;
  Time last_;
  Seconds waited_{0};
};

}  // namespace arbalest
