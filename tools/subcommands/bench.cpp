// SPDX-License-Identifier: Apache-2.0

// arbalest bench: measurements.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <optional>

#include "tools/command/commands.h"
#include "tools/command/interrupt.h"
#include "tools/command/session_setup.h"
#include "tools/command/subcommand.h"
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

namespace {

// Parses "1,2,4"; the result is ascending, in whatever order it was written.
std::vector<int> parse_counts(std::string_view option, std::string_view text) {
  const auto fail = [&](const std::string& what) {
    throw GraphError(fmt::format("{} '{}': {}; expected whole numbers from 1 to {} with commas between them", option,
                                 text, what, kMostReplicas));
  };
  std::vector<int> counts;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string_view item = text.substr(at, comma - at);
    int count = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), count);
    if (error != std::errc{} || end != item.data() + item.size() || count < 1 || count > kMostReplicas) {
      fail(fmt::format("found '{}'", item));
    }
    if (std::find(counts.begin(), counts.end(), count) != counts.end()) fail(fmt::format("{} is named twice", count));
    counts.push_back(count);
    at = comma + 1;
  }
  std::sort(counts.begin(), counts.end());
  return counts;
}

void declare_scaling(Subcommands& commands, CLI::App& bench) {
  const auto command = commands.add<ScalingOptions>("scaling", "training throughput over devices and learners",
                                                    command_bench_scaling, &bench);
  CLI::App& app = command.app;
  ScalingOptions& options = command.options;
  const auto device_counts = std::make_shared<std::optional<std::string>>();
  const auto learner_counts = std::make_shared<std::string>("1");
  bind_graph(app, options);
  bind_passes(app, options.session);
  bind_strategy(app, options.session);
  bind_memory(app, options.session);
  const auto option = [&app](const char* name, auto& value, const char* type, const char* description) {
    return app.add_option(name, value, description)->type_name(type);
  };
  option("--device-counts", *device_counts, "LIST",
         "how many of the devices to measure on: 1,2,4; default: powers of two and all of them");
  option("--learners", *learner_counts, "LIST", "replicas per device: 1,2,4")->capture_default_str();
  option("--batch", options.batch, "N", "samples per learner; short for --set prefetch.batch=N")->check(whole(1));
  option("--windows", options.windows, "N", "measurements of each cell; their median is its throughput")
      ->capture_default_str()
      ->check(whole(1, 1000));
  option("--window-seconds", options.window_seconds, "TIME", "how long a window is at least")
      ->capture_default_str()
      ->transform(duration(1e-3, 1e6));
  option("--warmup-seconds", options.warmup_seconds, "TIME", "before the first window; at least 10 iterations")
      ->capture_default_str()
      ->transform(duration(0, 1e6));
  option("--report-every", options.session.execution.report_every, "N",
         "iterations between timestamps: fewer where one takes seconds")
      ->capture_default_str()
      ->check(whole(1));
  option("--price-per-hour", options.price_per_hour, "X",
         "of all devices together; adds images per unit of money, a cell paying for the devices that it uses")
      ->check(real(1e-6, 1e9));
  app.add_flag("--json", options.json, "one JSON object a line and cell");
  app.footer(
      "Validation is left out, and the learning rate is 1e-6 unless --set says otherwise: noise could make a loss "
      "diverge.\nA cell that fails says why and the others go on; the exit status is 1 where all "
      "failed.\nSpeed-up is against the first cell, efficiency against one device with as many learners. All cells "
      "have as many "
      "hardware queues as the most learners on all devices get; CUDA_DEVICE_MAX_CONNECTIONS says otherwise.");
  command.check = [&options, device_counts, learner_counts] {
    if (*device_counts) options.device_counts = parse_counts("--device-counts", **device_counts);
    options.learners = parse_counts("--learners", *learner_counts);
  };
}

void declare_tracing(Subcommands& commands, CLI::App& bench) {
  const auto command =
      commands.add<TracingOptions>("tracing", "what a trace costs in throughput", command_bench_tracing, &bench);
  CLI::App& app = command.app;
  TracingOptions& options = command.options;
  bind_graph(app, options);
  bind_passes(app, options.session);
  bind_strategy(app, options.session);
  bind_memory(app, options.session);
  const auto option = [&app](const char* name, auto& value, const char* type, const char* description) {
    return app.add_option(name, value, description)->capture_default_str()->type_name(type);
  };
  option("--learners", options.session.learners.per_device, "N", "replicas per device")->check(whole(1, kMostReplicas));
  app.add_option("--batch", options.batch, "samples per learner; short for --set prefetch.batch=N")
      ->type_name("N")
      ->check(whole(1));
  option("--rounds", options.rounds, "N", "of three runs each: untraced, recorded, recorded and sampled")
      ->check(whole(1, 1000));
  option("--windows", options.windows, "N", "measurements of each run; their median is its throughput")
      ->check(whole(1, 1000));
  option("--window-seconds", options.window_seconds, "TIME", "how long a window is at least")
      ->transform(duration(1e-3, 1e6));
  option("--warmup-seconds", options.warmup_seconds, "TIME", "before the first window; at least 10 iterations")
      ->transform(duration(0, 1e6));
  option("--sample-every", options.session.execution.sample_ms, "MS", "between samples of devices and process")
      ->check(whole(1, 3'600'000));
  option("--report-every", options.session.execution.report_every, "N",
         "iterations between timestamps: fewer where one takes seconds")
      ->check(whole(1));
  app.footer(
      "Validation is left out, and the learning rate is 1e-6 unless --set says otherwise. The three runs of a round\n"
      "follow each other, in another order each round, and costs are those within rounds: what drifts on a machine\n"
      "is in all of them. Writing the file is no part of it.");
}

}  // namespace

void declare_bench(Subcommands& commands) {
  CLI::App& bench = commands.add_group("bench", "measure throughput");
  declare_scaling(commands, bench);
  declare_tracing(commands, bench);
}

}  // namespace arbalest
