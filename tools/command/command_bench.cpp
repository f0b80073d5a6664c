// SPDX-License-Identifier: Apache-2.0

// arbalest bench: measurements.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "tools/command/commands.h"
#include "tools/command/interrupt.h"
#include "tools/command/session_setup.h"
#include "tools/measure/bench_scaling.h"
#include "tools/measure/bench_tracing.h"

namespace arbalest {
namespace {

// Reports errors of the graph or its data before the first cell, since all cells would meet them. Returns the batch.
int64_t check(const Graph& graph, SessionOptions session) {
  session.learners.devices.resize(1);
  return prepare(graph, session).program.training().batch;
}

void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);  // a sweep takes minutes: results can be read as they come
}

}  // namespace

int command_bench_scaling(const ScalingOptions& options) {
  give_learners_queues(*std::max_element(options.learners.begin(), options.learners.end()), options.devices);
  SessionOptions session = session_options(options);
  const std::vector<PlanDevice> pool = session.learners.devices;
  const std::vector<int> counts = device_counts(options.device_counts, pool.size());
  const Graph graph = graph_to_measure(options, options.batch);
  const int64_t batch = check(graph, session);
  const WindowRule rule{options.windows, options.window_seconds, options.warmup_seconds};

  ScalingTable table(
      {graph.name, std::string(name_of(session.numerics.precision)), pool.size(), options.price_per_hour});
  if (!options.json) {
    print(fmt::format("{}: {}, batch {} per learner; images/s: median of {} windows of {} s\n", graph.name,
                      name_of(session.numerics.precision), batch, options.windows, options.window_seconds));
    print(table.heading());
  }
  const InterruptHandler interrupt;
  for (const int devices : counts) {
    for (const int learners : options.learners) {
      session.learners.devices.assign(pool.begin(), pool.begin() + devices);
      session.learners.per_device = learners;
      const ScalingRow row = table.add(measure_cell(graph, session, rule, interrupt.token()));
      print(options.json ? table.json(row) : table.line(row));
      if (InterruptHandler::requested()) return kInterrupted;
    }
  }
  return table.any_measured() ? kDone : kFailed;
}

int command_bench_tracing(const TracingOptions& options) {
  const SessionOptions session = session_options(options);
  const Graph graph = graph_to_measure(options, options.batch);
  const int64_t batch = check(graph, session);
  const WindowRule rule{options.windows, options.window_seconds, options.warmup_seconds};
  const int64_t sample_ms = session.execution.sample_ms;
  print(fmt::format("{}: {}, batch {} per learner; images/s, runs in turn: median of {} windows of {} s\n", graph.name,
                    name_of(session.numerics.precision), batch, options.windows, options.window_seconds));
  print(fmt::format("{:>5} {:>12} {:>12} {:>12}\n", "round", "untraced", "recorded", "and sampled"));
  const InterruptHandler interrupt;
  std::vector<TracingRound> rounds;
  for (int round = 0; round < options.rounds; ++round) {
    rounds.push_back(measure_tracing(graph, session, rule, round, sample_ms, interrupt.token()));
    print(tracing_line(round, rounds.back()));
  }
  print(tracing_report(rounds));
  return kDone;
}

}  // namespace arbalest
