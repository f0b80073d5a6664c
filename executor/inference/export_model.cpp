// SPDX-License-Identifier: Apache-2.0
#include "executor/inference/export_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/process.h"
#include "base/setting.h"
#include "executor/inference/classification.h"
#include "executor/inference/fields_without_data.h"
#include "executor/inference/opset_forms.h"
#include "executor/session/state.h"
#include "graph/constants.h"
#include "graph/name_patterns.h"
#include "graph/op.h"
#include "ops/names.h"
#include "ops/norm/batch_norms.h"
#include "passes/passes.h"
#include "passes/samples_apart.h"

namespace arbalest {
namespace {

constexpr size_t kMostFaults = 20;  // of the weights' file that are reported at once

std::vector<float> floats_of(const Value& value) {
  std::vector<float> numbers(size_t(value.type.elements()));
  std::memcpy(numbers.data(), value.initializer.data->data(), numbers.size() * sizeof(float));
  return numbers;
}

template <typename T>
ValueId add_constant(Graph& graph, const std::string& name, DataType dtype, Shape shape,
                     const std::vector<T>& numbers) {
  const ValueId id = graph.add_value(name, {dtype, std::move(shape)}, Role::Constant);
  graph.values[id].initializer = data_of(numbers);
  return id;
}

// Appends a node and returns its output; nodes are put in order at the end.
ValueId append(Graph& graph, std::string_view op, const std::string& name, std::vector<ValueId> inputs,
               Attributes attributes = {}) {
  const NodeId node = graph.add_node(graph.op(op), name, std::move(inputs), 1, std::move(attributes));
  infer(graph, node);
  return graph.nodes[node].outputs[0];
}

// Nodes in an order in which every input comes before its readers; those that `output` does not need are dropped.
void order_for(Graph& graph, ValueId output) {
  Table<NodeId, int64_t> key(graph.nodes.size(), -1);
  int64_t next = 0;
  struct Visit {
    NodeId node;
    size_t input;
  };
  std::vector<Visit> open;
  Table<NodeId, bool> seen(graph.nodes.size(), false);
  const auto enter = [&](ValueId value) {
    const NodeId producer = value == kNone ? kNone : graph.values[value].producer;
    if (producer == kNone || seen[producer]) return;
    seen[producer] = true;
    open.push_back({producer, 0});
  };
  enter(output);
  while (!open.empty()) {
    const std::vector<ValueId>& inputs = graph.nodes[open.back().node].inputs;
    if (open.back().input < inputs.size()) {
      enter(inputs[open.back().input++]);
    } else {
      key[open.back().node] = next++;
      open.pop_back();
    }
  }
  reorder_nodes(graph, key);
}

class Exporter {
 public:
  Exporter(Graph graph, const SessionOptions& options, const ExportOptions& exported)
      : graph_(std::move(graph)), options_(options), exported_(exported) {}

  Graph run() {
    ValueId output = chosen_output();
    const std::optional<MixingNode> mixing = find_mixing(graph_);
    for (const Node& node : graph_.nodes) {
      if (node.is(op::AsStated)) as_stated_.insert(node.name);
    }
    expand_layers(graph_, false);
    find_dropouts(graph_);
    output = graph_.find_value(output_name_);
    for (const Value& value : graph_.values) {
      const bool kept = value.role == Role::Parameter || value.role == Role::Frozen || value.role == Role::State;
      if (kept) stored_names_.push_back(value.name);
    }
    graph_ = slice_validation(graph_, {output}, "test", mixing ? mixing->batch : batch_of(graph_));
    if (exported_.probabilities) output = add_probabilities(output);
    take_inputs(output);
    take_stated_types(output);
    order_for(graph_, output);
    put_weights();
    restore_batch_norms();
    spell_out_swish(output);
    if (exported_.fold_batch_norm) fold_batch_norms();
    graph_.opsets = {{"", put_in_opset(graph_)}};
    order_for(graph_, output);
    state_constant_operands();
    count_parts();
    drop_unused(output);
    check_operators();
    if (!mixing) open_batch();
    return std::move(graph_);
  }

 private:
  static int64_t batch_of(const Graph& graph) { return int_attribute(*graph.find_op(op::Prefetch), "batch"); }

  // Advice on --value for a graph of which no loss takes scores.
  std::string compared() const {
    std::vector<std::string> ways;
    for (const Node& node : graph_.nodes) {
      const std::string name = node.op->compares ? graph_.values[node.inputs[0]].name : "";
      const std::string chosen = set_to(SettingKey::Value, name);
      if (!name.empty() && std::find(ways.begin(), ways.end(), chosen) == ways.end()) ways.push_back(chosen);
    }
    return ways.empty() ? set_to(SettingKey::Value, "NAME") + " exports any value of the graph"
                        : fmt::format("{} exports what is compared with targets", fmt::join(ways, " or "));
  }

