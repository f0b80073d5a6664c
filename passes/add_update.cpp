// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "graph/constants.h"
#include "graph/name_patterns.h"
#include "graph/op.h"
#include "ops/loss/operands.h"
#include "ops/norm/batch_norms.h"
#include "passes/autodiff.h"
#include "passes/passes.h"

namespace arbalest {
namespace {

// Makes `members` views of one flat value, in order.
ValueId flatten_into(Graph& graph, const std::string& name, const std::vector<ValueId>& members, Role role) {
  int64_t offset = 0;
  const ValueId arena = graph.add_value(name, {DataType::Float32, {0}}, role);
  for (const ValueId member : members) {
    Value& value = graph.values[member];
    value.view = {arena, offset * int64_t(sizeof(float))};
    offset += (value.type.elements() + kParameterAlignment - 1) / kParameterAlignment * kParameterAlignment;
    memory_of(int64_t(sizeof(float)), offset, "the graph's parameters");
  }
  graph.values[arena].type.shape = {offset};
  return arena;
}

std::vector<ValueId> values_of(const Graph& graph, Role role) {
  std::vector<ValueId> found;
  for (const ValueId v : graph.values.ids()) {
    if (graph.values[v].role == role) found.push_back(v);
  }
  return found;
}

// The layer is what is wrong, not the training rule.
[[noreturn]] void fail_unused(const Graph& graph, ValueId parameter, ValueId loss, const Node& train) {
  const auto reads = [&](const Node& node) {
    return std::find(node.inputs.begin(), node.inputs.end(), parameter) != node.inputs.end();
  };
  const auto reader = std::find_if(graph.nodes.begin(), graph.nodes.end(), reads);
  fail(reader == graph.nodes.end() ? train : *reader,
       fmt::format("parameter '{}' does not influence the loss '{}', at least not past what stops gradients, so it "
                   "cannot be trained; leave out its node (for a called model, by its attribute 'outputs'), or name it "
                   "in Train's 'frozen'",
                   graph.values[parameter].name, graph.values[loss].name));
}

// Optimisers and the arenas that they work on have floats.
void check_floats(const Graph& graph, const std::vector<ValueId>& stored) {
  for (const ValueId id : stored) {
    const Value& value = graph.values[id];
    if (value.type.dtype == DataType::Float32) continue;
    throw GraphError(value.where,
                     fmt::format("parameter '{}' is {}, expected float; in PyTorch, model.float() makes all of them so",
                                 value.name, to_string(value.type)));
  }
}

ValueId flat_state(Graph& graph, const std::string& name, int64_t elements) {
  return graph.add_value(name, {DataType::Float32, {elements}}, Role::State);
}

// A gradient that two parameters share, or that follows the compute precision, is copied into a float value of its own.
void make_own(Graph& graph, std::vector<ValueId>& gradients) {
  Table<ValueId, bool> taken(graph.values.size(), false);
  for (ValueId& gradient : gradients) {
    const Node& producer = graph.nodes[graph.values[gradient].producer];
    const auto place = std::find(producer.outputs.begin(), producer.outputs.end(), gradient) - producer.outputs.begin();
    const bool shared = taken[gradient];
    taken[gradient] = true;
    if (!shared && !producer.op->output_spec(size_t(place))->lowered) continue;
    const NodeId copy = graph.add_node(graph.op(op::Cast), graph.values[gradient].name + ".own", {gradient}, 1,
                                       {{"to", onnx_number(DataType::Float32)}});
    graph.nodes[copy].stage = Stage::Backward;
    infer(graph, copy);
    gradient = graph.nodes[copy].output();
  }
}

// Running means of all batch norms, then their variances in the same order: what merging them over learners stands on.
std::vector<ValueId> running_statistics(const Graph& graph) {
  std::vector<ValueId> means, variances;
  for (const Node& node : graph.nodes) {
    if (!node.op->keeps_statistics) continue;
    means.push_back(node.inputs[BatchNormInput::Mean]);
    variances.push_back(node.inputs[BatchNormInput::Variance]);
  }
  means.insert(means.end(), variances.begin(), variances.end());
  return means;
}

NodeId add_update_node(Graph& graph, const Op& op, std::string name, std::vector<ValueId> inputs, int outputs,
                       Attributes attributes, Position where) {
  const NodeId node = graph.add_node(op, std::move(name), std::move(inputs), outputs, std::move(attributes));
  graph.nodes[node].stage = Stage::Update;
  graph.nodes[node].where = where;
  infer(graph, node);
  return node;
}

// The mean gradient of several batches, in a sum of its own.
ValueId accumulate(Graph& graph, ValueId gradients, int64_t batches, Position where) {
  const ValueId sum = flat_state(graph, "accumulated", graph.values[gradients].type.elements());
  const NodeId node = add_update_node(graph, graph.op(op::Accumulate), "accumulate", {gradients, sum}, 1,
                                      {{"scale", 1.0 / double(batches)}}, where);
  const ValueId next = graph.nodes[node].output();
  graph.carries.push_back({sum, next});
  return next;
}

// The factor of gradients, so that their norm stays within `norm`, if that is not 0. `weight`: the
// element that holds what they are to be divided by; -1: none.
ValueId clip_factor(Graph& graph, ValueId gradients, double norm, bool skips, int64_t weight, Position where) {
  Attributes attributes = {{"norm", norm}};
  if (skips) attributes.set("skip", int64_t{1});
  if (weight >= 0) attributes.set("weight", weight);
  const NodeId node =
      add_update_node(graph, graph.op(op::ClipFactor), "clip_factor", {gradients}, 1, std::move(attributes), where);
  return graph.nodes[node].output();
}

// exp(loss − loss): 1, or not a number if the loss is not finite, and then all gradients are too.
ValueId guarded_seed(Graph& graph, ValueId loss, Position where) {
  const auto add = [&](std::string_view op, const char* name, std::vector<ValueId> inputs) {
    const NodeId node = graph.add_node(graph.op(op), name, std::move(inputs), 1);
    graph.nodes[node].stage = Stage::Backward;
    graph.nodes[node].where = where;
    infer(graph, node);
    return graph.nodes[node].output();
  };
  return add(op::Exp, "loss_seed", {add(op::Sub, "loss_difference", {loss, loss})});
}

// The weight of a batch relative to a batch of nominal size whose samples weigh 1 each, and the seed of its gradients.
struct BatchWeight {
  ValueId share = kNone, seed = kNone;
};

// kNone if all batches of an update weigh the same.
BatchWeight batch_weight(Graph& graph, ValueId loss, const UpdateOptions& options, Position where) {
  if (options.accumulate == 1 && !options.sums) return {};
  const ValueId weight = weight_of(graph, loss);
  if (weight == kNone) return {};
  const Node& prefetch = *graph.find_op(op::Prefetch);
  std::vector<ValueId> inputs = {weight};
  if (options.skips) inputs.push_back(loss);
  const NodeId node = graph.add_node(graph.op(op::BatchWeight), "batch_weight", std::move(inputs), 2,
                                     {{"nominal", double(int_attribute(prefetch, "batch"))}});
  graph.nodes[node].stage = Stage::Backward;
  graph.nodes[node].where = where;
  infer(graph, node);
  return {graph.nodes[node].output(BatchWeightOutput::Share), graph.nodes[node].output(BatchWeightOutput::Seed)};
}

// Whether the layer has an output for each of the parameter's columns, not for each row: it is a matrix, the right
// operand of a product as it lies, or the left one transposed.
bool puts_out_columns(const Graph& graph, ValueId parameter) {
  if (graph.values[parameter].type.shape.size() != 2) return false;
  for (const Node& node : graph.nodes) {
    const bool flags = node.op->attribute_spec("transB") != nullptr;
    if (node.stage != Stage::Forward || !(flags || node.op == &graph.op(op::MatMul))) continue;
    if (node.input(BinaryInput::A) == parameter) return flags && int_attribute(node, "transA") != 0;
    if (node.input(BinaryInput::B) == parameter) return !flags || int_attribute(node, "transB") == 0;
  }
  return false;
}

// Decay and rate by parameter, as Train says.
class ParameterGroups {
 public:
  ParameterGroups(const Graph& graph, const std::vector<ValueId>& parameters, const Node& train,
                  const OptimizerSpec& optimizer)
      : graph_(graph), parameters_(parameters) {
    std::vector<std::string> names;
    for (const Value& value : graph.values) {
      if (value.role == Role::Parameter || value.role == Role::Frozen) names.push_back(value.name);
    }
    const std::vector<std::string> no_decay = name_patterns(train, "no_decay", names);
    const std::vector<std::string> rates = name_patterns(train, "rate_patterns", names);
    const std::vector<double> factors = floats_attribute(train, "rate_factors");
    const double decay = float_attribute(train, "weight_decay");
    const bool decay_norms = int_attribute(train, "decay_norms") != 0;
    const std::vector<std::string> vectors =
        optimizer.vectors.empty() ? std::vector<std::string>() : name_patterns(train, optimizer.vectors, names);
    const double vector_factor = optimizer.vector_factor.empty() ? 1 : float_attribute(train, optimizer.vector_factor);
    for (const ValueId parameter : parameters) {
      const Value& value = graph.values[parameter];
      const bool decays =
          (decay_norms || value.type.shape.size() > 1) && first_fit(value.name, no_decay) == no_decay.size();
      decays_.push_back(decays);
      const size_t rate = first_fit(value.name, rates);
      const int64_t rows = value.type.shape.empty() ? 1 : value.type.shape[0], elements = value.type.elements();
      matrices_.push_back(1 < rows && rows < elements && first_fit(value.name, vectors) == vectors.size());
      const Group group{decays ? decay : 0,
                        (rate < rates.size() ? factors[rate] : 1) * (matrices_.back() ? 1 : vector_factor)};
      const auto known = std::find(groups_.begin(), groups_.end(), group);
      of_.push_back(size_t(known - groups_.begin()));
      if (known == groups_.end()) groups_.push_back(group);
    }
    if (groups_.size() > kMostGroups) {
      fail(train, fmt::format("{} groups of parameters with a decay or a rate of their own; expected at most {}",
                              groups_.size(), kMostGroups));
    }
  }

