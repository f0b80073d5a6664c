// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "graph/constants.h"
#include "graph/op.h"
#include "passes/passes.h"

namespace arbalest {
namespace {

// The state that `op` updates from `inputs`.
ValueId add_state(Graph& graph, std::string name, TensorType type, std::string_view op, std::vector<ValueId> inputs,
                  Attributes attributes) {
  const ValueId state = graph.add_value(name, std::move(type), Role::State);
  inputs.insert(inputs.begin(), state);
  const NodeId node = graph.add_node(graph.op(op), name + ".sum", std::move(inputs), 1, std::move(attributes));
  infer(graph, node);
  graph.carries.push_back({state, graph.nodes[size_t(node)].outputs[0]});
  return state;
}

// The output of the value's node that holds its weight, after the operator's record; kNone: there is none.
int64_t weight_output(const Graph& graph, ValueId value) {
  const Node& node = graph.nodes[size_t(graph.values[size_t(value)].producer)];
  const auto place = std::find(node.outputs.begin(), node.outputs.end(), value) - node.outputs.begin();
  const OperandSpec* spec = node.op->output_spec(size_t(place));
  const auto& outputs = node.op->outputs;
  const auto found = std::find_if(outputs.begin(), outputs.end(), [&](const OperandSpec& other) {
    return spec && other.name == spec->name + "_weight";
  });
  return found == outputs.end() ? kNone : found - outputs.begin();
}

// Asks the node for it, unless it is asked already; kNone if the operator says, by a type that is no number, that
// samples weigh 1 each.
ValueId ask_for(Graph& graph, ValueId value, size_t output) {
  const NodeId id = graph.values[size_t(value)].producer;
  const auto is_number = [&](ValueId weight) { return graph.values[size_t(weight)].type.dtype != DataType::Token; };
  if (const auto& outputs = graph.nodes[size_t(id)].outputs; output < outputs.size() && outputs[output] != kNone) {
    return is_number(outputs[output]) ? outputs[output] : kNone;
  }
  const std::vector<ValueId> before = graph.nodes[size_t(id)].outputs;
  const ValueId weight =
      graph.add_value(fmt::format("{}.weight", graph.values[size_t(value)].name), {DataType::Token, {}});
  graph.values[size_t(weight)].producer = id;
  std::vector<ValueId>& outputs = graph.nodes[size_t(id)].outputs;
  if (outputs.size() <= output) outputs.resize(output + 1, kNone);
  outputs[output] = weight;
  infer(graph, id);
  if (is_number(weight)) return weight;
  graph.nodes[size_t(id)].outputs = before;
  graph.values[size_t(weight)].producer = kNone;
  return kNone;
}

// By value: whether it depends on the samples of a batch, through operators other than metrics only if `metrics` is
// false.
std::vector<bool> of_samples(const Graph& graph, bool metrics = true) {
  std::vector<bool> depends(graph.values.size(), false);
  for (size_t v = 0; v < depends.size(); ++v) depends[v] = graph.values[v].role == Role::Input;
  for (const Node& node : graph.nodes) {
    bool any = node.op->qualified_name() == "arbalest.Prefetch";
    for (const ValueId input : node.inputs) any = any || (input != kNone && depends[size_t(input)]);
    if (node.op->metric && !metrics) any = false;
    for (const ValueId output : node.outputs) {
      if (output != kNone) depends[size_t(output)] = any;
    }
  }
  return depends;
}

bool are_equal(const Graph& graph, ValueId a, ValueId b) {
  if (a == b) return true;
  if (a == kNone || b == kNone || !(graph.values[size_t(a)].type == graph.values[size_t(b)].type)) return false;
  const auto first = content_of(graph, a), second = content_of(graph, b);
  return first && second && *first == *second;
}

// Whether two weights are the same number: those of one operator's outputs of the same name that compare other scores
// with the same labels.
bool are_same(const Graph& graph, ValueId a, ValueId b) {
  if (a == b) return true;
  const Node& first = graph.nodes[size_t(graph.values[size_t(a)].producer)];
  const Node& second = graph.nodes[size_t(graph.values[size_t(b)].producer)];
  const auto place = [](const Node& node, ValueId value) {
    return std::find(node.outputs.begin(), node.outputs.end(), value) - node.outputs.begin();
  };
  if (first.op != second.op || place(first, a) != place(second, b)) return false;
  const auto ignored = [](const Node& node) {
    return node.op->attribute_spec("ignore_index") ? ints_attribute(node, "ignore_index") : std::vector<int64_t>();
  };
  if (ignored(first) != ignored(second)) return false;
  const auto scores = [&](const Node& node) { return graph.values[size_t(node.inputs[0])].type.shape; };
  if (scores(first) != scores(second)) return false;
  const auto input = [](const Node& node, size_t i) { return i < node.inputs.size() ? node.inputs[i] : kNone; };
  for (size_t i = 1; i < std::max(first.inputs.size(), second.inputs.size()); ++i) {
    if (!are_equal(graph, input(first, i), input(second, i))) return false;
  }
  return true;
}

// Operators whose scalar result is a mean over the same samples as the scalars that it is made of.
bool is_linear(const Node& node) {
  static const std::set<std::string_view> names = {"Identity", "Cast", "Neg", "Add", "Sub", "Sum", "Mul", "Div"};
  return names.contains(node.op->qualified_name());
}

}  // namespace

ValueId weight_of(Graph& graph, ValueId value) {
  const NodeId producer = graph.values[size_t(value)].producer;
  if (producer == kNone || !graph.values[size_t(value)].type.shape.empty()) return kNone;
  if (const int64_t output = weight_output(graph, value); output != kNone) {
    return ask_for(graph, value, size_t(output));
  }
  const Node node = graph.nodes[size_t(producer)];
  if (!is_linear(node)) return kNone;
  const std::vector<bool> depends = of_samples(graph);
  std::vector<ValueId> terms;
  for (const ValueId input : node.inputs) {
    if (input != kNone && depends[size_t(input)]) terms.push_back(input);
  }
  const std::string op = node.op->qualified_name();
  if (terms.empty() || (terms.size() > 1 && (op == "Mul" || op == "Div")) ||
      (op == "Div" && terms[0] != node.inputs[0]))
    return kNone;
  const ValueId weight = weight_of(graph, terms[0]);
  for (size_t i = 1; i < terms.size() && weight != kNone; ++i) {
    const ValueId other = weight_of(graph, terms[i]);
    if (other == kNone || !are_same(graph, weight, other)) return kNone;
  }
  return weight;
}

bool reads_padding(const Graph& graph, ValueId value) {
  return of_samples(graph, false)[size_t(value)];
}

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