  // Advice for a graph of which no loss takes scores.
  std::string instead_of_scores() const {
    if (!exported_.probabilities) return compared();
    const std::string without =
        fmt::format("expected no {}, which are made of such scores", name_of(SettingKey::Probabilities));
    return output_name_.empty() ? without + "; " + compared() : without;
  }

  ValueId chosen_output() {
    output_name_ = exported_.value;
    if (output_name_.empty() || exported_.probabilities) {
      const Head head = head_of(graph_, output_name_, instead_of_scores());
      of_labels_ = head.labels;
      class_axis_ = head.axis;
      const bool chosen = !output_name_.empty();
      if (!chosen) output_name_ = head.scores;
      const std::string others = other_heads(graph_, head);
      if (!others.empty() && !chosen) {
        warn(fmt::format("the output is '{}'; {} exports {}", head.scores, name_of(SettingKey::Value), others));
      }
    }
    const ValueId output = graph_.find_value(output_name_);
    if (output != kNone) return output;
    std::vector<std::string> known;
    for (const Value& value : graph_.values) known.push_back(value.name);
    throw GraphError(
        fmt::format("graph '{}' has no value '{}'{}", graph_.name, output_name_, did_you_mean(output_name_, known)));
  }

  ValueId add_probabilities(ValueId scores) {
    if (of_labels_) return append(graph_, op::Sigmoid, "probabilities", {scores});
    return append(graph_, op::Softmax, "probabilities", {scores}, {{"axis", class_axis_}});
  }

  // Makes inputs of the graph out of Prefetch's outputs, of the outputs of host nodes and, without preprocessing, of
  // Augment's outputs. Updates `output` if that is replaced.
  void take_inputs(ValueId& output) {
    for (const NodeId n : graph_.nodes.ids()) {
      const Node node = graph_.nodes[n];
      if (!node.is(op::Augment)) continue;
      if (!exported_.preprocessing) {
        make_input(node.outputs[0]);
        continue;
      }
      const ValueId made = add_preprocessing(node);
      std::swap(graph_.values[made].name, graph_.values[node.outputs[0]].name);
      if (output == node.outputs[0]) output = made;
    }
    for (const Node& node : graph_.nodes) {
      if (!node.op->prepare && !node.is(op::Prefetch)) continue;
      for (const ValueId output : node.outputs) {
        if (output != kNone && graph_.values[output].type.dtype != DataType::String) make_input(output);
      }
    }
  }

  void make_input(ValueId value) {
    graph_.values[value].role = Role::Input;
    graph_.values[value].producer = kNone;
    graph_.inputs.push_back(value);
  }

  // Inputs that only calls of models read get the type that the models' files state, if it is one.
  void take_stated_types(ValueId output) {
    const Table<ValueId, std::vector<NodeId>> readers = graph_.consumers();
    for (const ValueId input : graph_.inputs) {
      std::set<DataType> stated;
      for (const NodeId n : readers[input]) {
        const Node& node = graph_.nodes[n];
        const bool states = as_stated_.contains(node.name) && node.outputs[0] != output;
        stated.insert(graph_.values[states ? node.outputs[0] : input].type.dtype);
      }
      if (stated.size() != 1 || *stated.begin() == graph_.values[input].type.dtype) continue;
      graph_.values[input].type.dtype = *stated.begin();
      for (const NodeId n : readers[input]) graph_.replace_uses(graph_.nodes[n].outputs[0], input);
    }
  }

  // (image / 255 − mean) / std as a product and a sum; zeros around it, scaling and the crop's middle follow.
  ValueId add_preprocessing(const Node& augment) {
    const ValueId image = augment.inputs[0];
    const Shape from = graph_.values[image].type.shape;
    std::vector<float> scale, shift;
    const auto channels = size_t(from[1]);
    const auto of = [&](std::vector<double> values, double fallback, size_t c) {
      return values.empty() ? fallback : values.size() == 1 ? values[0] : values[c];
    };
    for (size_t c = 0; c < channels; ++c) {
      const double mean = of(floats_attribute(augment, "mean"), 0, c),
                   deviation = of(floats_attribute(augment, "std"), 1, c);
      scale.push_back(float(1 / (255 * deviation)));
      shift.push_back(float(-mean / deviation));
    }
    const Shape each{from[1], 1, 1};
    const std::string name = augment.name + ".";
    ValueId value = append(graph_, op::Cast, name + "float", {image}, {{"to", int64_t{1}}});
    value = append(graph_, op::Mul, name + "scaled",
                   {value, add_constant(graph_, name + "scale", DataType::Float32, each, scale)});
    value = append(graph_, op::Add, name + "normalised",
                   {value, add_constant(graph_, name + "shift", DataType::Float32, each, shift)});
    if (!floats_attribute(augment, "area").empty()) value = resized(name, value, augment);
    value = crop(name, value, graph_.values[augment.outputs[0]].type.shape);
    graph_.replace_uses(augment.outputs[0], value);
    return value;
  }

