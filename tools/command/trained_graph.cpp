// SPDX-License-Identifier: Apache-2.0
#include "tools/command/trained_graph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "base/process.h"
#include "base/shell_word.h"
#include "executor/weights/weights_file.h"
#include "graph/file/overrides.h"
#include "graph/op.h"
#include "ops/names.h"
#include "tools/command/session_setup.h"

namespace arbalest {
namespace {

// Whether a setting of the graph has a part in what a trained model computes.
bool is_of_model(const Node& node, const std::string& attribute) {
  static const std::set<std::string> kWithoutTraining = {"depth", "cache", "every_epochs", "recalibrate", "directions"};
  const bool data = node.is(op::Prefetch) || node.is(op::Validate);
  return !node.is(op::Train) && !node.is(op::Synchronize) && !(data && kWithoutTraining.contains(attribute));
}

// Whether it says which samples are taken, and how many at once: other ones are no reason for another model.
bool is_of_data(const Node& node, const std::string& attribute) {
  return (node.is(op::Prefetch) || node.is(op::Validate)) && attribute != "by_name";
}

std::string text_of(const Node& node, const AttributeSpec& spec) {
  const Attribute* written = node.attributes.find(spec.name);
  if (!written && !spec.fallback) return "not set";
  return to_string(written ? *written : *spec.fallback);
}

// Calls `each` with the name of a setting, and the nodes that have it, if two graphs of one file differ.
template <typename Each>
void for_each_difference(const Graph& one, const Graph& other, const Each& each) {
  const Table<NodeId, std::string> names = override_names(one);
  for (const NodeId n : one.nodes.ids()) {
    for (const AttributeSpec& spec : one.nodes[n].op->attributes) {
      if (text_of(one.nodes[n], spec) == text_of(other.nodes[n], spec)) continue;
      each(names[n] + "." + spec.name, n, spec);
    }
  }
}

// The graph's file as the run that saved the weights had it.
Graph as_its_run(Graph graph, const WeightsFile& weights, const std::vector<std::string>& overrides) {
  const Graph file = graph;
  for (const std::string& assignment : overrides) {
    try {
      apply_override(graph, assignment);
    } catch (const GraphError& error) {
      warn(fmt::format("{}: its run had a change that does not fit the graph: {}", weights.path(), error.what()));
    }
  }
  for_each_difference(file, graph, [&](const std::string&, NodeId n, const AttributeSpec& spec) {
    if (is_of_model(file.nodes[n], spec.name)) return;
    graph.nodes[n].attributes.erase(spec.name);
    if (const Attribute* written = file.nodes[n].attributes.find(spec.name)) {
      graph.nodes[n].attributes.set(spec.name, *written);
    }
  });
  return graph;
}

std::string shortened(const std::string& text) {
  constexpr size_t kLongest = 120;
  return text.size() > kLongest ? text.substr(0, kLongest) + "…" : text;
}

}  // namespace

Graph load_as_trained(const GraphOptions& options, std::vector<std::string>* files) {
  GraphOptions unchanged = options;
  unchanged.set.clear();
  const Graph file = load_with_overrides(unchanged, files);
  Graph asked = file;
  for (const std::string& assignment : options.set) {
    const std::string idle = apply_override(asked, assignment);
    if (!idle.empty() && options.session.files.weights.empty()) warn(idle);
  }
  if (options.session.files.weights.empty()) return asked;
  const WeightsFile weights(options.session.files.weights);
  const auto overrides = weights.overrides();
  if (!overrides) return asked;
  if (weights.graph_name() != file.name) {
    if (!overrides->empty()) {
      std::vector<std::string> words;
      for (const std::string& assignment : *overrides) words.push_back("--set " + shell_word(assignment));
      warn(fmt::format("{}: was trained by the graph '{}' with {}, which the graph '{}' does not take over",
                       weights.path(), weights.graph_name(), fmt::join(words, " "), file.name));
    }
    return asked;
  }
  const Graph trained = as_its_run(file, weights, *overrides);
  Graph graph = trained;
  for (const std::string& assignment : options.set) apply_override(graph, assignment);
  std::vector<std::string> taken, others;
  for_each_difference(asked, graph, [&](const std::string& name, NodeId n, const AttributeSpec& spec) {
    taken.push_back(fmt::format("{} is {}", name, shortened(text_of(graph.nodes[n], spec))));
  });
  for_each_difference(trained, graph, [&](const std::string& name, NodeId n, const AttributeSpec& spec) {
    const Node& node = graph.nodes[n];
    if (!is_of_model(node, spec.name) || is_of_data(node, spec.name)) return;
    others.push_back(fmt::format("{} is {} and was {}", name, shortened(text_of(node, spec)),
                                 shortened(text_of(trained.nodes[n], spec))));
  });
  if (!taken.empty()) warn(fmt::format("as in the run of {}: {}", weights.path(), fmt::join(taken, ", ")));
  if (!others.empty()) warn(fmt::format("not as in the run of {}: {}", weights.path(), fmt::join(others, ", ")));
  return graph;
}

std::string data_of_run(const Graph& file, const std::string& weights) {
  const WeightsFile read(weights);
  const auto overrides = read.overrides();
  if (!overrides || read.graph_name() != file.name) return "";
  const Graph trained = as_its_run(file, read, *overrides);
  const Node* prefetch = trained.find_op(op::Prefetch);
  return prefetch ? string_attribute(*prefetch, "source") : "";
}

void take_as_trained(SessionOptions& session, const GraphOptions& options, const Graph& graph) {
  const std::string& path = options.session.files.weights;
  if (path.empty()) return;
  const WeightsFile weights(path);
  if (weights.graph_name() != graph.name) return;
  std::vector<std::string> taken;
  const auto take = [&](const std::string& option, const std::string& name, auto& here) {
    const std::optional<uint64_t> number = weights.number(name);
    if (options.given.contains(option) || !number || uint64_t(here) == *number) return;
    here = std::decay_t<decltype(here)>(*number);
    taken.push_back(fmt::format("{} {}", option, *number));
  };
  take("--skip-bad", "skip_bad", session.execution.skip_bad);
  take("--seed", "seed", session.numerics.seed);
  if (!taken.empty()) warn(fmt::format("as in the run of {}: {}", path, fmt::join(taken, " ")));
}

}  // namespace arbalest
