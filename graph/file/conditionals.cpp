// SPDX-License-Identifier: Apache-2.0

// ONNX's If, whose branches are graphs of their own. A graph here has no branches: what is computed is known before
// anything runs.

#include "graph/file/graph_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

namespace arbalest {
namespace {

constexpr const char* kBranches[] = {"else_branch", "then_branch"};  // by the condition

bool is_if(const SourceNode& node) {
  return (node.domain.empty() || node.domain == "ai.onnx") && node.op.text == "If";
}

// The nodes of a graph or a function, one after the other.
class Conditionals {
 public:
  Conditionals(const std::string& file, std::vector<SourceValue>& values) : file_(file), values_(values) {
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
    if (is_if(node)) return add_if(node);
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
      if (known == constants_.end() || known->second == taken) results[taken] = inlined(node, *branches[taken], taken);
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

  // Appends what the branch computes; returns its outputs' names. What it does not define itself is the value of the
  // graph around it.
  std::vector<SourceName> inlined(const SourceNode& node, const SourceFunction& graph, bool taken) {
    const std::string prefix = fmt::format("{}/{}/", called(node), kBranches[taken]);
    Names own;
    const auto define = [&](const SourceName& name) {
      if (!name.text.empty()) own.emplace(name.text, prefix + name.text);
    };
    for (const SourceValue& value : graph.values) {
      if (value.data) define(value.name);
    }
    for (const SourceNode& inner : graph.nodes) std::for_each(inner.outputs.begin(), inner.outputs.end(), define);
    for (const SourceValue& value : graph.values) {
      if (!value.data) continue;
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
                     fmt::format("node '{}' (If): {}", called(node), message));
  }

  const std::string& file_;
  std::vector<SourceValue>& values_;
  std::unordered_map<std::string, bool> constants_;
  std::vector<SourceNode> nodes_;
};

bool has_if(const std::vector<SourceNode>& nodes) {
  return std::any_of(nodes.begin(), nodes.end(), is_if);
}

}  // namespace

void take_conditionals_apart(GraphSource& source) {
  bool any = false;
  const auto take_apart = [&](std::vector<SourceNode>& nodes, std::vector<SourceValue>& values) {
    if (!has_if(nodes)) return;
    nodes = Conditionals(source.file, values).run(std::move(nodes));
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
