// SPDX-License-Identifier: Apache-2.0
#pragma once
// Times in which a rank showed no sign of life, as one that was stopped finds once it runs again.

#include <algorithm>
#include <chrono>
#include <optional>

namespace arbalest {

class Pauses {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;
  // A rank that others dropped for its silence hears of it at its next read or send, which comes within this time.
  static constexpr Duration kHeard = std::chrono::seconds(4);

  void begin(Time now) { since_ = now; }
  void end(Time now) {
    if (!since_) return;
    const Duration pause = now - *since_;
    since_.reset();
    if (pause < longest_ && now - end_ < kHeard) return;
    longest_ = pause;
    end_ = now;
  }
  void forget() { longest_ = Duration(0); }

  // The longest of the one that lasts and of those that others may have noticed a moment ago.
  Duration recent(Time now) const {
    const Duration lasts = since_ ? now - *since_ : Duration(0);
    return std::max(lasts, now - end_ < kHeard ? longest_ : Duration(0));
  }

 private:
  std::optional<Time> since_;
  Duration longest_{0};
  Time end_;
};

}  // namespace arbalest
