// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "graph/name_patterns.h"
#include "graph/op.h"
#include "ops/norm/batch_norms.h"
#include "passes/passes.h"

namespace arbalest {
namespace {

// Parameters, buffers of models, which are frozen already, and the statistics of batch norms.
std::vector<ValueId> values_of_the_model(const Graph& graph) {
  std::vector<ValueId> found;
  for (const ValueId v : graph.values.ids()) {
    if (graph.values[v].role == Role::Parameter || graph.values[v].role == Role::Frozen) found.push_back(v);
  }
  for (const Node& node : graph.nodes) {
    if (!is_batch_norm(node)) continue;
    for (const size_t i : {BatchNormInput::Mean, BatchNormInput::Variance}) {
      if (graph.values[node.inputs[i]].role == Role::State) found.push_back(node.inputs[i]);
    }
  }
  return found;
}

// Whether a batch norm in training mode is to run by its running statistics from now on.
bool is_frozen(const Graph& graph, const Node& node, const Node& train) {
  const auto frozen = [&](size_t input) { return graph.values[node.inputs[input]].role == Role::Frozen; };
  if (frozen(BatchNormInput::Scale) && frozen(BatchNormInput::Bias)) return true;
  if (frozen(BatchNormInput::Mean) != frozen(BatchNormInput::Variance)) {
    const auto name = [&](bool which) {
      const size_t place = frozen(BatchNormInput::Mean) == which ? BatchNormInput::Mean : BatchNormInput::Variance;
      return graph.values[node.inputs[place]].name;
    };
    fail(train,
         fmt::format("attribute 'frozen' has '{}' without '{}'; the statistics of a batch norm are frozen together",
                     name(true), name(false)));
  }
  return frozen(BatchNormInput::Mean);
}

}  // namespace

bool is_batch_norm(const Node& node) {
  return node.is(op::BatchNormTraining) || node.is(op::BatchNormInference);
}

void freeze(Graph& graph, const Node& train) {
  const std::vector<ValueId> values = values_of_the_model(graph);
  std::vector<std::string> names;
  for (const ValueId value : values) names.push_back(graph.values[value].name);
  const std::vector<std::string> patterns = name_patterns(train, "frozen", names);
  for (const ValueId value : values) {
    Value& known = graph.values[value];
    if (first_fit(known.name, patterns) < patterns.size()) known.role = Role::Frozen;
  }
  for (const NodeId n : graph.nodes.ids()) {
    if (!is_batch_norm(graph.nodes[n])) continue;
    const bool training = graph.nodes[n].is(op::BatchNormTraining);
    if (training && !is_frozen(graph, graph.nodes[n], train)) continue;
    const std::vector<ValueId> inputs = graph.nodes[n].inputs;
    for (const size_t i : {BatchNormInput::Mean, BatchNormInput::Variance}) {
      Role& role = graph.values[inputs[i]].role;
      if (role == Role::Parameter || role == Role::State) role = Role::Frozen;
      std::erase_if(graph.carries, [&](const Carry& carry) { return carry.current == inputs[i]; });
    }
    if (!training) continue;
    const std::vector<ValueId> outputs = graph.nodes[n].outputs;
    graph.nodes[n].op->for_inference(graph, n);
    for (size_t i = graph.nodes[n].outputs.size(); i < outputs.size(); ++i) {
      if (outputs[i] != kNone) graph.values[outputs[i]].producer = kNone;  // new statistics are no more
    }
  }
}

}  // namespace arbalest