  // Sets them in the attributes of an update. Returns its input `groups`; kNone if all parameters are alike.
  ValueId apply(Graph& graph, int64_t elements, Attributes& attributes) const {
    if (groups_.size() == 1 && groups_[0].rate_factor == 1) {
      attributes.set("weight_decay", groups_[0].decay);
      return kNone;
    }
    std::vector<double> decays, rate_factors;
    for (const Group& group : groups_) {
      decays.push_back(group.decay);
      rate_factors.push_back(group.rate_factor);
    }
    attributes.set("decays", decays);
    attributes.set("rate_factors", rate_factors);
    // A byte a block, which only a run that binds it to memory writes out: 0 except for the parts of other groups.
    const int64_t blocks = elements / kParameterAlignment;
    const ValueId groups = graph.add_value("parameter_groups", {DataType::Uint8, {blocks}}, Role::Constant);
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (of_[i] == 0) continue;
      const Value& value = graph.values[parameters_[i]];
      const int64_t begin = value.view.offset_bytes / int64_t(sizeof(float)) / kParameterAlignment;
      const int64_t count = (value.type.elements() + kParameterAlignment - 1) / kParameterAlignment;
      const ValueId part = graph.add_value(value.name + ".group", {DataType::Uint8, {count}}, Role::Constant);
      graph.values[part].view = {groups, begin};
      graph.values[part].initializer = {Initializer::Kind::Constant, double(of_[i]), nullptr};
    }
    return groups;
  }

