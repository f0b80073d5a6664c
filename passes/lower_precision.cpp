// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "graph/op.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

// bfloat16 views of parameters, made on demand in flat values next to the master weights and the frozen ones.
class LoweredWeights {
 public:
  LoweredWeights(Graph& graph, ArenaValues& arenas) : graph_(graph), arenas_(arenas) {}

  ValueId of(ValueId parameter) {
    const Value master = graph_.values[size_t(parameter)];
    const bool frozen = master.role == Role::Frozen;
    ValueId& arena = frozen ? arenas_.frozen_lowered : arenas_.weights_lowered;
    if (arena == kNone) arena = frozen ? add_arena("frozen.bf16", arenas_.frozen, Role::Frozen) : add_weights();
    const std::string name = master.name + ".bf16";
    if (const ValueId made = graph_.find_value(name); made != kNone) return made;
    const TensorType type{DataType::Bfloat16, master.type.shape, master.type.layout};
    const ValueId lowered = graph_.add_value(name, type, master.role);
    graph_.values[size_t(lowered)].view = {arena, master.view.offset_bytes / 2};
    return lowered;
  }

 private:
  ValueId add_arena(const std::string& name, ValueId master, Role role) {
    return graph_.add_value(name, {DataType::Bfloat16, graph_.values[size_t(master)].type.shape}, role);
  }

  // The update writes them too.
  ValueId add_weights() {
    const ValueId weights = add_arena("weights.bf16", arenas_.weights, Role::State);
    const TensorType type = graph_.values[size_t(weights)].type;
    for (Node& node : graph_.nodes) {
      if (!node.op->optimizer) continue;
      const size_t lowered = UpdateOperands(*node.op->optimizer).lowered();
      const ValueId next = graph_.add_value("update.bf16", type);
      graph_.values[size_t(next)].producer = NodeId(&node - graph_.nodes.data());
      if (node.outputs.size() <= lowered) node.outputs.resize(lowered + 1, kNone);
      node.outputs[lowered] = next;
      graph_.carries.push_back({weights, next});
    }
    return weights;
  }

  Graph& graph_;
  ArenaValues& arenas_;
};

}  // namespace

void lower_precision(Graph& graph, ArenaValues& arenas) {
  for (const Node& node : graph.nodes) {
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i] == kNone || !node.op->output_spec(i)->lowered) continue;
      DataType& dtype = graph.values[size_t(node.outputs[i])].type.dtype;
      if (dtype == DataType::Float32) dtype = DataType::Bfloat16;
    }
  }

  LoweredWeights weights(graph, arenas);
  Rewriter rewriter(graph);
  for (NodeId n = 0; n < rewriter.count(); ++n) {
    for (size_t i = 0; i < rewriter.node(n).inputs.size(); ++i) {
      const ValueId input = rewriter.input(n, i);
      if (input == kNone) continue;
      const Value& value = rewriter.value(input);
      const bool lowered = rewriter.node(n).op->input_spec(i)->lowered;
      if (value.type.dtype != (lowered ? DataType::Float32 : DataType::Bfloat16)) continue;
      if (lowered && (value.role == Role::Parameter || value.role == Role::Frozen)) {
        rewriter.set_input(n, i, weights.of(input));
        continue;
      }
      const DataType to = lowered ? DataType::Bfloat16 : DataType::Float32;
      const std::string name = fmt::format("{}.{}", value.name, name_of(to));
      rewriter.set_input(n, i, rewriter.add_before(n, "Cast", name, {input}, {{"to", onnx_number(to)}}));
    }
  }
  rewriter.finish();
}

}  // namespace arbalest
