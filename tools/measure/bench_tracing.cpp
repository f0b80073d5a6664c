// SPDX-License-Identifier: Apache-2.0
#include "tools/measure/bench_tracing.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace arbalest {
namespace {

// A value of sorted ones, `share` of which lie before it.
double quantile(const std::vector<double>& sorted, double share) {
  const double at = share * double(sorted.size() - 1);
  const auto before = size_t(at);
  const size_t after = std::min(before + 1, sorted.size() - 1);
  return sorted[before] + (at - double(before)) * (sorted[after] - sorted[before]);
}

}  // namespace

TracingCost cost_of(const std::vector<TracingRound>& rounds, Tracing without, Tracing with) {
  std::vector<double> costs;
  for (const TracingRound& round : rounds) {
    costs.push_back(1 - round.images_per_second[size_t(with)] / round.images_per_second[size_t(without)]);
  }
  std::sort(costs.begin(), costs.end());
  return {quantile(costs, 0.5), quantile(costs, 0.25), quantile(costs, 0.75)};
}

TracingRound measure_tracing(const Graph& graph, const SessionOptions& session, const WindowRule& rule, int round,
                             int64_t sample_ms, const std::stop_token& interrupted, const Train& train) {
  TracingRound measured;
  for (size_t turn = 0; turn < kTracings; ++turn) {
    const auto way = Tracing((turn + size_t(round)) % kTracings);
    SessionOptions traced = session;
    traced.files.trace = way == Tracing::None ? "" : "trace.json.gz";
    traced.execution.sample_ms = way == Tracing::Sampled ? sample_ms : 0;
    const ScalingCell cell = measure_cell(graph, traced, rule, interrupted, train);
    throw_unless_measured(cell);
    measured.images_per_second[size_t(way)] = summarize(cell.windows).median;
  }
  return measured;
}

std::string tracing_line(int round, const TracingRound& measured) {
  const auto& [plain, recorded, sampled] = measured.images_per_second;
  return fmt::format("{:>5} {:>12.0f} {:>12.0f} {:>12.0f}\n", round + 1, plain, recorded, sampled);
}

std::string tracing_report(const std::vector<TracingRound>& rounds) {
  std::string text;
  const auto line = [&](const char* what, Tracing without, Tracing with) {
    const TracingCost cost = cost_of(rounds, without, with);
    text += fmt::format("{:<42} {:>7.2f} %   middle half of rounds {:.2f} to {:.2f} %\n", what, 100 * cost.median,
                        100 * cost.low, 100 * cost.high);
  };
  line("recording costs", Tracing::None, Tracing::Recorded);
  line("sampling costs, on top of recording", Tracing::Recorded, Tracing::Sampled);
  line("both cost", Tracing::None, Tracing::Sampled);
  return text;
}

}  // namespace arbalest
