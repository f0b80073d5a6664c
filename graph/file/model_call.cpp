// SPDX-License-Identifier: Apache-2.0
#include "graph/file/model_call.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "graph/file/float_types.h"
#include "graph/file/model_parameters.h"
#include "graph/file/sequences.h"
#include "graph/op.h"
#include "graph/samples/exported_batch.h"
#include "graph/samples/open_batch.h"

namespace arbalest {
namespace {

constexpr size_t kMostNodesTold = 8;  // of an operator that is not supported

std::string qualified_name(const SourceNode& node) {
  return node.domain.empty() || node.domain == "ai.onnx" ? node.op.text : node.domain + "." + node.op.text;
}

std::vector<std::string> names_of(const std::vector<SourceValue>& values) {
  std::vector<std::string> names;
  for (const SourceValue& value : values) {
    if (!value.data) names.push_back(value.name.text);  // text states initialisers among the inputs, too
  }
  return names;
}

std::string listed(const std::vector<std::string>& names) {
  return names.empty() ? "none" : fmt::format("'{}'", fmt::join(names, "', '"));
}

// A file's graph, cut down to what a call needs of it.
class Cut {
 public:
  Cut(const GraphSource& source, const OpRegistry& registry, const ModelCall& call)
      : whole_(source), registry_(registry), call_(call) {
    for (size_t n = 0; n < source.nodes.size(); ++n) {
      for (const SourceName& output : source.nodes[n].outputs) {
        const auto [first, added] = made_by_.emplace(output.text, n);
        if (added || output.text.empty()) continue;
        fail(fmt::format("value '{}' of model '{}' is defined twice, by {} and by {}; expected one of them",
                         output.text, call.name, described(source.nodes[first->second]), described(source.nodes[n])));
      }
    }
  }

  std::vector<std::string> operands(size_t given) const {
    std::vector<std::string> inputs = names_of(whole_.inputs);
    if (call_.inputs.empty()) {
      if (given > inputs.size()) {
        fail(fmt::format("{} operands are given to model '{}', which has the inputs {}", given, call_.name,
                         listed(inputs)));
      }
      inputs.resize(given);
      return inputs;
    }
    if (call_.inputs.size() != given) {
      fail(fmt::format("attribute 'inputs' of the call of model '{}' names {} inputs for {} operands", call_.name,
                       call_.inputs.size(), given));
    }
    for (size_t i = 0; i < given; ++i) {
      const std::string& name = call_.inputs[i];
      if (std::find(inputs.begin(), inputs.end(), name) == inputs.end()) {
        fail(fmt::format("model '{}' has no input '{}', its inputs are {}", call_.name, name, listed(inputs)));
      }
      if (std::find(call_.inputs.begin(), call_.inputs.begin() + int64_t(i), name) != call_.inputs.begin() + int64_t(i))
        fail(fmt::format("attribute 'inputs' of the call of model '{}' names '{}' twice", call_.name, name));
    }
    return call_.inputs;
  }

