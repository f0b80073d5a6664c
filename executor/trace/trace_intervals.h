// SPDX-License-Identifier: Apache-2.0
#pragma once
// Stretches of time on a trace's clock, in ns.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "executor/trace/trace_file.h"

namespace arbalest {

struct Interval {
  int64_t from = 0, to = 0;
};

// Intervals in order that neither overlap nor touch.
using Intervals = std::vector<Interval>;

// Covers what `list` covers.
inline Intervals merged(Intervals list) {
  std::sort(list.begin(), list.end(), [](const Interval& a, const Interval& b) { return a.from < b.from; });
  Intervals merged;
  for (const Interval& interval : list) {
    if (merged.empty() || interval.from > merged.back().to) {
      merged.push_back(interval);
    } else {
      merged.back().to = std::max(merged.back().to, interval.to);
    }
  }
  return merged;
}

inline int64_t length(const Intervals& intervals) {
  int64_t sum = 0;
  for (const Interval& interval : intervals) sum += interval.to - interval.from;
  return sum;
}

// The time that lies in both.
inline int64_t common(const Intervals& a, const Intervals& b) {
  int64_t sum = 0;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    sum += std::max<int64_t>(0, std::min(a[i].to, b[j].to) - std::max(a[i].from, b[j].from));
    a[i].to < b[j].to ? ++i : ++j;
  }
  return sum;
}

// When each lane ran a task, by lane.
inline Table<LaneId, Intervals> busy_times(const Plan& plan, const std::vector<TaskSpan>& spans) {
  Table<LaneId, Intervals> busy(plan.lanes.size());
  for (const TaskSpan& span : spans) {
    busy[plan.tasks[span.task].lane].push_back({span.started, span.ended});
  }
  for (Intervals& lane : busy) lane = merged(std::move(lane));
  return busy;
}

}  // namespace arbalest
