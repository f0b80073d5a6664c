// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
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
  graph.carries.push_back({state, graph.nodes[node].output()});
  return state;
}

// The output of the value's node that holds its weight, after the operator's record; kNone: there is none.
int64_t weight_output(const Graph& graph, ValueId value) {
  const Node& node = graph.nodes[graph.values[value].producer];
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
  const NodeId id = graph.values[value].producer;
  const auto is_number = [&](ValueId weight) { return graph.values[weight].type.dtype != DataType::Token; };
  if (const auto& outputs = graph.nodes[id].outputs; output < outputs.size() && outputs[output] != kNone) {
    return is_number(outputs[output]) ? outputs[output] : kNone;
  }
  const std::vector<ValueId> before = graph.nodes[id].outputs;
  const ValueId weight = graph.add_value(fmt::format("{}.weight", graph.values[value].name), {DataType::Token, {}});
  graph.values[weight].producer = id;
  std::vector<ValueId>& outputs = graph.nodes[id].outputs;
  if (outputs.size() <= output) outputs.resize(output + 1, kNone);
  outputs[output] = weight;
  infer(graph, id);
  if (is_number(weight)) return weight;
  graph.nodes[id].outputs = before;
  graph.values[weight].producer = kNone;
  return kNone;
}

// Whether each value depends on the samples of a batch, through operators other than metrics only if `metrics` is
// false.
Table<ValueId, bool> of_samples(const Graph& graph, bool metrics = true) {
  Table<ValueId, bool> depends(graph.values.size(), false);
  for (const ValueId v : depends.ids()) depends[v] = graph.values[v].role == Role::Input;
  for (const Node& node : graph.nodes) {
    bool any = node.is(op::Prefetch);
    for (const ValueId input : node.inputs) any = any || (input != kNone && depends[input]);
    if (node.op->metric && !metrics) any = false;
    for (const ValueId output : node.outputs) {
      if (output != kNone) depends[output] = any;
    }
  }
  return depends;
}

bool are_equal(const Graph& graph, ValueId a, ValueId b) {
  if (computes_the_same(graph, a, b)) return true;
  if (a == kNone || b == kNone || !(graph.values[a].type == graph.values[b].type)) return false;
  const auto first = content_of(graph, a), second = content_of(graph, b);
  return first && second && *first == *second;
}

bool are_equal(const Attributes& a, const Attributes& b) {
  const auto holds = [](const Attributes& all, const Attributes& some) {
    return std::all_of(some.begin(), some.end(), [&](const NamedAttribute& each) {
      const Attribute* other = all.find(each.name);
      return other && *other == each.value;
    });
  };
  return holds(a, b) && holds(b, a);
}

// Whether two weights are the same number: those of one operator's outputs of the same name that compare other scores
// with the same labels.
bool are_same(const Graph& graph, ValueId a, ValueId b) {
  if (a == b) return true;
  const Node& first = graph.nodes[graph.values[a].producer];
  const Node& second = graph.nodes[graph.values[b].producer];
  const auto place = [](const Node& node, ValueId value) {
    return std::find(node.outputs.begin(), node.outputs.end(), value) - node.outputs.begin();
  };
  if (first.op != second.op || place(first, a) != place(second, b)) return false;
  const auto ignored = [](const Node& node) {
    return node.op->attribute_spec("ignore_index") ? ints_attribute(node, "ignore_index") : std::vector<int64_t>();
  };
  if (ignored(first) != ignored(second)) return false;
  const auto scores = [&](const Node& node) { return graph.values[node.input()].type.shape; };
  if (scores(first) != scores(second)) return false;
  for (size_t i = 1; i < std::max(first.inputs.size(), second.inputs.size()); ++i) {
    if (!are_equal(graph, first.input(i), second.input(i))) return false;
  }
  return true;
}

// Whether the node leaves the one number that it reads as it is. Its shape may change.
bool passes_number_on(const Node& node) {
  return node.op->arithmetic == Arithmetic::Keeps;
}

// Finds means among the values of a graph.
class Means {
 public:
  explicit Means(Graph& graph) : graph_(graph), depends_(of_samples(graph)) {}

  // The weight of a value that is a mean over the samples of a batch, kNone for the valid samples; none: the value is
  // no such mean, but computed of several, or not linear in one.
  std::optional<ValueId> weight(ValueId value) {
    if (const auto known = weights_.find(value); known != weights_.end()) return known->second;
    return weights_[value] = find_weight(value);
  }