  // The padded image, its shorter side `resize`, which Augment states for inference.
  ValueId resized(const std::string& name, ValueId value, const Node& augment) {
    if (const int64_t pad = int_attribute(augment, "pad"); pad > 0) {
      const std::vector<int64_t> pads{0, 0, pad, pad, 0, 0, pad, pad};
      value = append(graph_, op::Pad, name + "framed", {value}, {{"pads", pads}});
    }
    const Shape from = graph_.values[value].type.shape;
    const int64_t shorter = std::min(from[2], from[3]), resize = int_attribute(augment, "resize");
    const std::vector<int64_t> sizes{resize * from[2] / shorter, resize * from[3] / shorter};
    return append(graph_, op::Resize, name + "resized", {value},
                  {{"mode", "linear"}, {"axes", std::vector<int64_t>{2, 3}}, {"sizes", sizes}});
  }

  ValueId crop(const std::string& name, ValueId value, const Shape& to) {
    const Shape from = graph_.values[value].type.shape;
    std::vector<int64_t> pads(8, 0), starts, ends;
    bool pad = false, slice = false;
    for (size_t axis : {2, 3}) {
      // As Augment places the middle: with p pixels of zeros around, it begins at (2p + extent − wanted) / 2 − p.
      const int64_t begin = middle(from[axis], to[axis]), end = begin + to[axis];
      pads[axis] = std::max<int64_t>(0, -begin);
      pads[axis + 4] = std::max<int64_t>(0, end - from[axis]);
      starts.push_back(std::max<int64_t>(0, begin));
      ends.push_back(std::max<int64_t>(0, begin) + to[axis]);
      pad = pad || pads[axis] > 0 || pads[axis + 4] > 0;
      slice = slice || begin > 0 || end < from[axis];
    }
    if (pad) value = append(graph_, op::Pad, name + "padded", {value}, {{"pads", pads}});
    if (slice) {
      value = append(graph_, op::Slice, name + "cropped", {value},
                     {{"starts", starts}, {"ends", ends}, {"axes", std::vector<int64_t>{2, 3}}});
    }
    return value;
  }

  static int64_t middle(int64_t extent, int64_t wanted) {
    const int64_t rest = extent - wanted;
    return rest >= 0 ? rest / 2 : -((-rest + 1) / 2);  // p cancels out; rounded down
  }

  // Every stored value gets its content; statistics are values like the others from now on.
  void put_weights() {
    const FileOptions& files = options_.files;
    std::optional<WeightsFile> file;
    if (!files.weights.empty()) file.emplace(files.weights, files.weights_map);
    const std::vector<ValueId> stored = stored_values();
    const auto is_fresh = [&](ValueId id) {
      return first_fit(graph_.values[id].name, files.fresh) < files.fresh.size();
    };
    std::vector<std::string> read;
    for (const ValueId id : stored) {
      if (!is_fresh(id)) read.push_back(graph_.values[id].name);
    }
    if (file) {
      file->require(read);
      file->refuse_others(stored_names_);
    }
    std::vector<std::string> faults;
    for (const ValueId id : stored) {
      Value& value = graph_.values[id];
      const bool fresh = is_fresh(id);
      std::vector<std::byte> bytes;
      try {
        bytes = file && !fresh ? file->read(value)
                               : initial_content(graph_, id, options_.numerics.seed, thread_count(options_));
      } catch (const RunError& error) {
        faults.emplace_back(error.what());
        if (faults.size() < kMostFaults) continue;
        break;
      }
      value.initializer = {Initializer::Kind::Data, 0, std::make_shared<std::vector<std::byte>>(std::move(bytes))};
      value.role = Role::Parameter;
    }
    if (!faults.empty()) throw RunError(fmt::format("{}", fmt::join(faults, "\n")));
  }

