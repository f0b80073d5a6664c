// SPDX-License-Identifier: Apache-2.0
#pragma once
// Relations of a plan's clocks in time. They say which instance an edge needs, when the pattern of all clocks repeats,
// and the lag of an edge in base batches (ticks of clock 0) over all phases. Used by the proofs, not while a plan runs.

#include <cstdint>
#include <vector>

#include "executor/plan/plan.h"

namespace arbalest {

// Every clock's ticks on one time axis. The time of tick n of clock 0 is n. A coarse tick's time is that of the last
// fine tick it groups. The ticks of a clock that hangs under a coarse one (validation batches) are spread evenly
// between coarse ticks.
class ClockTimes {
 public:
  struct Lag {
    double least = 0, most = 0;  // over all phases, in base batches
  };

  explicit ClockTimes(const Plan& plan);

  // After this many ticks of every clock the pattern repeats; at most the clock's ticks if it does not within the
  // run.
  int64_t phases(ClockId clock) const;
  bool repeats(ClockId clock) const { return lines_[clock].repeats; }
  double time(ClockId clock, int64_t tick) const;  // also of negative ticks
  Table<EdgeId, Lag> edge_lags() const;

 private:
  struct Line {
    bool placed = false;
    bool repeats = false;
    int64_t period = 0;        // ticks until the pattern repeats
    double span = 0;           // and the time that takes
    std::vector<double> time;  // of ticks 0 … period − 1
  };
  void find_periods();
  void place_neighbours(ClockId clock, std::vector<ClockId>& frontier);
  Lag lag_of(const Edge& edge) const;

  const Plan& plan_;
  Table<ClockId, Line> lines_;
};

}  // namespace arbalest
