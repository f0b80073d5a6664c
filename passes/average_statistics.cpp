// SPDX-License-Identifier: Apache-2.0
#include "graph/op.h"
#include "passes/passes.h"

namespace arbalest {

void average_statistics(Graph& step, ArenaValues& arenas, int64_t batches) {
  Table<NodeId, int64_t> key(step.nodes.size());
  for (const NodeId n : key.ids()) key[n] = step.nodes[n].stage == Stage::Forward ? int64_t(n) : -1;
  reorder_nodes(step, key);
  step.carries.clear();
  const ValueId weights = arenas.weights, average = arenas.statistics, frozen = arenas.frozen;
  arenas = {};
  arenas.weights = weights;
  arenas.frozen = frozen;
  arenas.statistics = average;

  // Momentum 1 leaves a batch's own statistics; laid out as the average, all of them are added to it at once.
  const ValueId batch = step.add_value("batch_statistics", step.values[average].type, Role::State);
  for (Node& node : step.nodes) {
    if (!node.op->keeps_statistics) continue;
    constexpr size_t kRunning = 3, kNew = 1;  // the first of two inputs, and of two outputs: mean and variance
    node.attributes.set("momentum", 1.0);
    for (size_t i = 0; i < 2; ++i) {
      const View place = step.values[node.inputs[kRunning + i]].view;
      step.values[node.outputs[kNew + i]].view = {batch, place.offset_bytes};
    }
  }
  const NodeId sum = step.add_node(step.op(op::Accumulate), "average_statistics", {batch, average}, 1,
                                   {{"scale", 1.0 / double(batches)}});
  step.nodes[sum].stage = Stage::Update;
  infer(step, sum);
  step.carries.push_back({average, step.nodes[sum].output()});
}

}  // namespace arbalest
