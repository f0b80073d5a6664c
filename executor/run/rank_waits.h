// SPDX-License-Identifier: Apache-2.0
#pragma once
// Instances that have all they need of this process and wait for other ranks, and since when.

#include <chrono>
#include <cstdint>
#include <mutex>
#include <vector>

#include "executor/plan/dependencies.h"
#include "executor/plan/plan.h"

namespace arbalest {

class RankWaits {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Wait {
    TaskId task = kNone;
    int64_t instance = 0;
    Time since;              // the first look at which it waited
    std::vector<int> ranks;  // that take part, this one among them
  };

  // `part` is this process's part of a plan; both outlive this object.
  RankWaits(const Plan& part, const Dependencies& dependencies);

  // Those that wait now: collectives before tasks of the host, the one that has waited longest first. Any thread calls
  // it, and one of them often.
  std::vector<Wait> look(Time now);

 private:
  struct Together {  // a collective, or a deferred task of the host
    TaskId task = kNone;
    std::vector<Edge> from;
    std::vector<int> ranks;
  };

  const Plan& part_;
  const Dependencies& dependencies_;
  std::vector<Together> together_;
  std::mutex mutex_;
  std::vector<Wait> waits_;  // by the latest look
};

}  // namespace arbalest
