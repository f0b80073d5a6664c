// SPDX-License-Identifier: Apache-2.0

// ONNX's If and SequenceMap, which have graphs of their own. A graph here has neither branches nor bodies: what is
// computed is known before anything runs.

#include "graph/file/graph_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

namespace arbalest {
namespace {

constexpr const char* kBranches[] = {"else_branch", "then_branch"};  // by the condition
constexpr size_t kMostNames = size_t{1} << 20;                       // in the bodies of a file, once for each part

bool is_onnx(const SourceNode& node, std::string_view op) {
  return (node.domain.empty() || node.domain == "ai.onnx") && node.op.text == op;
}

bool has_graphs(const SourceNode& node) {
  return is_onnx(node, "If") || is_onnx(node, "SequenceMap");
}

// The nodes of a graph or a function, one after the other.
class NestedGraphs {
 public:
  NestedGraphs(const std::string& file, std::vector<SourceValue>& values, size_t& copied)
      : file_(file), values_(values), copied_(copied) {
    for (const SourceValue& value : values) note_constant(value.name.text, value.type, value.data.get());
  }

  std::vector<SourceNode> run(std::vector<SourceNode> nodes) {
    for (SourceNode& node : nodes) add(std::move(node));
    return std::move(nodes_);
  }

 private:
  using Names = std::unordered_map<std::string, std::string>;

  void note_constant(const std::string& name, const std::optional<TensorType>& type,
                     const std::vector<std::byte>* data) {
    if (data && type && type->dtype == DataType::Bool && data->size() == 1)
      constants_[name] = (*data)[0] != std::byte{0};
  }

  void add(SourceNode node) {
    if (is_onnx(node, "If")) return add_if(node);
    if (is_onnx(node, "SequenceMap") && !node.inputs.empty()) {
      if (lists_.contains(node.inputs[0].text)) return add_map(node);
    }
    if (is_onnx(node, "SequenceConstruct") && node.outputs.size() == 1 && !node.outputs[0].text.empty()) {
      lists_[node.outputs[0].text] = node.inputs;
    }
    if (node.op.text == "Constant" && node.outputs.size() == 1 && node.attributes.size() == 1) {
      const std::optional<SourceTensor>& tensor = node.attributes[0].tensor;
      if (tensor) note_constant(node.outputs[0].text, tensor->type, tensor->data.get());
    }
    nodes_.push_back(std::move(node));
  }

  void add_if(const SourceNode& node) {
    const SourceFunction* branches[] = {branch(node, 0), branch(node, 1)};
    const bool named = node.inputs.size() == 1 && !node.inputs[0].text.empty();
    if (!named || node.attributes.size() != 2) {
      fail(node, "expected one input, the condition, and the attributes then_branch and else_branch");
    }
    const auto known = constants_.find(node.inputs[0].text);
    std::vector<SourceName> results[2];
    for (const bool taken : {true, false}) {
      if (known == constants_.end() || known->second == taken) {
        results[taken] = inlined(*branches[taken], fmt::format("{}/{}/", called(node), kBranches[taken]), {});
      }
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i].text.empty()) continue;
      SourceNode choice;
      choice.op = node.op;
      choice.outputs = {node.outputs[i]};
      if (known == constants_.end()) {
        choice.domain = "arbalest";
        choice.op.text = "Choose";
        choice.inputs = {node.inputs[0], results[true][i], results[false][i]};
      } else {
        choice.op.text = "Identity";
        choice.inputs = {results[known->second][i]};
      }
      nodes_.push_back(std::move(choice));
    }
  }

  const SourceFunction* branch(const SourceNode& node, bool taken) const {
    for (const SourceAttribute& attribute : node.attributes) {
      if (attribute.name.text != kBranches[taken]) continue;
      if (!attribute.graph) fail(node, fmt::format("attribute '{}' is no graph", kBranches[taken]));
      const SourceFunction& graph = *attribute.graph;
      if (!graph.inputs.empty() || graph.outputs.size() != node.outputs.size()) {
        fail(node, fmt::format("attribute '{}' is a graph of {} inputs and {} outputs; expected none and {}",
                               kBranches[taken], graph.inputs.size(), graph.outputs.size(), node.outputs.size()));
      }
      return &graph;
    }
    fail(node, fmt::format("attribute '{}' is missing", kBranches[taken]));
  }

