// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstring>
#include <map>

#include "graph/constants.h"
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
    const Value master = graph_.values[parameter];
    const bool frozen = master.role == Role::Frozen;
    ValueId& arena = frozen ? arenas_.frozen_lowered : arenas_.weights_lowered;
    if (arena == kNone) arena = frozen ? add_arena("frozen.bf16", arenas_.frozen, Role::Frozen) : add_weights();
    const std::string name = master.name + ".bf16";
    if (const ValueId made = graph_.find_value(name); made != kNone) return made;
    const TensorType type{DataType::Bfloat16, master.type.shape, master.type.layout};
    const ValueId lowered = graph_.add_value(name, type, master.role);
    graph_.values[lowered].view = {arena, master.view.offset_bytes / 2};
    return lowered;
  }

 private:
  ValueId add_arena(const std::string& name, ValueId master, Role role) {
    return graph_.add_value(name, {DataType::Bfloat16, graph_.values[master].type.shape}, role);
  }

  // The update writes them too.
  ValueId add_weights() {
    const ValueId weights = add_arena("weights.bf16", arenas_.weights, Role::State);
    const TensorType type = graph_.values[weights].type;
    for (Node& node : graph_.nodes) {
      if (!node.op->optimizer) continue;
      const size_t lowered = UpdateOperands(*node.op->optimizer).lowered();
      const ValueId next = graph_.add_value("update.bf16", type);
      graph_.values[next].producer = NodeId(&node - graph_.nodes.data());
      if (node.outputs.size() <= lowered) node.outputs.resize(lowered + 1, kNone);
      node.outputs[lowered] = next;
      graph_.carries.push_back({weights, next});
    }
    return weights;
  }

  Graph& graph_;
  ArenaValues& arenas_;
};

// Constants in bfloat16, each once.
class LoweredConstants {
 public:
  explicit LoweredConstants(Graph& graph) : graph_(graph) {}

  ValueId of(ValueId constant) {
    ValueId& lowered = lowered_.try_emplace(constant, kNone).first->second;
    if (lowered != kNone) return lowered;
    const Value& value = graph_.values[constant];
    Initializer initializer = value.initializer;
    if (initializer.kind == Initializer::Kind::Data) {
      std::vector<float> numbers(initializer.data->size() / sizeof(float));
      std::memcpy(numbers.data(), initializer.data->data(), initializer.data->size());
      initializer = data_of(std::vector<bfloat16>(numbers.begin(), numbers.end()));
    }
    const TensorType type{DataType::Bfloat16, value.type.shape, value.type.layout};
    lowered = graph_.add_value(value.name + ".bf16", type, Role::Constant);
    graph_.values[lowered].initializer = std::move(initializer);
    return lowered;
  }

 private:
  Graph& graph_;
  std::map<ValueId, ValueId> lowered_;
};

// Whether the node reads elements of any type and gives what it is asked for: a cast before it would be one too many.
bool casts(const Node& node) {
  return node.is(op::Cast);
}

// Sums of gradients are float, and so is what becomes of them: between both are no casts to bfloat16 and back, though
// the operator between, which only gives another shape, is one of lowered operands.
class CastsThereAndBack {
 public:
  explicit CastsThereAndBack(Graph& graph) : rewriter_(graph) {}

  void run() {
    for (const NodeId n : rewriter_.ids()) {
      if (is_cast(n, DataType::Bfloat16) && rewriter_.node(n).stage == Stage::Backward) leave_out(n);
    }
    rewriter_.finish();
  }

 private:
  bool is_cast(NodeId id, DataType to) const {
    return rewriter_.is(id, op::Cast) && !rewriter_.node(id).outputs.empty() &&
           rewriter_.value(rewriter_.output(id)).type.dtype == to;
  }
  bool reshapes(NodeId id) const { return rewriter_.reshapes(id) || rewriter_.is(id, op::TransposeInPlace); }

  void leave_out(NodeId down) {
    const ValueId sum = rewriter_.input(down);
    if (rewriter_.value(sum).type.dtype != DataType::Float32) return;
    std::vector<NodeId> between;
    NodeId next = rewriter_.only_reader(rewriter_.output(down));
    for (; next != kNone && reshapes(next); next = rewriter_.only_reader(rewriter_.output(next))) {
      between.push_back(next);
    }
    if (next == kNone || between.empty() || !is_cast(next, DataType::Float32)) return;
    const ValueId wanted = rewriter_.output(next);
    rewriter_.set_input(between.front(), sum);
    rewriter_.remove(next);
    rewriter_.set_outputs(between.back(), {wanted});
    for (const NodeId id : between) rewriter_.infer(id);
    rewriter_.remove(down);
  }

  Rewriter rewriter_;
};

}  // namespace

void lower_precision(Graph& graph, ArenaValues& arenas) {
  for (const Node& node : graph.nodes) {
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i] == kNone || !node.op->output_spec(i)->lowered) continue;
      DataType& dtype = graph.values[node.outputs[i]].type.dtype;
      if (dtype == DataType::Float32) dtype = DataType::Bfloat16;
    }
  }

  LoweredWeights weights(graph, arenas);
  LoweredConstants constants(graph);
  Rewriter rewriter(graph);
  for (const NodeId n : rewriter.ids()) {
    for (size_t i = 0; i < rewriter.node(n).inputs.size(); ++i) {
      const ValueId input = rewriter.input(n, i);
      if (input == kNone) continue;
      const Value& value = rewriter.value(input);
      const bool lowered = rewriter.node(n).op->input_spec(i)->lowered;
      if (value.type.dtype != (lowered ? DataType::Float32 : DataType::Bfloat16) || casts(rewriter.node(n))) continue;
      if (lowered && (value.role == Role::Parameter || value.role == Role::Frozen)) {
        rewriter.set_input(n, i, weights.of(input));
        continue;
      }
      if (lowered && value.role == Role::Constant && value.view.base == kNone) {
        rewriter.set_input(n, i, constants.of(input));
        continue;
      }
      const DataType to = lowered ? DataType::Bfloat16 : DataType::Float32;
      const std::string name = fmt::format("{}.{}", value.name, name_of(to));
      rewriter.set_input(n, i, rewriter.add_before(n, op::Cast, name, {input}, {{"to", onnx_number(to)}}));
    }
  }
  rewriter.finish();
  CastsThereAndBack(graph).run();
}

}  // namespace arbalest
