// SPDX-License-Identifier: Apache-2.0
#pragma once
// Summary of a trace: how busy each lane was and what it waited for, which tasks are slow, and what bounds the
// schedule.

#include <cstdint>
#include <string>
#include <vector>

#include "executor/plan/slack.h"
#include "executor/trace/idle_cause.h"
#include "executor/trace/trace_file.h"
#include "executor/trace/trace_intervals.h"

namespace arbalest {

struct SummaryOptions {
  double warm_up = 0.05;  // this share of the iterations at each end is not the steady state
  int slowest = 5;        // task instances listed
  int gaps = 5;           // gaps listed
  int reasons = 3;        // causes of idleness listed a lane
  bool full = true;       // tell all; otherwise what fits on a screen
  bool each = false;      // report every lane and task by itself, not those of all devices and learners together
};

struct IdleReason {
  std::string why;  // "waiting for cuda:0/copy in (image)", "pace (…)", "issuing", "nothing to do (start)"
  int64_t ns = 0;
};

// A gap, and the part of it that has one cause.
struct LongWait {
  Interval gap;
  int64_t ns = 0;
};

// A lane's idle time of one cause.
struct IdleShare {
  IdleCause cause = IdleCause::Nothing;
  int64_t ns = 0, steady_ns = 0;  // of the whole trace, and in the steady state
  int64_t count = 0;              // gaps that have a part of it; steady_count of them in the steady state
  int64_t steady_count = 0;
  std::vector<LongWait> rare;      // of steady_ns: the longest, if a few that are no part of an epoch have most of it
  int64_t from = 0, to = 0;        // the gap with the longest part of it
  const TaskSpan* next = nullptr;  // what ran after that gap; nullptr: the trace ended
};

// A lane's time from the first start to the last end in the whole trace. Host tasks overlap: busy while any of them
// runs.
struct LaneSummary {
  LaneId lane = kNone;
  int64_t busy_ns = 0, idle_ns = 0;
  std::vector<IdleReason> reasons;  // longest first; they add up to idle_ns
  int64_t steady_ns = 0;            // the steady state on this lane: first start to last end; 0: too short
  int64_t steady_idle_ns = 0;       // between tasks, within steady_ns
  std::vector<IdleReason> steady_reasons;
  std::vector<IdleShare> causes;  // the same idle time by kind of cause, longest first
  int64_t late = 0;               // gaps that waited for a batch to be read, or for a thread while all read batches
  int64_t steady_late = 0;        // those in the steady state
};

struct TaskSummary {
  TaskId task = kNone;
  int64_t count = 0;  // instances with work
  double mean_ns = 0;
  int64_t longest_ns = 0, total_ns = 0;
};

struct Gap {
  LaneId lane = kNone;
  int64_t from = 0, to = 0;        // ns since the trace began
  const TaskSpan* next = nullptr;  // what ran then
  std::string why;                 // the reason with the largest part
};

// The share of lane `lane`'s busy time during which lane `other` was busy too.
struct Overlap {
  LaneId lane = kNone, other = kNone;
  double share = 0;
};

// Work of lanes other than compute (collectives, copies, validation): how much of it compute covers, and what it costs
// compute.
struct Hiding {
  LaneId lane = kNone;  // kNone: all lanes of the kind
  Lane::Kind kind = Lane::Kind::Collectives;
  int64_t busy_ns = 0;
  int64_t hidden_ns = 0;  // of busy_ns, while a compute lane was busy: of the lane's device; of any if it has none
  int64_t waited_ns = 0;  // of gaps, over all compute lanes: while a task of this lane ran that they waited for

  double share() const { return busy_ns > 0 ? double(hidden_ns) / double(busy_ns) : 0; }
};

struct TraceSummary {
  int64_t begin = 0, end = 0;
  std::vector<LaneSummary> lanes;  // those with tasks, in the plan's order
  std::vector<TaskSummary> tasks;  // by total time
  std::vector<const TaskSpan*> slowest;
  std::vector<Gap> gaps;                       // of device lanes; compute lanes first, then the longest first
  int64_t first_steady = 0, last_steady = -1;  // iterations of the base clock; empty if the trace is too short
  double iteration_ns = 0;                     // per iteration of the base clock in the steady state; 0: unknown
  double compute_idle = -1;                    // idle share between tasks over all compute lanes; −1: unknown
  double issuing_ns = -1;                      // host time spent issuing per iteration, all clocks; −1: not recorded
  double issuing_median_ns = -1;               // the same of the base clock's tasks alone, in the median iteration
  std::vector<Overlap> overlaps;               // every ordered pair of lanes
  Table<LaneId, int64_t> awaited_ns;  // idle time of compute lanes while that lane computed what they waited for
  std::vector<Hiding> hiding;         // lanes that are neither host nor compute; then kinds with several lanes
  Cycle critical;                     // with mean durations of the steady state; empty if the plan has no cycle
  Slack slack;                        // outside that cycle, with the same durations
};

// "cuda:0/learner 3/step" and all others that differ in device and learner alone: "cuda:*/learner */step".
std::string alike(const std::string& name);

// The kind of a task: its name by alike(), with all parts of a batch's filling as one kind, "cuda:*/learner */fill".
std::string kind_of(const Task& task);

// The summary points into `trace`. Throws GraphError if the trace holds no task.
TraceSummary analyze(const TraceFile& trace, const SummaryOptions& options = {});

// The report for a terminal.
std::string summarize(const TraceFile& trace, const SummaryOptions& options = {});

}  // namespace arbalest
