// SPDX-License-Identifier: Apache-2.0

// arbalest profile: where the time of a training step goes.

#include <fmt/format.h>

#include <climits>
#include <cstdio>

#include "base/error.h"
#include "tools/command/commands.h"
#include "tools/command/interrupt.h"
#include "tools/command/session_setup.h"
#include "tools/command/subcommand.h"
#include "tools/measure/bench_scaling.h"
#include "tools/measure/profile_report.h"

namespace arbalest {

int command_profile(const ProfileOptions& options) {
  SessionOptions session = session_options(options);
  if (session.learners.devices.size() > 1) session.learners.devices.resize(1);
  const Graph graph = graph_to_measure(options);
  const InterruptHandler interrupt;
  ProfiledRun run;
  const auto train = [&](const Graph& measured, const SessionOptions& with, RunObserver& observer,
                         const std::stop_token& interrupted) {
    run.step = profile_training(measured, with, observer, interrupted);
  };
  const WindowRule rule{.windows = 1, .window_seconds = options.seconds};
  const ScalingCell cell = measure_cell(graph, session, rule, interrupt.token(), train);
  throw_unless_measured(cell);
  run.graph = graph.name;
  run.device = cell.devices.front();
  run.precision = name_of(session.numerics.precision);
  run.batch = cell.batch;
  run.images_per_second = cell.windows.front();
  run.planned_peak_bytes = cell.planned_peak_bytes;
  const std::string text = options.json ? profile_record(run).dump(2) + "\n"
                                        : printable(profile_text(run, options.slowest, options.layers), true);
  std::fputs(text.c_str(), stdout);
  return kDone;
}

void declare_profile(Subcommands& commands) {
  const auto command = commands.add<ProfileOptions>(
      "profile", "measure where the time of a training step goes, node by node", command_profile);
  CLI::App& app = command.app;
  ProfileOptions& options = command.options;
  bind_graph(app, options);
  bind_batch(app, options);
  bind_passes(app, options.session);
  bind_memory(app, options.session);
  app.add_option("--seconds", options.seconds, "of training that throughput is measured over")
      ->capture_default_str()
      ->type_name("TIME")
      ->transform(duration(1e-3, 1e6));
  app.add_option("--slowest", options.slowest, "nodes to list, those furthest from their limit first")
      ->capture_default_str()
      ->type_name("N")
      ->check(whole(0, INT_MAX));
  app.add_flag("--layers", options.layers, "list every layer too");
  app.add_flag("--json", options.json, "every node, as JSON");
  app.footer(
      "Trains for a while without validation, with a learning rate of 1e-6 unless --set says otherwise, then times\n"
      "each node of a learner's step in its order, while nothing else runs. The limit of a node is the longer of "
      "the\n"
      "times that its bytes (each operand once) and its operations take at the rates that a Relu and a product of\n"
      "large matrices reach: a node whose operands still lie in a cache takes less, and is above 100 % of it.\n"
      "The memory taken of a GPU, CUDA's context apart, is what was planned, what libraries and the code of\n"
      "kernels had taken before anything was allocated, recorded steps, and what other processes took meanwhile.");
}

}  // namespace arbalest
