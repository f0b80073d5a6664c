// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decides when a kernel on a CPU device computes for ever. It knows no clock and no device: who looks tells what was
// seen.

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>

namespace arbalest {

// Counts the processor time of the device's thread, so that neither a busy machine nor a process that was stopped makes
// a kernel late. One that takes no processor time stands still: see Standstill.
class KernelWatch {
 public:
  struct Look {
    int32_t launch = -1;  // under way, by its index in the plan; -1: none
    int64_t begun = 0;    // launches of the device so far: the same launch runs again and again
    int64_t worked = 0;   // ns of processor time of the device's thread so far
    bool first = false;   // its first time in this run
    double work = 0;      // of the launch, in a unit that all launches have; 0: not known
  };
  struct Late {
    double taken = 0, most = 0;  // seconds: so far, and what it may take
  };

  // `patience`: seconds. A kernel may take ten times as long, and ten times its own longest so far. At its first time
  // nothing stands in for its own longest but its work, taken to be as slow as that of the slowest kernel so far. Only
  // kernels of at least a twentieth of `patience` say how slow work is: looks are too far apart to measure shorter
  // ones. Without any, a first kernel may take ninety times `patience`.
  explicit KernelWatch(double patience) : patience_(patience) {}

  std::optional<Late> look(const Look& look) {
    constexpr double kKnown = 10, kFirst = 90, kOfLongest = 10, kMeasured = 0.05;
    if (look.launch != seen_.launch || look.begun != seen_.begun) {
      double& before = longest_[seen_.launch];
      before = std::max(before, taken_);
      if (seen_.work > 0 && taken_ >= kMeasured * patience_) slowest_ = std::max(slowest_, taken_ / seen_.work);
      seen_ = look;
    }
    taken_ = double(look.worked - seen_.worked) * 1e-9;
    if (look.launch < 0) return std::nullopt;
    const double longest = longest_[look.launch], expected = look.first ? slowest_ * look.work : 0;
    const double least = look.first && expected == 0 ? kFirst : kKnown;
    const double most = std::max(least * patience_, kOfLongest * std::max(longest, expected));
    return taken_ > most ? std::optional(Late{taken_, most}) : std::nullopt;
  }

 private:
  double patience_;
  Look seen_;           // the first look at what is under way
  double taken_ = 0;    // by the latest look
  double slowest_ = 0;  // seconds for a unit of work, of launches that were long enough and have ended; 0: none
  std::map<int32_t, double> longest_;
};

}  // namespace arbalest