  std::vector<ValueId> stored_values() const {
    const Table<ValueId, std::vector<NodeId>> readers = graph_.consumers();
    std::vector<ValueId> stored;
    for (const ValueId v : readers.ids()) {
      const Role role = graph_.values[v].role;
      const bool kept = role == Role::Parameter || role == Role::Frozen || role == Role::State;
      if (kept && !readers[v].empty()) stored.push_back(v);
    }
    return stored;
  }

  void restore_batch_norms() {
    for (Node& node : graph_.nodes) {
      if (!node.is(op::BatchNormInference)) continue;
      const double epsilon = float_attribute(node, "epsilon");
      node.op = &graph_.op(op::BatchNormalization);
      node.attributes = {{"epsilon", epsilon}};
    }
  }

  // ONNX has Swish from opset 24 on only: x · sigmoid(alpha · x).
  void spell_out_swish(ValueId& output) {
    const NodeId count = graph_.nodes.end_id();
    for (NodeId n = 0; n < count; ++n) {
      const Node swish = graph_.nodes[n];
      if (!swish.is(op::Swish)) continue;
      const ValueId x = swish.inputs[0];
      const double alpha = float_attribute(swish, "alpha");
      ValueId scaled = x;
      if (alpha != 1) {
        const ValueId factor =
            add_constant(graph_, swish.name + ".alpha", DataType::Float32, {}, std::vector<float>{float(alpha)});
        scaled = append(graph_, op::Mul, swish.name + ".scaled", {x, factor});
      }
      const ValueId gate = append(graph_, op::Sigmoid, swish.name + ".gate", {scaled});
      const ValueId product = append(graph_, op::Mul, swish.name + ".product", {x, gate});
      graph_.replace_uses(swish.outputs[0], product);
      std::swap(graph_.values[product].name, graph_.values[swish.outputs[0]].name);
      if (output == swish.outputs[0]) output = product;
    }
  }

  // A batch norm that alone reads a convolution multiplies its filters and adds to its bias.
  void fold_batch_norms() {
    const Table<ValueId, std::vector<NodeId>> readers = graph_.consumers();
    for (const NodeId n : graph_.nodes.ids()) {
      const Node norm = graph_.nodes[n];
      if (!norm.is(op::BatchNormalization)) continue;
      const NodeId c = graph_.values[norm.inputs[0]].producer;
      if (c == kNone || !graph_.nodes[c].is(op::Conv) || readers[norm.inputs[0]].size() != 1) {
        continue;
      }
      Node& conv = graph_.nodes[c];
      const bool own = readers[conv.inputs[ConvInput::W]].size() == 1;  // filters that others read stay as they are
      if (own && all_stored(norm) && all_stored(conv)) fold(norm, conv);
    }
  }

  // Whether the weights are known here: nodes may compute them, too.
  bool all_stored(const Node& node) const {
    return std::all_of(node.inputs.begin() + 1, node.inputs.end(), [&](ValueId input) {
      if (input == kNone) return true;
      const Value& value = graph_.values[input];
      return value.initializer.kind == Initializer::Kind::Data && value.initializer.data &&
             value.type.dtype == DataType::Float32;
    });
  }

  void fold(const Node& norm, Node& conv) {
    const auto numbers = [&](ValueId value) { return floats_of(graph_.values[value]); };
    using In = BatchNormInput;
    const std::vector<float> scale = numbers(norm.inputs[In::Scale]), shift = numbers(norm.inputs[In::Bias]),
                             mean = numbers(norm.inputs[In::Mean]), variance = numbers(norm.inputs[In::Variance]);
    const double epsilon = float_attribute(norm, "epsilon");
    std::vector<float> filters = numbers(conv.inputs[ConvInput::W]), bias(scale.size(), 0);
    if (conv.input(ConvInput::B) != kNone) bias = numbers(conv.inputs[ConvInput::B]);
    const size_t each = filters.size() / scale.size();
    for (size_t k = 0; k < scale.size(); ++k) {
      const double factor = scale[k] / std::sqrt(double(variance[k]) + epsilon);
      for (size_t i = 0; i < each; ++i) filters[k * each + i] = float(filters[k * each + i] * factor);
      bias[k] = float((double(bias[k]) - mean[k]) * factor + shift[k]);
    }
    graph_.values[conv.inputs[ConvInput::W]].initializer = data_of(filters);
    conv.inputs.resize(ConvInput::B + 1, kNone);
    conv.inputs[ConvInput::B] =
        graph_.add_value(conv.name + ".folded_bias", {DataType::Float32, {int64_t(bias.size())}}, Role::Parameter);
    graph_.values[conv.inputs[ConvInput::B]].initializer = data_of(bias);
    graph_.replace_uses(norm.outputs[0], conv.outputs[0]);
    if (graph_.values[norm.outputs[0]].name == output_name_) {  // the value keeps its name
      std::swap(graph_.values[norm.outputs[0]].name, graph_.values[conv.outputs[0]].name);
    }
  }

