// SPDX-License-Identifier: Apache-2.0
#pragma once
// Calls that a segment makes while it runs, and the rests that it takes.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "executor/run/keep_samples.h"
#include "executor/run/scheduler.h"
#include "executor/session/monitor.h"
#include "executor/session/observer.h"
#include "executor/session/run_state.h"

namespace arbalest {

// Any function may be empty.
struct SegmentOptions {
  std::shared_ptr<Ranks> ranks = {};  // nullptr: this process has all devices
  // False: a loss that is not finite ends the run with an error. True: diverged() returns the first one found, and
  // nothing more is reported. The caller then has to bring the segment to rest.
  bool outlives_divergence = false;
  // Called while samples that stay on the devices are brought there.
  std::function<void(const SamplesKept&)> on_samples = nullptr;
  // Called after each report, on a host thread. The seconds are those of the process whose clock is furthest ahead. If
  // it returns true, the segment ends. One process ends it after the batches already read; several processes have to
  // come to rest for it (SegmentReports::wants_end()).
  std::function<bool(const RunPosition&, double seconds)> on_report = nullptr;
  // Called on a host thread after each validation, if the request keeps the validated model.
  std::function<void(const Monitor::Verdict&, const ModelState&, const RunPosition&)> on_validated = nullptr;
  // SchedulerOptions::process_ends: called, on any thread, before the process ends because of a read or a call for a
  // GPU that does not return.
  std::function<void(const std::string&)> on_process_ends = nullptr;
};

// SchedulerOptions::rest, first_rest and rest_due, in iterations of the segment's plan.
struct SegmentRests {
  std::function<std::optional<int64_t>()> rest;
  int64_t first = SchedulerOptions::kNoRest;
  std::function<bool()> due;
};

}  // namespace arbalest
