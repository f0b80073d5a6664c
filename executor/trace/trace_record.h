// SPDX-License-Identifier: Apache-2.0
#pragma once
// The metadata record of a trace as JSON: a TraceFile without its spans and samples, which are events. It holds the
// part of the plan that a trace carries.

#include <nlohmann/json.hpp>

#include "executor/trace/trace_file.h"

namespace arbalest {

// Limits of the numbers in a trace, which keep everything computed from them from overflowing, from dividing by zero
// and from needing excessive memory.
inline constexpr int64_t kMostTraceTicks = int64_t{1} << 44;
inline constexpr int64_t kMostTraceThreads = 1 << 16;

// object[key] as a whole number within bounds. Throws GraphError that names the key, what was found and the bounds.
int64_t integer_of(const nlohmann::json& object, const char* key, int64_t least, int64_t most);
int64_t whole_number(const nlohmann::json& value, const char* name, int64_t least, int64_t most);

inline constexpr double kMostMicroseconds = 1e13;  // a hundred days: what lies beyond is no time of a run

// The value as a number, and one of a sample's size. Throw GraphError that names it.
double number_of(const nlohmann::json& value, const char* name);
double sample_of(const nlohmann::json& value, const char* name);

nlohmann::json plan_record(const Plan& plan);

// The inverse. Throws GraphError that names the field which is missing or wrong.
Plan plan_of_record(const nlohmann::json& record);

nlohmann::json run_record(const TracedRun& run);
nlohmann::json trace_record(const TraceFile& trace);

// The inverse; `trace` has no more than its spans before. Throws GraphError, or an exception of the JSON library, that
// names the field which is missing or wrong.
void take_record(const nlohmann::json& record, TraceFile& trace);

}  // namespace arbalest