  // Newer opsets have operands where graphs may have attributes.
  void state_constant_operands() {
    for (const NodeId n : graph_.nodes.ids()) {
      const Op& op = *graph_.nodes[n].op;
      for (size_t i = 0; i < op.inputs.size(); ++i) {
        const Node& node = graph_.nodes[n];
        if (!op.inputs[i].constant || !node.attributes.find(op.inputs[i].name)) continue;
        const std::string& name = op.inputs[i].name;
        const ValueId value = constant_of(node, name, op.attribute_spec(name)->kind);
        Node& changed = graph_.nodes[n];
        changed.inputs.resize(std::max(changed.inputs.size(), i + 1), kNone);
        changed.inputs[i] = value;
        changed.attributes.erase(name);
      }
    }
  }

  // From opset 18 on a Split without extents has to say how many parts it makes.
  void count_parts() {
    for (Node& node : graph_.nodes) {
      constexpr size_t kExtents = 1;
      if (node.is(op::Split) && node.input(kExtents) == kNone) {
        node.attributes.set("num_outputs", int64_t(node.outputs.size()));
      }
    }
  }

  ValueId constant_of(const Node& node, const std::string& attribute, AttributeKind kind) {
    const std::string name = node.name + "." + attribute;
    const auto list = [](const auto& numbers) { return Shape{int64_t(numbers.size())}; };
    switch (kind) {
      case AttributeKind::Ints: {
        const std::vector<int64_t> numbers = ints_attribute(node, attribute);
        return add_constant(graph_, name, DataType::Int64, list(numbers), numbers);
      }
      case AttributeKind::Floats: {
        const std::vector<double> wide = floats_attribute(node, attribute);
        const std::vector<float> numbers(wide.begin(), wide.end());
        return add_constant(graph_, name, DataType::Float32, list(numbers), numbers);
      }
      case AttributeKind::Int:
        if (attribute == "training_mode") {
          return add_constant(graph_, name, DataType::Bool, {},
                              std::vector<uint8_t>{int_attribute(node, attribute) != 0});
        }
        return add_constant(graph_, name, DataType::Int64, {}, std::vector<int64_t>{int_attribute(node, attribute)});
      default:
        return add_constant(graph_, name, DataType::Float32, {},
                            std::vector<float>{float(float_attribute(node, attribute))});
    }
  }

  // Keeps only the nodes and inputs that the output needs; the rest of the training graph is removed.
  void drop_unused(ValueId output) {
    graph_.outputs = {output};
    const Table<ValueId, std::vector<NodeId>> readers = graph_.consumers();
    std::erase_if(graph_.inputs, [&](ValueId input) { return readers[input].empty() && input != output; });
    ArenaValues none;
    remove_dead(graph_, none);
  }

  void check_operators() const {
    ErrorList errors;
    for (const Node& node : graph_.nodes) {
      if (node.op->domain.empty()) continue;
      errors.attempt([&] { fail(node, "cannot be exported: ONNX has no such operator"); });
    }
    errors.throw_if_any();
  }

  // Inputs and outputs have any number of samples.
  void open_batch() {
    const auto open = [&](ValueId id) {
      Value& value = graph_.values[id];
      if (value.type.shape.empty()) return;
      value.declared = value.type;
      value.declared->shape[0] = -1;
    };
    for (const ValueId input : graph_.inputs) open(input);
    for (const ValueId output : graph_.outputs) open(output);
  }

  Graph graph_;
  const SessionOptions& options_;
  const ExportOptions& exported_;
  std::string output_name_;
  bool of_labels_ = false;                 // whether the output's probabilities are its sigmoid
  int64_t class_axis_ = -1;                // otherwise their softmax along this axis
  std::set<std::string> as_stated_;        // nodes that cast operands of models' calls
  std::vector<std::string> stored_names_;  // of the whole graph, of which one output is exported
};

}  // namespace

Graph export_model(Graph graph, const SessionOptions& options, const ExportOptions& exported) {
  SessionOptions chosen = options;
  if (!exported.fields.empty()) chosen.sources.validation = source_of_fields(exported.fields);
  return Exporter(prepare_inference(std::move(graph), chosen, {}).graph, options, exported).run();
}

}  // namespace arbalest
