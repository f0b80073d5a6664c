// SPDX-License-Identifier: Apache-2.0
#include "tools/command/run_check.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "executor/devices/device.h"
#include "executor/plan/make_plan.h"
#include "executor/session/monitor.h"
#include "executor/session/observer.h"
#include "executor/session/state.h"
#include "executor/training/run_beginning.h"
#include "executor/weights/weights_file.h"

namespace arbalest {
namespace {

void check_weights_of(const FileOptions& files, const Loop& training) {
  if (files.weights.empty()) return;
  const ArenaValues& arenas = training.arenas;
  check_weights(WeightsFile(files.weights, files.weights_map, files.fresh), training.graph,
                {arenas.weights, arenas.statistics, arenas.frozen});
}

}  // namespace

void check_devices(const std::vector<PlanDevice>& devices) {
  for (const PlanDevice& device : devices) {
    if (device.kind != PlanDevice::Kind::Cuda) continue;
    const int present = cuda_device_count();
    if (device.index < present) continue;
    throw GraphError(fmt::format("--devices {}: is not there: {} CUDA device{} found", to_string(device), present,
                                 present == 1 ? "" : "s"));
  }
}

Plan checked_plan(Graph graph, const SessionOptions& options) {
  const Prepared prepared = prepare(std::move(graph), options);
  const Monitor monitor(prepared.program, options.rules, no_observer(), prepared.training->class_names());
  check_weights_of(options.files, prepared.program.training());
  Plan plan = make_plan(prepared.program, prepared.request);
  check_rules(prepared, options, plan);
  return plan;
}

}  // namespace arbalest
