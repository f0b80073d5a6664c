// SPDX-License-Identifier: Apache-2.0
#include "tests/ops/vectors/run_graph.h"

#include <fmt/format.h>

#include "io/formats/layout.h"
#include "passes/passes.h"

namespace arbalest::test {
namespace {

Tensor to_memory(const TensorType& type, const std::vector<std::byte>& row_major) {
  Tensor tensor{type, std::vector<std::byte>(row_major.size())};
  if (!row_major.empty()) to_memory_order(type, row_major.data(), tensor.bytes.data());
  return tensor;
}

Logical to_logical(const Tensor& tensor) {
  Tensor row_major = tensor;
  if (!tensor.bytes.empty()) {
    to_row_major(tensor.type, tensor.bytes.data(), row_major.bytes.data());
  }
  return {{tensor.type.dtype, tensor.type.shape}, values_of(row_major)};
}

Tensor initial(const Value& value) {
  const Initializer& initializer = value.initializer;
  if (initializer.kind == Initializer::Kind::Data) return to_memory(value.type, *initializer.data);
  if (initializer.kind != Initializer::Kind::Constant) throw RunError("'" + value.name + "' starts with random values");
  return make_tensor(value.type, std::vector<double>(size_t(value.type.elements()), initializer.a));
}

}  // namespace

void make_runnable(Graph& graph) {
  expand_layers(graph);
  place_layouts(graph);
  fold_constants(graph);
  open_group_norms(graph, false);
}

std::map<std::string, Logical> run_graph(TestDevice& device, const Graph& graph,
                                         const std::map<std::string, Logical>& inputs, const StepScalars& scalars) {
  Table<ValueId, Tensor> known(graph.values.size());
  for (const ValueId v : graph.values.ids()) {
    const Value& value = graph.values[v];
    if (value.role == Role::Input) {
      const Logical& given = inputs.at(value.name);
      if (given.type.shape != value.type.shape) throw RunError("'" + value.name + "' has another shape");
      known[v] = to_memory(value.type, make_tensor(value.type, given.values).bytes);
    } else if (value.role != Role::Activation) {
      known[v] = initial(value);
    }
  }
  for (const Node& node : graph.nodes) {
    if (!device.factory(*node.op)) {
      throw RunError(fmt::format("{} has no kernel for this device", node.op->qualified_name()));
    }
    std::vector<Tensor> operands;
    std::vector<TensorType> types;
    for (const ValueId value : node.inputs) {
      operands.push_back(value == kNone ? Tensor{{DataType::Token, {}}, {}} : known[value]);
    }
    for (const ValueId value : node.outputs) {
      types.push_back(value == kNone ? TensorType{DataType::Token, {}} : graph.values[value].type);
    }
    Outcome outcome = run_kernel(device, node, types, operands, {.scalars = scalars, .share_aliases = false});
    if (!outcome.fault.empty()) throw RunError(node.op->qualified_name() + ": " + outcome.fault);
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i] != kNone) known[node.outputs[i]] = std::move(outcome.outputs[i]);
    }
  }
  std::map<std::string, Logical> values;
  for (const ValueId v : graph.values.ids()) {
    const Tensor& tensor = known[v];  // values that expanded layers had are never computed
    if (int64_t(tensor.bytes.size()) == tensor.type.bytes()) values.emplace(graph.values[v].name, to_logical(tensor));
  }
  return values;
}

}  // namespace arbalest::test