  GraphSource run(const std::vector<std::string>& operands, size_t results) {
    const std::vector<std::string> outputs = chosen_outputs(results);
    for (const std::string& output : outputs) need(output);
    check_operators();
    GraphSource cut;
    cut.file = whole_.file;
    cut.name = whole_.name;
    cut.producer = whole_.producer;
    cut.equal_is_same = whole_.equal_is_same;
    cut.names_weights = whole_.names_weights;
    cut.opsets = whole_.opsets;
    cut.opsets_place = whole_.opsets_place;
    cut.functions = whole_.functions;
    add_inputs(cut, operands);
    for (const SourceValue& input : whole_.inputs) {
      if (input.data && needed_.count(input.name.text)) cut.values.push_back(input);
    }
    // Declared types are those of the file's own inputs and batch; they are inferred anew.
    for (const SourceValue& value : whole_.values) {
      if (value.data && needed_.count(value.name.text)) cut.values.push_back(value);
    }
    for (size_t n = 0; n < whole_.nodes.size(); ++n) {
      if (nodes_.count(n)) cut.nodes.push_back(whole_.nodes[n]);
    }
    for (const std::string& output : outputs) cut.outputs.emplace_back().name.text = output;
    return cut;
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { throw GraphError(Position{whole_.file, 0, 0}, message); }

  static const std::string& label_of(const SourceNode& node) {
    return node.label.text.empty() && !node.outputs.empty() ? node.outputs[0].text : node.label.text;
  }
  static std::string described(const SourceNode& node) {
    return fmt::format("node '{}' ({})", label_of(node), qualified_name(node));
  }

  bool defines(const std::string& name) const {
    const auto is = [&](const SourceValue& value) { return value.name.text == name; };
    return made_by_.count(name) || std::any_of(whole_.inputs.begin(), whole_.inputs.end(), is) ||
           std::any_of(whole_.values.begin(), whole_.values.end(),
                       [&](const SourceValue& value) { return value.data && is(value); });
  }

  std::vector<std::string> chosen_outputs(size_t results) const {
    std::vector<std::string> outputs = call_.outputs.empty() ? names_of(whole_.outputs) : call_.outputs;
    if (results > outputs.size()) {
      fail(fmt::format("{} results are asked of model '{}', which has the outputs {}", results, call_.name,
                       listed(outputs)));
    }
    if (!call_.outputs.empty() && results < outputs.size()) {
      fail(fmt::format("attribute 'outputs' of the call of model '{}' names {} values for {} results", call_.name,
                       outputs.size(), results));
    }
    outputs.resize(results);
    for (const std::string& output : outputs) {
      if (defines(output)) continue;
      std::vector<std::string> known;
      for (const auto& [name, node] : made_by_) known.push_back(name);
      std::sort(known.begin(), known.end());
      fail(fmt::format("model '{}' has no value '{}'{}; its outputs are {}", call_.name, output,
                       did_you_mean(output, known), outputs_with_origin()));
    }
    return outputs;
  }

  // "'logits' (Gemm of 'flat')": features are mostly what the last node reads.
  std::string outputs_with_origin() const {
    std::vector<std::string> described;
    for (const std::string& output : names_of(whole_.outputs)) {
      std::vector<std::string> computed;
      const auto maker = made_by_.find(output);
      if (maker != made_by_.end()) {
        for (const SourceName& input : whole_.nodes[maker->second].inputs) {
          if (made_by_.count(input.text)) computed.push_back(input.text);
        }
      }
      described.push_back(fmt::format("'{}'", output));
      if (computed.empty()) continue;
      described.back() += fmt::format(" ({} of {})", qualified_name(whole_.nodes[maker->second]), listed(computed));
    }
    return described.empty() ? "none" : fmt::format("{}", fmt::join(described, ", "));
  }

  // The value and all that it is computed of.
  void need(const std::string& value) {
    std::vector<std::string> open = {value};
    while (!open.empty()) {
      const std::string name = std::move(open.back());
      open.pop_back();
      if (name.empty() || !needed_.insert(name).second) continue;
      const auto maker = made_by_.find(name);
      if (maker == made_by_.end() || !nodes_.insert(maker->second).second) continue;
      for (const SourceName& input : whole_.nodes[maker->second].inputs) open.push_back(input.text);
    }
  }

  void add_inputs(GraphSource& cut, const std::vector<std::string>& operands) const {
    for (const SourceValue& input : whole_.inputs) {
      if (input.data || !needed_.count(input.name.text)) continue;
      if (std::find(operands.begin(), operands.end(), input.name.text) == operands.end()) {
        fail(fmt::format("model '{}' needs its input '{}', and the call gives {}", call_.name, input.name.text,
                         listed(operands)));
      }
      SourceValue& added = cut.inputs.emplace_back(input);
      if (!added.type) added.type = TensorType{};  // the operand's counts
    }
  }

  // All that are not supported at once, with their nodes: those of functions that are called, too.
  void check_operators() const {
    std::map<std::string, std::vector<std::string>> unknown;
    std::unordered_map<std::string, const SourceFunction*> functions;
    for (const SourceFunction& function : whole_.functions) functions.emplace(function.qualified_name(), &function);
    std::set<const SourceFunction*> seen;
    std::vector<const SourceFunction*> open;
    const auto look = [&](const SourceNode& node, const std::string& in) {
      const std::string name = qualified_name(node);
      if (const auto function = functions.find(name); function != functions.end()) {
        if (seen.insert(function->second).second) open.push_back(function->second);
        return;
      }
      const Op* op = registry_.find(name);
      if (op ? !op->internal : is_constant_node(name)) return;
      unknown[name].push_back(fmt::format("'{}'{}", label_of(node), in));
    };
    for (size_t n = 0; n < whole_.nodes.size(); ++n) {
      if (nodes_.count(n)) look(whole_.nodes[n], "");
    }
    while (!open.empty()) {
      const SourceFunction& function = *open.back();
      open.pop_back();
      for (const SourceNode& node : function.nodes) look(node, fmt::format(" of function '{}'", function.name.text));
    }
    if (unknown.empty()) return;
    std::string message =
        fmt::format("{} operator{} of model '{}' {} not supported ('arbalest ops' lists those that are)",
                    unknown.size(), unknown.size() == 1 ? "" : "s", call_.name, unknown.size() == 1 ? "is" : "are");
    for (auto& [name, nodes] : unknown) {
      const size_t more = nodes.size() > kMostNodesTold ? nodes.size() - kMostNodesTold : 0;
      nodes.resize(nodes.size() - more);
      message += fmt::format("\n  {}: node{} {}{}", name, nodes.size() + more == 1 ? "" : "s", fmt::join(nodes, ", "),
                             more ? fmt::format(" and {} more", more) : "");
      if (name.starts_with(std::string(kModelDomain) + ".")) message += " (a model that is called may not call models)";
    }
    fail(message);
  }

  const GraphSource& whole_;
  const OpRegistry& registry_;
  const ModelCall& call_;
  std::unordered_map<std::string, size_t> made_by_;
  std::unordered_set<std::string> needed_;
  std::unordered_set<size_t> nodes_;
};

// TensorFlow's operators that draw, which tf2onnx leaves as they are, become ONNX's; their keys and counters are not
// needed.
void spell_out_draws(GraphSource& source) {
  std::vector<SourceNode> nodes;
  for (SourceNode& node : source.nodes) {
    const std::string name = qualified_name(node);
    const bool uniform = name == "StatelessRandomUniformV2", normal = name == "StatelessRandomNormalV2";
    if ((uniform || normal) && !node.inputs.empty() && node.outputs.size() == 1) {
      const SourcePlace place = node.op.place;
      const SourceName shape{node.outputs[0].text + "/shape", place}, like{node.outputs[0].text + "/like", place};
      SourceNode& cast = nodes.emplace_back(SourceNode{{}, "", {"Cast", place}, {}, {node.inputs[0]}, {shape}});
      SourceAttribute& to = cast.attributes.emplace_back();
      to.name = {"to", place};
      to.value = onnx_number(DataType::Int64);
      nodes.push_back({{}, "", {"ConstantOfShape", place}, {}, {shape}, {like}});
      node.op.text = uniform ? "RandomUniformLike" : "RandomNormalLike";
      node.inputs = {like};
    }
    nodes.push_back(std::move(node));
  }
  source.nodes = std::move(nodes);
}

// The batch that the file's inputs state; 0 if they leave it open.
int64_t stated_batch(const GraphSource& source) {
  for (const SourceValue& input : source.inputs) {
    if (input.type && !input.type->shape.empty() && input.type->shape[0] > 0) return input.type->shape[0];
  }
  return 0;
}

}  // namespace

CalledModel read_model(const GraphSource& stated, const OpRegistry& registry, const ModelCall& call, size_t operands,
                       size_t results) {
  GraphSource source = stated;  // tensors are shared
  take_sequences_apart(source);
  spell_out_draws(source);
  Cut cut(source, registry, call);
  const std::vector<std::string> names = cut.operands(operands);
  GraphSource part = cut.run(names, results);
  read_as_float(part, is_in_double(source));
  CalledModel model{build_graph(part, registry, 0), {}};
  const int64_t batch = stated_batch(part);
  if (batch > 0) {  // errors that types bring to light may come from it: they say so
    for (Node& node : model.graph.nodes) node.where.file = exported_file(part.file, batch);
  }
  own_parameters(model.graph, part);
  follow_training(model.graph, part, call.training);
  spell_out_old_softmax(model.graph);
  open_batch(model.graph, batch);
  for (const std::string& name : names) {
    const auto is = [&](ValueId input) { return model.graph.values[input].name == name; };
    const auto found = std::find_if(model.graph.inputs.begin(), model.graph.inputs.end(), is);
    model.operands.push_back(found == model.graph.inputs.end() ? kNone : *found);
  }
  return model;
}

}  // namespace arbalest
