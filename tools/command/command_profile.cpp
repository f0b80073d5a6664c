// SPDX-License-Identifier: Apache-2.0

// arbalest profile: where the time of a training step goes.

#include <fmt/format.h>

#include <cstdio>

#include "base/error.h"
#include "base/plain_message.h"
#include "tools/command/commands.h"
#include "tools/command/interrupt.h"
#include "tools/command/session_setup.h"
#include "tools/measure/bench_scaling.h"
#include "tools/measure/profile_report.h"

namespace arbalest {

int command_profile(const ProfileOptions& options) {
  SessionOptions session = session_options(options);
  if (session.learners.devices.size() > 1) session.learners.devices.resize(1);
  const Graph graph = graph_to_measure(options, options.batch);
  const InterruptHandler interrupt;
  ProfiledRun run;
  const auto train = [&](const Graph& measured, const SessionOptions& with, RunObserver& observer,
                         const std::stop_token& interrupted) {
    run.step = profile_training(measured, with, observer, interrupted);
  };
  const WindowRule rule{.windows = 1, .window_seconds = options.seconds};
  const ScalingCell cell = measure_cell(graph, session, rule, interrupt.token(), train);
  if (cell.failure) std::rethrow_exception(cell.failure);
  if (!cell.measured()) throw RunError(cell.error);
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

}  // namespace arbalest