  // Whether the node makes one number of numbers that depend on samples, and of others that are known.
  bool is_function(const Node& node) {
    if (!node.op->cpu || node.op->random || node.op->side_effect || node.op->collective || node.op->metric)
      return false;
    return !terms_of(node).empty() && std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) {
      return input == kNone || (depends_[input] ? is_number(input) : content_of(graph_, input) != nullptr);
    });
  }
  bool depends(ValueId value) const { return depends_[value]; }

 private:
  std::optional<ValueId> find_weight(ValueId value) {
    const NodeId producer = graph_.values[value].producer;
    if (producer == kNone || !is_number(value)) return std::nullopt;
    if (const int64_t output = weight_output(graph_, value); output != kNone) {
      return ask_for(graph_, value, size_t(output));
    }
    const Node node = graph_.nodes[producer];
    const std::vector<ValueId> terms = terms_of(node);
    if (terms.empty() || node.op->metric ||
        !std::all_of(terms.begin(), terms.end(), [&](ValueId v) { return is_number(v); })) {
      return kNone;  // a mean over the rows of the batch, as far as can be known
    }
    if (!is_linear(node, terms)) return std::nullopt;
    const std::optional<ValueId> first = weight(terms[0]);
    for (size_t i = 1; i < terms.size() && first; ++i) {
      const std::optional<ValueId> other = weight(terms[i]);
      if (!other || (*first == kNone) != (*other == kNone)) return std::nullopt;
      if (*first != kNone && !are_same(graph_, *first, *other)) return std::nullopt;
    }
    return first;
  }

  // The inputs that depend on samples.
  std::vector<ValueId> terms_of(const Node& node) const {
    std::vector<ValueId> terms;
    for (const ValueId input : node.inputs) {
      if (input != kNone && depends_[input]) terms.push_back(input);
    }
    return terms;
  }

  // Whether it is a scalar, or made of scalars alone. Of a batch of 1 a value with samples has one element as well.
  bool is_number(ValueId id) {
    const Value& value = graph_.values[id];
    if (value.type.shape.empty()) return true;
    if (value.type.elements() != 1 || value.producer == kNone) return false;
    if (const auto known = numbers_.find(id); known != numbers_.end()) return known->second;
    const std::vector<ValueId> terms = terms_of(graph_.nodes[value.producer]);
    return numbers_[id] =
               !terms.empty() && std::all_of(terms.begin(), terms.end(), [&](ValueId term) { return is_number(term); });
  }

  static bool is_linear(const Node& node, const std::vector<ValueId>& terms) {
    switch (node.op->arithmetic) {
      case Arithmetic::Keeps:
      case Arithmetic::Adds:
      case Arithmetic::Averages: return true;
      case Arithmetic::Scales: return terms.size() == 1;
      case Arithmetic::Divides: return terms.size() == 1 && terms[0] == node.input();
      case Arithmetic::Other: return false;
    }
    return false;
  }

  Graph& graph_;
  Table<ValueId, bool> depends_;
  std::map<ValueId, std::optional<ValueId>> weights_;
  std::map<ValueId, bool> numbers_;
};

// The value's node and those before it, down to means, which become inputs of the function in the order of `means`.
class FunctionOfMeans {
 public:
  FunctionOfMeans(Graph& graph, MeasuredMeans& result) : graph_(graph), means_(graph), result_(result) {}

  ValueId add(ValueId value) {
    if (const auto known = made_.find(value); known != made_.end()) return known->second;
    return made_[value] = is_inner(value) ? node_of(value) : input_of(value);
  }
  bool is_inner(ValueId value) {
    const NodeId producer = graph_.values[value].producer;
    return producer != kNone && means_.depends(value) && !means_.weight(value) &&
           means_.is_function(graph_.nodes[producer]);
  }

 private:
  ValueId input_of(ValueId value) {
    const Value& from = graph_.values[value];
    Value input{from.name, from.type, Role::Constant};
    if (!means_.depends(value)) {
      input.initializer = {Initializer::Kind::Data, 0, content_of(graph_, value)};
      return result_.function.add_value(std::move(input));
    }
    const std::optional<ValueId> weight = means_.weight(value);
    if (!weight) result_.of_batches = true;
    result_.means.push_back({value, weight.value_or(kNone)});
    result_.inputs.push_back(result_.function.add_value(std::move(input)));
    return result_.inputs.back();
  }

  ValueId node_of(ValueId value) {
    const Node node = graph_.nodes[graph_.values[value].producer];
    std::vector<ValueId> inputs;
    for (const ValueId input : node.inputs) inputs.push_back(input == kNone ? kNone : add(input));
    const NodeId id =
        result_.function.add_node(*node.op, node.name, std::move(inputs), int(node.outputs.size()), node.attributes);
    infer(result_.function, id);
    const auto place = std::find(node.outputs.begin(), node.outputs.end(), value) - node.outputs.begin();
    return result_.function.nodes[id].outputs[size_t(place)];
  }

