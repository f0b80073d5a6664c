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
#include "executor/weights/weights_file.h"

namespace arbalest {
namespace {

bool validates(const Plan& plan) {
  const ClockRelation* known = plan.relation(plan.handles.by_validation);
  return known && plan.clocks[size_t(known->coarse)].ticks > 0;
}

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
  const ValidationRules& rules = options.rules;
  const Monitor monitor(prepared.program, rules, no_observer(), prepared.training->class_names());
  check_weights_of(options.files, prepared.program.training());
  Plan plan = make_plan(prepared.program, prepared.request);
  if ((!rules.targets.empty() || rules.patience > 0 || rules.plateau > 0) && !validates(plan)) {
    throw GraphError(fmt::format("{} needs a validation, and the run makes none: {} iterations, {} an epoch",
                                 !rules.targets.empty() ? "--until"
                                 : rules.patience > 0   ? "--patience"
                                                        : "--plateau",
                                 plan.clocks[0].ticks, prepared.request.rounds));
  }
  return plan;
}

}  // namespace arbalest
