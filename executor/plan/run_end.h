// SPDX-License-Identifier: Apache-2.0
#pragma once
// Why runs end, and why parts of them begin: what observers, logs, traces and checkpoints say.

#include <cstdint>
#include <string_view>

namespace arbalest {

enum class RunEnd : uint8_t {
  Unknown,
  Complete,
  Until,     // all targets of --until are reached
  Patience,  // of --patience
  Interrupted,
  TimeLimit,
  Failed,
};
std::string_view name_of(RunEnd end);                  // "complete", …; Unknown: ""
RunEnd parse_run_end(std::string_view text) noexcept;  // another text: Unknown

// Why a segment of a run begins.
enum class SegmentBegin : uint8_t {
  Run,  // with the run
  Resumed,
  Tuned,  // for another number of learners
  PlannedAnew,
  GoneBack,   // to a checkpoint
  RanksLost,  // with the learners that are left
};
std::string_view name_of(SegmentBegin begin);                      // "resumed", …; Run: ""
SegmentBegin parse_segment_begin(std::string_view text) noexcept;  // another text: PlannedAnew

}  // namespace arbalest
