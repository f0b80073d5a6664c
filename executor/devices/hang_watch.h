// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decides when what GPUs do hangs. It knows no clock and no device: who looks tells what was seen, and when.

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "executor/plan/plan.h"

namespace arbalest {

// The oldest instance in progress in a lane hangs if, for longer than a limit, it could have started and nothing else
// completed. It could start if what it reads is ready on every device that takes part. For a collective the whole run
// counts, for any other task its device. So what waits for another task is not taken for what hangs.
class HangWatch {
 public:
  using Seconds = std::chrono::duration<double>;
  using Time = std::chrono::steady_clock::time_point;

  struct Look {
    TaskId task = kNone;  // the oldest that is under way
    int64_t instance = -1;
    bool ready = false;     // it could have started
    bool progress = false;  // something else has completed since the look before
    double share = 1;       // of the time since the look before, what counts
  };

  explicit HangWatch(Seconds limit) : limit_(limit) {}

  // True once it has hung for longer than the limit. Between two looks at most a second counts: if the
  // process itself stood still (stopped, or its machine asleep), nothing was watched.
  bool hangs(const Look& look, Time now) {
    constexpr Seconds kLongestStep{1};
    const bool same = look.task == task_ && look.instance == instance_;
    const Seconds step = std::min<Seconds>(now - last_, kLongestStep);
    waited_ = same && ready_ && look.ready && !look.progress ? waited_ + step * look.share : Seconds{0};
    task_ = look.task;
    instance_ = look.instance;
    ready_ = look.ready;
    last_ = now;
    return waited_ > limit_;
  }

  Seconds limit() const { return limit_; }
  Seconds waited() const { return waited_; }  // at the latest look

 private:
  Seconds limit_;
  TaskId task_ = kNone;
  int64_t instance_ = -1;
  bool ready_ = false;
  Time last_;
  Seconds waited_{0};
};

}  // namespace arbalest