  Graph& graph_;
  Means means_;
  MeasuredMeans& result_;
  std::map<ValueId, ValueId> made_;
};

}  // namespace

ValueId weight_of(Graph& graph, ValueId value) {
  return Means(graph).weight(value).value_or(kNone);
}

bool is_mean(Graph& graph, ValueId value) {
  return Means(graph).weight(value).has_value();
}

bool counts_samples(const Graph& graph, ValueId value) {
  if (value == kNone) return false;
  const TensorType& type = graph.values[value].type;
  if (content_of(graph, value)) {
    const std::optional<double> number = number_of(graph, value);
    return type.elements() == 1 && type.dtype == DataType::Float32 && *number == std::round(*number);
  }
  const NodeId producer = graph.values[value].producer;
  if (producer == kNone) return false;
  const Node& node = graph.nodes[producer];
  if (node.op->metric && node.output() == value) return node.op->metric->counts;
  const auto place = std::find(node.outputs.begin(), node.outputs.end(), value) - node.outputs.begin();
  const OperandSpec* spec = node.op->output_spec(size_t(place));
  if (spec && spec->name == "accuracy") return true;  // counted by the kernel of a loss
  const bool alone = passes_number_on(node);
  const bool whole = node.op->arithmetic == Arithmetic::Adds || node.op->arithmetic == Arithmetic::Scales;
  if (!alone && !whole) return false;
  return std::all_of(node.inputs.begin(), node.inputs.begin() + (alone ? 1 : std::ptrdiff_t(node.inputs.size())),
                     [&](ValueId input) { return counts_samples(graph, input); });
}

MeasuredMeans measured_means(Graph& graph, ValueId value) {
  MeasuredMeans result;
  result.function.registry = graph.registry;
  FunctionOfMeans function(graph, result);
  const ValueId output = function.add(value);
  result.function.outputs = {output};
  const bool scalars = std::all_of(result.means.begin(), result.means.end(), [&](const TalliedMean& mean) {
    return graph.values[mean.value].type.shape.empty();
  });
  if (!scalars) return {{{value, weight_of(graph, value)}}, {}, {}, !is_mean(graph, value)};
  return result;
}

bool computes_the_same(const Graph& graph, ValueId a, ValueId b) {
  while (a != b) {
    const NodeId first = a == kNone ? kNone : graph.values[a].producer;
    const NodeId second = b == kNone ? kNone : graph.values[b].producer;
    if (first == kNone || second == kNone) return false;
    const Node &x = graph.nodes[first], &y = graph.nodes[second];
    const bool copies = x.op == y.op && !x.op->random && !x.op->side_effect && are_equal(x.attributes, y.attributes);
    if (!copies || x.inputs.size() != 1 || y.inputs.size() != 1 || x.output() != a || y.output() != b) return false;
    a = x.input();
    b = y.input();
  }
  return true;
}

bool reads_padding(const Graph& graph, ValueId value) {
  return of_samples(graph, false)[value];
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
  return add_state(graph, "tally", type, op::Tally, inputs, std::move(attributes));
}

ValueId add_rows(Graph& graph, ValueId rows, int64_t batches, int64_t devices) {
  const Value of = graph.values[rows];
  const TensorType type{of.type.dtype, {batches * of.type.shape[0], of.type.shape[1]}};
  return add_state(graph, of.name + ".rows", type, op::KeepRows, {rows}, {{"devices", devices}});
}

MetricSpec metric_of(const Graph& graph, ValueId value) {
  const NodeId producer = graph.values[value].producer;
  const Node* node = producer == kNone ? nullptr : &graph.nodes[producer];
  if (node && node->op->metric && node->output() == value) return *node->op->metric;
  return {};
}

std::optional<MetricSpec::Better> better_of(const Graph& graph, ValueId value, ValueId loss) {
  if (value == kNone) return std::nullopt;
  if (value == loss) return MetricSpec::Better::Lower;
  const NodeId producer = graph.values[value].producer;
  if (producer == kNone) return std::nullopt;
  const Node& node = graph.nodes[producer];
  if (node.op->metric && node.output() == value) return node.op->metric->better;
  if (passes_number_on(node)) return better_of(graph, node.input(), loss);
  if (!node.is(op::Add)) return std::nullopt;
  std::optional<MetricSpec::Better> all;
  for (const ValueId input : node.inputs) {
    const std::optional<MetricSpec::Better> one = better_of(graph, input, loss);
    if (!one || (all && *one != *all)) return std::nullopt;
    all = one;
  }
  return all;
}

}  // namespace arbalest
