// SPDX-License-Identifier: Apache-2.0
#pragma once
// Why a lane was idle: what ran, or what was waited for, on the way to the instance that ended the gap.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "executor/trace/idle_cause.h"
#include "executor/trace/trace_file.h"
#include "executor/trace/trace_intervals.h"

namespace arbalest {

// Time of a gap that has one cause.
struct IdlePart {
  std::string why;  // "waiting for cuda:0/copy in (image)", "pace (…)", "issuing"
  IdleCause cause = IdleCause::Nothing;
  LaneId lane = kNone;  // whose task it was spent on; kNone: on none
  int64_t ns = 0;
};

class IdleCauses {
 public:
  // All of them outlive the object. `busy`: when each lane ran a task, by lane.
  IdleCauses(const TraceFile& trace, const SpanIndex& index, const Table<LaneId, Intervals>& busy);

  // Divides a gap of a lane, which `next` ended, among its causes. From the start of `next` the way leads back over the
  // edge that was satisfied last to the instance that satisfied it. While that does not cover the gap, it leads on to
  // what that one waited for. So a learner that waits for an average, which waits for the slowest learner, waits for
  // that learner. Latest first; parts of one cause and text are one.
  std::vector<IdlePart> of(LaneId lane, const Interval& gap, const TaskSpan& next) const;

 private:
  class WayBack;
  std::pair<const Edge*, const TaskSpan*> last_needed(const TaskSpan& span) const;
  IdleCause cause_of(const Edge& edge) const;
  const std::string& wait_for(const Edge& edge) const { return waiting_[size_t(&edge - plan_.edges.data())]; }
  IdleCause waiting_for_thread(int64_t from, int64_t to) const;
  const std::vector<LaneId>& sharing_thread(LaneId lane) const { return sharing_[lane]; }

  const Plan& plan_;
  const SpanIndex& index_;
  const Table<LaneId, Intervals>& busy_;
  Table<TaskId, std::vector<const Edge*>> into_;
  std::vector<std::string> waiting_;            // by edge: what is said of those that wait for it
  Table<LaneId, std::vector<LaneId>> sharing_;  // other lanes of the same CPU device, which take turns
  Intervals reading_;                           // when all threads of the host read batches
};

}  // namespace arbalest
