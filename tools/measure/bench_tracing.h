// SPDX-License-Identifier: Apache-2.0
#pragma once
// The cost of a trace in throughput, as `arbalest bench tracing` measures and prints it.

#include <array>
#include <stop_token>
#include <string>
#include <vector>

#include "tools/measure/bench_scaling.h"

namespace arbalest {

enum class Tracing : uint8_t { None, Recorded, Sampled };  // Sampled: recorded, and devices sampled
inline constexpr size_t kTracings = 3;

// One run in each way, right after each other, so that what drifts on a machine is in all of them.
struct TracingRound {
  std::array<double, kTracings> images_per_second{};
};

// How much less than `without` a round has `with`: medians over rounds, and the middle half of them.
struct TracingCost {
  double median = 0, low = 0, high = 0;  // fractions
};
TracingCost cost_of(const std::vector<TracingRound>& rounds, Tracing without, Tracing with);

// Runs begin with another way each round. Throws RunError if one fails. `sample_ms`: between samples.
TracingRound measure_tracing(const Graph& graph, const SessionOptions& session, const WindowRule& rule, int round,
                             int64_t sample_ms, const std::stop_token& interrupted, const Train& train = run_training);

std::string tracing_line(int round, const TracingRound& measured);    // with a line feed
std::string tracing_report(const std::vector<TracingRound>& rounds);  // with line feeds

}  // namespace arbalest