  // The input `tensors` of an update with a rate by parameter. What no decay is asked for, as a rule biases and scales
  // of norms, keeps the rate that it has, as the papers' authors do.
  ValueId tensors(Graph& graph) const {
    std::vector<int32_t> rows;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const View& view = graph_.values[parameters_[i]].view;
      rows.push_back(int32_t(view.offset_bytes / int64_t(sizeof(float)) / kParameterAlignment));
      rows.push_back(decays_[i] ? 0 : 1);
    }
    const ValueId tensors =
        graph.add_value("parameter_tensors", {DataType::Int32, {int64_t(parameters_.size()), 2}}, Role::Constant);
    graph.values[tensors].initializer = data_of(rows);
    return tensors;
  }

  // The attribute `matrices` of an update, in the same order. The first axis is outermost in every layout.
  std::vector<int64_t> matrices() const {
    std::vector<int64_t> numbers;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const TensorType& type = graph_.values[parameters_[i]].type;
      const int64_t rows = matrices_[i] ? type.shape[0] : type.elements();
      const int64_t columns = matrices_[i] ? type.elements() / rows : 1;
      numbers.insert(numbers.end(), {rows, columns, int64_t(puts_out_columns(graph_, parameters_[i]))});
    }
    return numbers;
  }

 private:
  struct Group {
    double decay, rate_factor;
    bool operator==(const Group&) const = default;
  };
  const Graph& graph_;
  const std::vector<ValueId>& parameters_;
  std::vector<Group> groups_;
  std::vector<size_t> of_;      // by parameter
  std::vector<bool> decays_;    // by parameter: whether names and dimensions let it decay
  std::vector<bool> matrices_;  // by parameter: false for what an optimiser by matrix takes for a vector
};

