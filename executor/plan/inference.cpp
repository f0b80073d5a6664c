// SPDX-License-Identifier: Apache-2.0

// The plan of one pass over a split with weights that are given.

#include <fmt/format.h>

#include <utility>

#include "executor/plan/replica_builder.h"
#include "io/sources/data_order.h"

namespace arbalest {
namespace {

constexpr int64_t kEndless = int64_t{1} << 40;  // batches

Replica add_replica(PlanBuilder& builder, const PlanInputs& in, const Lanes& lanes, const Loop& loop, int32_t device,
                    ClockId batch, ClockId pass) {
  const std::string prefix = in.device_name(device) + "/inference";
  Replica start;
  start.device = device;
  start.lane = builder.add_lane(Lane::Kind::Validate, device, kNone, prefix);
  ReplicaBuilder parts(builder, in, lanes, loop, prefix, start);
  parts.add_reader(batch);
  for (const TaskId fill : parts.replica.fills) builder.task(fill).deferred = in.request.endless;
  parts.place();
  parts.add_part("/evaluate", 0, parts.nodes());
  parts.close_step();
  if (pass != kNone) parts.add_read_back(pass);
  parts.add_hand_out();
  return std::move(parts.replica);
}

}  // namespace

Plan make_inference_plan(const Program& program, const PlanRequest& request) {
  const PlanInputs in{program, request};
  check(in);
  const Loop& loop = *program.find(LoopRole::Validate);
  if (request.validation_samples < 1) throw GraphError("the split holds no samples");
  PlanBuilder builder;
  builder.plan.devices = request.devices;
  for (const Loop& each : program.loops) builder.plan.graphs.push_back(each.graph);
  const int64_t all = validation_batches(request.validation_samples, loop.batch);
  const int64_t batches = request.endless ? kEndless : (all + in.devices() - 1) / in.devices();
  const ClockId batch = builder.add_clock("batch", batches);
  const bool measures = loop.arenas.tally != kNone;
  const ClockId pass = measures ? builder.add_coarser("pass", batch, batches, batches).first : kNone;
  PlanRequest apart = request;  // devices have nothing to agree on
  apart.strategy.name = kNoStrategy;
  const Lanes lanes = add_lanes(builder, {program, apart});
  LoopPlan planned{LoopRole::Validate, in.graph_of(loop), batch, {}};
  for (int32_t device = 0; device < in.devices(); ++device) {
    planned.replicas.push_back(add_replica(builder, in, lanes, loop, device, batch, pass));
    planned.replicas.back().place = planned.everywhere++;
  }
  builder.plan.handles.loops.push_back(std::move(planned));
  verify(builder.plan);
  return std::move(builder.plan);
}

}  // namespace arbalest
