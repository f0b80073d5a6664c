#include <fmt/format.h>

#include <algorithm>

#include "graph/autodiff.h"
#include "graph/op.h"
#include "graph/passes/passes.h"

namespace arbalest {
namespace {

constexpr int64_t kAlign = 64;  // elements: 256 bytes in float, 128 in bfloat16, so that every view suits vector loads

// Makes `members` views of one flat value, in order.
ValueId flatten_into(Graph& graph, const std::string& name, const std::vector<ValueId>& members, Role role) {
  int64_t offset = 0;
  const ValueId arena = graph.add_value(name, {DataType::Float32, {0}}, role);
  for (const ValueId member : members) {
    Value& value = graph.values[size_t(member)];
    value.view = {arena, offset * int64_t(sizeof(float))};
    offset += (value.type.elements() + kAlign - 1) / kAlign * kAlign;
  }
  graph.values[size_t(arena)].type.shape = {offset};
  return arena;
}

std::vector<ValueId> values_of(const Graph& graph, Role role) {
  std::vector<ValueId> found;
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (graph.values[v].role == role) found.push_back(ValueId(v));
  }
  return found;
}

ValueId flat_state(Graph& graph, const std::string& name, int64_t elements) {
  return graph.add_value(name, {DataType::Float32, {elements}}, Role::State);
}

// A gradient that two parameters share, or that follows the compute precision, is copied into a float value of its own.
void make_own(Graph& graph, std::vector<ValueId>& gradients) {
  std::vector<bool> taken(graph.values.size(), false);
  for (ValueId& gradient : gradients) {
    const Node& producer = graph.nodes[size_t(graph.values[size_t(gradient)].producer)];
    const auto place = std::find(producer.outputs.begin(), producer.outputs.end(), gradient) - producer.outputs.begin();
    const bool shared = taken[size_t(gradient)];
    taken[size_t(gradient)] = true;
    if (!shared && !producer.op->output_spec(size_t(place))->lowered) continue;
    const NodeId copy =
        graph.add_node(builtin_ops().get("arbalest.Cast"), graph.values[size_t(gradient)].name + ".float", {gradient},
                       1, {{"to", std::string("float")}});
    graph.nodes[size_t(copy)].stage = Stage::Backward;
    infer(graph, copy);
    gradient = graph.nodes[size_t(copy)].outputs[0];
  }
}

// Running means of all batch norms, then their variances in the same order: what merging them over learners stands on.
std::vector<ValueId> running_statistics(const Graph& graph) {
  constexpr size_t kMean = 3, kVariance = 4;  // inputs of BatchNormTraining
  std::vector<ValueId> means, variances;
  for (const Node& node : graph.nodes) {
    if (node.op->name != "BatchNormTraining") continue;
    means.push_back(node.inputs[kMean]);
    variances.push_back(node.inputs[kVariance]);
  }
  means.insert(means.end(), variances.begin(), variances.end());
  return means;
}

NodeId add_update_node(Graph& graph, std::string_view op, std::string name, std::vector<ValueId> inputs, int outputs,
                       Attributes attributes, Position where) {
  const NodeId node =
      graph.add_node(builtin_ops().get(op), std::move(name), std::move(inputs), outputs, std::move(attributes));
  graph.nodes[size_t(node)].stage = Stage::Update;
  graph.nodes[size_t(node)].where = where;
  infer(graph, node);
  return node;
}

// The mean gradient of several batches, in a sum of its own.
ValueId accumulate(Graph& graph, ValueId gradients, int64_t batches, Position where) {
  const ValueId sum = flat_state(graph, "accumulated", graph.values[size_t(gradients)].type.elements());
  const NodeId node = add_update_node(graph, "arbalest.Accumulate", "accumulate", {gradients, sum}, 1,
                                      {{"scale", 1.0 / double(batches)}}, where);
  const ValueId next = graph.nodes[size_t(node)].outputs[0];
  graph.carries.push_back({sum, next});
  return next;
}

}  // namespace