  // The body once for each part of a sequence whose parts are listed; what it makes is listed as well.
  void add_map(const SourceNode& node) {
    const std::shared_ptr<const SourceFunction> body =
        node.attributes.size() == 1 && node.attributes[0].name.text == "body" ? node.attributes[0].graph : nullptr;
    if (!body || body->inputs.size() != node.inputs.size() || body->outputs.size() != node.outputs.size()) {
      fail(node, "expected the attribute 'body' alone, a graph with an input for each input and as many outputs");
    }
    const size_t count = lists_.at(node.inputs[0].text).size();
    const std::vector<std::vector<SourceName>> inputs = inputs_by_part(node, *body, count);
    std::vector<std::vector<SourceName>> made(node.outputs.size());
    for (size_t part = 0; part < count; ++part) {
      Names own;
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (const std::string& name = body->inputs[i].name.text; !name.empty()) own[name] = inputs[i][part].text;
      }
      const std::vector<SourceName> results = inlined(*body, fmt::format("{}/{}/", called(node), part), own);
      for (size_t i = 0; i < made.size(); ++i) made[i].push_back(results[i]);
    }
    for (size_t i = 0; i < made.size(); ++i) {
      if (node.outputs[i].text.empty()) continue;
      SourceNode list;
      list.op = {"SequenceConstruct", node.op.place};
      list.inputs = std::move(made[i]);
      list.outputs = {node.outputs[i]};
      add(std::move(list));
    }
  }

  // For each input of a SequenceMap, its value in each part: another one of a sequence, the same of what is none.
  std::vector<std::vector<SourceName>> inputs_by_part(const SourceNode& node, const SourceFunction& body,
                                                      size_t count) {
    const size_t names = names_of(body);
    if (count > (kMostNames - copied_) / names) {
      fail(node, fmt::format("with its body for each of {} parts, the file's bodies have more than {} names", count,
                             kMostNames));
    }
    copied_ += count * names;
    std::vector<std::vector<SourceName>> result;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const auto list = lists_.find(node.inputs[i].text);
      result.push_back(list == lists_.end() ? std::vector(count, node.inputs[i]) : list->second);
      if (result[i].size() != count) {
        fail(node, fmt::format("input {} has {} parts; expected {}, as input 0 has", i, result[i].size(), count));
      }
    }
    return result;
  }

  // A measure of what a copy takes: the names in a graph and in those within it, and one for itself.
  static size_t names_of(const SourceFunction& graph) {
    size_t count = 1 + graph.inputs.size() + graph.outputs.size() + graph.values.size();
    for (const SourceNode& node : graph.nodes) {
      count += 1 + node.inputs.size() + node.outputs.size() + node.attributes.size();
      for (const SourceAttribute& each : node.attributes) count += each.graph ? names_of(*each.graph) : 0;
    }
    return count;
  }

  // Appends what the graph computes, under names that begin with `prefix`; returns its outputs' names. Its inputs have
  // theirs in `inputs`; an initialiser of an input is its default, and not needed. What the graph does not define
  // itself is the value of the graph around it.
  std::vector<SourceName> inlined(const SourceFunction& graph, const std::string& prefix, const Names& inputs) {
    Names own = inputs;
    const auto define = [&](const SourceName& name) {
      if (!name.text.empty()) own[name.text] = prefix + name.text;
    };
    const auto defines = [&](const SourceValue& value) { return value.data && !inputs.contains(value.name.text); };
    for (const SourceValue& value : graph.values) {
      if (defines(value)) define(value.name);
    }
    for (const SourceNode& inner : graph.nodes) std::for_each(inner.outputs.begin(), inner.outputs.end(), define);
    for (const SourceValue& value : graph.values) {
      if (!defines(value)) continue;
      SourceValue& added = values_.emplace_back(value);
      added.name.text = own.at(value.name.text);
      note_constant(added.name.text, added.type, added.data.get());
    }
    for (SourceNode inner : graph.nodes) {
      if (!inner.label.text.empty()) inner.label.text = prefix + inner.label.text;
      rename(inner, own);
      add(std::move(inner));
    }
    std::vector<SourceName> results;
    for (const SourceValue& output : graph.outputs) results.push_back(renamed(output.name, own));
    return results;
  }

  static SourceName renamed(const SourceName& name, const Names& own) {
    const auto found = own.find(name.text);
    return found == own.end() ? name : SourceName{found->second, name.place};
  }

  // With the names that branches within it read of the graph around them.
  static void rename(SourceNode& node, const Names& own) {
    for (std::vector<SourceName>* names : {&node.inputs, &node.outputs}) {
      for (SourceName& name : *names) name = renamed(name, own);
    }
    for (SourceAttribute& attribute : node.attributes) {
      if (!attribute.graph) continue;
      Names visible = own;
      for (const SourceValue& value : attribute.graph->inputs) visible.erase(value.name.text);
      for (const SourceValue& value : attribute.graph->values) visible.erase(value.name.text);
      for (const SourceNode& inner : attribute.graph->nodes) {
        for (const SourceName& output : inner.outputs) visible.erase(output.text);
      }
      auto graph = std::make_shared<SourceFunction>(*attribute.graph);
      for (SourceNode& inner : graph->nodes) rename(inner, visible);
      for (SourceValue& output : graph->outputs) output.name = renamed(output.name, visible);
      attribute.graph = std::move(graph);
    }
  }

  static const std::string& called(const SourceNode& node) {
    if (!node.label.text.empty() || node.outputs.empty()) return node.label.text;
    return node.outputs[0].text;
  }

  [[noreturn]] void fail(const SourceNode& node, const std::string& message) const {
    throw GraphError(Position{file_, node.op.place.line, node.op.place.column},
                     fmt::format("node '{}' ({}): {}", called(node), node.op.text, message));
  }

  const std::string& file_;
  std::vector<SourceValue>& values_;
  size_t& copied_;  // names in the bodies of the whole file
  std::unordered_map<std::string, bool> constants_;
  std::unordered_map<std::string, std::vector<SourceName>> lists_;  // the parts of sequences that are listed
  std::vector<SourceNode> nodes_;
};

bool any_has_graphs(const std::vector<SourceNode>& nodes) {
  return std::any_of(nodes.begin(), nodes.end(), has_graphs);
}

}  // namespace

void take_nested_graphs_apart(GraphSource& source) {
  bool any = false;
  size_t copied = 0;
  const auto take_apart = [&](std::vector<SourceNode>& nodes, std::vector<SourceValue>& values) {
    if (!any_has_graphs(nodes)) return;
    nodes = NestedGraphs(source.file, values, copied).run(std::move(nodes));
    any = true;
  };
  take_apart(source.nodes, source.values);
  for (SourceFunction& function : source.functions) take_apart(function.nodes, function.values);
  if (any) import_own(source);
}

void import_own(GraphSource& source) {
  const auto ours = [](const auto& opset) { return opset.first == kOwnDomain; };
  if (!source.opsets.empty() && std::none_of(source.opsets.begin(), source.opsets.end(), ours)) {
    source.opsets.emplace_back(kOwnDomain, 1);
  }
}

}  // namespace arbalest