struct Backward {
  ArenaValues arenas;
  std::vector<ValueId> parameters;  // in the arenas' order
  bool weighted = false;            // the batch's weight is behind the gradients
};

// Adds the nodes of the gradients, and lays the parameters and them out in the order in which backward finishes.
Backward add_backward(Graph& graph, ValueId loss, const Node& train, const UpdateOptions& options) {
  const std::vector<ValueId> parameters = values_of(graph, Role::Parameter);
  const std::vector<ValueId> statistics = running_statistics(graph);
  const std::vector<ValueId> frozen = values_of(graph, Role::Frozen);
  for (const auto& stored : {parameters, statistics, frozen}) check_floats(graph, stored);
  if (parameters.empty() && !frozen.empty()) fail(train, "all parameters are frozen; there is nothing to train");
  if (parameters.empty()) fail(train, "the graph has no parameters to train");
  const size_t forward = graph.nodes.size();
  const auto [weight, weighted_seed] = batch_weight(graph, loss, options, train.where);
  const ValueId seed = weight == kNone && options.skips ? guarded_seed(graph, loss, train.where) : weighted_seed;
  std::vector<ValueId> gradients = add_gradients(graph, loss, parameters, seed);
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (gradients[i] != kNone) continue;
    fail_unused(graph, parameters[i], loss, train);
  }

  // By the node that makes the gradient.
  std::vector<size_t> order(parameters.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto finished = [&](size_t i) { return graph.values[gradients[i]].producer; };
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
  std::vector<ValueId> summed = gradient_order;
  if (weight != kNone) summed.push_back(weight);
  arenas.gradients = flatten_into(graph, "gradients", summed, Role::State);
  if (!statistics.empty()) arenas.statistics = flatten_into(graph, "statistics", statistics, Role::State);
  if (!frozen.empty()) arenas.frozen = flatten_into(graph, "frozen", frozen, Role::Frozen);
  for (size_t i = 0; i < parameter_order.size(); ++i) {
    graph.rename(gradient_order[i], graph.values[parameter_order[i]].name + ".gradient");
  }
  return {std::move(arenas), std::move(parameter_order), weight != kNone};
}

}  // namespace

ArenaValues add_update(Graph& graph, ValueId loss, const Node& train, const UpdateOptions& options) {
  auto [arenas, parameters, weighted] = add_backward(graph, loss, train, options);
  const int64_t elements = graph.values[arenas.weights].type.elements();

  ValueId mean = arenas.gradients;
  if (options.accumulate > 1) mean = accumulate(graph, mean, options.accumulate, train.where);
  const Op& rule = *graph.registry->find_optimizer(string_attribute(train, "optimizer"));
  const UpdateOperands place(*rule.optimizer);
  std::vector<ValueId> inputs(place.inputs(), kNone);
  inputs[place.kGradients] = mean;
  inputs[place.kWeights] = arenas.weights;
  for (size_t k = 0; k < rule.optimizer->slots.size(); ++k) {
    const std::string& name = rule.optimizer->slots[k];
    arenas.slots.push_back({name, flat_state(graph, name, elements)});
    inputs[place.kFirstSlot + k] = arenas.slots.back().value;
  }
  if (options.averaging) {
    inputs[place.average()] = arenas.average = flat_state(graph, "average", elements);
  }
  const bool restarts = options.averaging && options.restarts;
  if (restarts) inputs[place.averaged()] = arenas.averaged = flat_state(graph, "averaged", elements);
  Attributes attributes;
  for (const AttributeSpec& spec : rule.attributes) {
    if (const Attribute* value = train.attributes.find(spec.name)) attributes.set(spec.name, *value);
  }
  if (const double norm = float_attribute(train, "clip_norm"); norm > 0 || options.skips || weighted) {
    inputs[place.clip()] = clip_factor(graph, mean, norm, options.skips, weighted ? elements : -1, train.where);
    if (options.skips) arenas.factor = inputs[place.clip()];
  }
  const ParameterGroups groups(graph, parameters, train, *rule.optimizer);
  inputs[place.groups()] = groups.apply(graph, elements, attributes);
  if (rule.optimizer->per_tensor) inputs[place.tensors()] = groups.tensors(graph);
  if (rule.optimizer->matrices) attributes.set("matrices", groups.matrices());
  while (inputs.back() == kNone) inputs.pop_back();
  const size_t outputs = restarts ? place.outputs() : place.lowered();
  const NodeId update =
      add_update_node(graph, rule, "update", std::move(inputs), int(outputs), std::move(attributes), train.where);
  auto& next = graph.nodes[update].outputs;
  graph.carries.push_back({arenas.weights, next[place.kNewWeights]});
  for (size_t k = 0; k < arenas.slots.size(); ++k) {
    graph.carries.push_back({arenas.slots[k].value, next[place.kFirstNewSlot + k]});
  }
  if (restarts) {
    graph.carries.push_back({arenas.average, next[place.restarted()]});
    const ValueId lowered = std::exchange(next[place.lowered()], kNone);  // lower_precision asks for these weights
    graph.values[lowered].producer = kNone;
  }
  return arenas;
}

