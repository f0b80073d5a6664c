// SPDX-License-Identifier: Apache-2.0
#pragma once
// Recording what ran when. Each thread writes to rings of its own, so that recording takes no lock, and after a
// thread's first span no memory.

#include <tbb/enumerable_thread_specific.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "executor/plan/plan.h"
#include "executor/trace/trace_file.h"

namespace arbalest {

class TraceRecorder {
 public:
  // The plan must outlive the recorder. A thread keeps its newest `capacity_per_thread` spans of each kind.
  explicit TraceRecorder(const Plan& plan, size_t capacity_per_thread = size_t{1} << 18);
  explicit TraceRecorder(const Plan&& plan, size_t capacity_per_thread = 0) = delete;

  void set_threads(const TraceThreads& threads) { threads_ = threads; }
  void set_reading(const ReadingTimes& reading) { reading_ = reading; }
  void set_alone(Table<TaskId, int64_t> alone) { alone_ = std::move(alone); }  // TraceFile::alone
  void set_timed(std::vector<NodeTime> timed) { timed_ = std::move(timed); }   // TraceFile::timed
  void set_run(TracedRun run) { run_ = std::move(run); }
  void set_sampling(Sampling sampling) { sampling_ = std::move(sampling); }

  int64_t start() const {  // ns of the steady clock
    return std::chrono::duration_cast<std::chrono::nanoseconds>(start_.time_since_epoch()).count();
  }
  // ns since the trace began (the recorder's construction).
  int64_t now() const { return since_start(std::chrono::steady_clock::now()); }
  int64_t since_start(std::chrono::steady_clock::time_point time) const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time - start_).count();
  }

  void record(const TaskSpan& span) { rings_.local().tasks.push(span, capacity_); }
  void record(const NodeSpan& span) { rings_.local().nodes.push(span, capacity_); }
  void record(const IssueSpan& span) { rings_.local().issues.push(span, capacity_); }

  // All that was recorded, and the file of it. No thread may be recording meanwhile.
  TraceFile collect() const;
  void write(const std::string& path, const TraceWriteOptions& options = {}) const {
    write_trace(collect(), path, options);
  }

 private:
  template <typename Span>
  struct Ring {
    std::vector<Span> spans;  // capacity of them from the first push on
    uint64_t pushed = 0;

    void push(const Span& span, size_t capacity) {
      if (spans.empty()) spans.resize(capacity);
      spans[pushed++ % capacity] = span;
    }
    int64_t dropped() const { return pushed > spans.size() ? int64_t(pushed - spans.size()) : 0; }
    size_t size() const { return pushed < spans.size() ? size_t(pushed) : spans.size(); }
  };
  struct Rings {
    Ring<TaskSpan> tasks;
    Ring<NodeSpan> nodes;
    Ring<IssueSpan> issues;
  };

  const Plan& plan_;
  const size_t capacity_;
  TraceThreads threads_;
  ReadingTimes reading_;
  Table<TaskId, int64_t> alone_;
  std::vector<NodeTime> timed_;
  Sampling sampling_;
  TracedRun run_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  tbb::enumerable_thread_specific<Rings> rings_;
};

}  // namespace arbalest