ArenaValues add_update(Graph& graph, ValueId loss, const Node& train, const UpdateOptions& options) {
  std::vector<ValueId> parameters = values_of(graph, Role::Parameter);
  const std::vector<ValueId> statistics = running_statistics(graph);
  if (parameters.empty()) fail(train, "the graph has no parameters to train");
  const size_t forward = graph.nodes.size();
  std::vector<ValueId> gradients = add_gradients(graph, loss, parameters);
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (gradients[i] != kNone) continue;
    fail(train, fmt::format("parameter '{}' does not influence the loss '{}'", graph.values[size_t(parameters[i])].name,
                            graph.values[size_t(loss)].name));
  }

  // The order in which backward finishes: by the node that makes the gradient.
  std::vector<size_t> order(parameters.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto finished = [&](size_t i) { return graph.values[size_t(gradients[i])].producer; };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return finished(a) < finished(b); });
  std::vector<ValueId> parameter_order, gradient_order;
  for (const size_t i : order) {
    if (finished(i) < NodeId(forward)) fail(train, "a gradient is not computed by backward");
    parameter_order.push_back(parameters[i]);
    gradient_order.push_back(gradients[i]);
  }

  make_own(graph, gradient_order);

  ArenaValues arenas;
  arenas.weights = flatten_into(graph, "weights", parameter_order, Role::Parameter);
  arenas.gradients = flatten_into(graph, "gradients", gradient_order, Role::State);
  if (!statistics.empty()) arenas.statistics = flatten_into(graph, "statistics", statistics, Role::State);
  for (size_t i = 0; i < parameter_order.size(); ++i) {
    graph.values[size_t(gradient_order[i])].name = graph.values[size_t(parameter_order[i])].name + ".gradient";
  }
  const int64_t elements = graph.values[size_t(arenas.weights)].type.elements();
  arenas.velocity = flat_state(graph, "velocity", elements);

  Attributes attributes;
  for (const char* name : {"momentum", "nesterov", "weight_decay"}) {
    if (const Attribute* value = train.attributes.find(name)) attributes.set(name, *value);
  }
  std::vector<ValueId> inputs = {arenas.gradients, arenas.weights, arenas.velocity};
  if (options.accumulate > 1) inputs[0] = accumulate(graph, arenas.gradients, options.accumulate, train.where);
  if (options.averaging) {
    arenas.average = flat_state(graph, "average", elements);
    arenas.averaged = flat_state(graph, "averaged", elements);
    inputs.insert(inputs.end(), {arenas.average, arenas.averaged});
  }
  const NodeId update = add_update_node(graph, "arbalest.Sgd", "update", std::move(inputs), options.averaging ? 4 : 2,
                                        std::move(attributes), train.where);
  auto& next = graph.nodes[size_t(update)].outputs;
  graph.carries.push_back({arenas.weights, next[0]});
  graph.carries.push_back({arenas.velocity, next[1]});
  if (options.averaging) {
    graph.carries.push_back({arenas.average, next[3]});
    next[2] = kNone;  // weights of a lower precision: lower_precision asks for them
  }
  return arenas;
}

ArenaValues adopt_arenas(Graph& graph, const Graph& training, const ArenaValues& arenas) {
  ArenaValues adopted;
  const auto adopt = [&](ValueId theirs, ValueId& ours, Role role) {
    if (theirs == kNone) return;
    const Value arena = training.values[size_t(theirs)];
    std::vector<ValueId> members = values_of(graph, role);
    ours = graph.add_value(arena.name, arena.type, Role::State);
    for (const ValueId member : members) {
      const ValueId same = training.find_value(graph.values[size_t(member)].name);
      if (same != kNone && training.values[size_t(same)].view.base == theirs) {
        graph.values[size_t(member)].view = {ours, training.values[size_t(same)].view.offset_bytes};
      }
    }
  };
  adopt(arenas.weights, adopted.weights, Role::Parameter);
  adopt(arenas.statistics, adopted.statistics, Role::State);
  return adopted;
}

ValueId add_tally(Graph& graph, const std::vector<ValueId>& metrics) {
  std::vector<ValueId> inputs = {
      graph.add_value("tally", {DataType::Float64, {int64_t(metrics.size()) + 1}}, Role::State)};
  inputs.insert(inputs.end(), metrics.begin(), metrics.end());
  const NodeId node = graph.add_node(builtin_ops().get("arbalest.Tally"), "tally.sum", inputs, 1);
  infer(graph, node);
  graph.carries.push_back({inputs[0], graph.nodes[size_t(node)].outputs[0]});
  return inputs[0];
}

}  // namespace arbalest