ArenaValues add_weight_arenas(Graph& graph) {
  ArenaValues arenas;
  const auto add = [&](const char* name, const std::vector<ValueId>& members, Role role) {
    check_floats(graph, members);
    return members.empty() ? kNone : flatten_into(graph, name, members, role);
  };
  arenas.weights = add("weights", values_of(graph, Role::Parameter), Role::Parameter);
  arenas.statistics = add("statistics", running_statistics(graph), Role::State);
  arenas.frozen = add("frozen", values_of(graph, Role::Frozen), Role::Frozen);
  return arenas;
}

void keep_statistics(Graph& step, const ArenaValues& arenas) {
  if (arenas.statistics == kNone) return;
  const ValueId kept = flat_state(step, "kept_statistics", step.values[arenas.statistics].type.elements());
  const auto add = [&](std::string_view op, const char* name, std::vector<ValueId> inputs, Stage stage,
                       ValueId current) {
    const NodeId node = step.add_node(step.op(op), name, std::move(inputs), 1);
    step.nodes[node].stage = stage;
    infer(step, node);
    step.carries.push_back({current, step.nodes[node].output()});
    return step.nodes[node].output();
  };
  const NodeId before = step.nodes.end_id();
  const ValueId saved = add(op::KeepStatistics, "keep_statistics", {arenas.statistics, kept}, Stage::Forward, kept);
  add(op::RestoreStatistics, "restore_statistics", {arenas.statistics, saved, arenas.factor}, Stage::Update,
      arenas.statistics);
  // Before batch norms write theirs.
  Table<NodeId, int64_t> key(step.nodes.size());
  for (const NodeId n : key.ids()) key[n] = n == before ? 0 : int64_t(n) + 1;
  reorder_nodes(step, key);
}

ArenaValues adopt_arenas(Graph& graph, const Graph& training, const ArenaValues& arenas) {
  ArenaValues adopted;
  const auto adopt = [&](ValueId theirs, ValueId& ours, Role role) {
    if (theirs == kNone) return;
    const Value arena = training.values[theirs];
    const IdRange<ValueId> members = graph.values.ids();
    ours = graph.add_value(arena.name, arena.type, role);
    for (const ValueId v : members) {
      if (graph.values[v].role == Role::Activation) continue;
      const ValueId same = training.find_value(graph.values[v].name);
      if (same != kNone && training.values[same].view.base == theirs) {
        graph.values[v].view = {ours, training.values[same].view.offset_bytes};
      }
    }
  };
  adopt(arenas.weights, adopted.weights, Role::State);
  adopt(arenas.statistics, adopted.statistics, Role::State);
  adopt(arenas.frozen, adopted.frozen, Role::Frozen);
  return adopted;
}

bool updates_in_parts(const Node& update, const ArenaValues& arenas) {
  const UpdateOperands place(*update.op->optimizer);
  const auto has = [&](size_t input) { return input < update.inputs.size() && update.inputs[input] != kNone; };
  return !update.op->optimizer->per_tensor && !has(place.average()) && !has(place.averaged()) && !has(place.clip()) &&
         update.inputs[place.kGradients] == arenas.gradients;
}

}  // namespace arbalest
