// SPDX-License-Identifier: Apache-2.0
#pragma once
// A trace in memory and as a file: gzipped Chrome-trace JSON that Perfetto opens as it is. One metadata record holds
// the plan, so that the file alone says what every lane did and what each instance waited for.

#include <cstdint>
#include <string>
#include <vector>

#include "executor/plan/plan.h"
#include "executor/plan/run_end.h"

namespace arbalest {

// One instance of a task. Times in ns since the trace began; −1: unknown. `ready`: its last edge was satisfied;
// `issued`: it entered its device queue (a host task: its thread took it); `started`, `ended`: it ran. On a GPU it
// `started` once it was issued, the instance before it in its lane had ended, and what the lane waited for had ended.
// Some microseconds of launching count as its own.
struct TaskSpan {
  TaskId task = kNone;
  int64_t instance = 0;
  int64_t ready = -1, issued = -1, started = -1, ended = -1;
  bool operator==(const TaskSpan&) const = default;
};

// One node inside a Compute task of a CPU device.
struct NodeSpan {
  int32_t launch = kNone;  // index into Plan::launches
  TaskId task = kNone;
  int64_t instance = 0;
  int64_t started = -1, ended = -1;
  bool operator==(const NodeSpan&) const = default;
};

// A node inside a task whose nodes are not recorded as they run, as on GPUs, where a step is one launch. Timed once the
// run is over, in the order of the task, while nothing else runs.
struct NodeTime {
  int32_t launch = kNone;  // index into Plan::launches
  TaskId task = kNone;
  int64_t ns = 0;
  bool operator==(const NodeTime&) const = default;
};

// Time that a host thread spent on issuing one instance to a device queue.
struct IssueSpan {
  TaskId task = kNone;
  int64_t instance = 0;
  int64_t started = -1, ended = -1;
  int32_t thread = 0;  // number of the recording thread; set when the spans are collected
  bool operator==(const IssueSpan&) const = default;
};

// Threads of the process that ran host tasks and issued device tasks; 0: unknown.
struct TraceThreads {
  int32_t host = 0, issuing = 0;
  bool operator==(const TraceThreads&) const = default;
};

// Time spent on reading by host nodes that prepare files: seconds summed over all threads, by stage. 0 samples: no host
// node prepares files.
struct ReadingTimes {
  int64_t samples = 0;
  double read = 0, decode = 0, scale = 0;
  bool operator==(const ReadingTimes&) const = default;
};

// The usage of one resource of a device, or of the process, over time.
struct SampleSeries {
  std::string name;        // "GPU power"
  int32_t device = kNone;  // into Plan::devices; kNone: the process
  std::string unit;        // "W"
  double most = 0;         // upper bound of the values; 0: unknown
  std::vector<double> values;
  bool operator==(const SampleSeries&) const = default;
};

// Measured at intervals while tasks ran.
struct Sampling {
  int64_t interval_ms = 0;  // 0: nothing was to be measured
  std::string note;         // what could not be measured, and why; "": nothing
  std::vector<int64_t> at;  // ns since the trace began, ascending: of each value of every series
  std::vector<SampleSeries> series;
  bool operator==(const Sampling&) const = default;
};

// The run that a trace belongs to, and the part of the run that it covers. Traces of earlier versions have no such
// record.
struct TracedRun {
  std::string strategy;                     // StrategySpec::name; "": unknown
  int64_t learners = 0;                     // on each device; 0: unknown
  int64_t iterations = 0;                   // of the run that were complete when the trace began
  int64_t first = 0;                        // the run's number of the trace's iteration 0
  SegmentBegin begins = SegmentBegin::Run;  // why there
  RunEnd ended = RunEnd::Unknown;
  std::string message;       // failed: why; interrupted: by which signal, if that is known
  int64_t ended_after = -1;  // iterations of the run, or where it failed; −1: unknown
  // The settings of the run and its hardware; "", 0 and empty: unknown.
  std::vector<std::string> command;  // its words
  std::string started;               // when this process began: "2025-03-01T12:30:00Z"
  std::string source;                // of training's samples: "mnist:data"
  std::string precision;             // "fp32", "tf32", "bf16"
  int64_t batch = 0;                 // samples of a learner's batch
  std::vector<std::string> models;   // of each device: "NVIDIA H200"
  int64_t ranks = 1;                 // processes that the trace is of
  int64_t clock_error = 0;           // ns by which times of other ranks may be off those of rank 0
  int64_t taken_bytes = -1;          // RunFinished::taken_bytes of the process that wrote it
  int64_t timed_engines = 0;         // of that process, which took some of these bytes
  bool operator==(const TracedRun&) const = default;
};

struct TraceFile {
  Plan plan;          // all but its buffers and graphs
  std::string graph;  // the graph's name
  TracedRun run;
  std::vector<std::string> launches;   // node names, by NodeSpan::launch
  std::vector<std::string> operators;  // of those nodes: "Conv"; empty in traces of earlier versions
  std::vector<TaskSpan> tasks;         // these three by start
  std::vector<NodeSpan> nodes;
  std::vector<IssueSpan> issues;
  TraceThreads threads;
  ReadingTimes reading;          // of training's samples
  Table<TaskId, int64_t> alone;  // ns that it takes while nothing else runs there, −1: unknown; may be empty
  std::vector<NodeTime> timed;   // nodes of a task lie together, in its order; may be empty
  Sampling sampling;
  int64_t dropped = 0;     // spans that rings overwrote: the oldest
  int64_t unfinished = 0;  // instances without a start or an end, left out of `tasks`
};

// Brings spans into the order of their starts.
void sort_by_start(TraceFile& trace);

// Finds the span of (task, instance) in a trace that outlives the index.
class SpanIndex {
 public:
  explicit SpanIndex(const TraceFile& trace);
  const TaskSpan* find(TaskId task, int64_t instance) const;                            // nullptr: not recorded
  const std::vector<const TaskSpan*>& of(TaskId task) const { return by_task_[task]; }  // by instance

 private:
  Table<TaskId, std::vector<const TaskSpan*>> by_task_;
};

struct TraceWriteOptions {
  int64_t flows = 100'000;  // arrows between lanes at most: viewers slow down beyond
  int compression = 4;      // zlib's level
};

// Writes under a temporary name in the same folder and renames. Throws RunError.
void write_trace(const TraceFile& trace, const std::string& path, const TraceWriteOptions& options = {});

// Reads a gzipped or plain file. Throws RunError if it cannot be read, GraphError if it is no trace of ours, with
// line and column if it is not JSON.
TraceFile read_trace(const std::string& path);

}  // namespace arbalest
