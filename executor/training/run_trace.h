// SPDX-License-Identifier: Apache-2.0
#pragma once
// The trace of a run: of its latest segment, written at its end, however it ends. If there are several processes,
// rank 0 writes one of all; if the run fails, each rank that is left writes its own part.

#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "executor/segment/segment.h"
#include "executor/trace/trace_file.h"

namespace arbalest {

class RunTrace {
 public:
  explicit RunTrace(const SessionOptions& options);
  ~RunTrace();

  void segment_begins(SegmentBegin why) { run_.begins = why; }
  void drop();  // what is recorded, before its segment goes
  // Runs the segment and records it, if a trace is asked for.
  void run(Segment& segment, const Prepared& prepared, const std::stop_token& stop, const SegmentRests& rests);
  // Writes the trace of a run that is over, if there is one. Failures become warnings and part of `end`.
  void finish(Segment& segment, RunFinished& end);
  // The trace of a run that fails is written too: called while its exception is handled. If writing fails as well, it
  // is a warning: the run's own error is the one that is reported. Ranks other than the first write their own part next
  // to that file, because nobody can be sure to gather it any more: "run.rank2.json.gz" for "run.json.gz".
  void write_failed() noexcept;
  const std::string& written() const { return written_; }  // the file, or ""

 private:
  void describe(const Segment& segment, const Prepared& prepared);
  TraceFile own_trace();
  std::vector<TraceFile> traces_of_all(Ranks& ranks);
  void write(const TraceFile& trace, const std::string& path);

  const SessionOptions& options_;
  std::unique_ptr<TraceRecorder> recorder_;
  Ranks::ClockReading began_;  // when recording began
  TracedRun run_;
  std::string written_;
};

std::vector<std::string> device_models(const std::vector<PlanDevice>& devices);

}  // namespace arbalest
