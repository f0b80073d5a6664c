// SPDX-License-Identifier: Apache-2.0

// The exponential moving average of the weights. It has memory on each device that validates, and its step is the last
// node of the task that completes the model which is validated and saved. So there is neither a task nor an edge of its
// own: whatever waits for that model finds its average up to date.

#include "executor/plan/phases.h"
#include "ops/names.h"

namespace arbalest {
namespace {

const TensorType kProgress{DataType::Int64, {2}};

}  // namespace

std::vector<MovingAverageBuffers> add_moving_average_memory(PlanBuilder& builder, const PlanInputs& in) {
  std::vector<MovingAverageBuffers> averages;
  if (in.program.ema == 0) return averages;
  const TensorType& weights = in.type_of(in.training().arenas.weights);
  for (int32_t d = 0; d < int32_t(validator_count(in.request)); ++d) {
    const std::string name = in.device_name(d) + "/moving average";
    const ArenaId arena = builder.add_arena(name, d, Arena::Memory::Device);
    averages.push_back({add_buffer(builder.plan, arena, name, weights.bytes(), 1, kNone),
                        add_buffer(builder.plan, arena, name + " progress", kProgress.bytes(), 1, kNone)});
  }
  return averages;
}

void add_moving_average(PlanBuilder& builder, const PlanInputs& in, const SharedMemory& memory, int32_t device,
                        TaskId task, const Term& model) {
  if (size_t(device) >= memory.moving_averages.size()) return;
  const MovingAverageBuffers& buffers = memory.moving_averages[size_t(device)];
  // Models that are averaged change once in a group of updates, others with every update.
  int64_t every = 1, period = 1;
  const PlanHandles& handles = builder.plan.handles;
  if (const ClockRelation* met =
          builder.plan.relation(handles.by_hosts == kNone ? handles.by_sync : handles.by_hosts)) {
    every = met->group / in.program.accumulate;
    period = met->period / in.program.accumulate;
  }
  const Term average{{buffers.weights, 0, 0}, model.type}, progress{{buffers.progress, 0, 0}, kProgress};
  builder.add_node(task, op::MovingAverage, in.device_name(device) + "/moving average", {model, average, progress},
                   {average, progress}, {{"decay", in.program.ema}, {"every", every}, {"period", period}});
}

}  // namespace arbalest
