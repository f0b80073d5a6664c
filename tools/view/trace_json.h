// SPDX-License-Identifier: Apache-2.0
#pragma once
// A trace as JSON: for `arbalest trace --json`, and as the head of what the viewer shows.

#include <nlohmann/json.hpp>

#include "executor/trace/trace_summary.h"
#include "executor/trace/verdict.h"
#include "executor/trace/what_pays.h"

namespace arbalest {

// Verdict, steady state, devices, clocks, lanes with their causes of idleness, tasks, edges, critical cycle and slack,
// layers, and what pays. Times in ns; slack in µs, absent if there is no end to it.
nlohmann::ordered_json trace_json(const TraceFile& trace, const TraceSummary& summary, const WhatPays& pays);

}  // namespace arbalest
