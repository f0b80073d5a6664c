// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decides which rank stands still while others wait for it. It knows no clock and no connection: who hears of a rank
// tells how far it is, and when.

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace arbalest {

// How far a rank is, which it tells rank 0 with its signs of life.
struct RankProgress {
  // Instances under way: none, some that need other ranks, or some that need this one alone.
  enum class UnderWay : uint8_t { Nothing, Others, Own };
  UnderWay under_way = UnderWay::Nothing;
  double limit = 0;       // seconds that they may take
  int64_t completed = 0;  // instances of all tasks so far
  int64_t worked = 0;     // processor time so far, in ns, of those threads that may work; constant where GPUs compute
  std::string at;         // one of those under way: "all-reduce gradients 0, step 1338"
  // Instances that have all they need of this rank, the one that has waited longest first. They are not sent.
  struct Wait {
    std::string at;
    double seconds = 0;
    std::vector<int> ranks;  // that take part
  };
  std::vector<Wait> waits = {};
};

// The seconds that ranks with GPUs may wait for each other in collectives which sum so many bytes. A GPU that computes
// before it takes part ends its rank after `device_timeout` by itself, and signs of life tell later.
double limit_of_sums(double device_timeout, int64_t bytes);

class Standstill {
 public:
  using Seconds = std::chrono::duration<double>;
  using Time = std::chrono::steady_clock::time_point;

  void hear(int rank, RankProgress progress, Time now);
  void forget(int rank) { ranks_.erase(rank); }
  void forget_all() { ranks_.clear(); }

  struct Found {
    std::optional<int> rank;  // none: all of them wait for each other
    std::string why;          // "it stands still at forward 3, step 1338, for 21 s"
  };
  // `size`: ranks that are there. A rank stands still while it is at the same kind of instances, completes none and
  // takes no processor time, or, at those that need other ranks, more of it than sending and receiving take, or is at
  // these for ten times its limit.
  std::optional<Found> find(int size) const;

  // The place and the time of a rank, "forward 3, step 1338, for 2.1 s"; "": nothing is known of it.
  std::string place(int rank) const;
  // The place that a rank told last, and when: "1.3 s before, it was at forward 3, step 1338"; "": it told none.
  std::string last_place(int rank, Time now) const;
  // Instances that wait for a rank which works by itself: "sum 0, step 1338, to ranks 0, 2, for 2.1 s"; "": none do.
  std::string owed(int rank) const;

 private:
  struct Heard {
    RankProgress progress;
    Time last;
    Seconds still{0}, same{0};  // without work, and without a completion
  };
  std::map<int, Heard> ranks_;
};

}  // namespace arbalest
