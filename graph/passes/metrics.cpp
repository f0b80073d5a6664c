#include <optional>

#include "graph/op.h"
#include "graph/passes/passes.h"

namespace arbalest {
namespace {

// The state that `op` updates from `inputs`.
ValueId add_state(Graph& graph, std::string name, TensorType type, std::string_view op, std::vector<ValueId> inputs,
                  Attributes attributes) {
  const ValueId state = graph.add_value(name, std::move(type), Role::State);
  inputs.insert(inputs.begin(), state);
  const NodeId node = graph.add_node(builtin_ops().get(op), name + ".sum", std::move(inputs), 1, std::move(attributes));
  infer(graph, node);
  graph.carries.push_back({state, graph.nodes[size_t(node)].outputs[0]});
  return state;
}

}  // namespace

ValueId add_tally(Graph& graph, const std::vector<TalliedMean>& metrics, ValueId factor) {
  std::vector<ValueId> inputs, weights;
  std::vector<int64_t> weighed;
  for (const TalliedMean& metric : metrics) {
    if (metric.weight != kNone) {
      weighed.push_back(int64_t(inputs.size()));
      weights.push_back(metric.weight);
    }
    inputs.push_back(metric.value);
  }
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  TensorType type{DataType::Float64, {int64_t(inputs.size()) + 1}};
  Attributes attributes;
  if (!weighed.empty()) attributes.set("weighed", weighed);
  if (factor != kNone) {
    type.shape[0] += 2;
    inputs.push_back(factor);
    attributes.set("skips", int64_t{1});
  }
  return add_state(graph, "tally", type, "arbalest.Tally", inputs, std::move(attributes));
}

ValueId add_rows(Graph& graph, ValueId rows, int64_t batches, int64_t devices) {
  const Value of = graph.values[size_t(rows)];
  const TensorType type{of.type.dtype, {batches * of.type.shape[0], of.type.shape[1]}};
  return add_state(graph, of.name + ".rows", type, "arbalest.KeepRows", {rows}, {{"devices", devices}});
}

MetricSpec metric_of(const Graph& graph, ValueId value) {
  const NodeId producer = graph.values[size_t(value)].producer;
  const Node* node = producer == kNone ? nullptr : &graph.nodes[size_t(producer)];
  if (node && node->op->metric && node->outputs[0] == value) return *node->op->metric;
  return {};
}

std::optional<MetricSpec::Better> better_of(const Graph& graph, ValueId value, ValueId loss) {
  if (value == kNone) return std::nullopt;
  if (value == loss) return MetricSpec::Better::Lower;
  const NodeId producer = graph.values[size_t(value)].producer;
  if (producer == kNone) return std::nullopt;
  const Node& node = graph.nodes[size_t(producer)];
  if (node.op->metric && node.outputs[0] == value) return node.op->metric->better;
  const std::string op = node.op->qualified_name();
  const bool passes_on = op == "Identity" || op == "Cast" || op == "Add";
  if (!passes_on) return std::nullopt;
  std::optional<MetricSpec::Better> all;
  for (const ValueId input : node.inputs) {
    const std::optional<MetricSpec::Better> one = better_of(graph, input, loss);
    if (!one || (all && *one != *all)) return std::nullopt;
    all = one;
  }
  return all;
}

}  // namespace arbalest
