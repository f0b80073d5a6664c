// SPDX-License-Identifier: Apache-2.0
#include "passes/samples_apart.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "graph/op.h"
#include "graph/samples/exported_batch.h"
#include "graph/samples/sample_probe.h"
#include "passes/passes.h"

namespace arbalest {
namespace {

// The nodes of the models of one file, in the graph that calls them.
struct Exported {
  int64_t batch = 0;              // that it was exported for
  std::vector<NodeId> nodes;      // in order
  std::vector<ValueId> operands;  // that depend on the data
  Table<ValueId, bool> made;
};

// Whether each value depends on the samples of a batch.
Table<ValueId, bool> data_values(const Graph& graph) {
  Table<ValueId, bool> data(graph.values.size(), false);
  for (const ValueId input : graph.inputs) data[input] = true;
  for (const Node& node : graph.nodes) {
    const bool depends =
        node.is(op::Prefetch) || std::any_of(node.inputs.begin(), node.inputs.end(),
                                             [&](ValueId input) { return input != kNone && data[input]; });
    for (const ValueId output : node.outputs) {
      if (output != kNone) data[output] = depends && !graph.values[output].content;
    }
  }
  return data;
}

// By file.
std::map<std::string, Exported> exported_models(const Graph& graph, ModelBatch which) {
  std::map<std::string, Exported> models;
  const Table<ValueId, bool> data = data_values(graph);
  const Node* train = graph.find_op(op::Train);
  for (const NodeId n : graph.nodes.ids()) {
    const Node& node = graph.nodes[n];
    const int64_t batch = exported_batch(node.where.file);
    const bool own = !train || node.where.file.empty() || node.where.file == train->where.file;
    if (which == ModelBatch::Fixed ? batch == 0 : batch > 0 || own) continue;
    Exported& model = models[node.where.file];
    model.batch = batch;
    model.nodes.push_back(n);
    model.made.resize(graph.values.size());
    for (const ValueId input : node.inputs) {
      if (input == kNone || model.made[input] || !data[input]) continue;
      if (graph.values[input].type.shape.empty()) continue;
      const bool known = std::find(model.operands.begin(), model.operands.end(), input) != model.operands.end();
      if (!known) model.operands.push_back(input);
    }
    for (const ValueId output : node.outputs) {
      if (output != kNone) model.made[output] = true;
    }
  }
  return models;
}

// The samples that the model is called with if Prefetch reads so many of `all`; none if that is the batch it was
// exported for.
std::optional<int64_t> other_batch(const Graph& graph, const Exported& model, int64_t read, int64_t all) {
  for (const ValueId operand : model.operands) {
    const int64_t rows = graph.values[operand].type.shape[0] * read / all;
    if (rows != model.batch) return rows;
  }
  return std::nullopt;
}

// The node that mixes samples which the model then gives, in batches twice as large as those it was exported for. A
// single number may be made of all samples: it is a loss.
NodeId mixing_node(Graph& graph, const std::string& file, const Exported& model) {
  const int64_t samples = 2 * std::max<int64_t>(1, model.batch);
  const int64_t called = model.operands.empty() ? 0 : graph.values[model.operands[0]].type.shape[0];
  for (const ValueId operand : model.operands) {
    int64_t& rows = graph.values[operand].type.shape[0];
    rows = called > 0 && rows % called == 0 ? rows / called * samples : samples;
  }
  for (const NodeId node : model.nodes) {
    try {
      infer(graph, node);
    } catch (const GraphError&) {  // it takes no other batch
      return model.batch > 0 ? node : kNone;
    }
  }
  Table<ValueId, SampleOrder> orders(graph.values.size());
  for (const ValueId operand : model.operands) {
    const int64_t each = graph.values[operand].type.elements() / samples;
    if (each > 0) orders[operand] = {SampleOrder::Kind::Apart, each, kNone};
  }
  SampleProbe probe(graph, samples);
  for (const NodeId node : model.nodes) {
    const std::vector<SampleOrder> outputs = probe.outputs(node, orders);
    for (size_t i = 0; i < outputs.size(); ++i) {
      const ValueId output = graph.nodes[node].outputs[i];
      if (output != kNone) orders[output] = outputs[i];
    }
  }
  std::vector<ValueId> given = graph.outputs;
  for (const Node& node : graph.nodes) {
    if (node.where.file != file) given.insert(given.end(), node.inputs.begin(), node.inputs.end());
  }
  for (const ValueId value : given) {
    if (value == kNone || orders[value].kind != SampleOrder::Kind::Mixed) continue;
    if (graph.values[value].type.elements() > 1) return orders[value].origin;
  }
  return kNone;
}

// The graph with its layers as operators, as inference runs them.
Graph as_inferred(Graph graph) {
  expand_layers(graph);
  for (const NodeId n : graph.nodes.ids()) {
    const Node& node = graph.nodes[n];
    if (node.op->for_inference) node.op->for_inference(graph, n);
  }
  open_group_norms(graph, false);
  return graph;
}

// The node of the verified graph that has been expanded into this one, which has its name, or that and a label.
Node stated(const Graph& verified, const Node& expanded) {
  std::string name = expanded.name;
  while (true) {
    if (const NodeId node = verified.find_node(name); node != kNone) return verified.nodes[node];
    const size_t dot = name.rfind('.');
    if (dot == name.npos) return expanded;
    name.resize(dot);
  }
}

// Whether the node reads, directly or not, what a node of another file computes.
bool reads_model(const Graph& graph, const Node& node) {
  std::vector<ValueId> left = node.inputs;
  std::set<ValueId> seen;
  while (!left.empty()) {
    const ValueId value = left.back();
    left.pop_back();
    const NodeId producer = value == kNone ? NodeId{kNone} : graph.values[value].producer;
    if (producer == kNone || !seen.insert(value).second) continue;
    const Node& made_by = graph.nodes[producer];
    if (made_by.where.file != node.where.file) return true;
    left.insert(left.end(), made_by.inputs.begin(), made_by.inputs.end());
  }
  return false;
}

// The node of a model that mixes samples, if the error is of a node of the graph's own that reads what a model
// computes.
std::optional<MixingNode> mixing_before(const Graph& graph, const GraphError& error) {
  const auto at = std::find_if(graph.nodes.begin(), graph.nodes.end(),
                               [&](const Node& node) { return node.where == error.place(); });
  const Node* train = graph.find_op(op::Train);
  if (!train || error.place().file != train->where.file) return std::nullopt;
  if (at == graph.nodes.end() || !reads_model(graph, *at)) return std::nullopt;
  for (const ModelBatch which : {ModelBatch::Fixed, ModelBatch::Open}) {
    try {
      if (auto mixing = find_mixing(graph, which)) return mixing;
    } catch (const std::exception&) {  // types of nodes after that of the error are not known
    }
  }
  return std::nullopt;
}

// Whether the error is gone in another batch.
bool is_of_batch(Graph graph, int64_t other, const GraphError& error) {
  graph.find_op(op::Prefetch)->attributes.set("batch", other);
  try {
    verify(graph);
  } catch (const GraphError& found) {
    return found.place() != error.place();
  }
  return true;
}

}  // namespace

std::optional<MixingNode> find_mixing(const Graph& verified, ModelBatch which) {
  if (exported_models(verified, which).empty()) return std::nullopt;
  Graph graph = as_inferred(verified);
  for (const auto& [file, model] : exported_models(graph, which)) {
    const NodeId mixes = mixing_node(graph, file, model);
    if (mixes != kNone) return MixingNode{stated(verified, graph.nodes[mixes]), model.batch};
  }
  return std::nullopt;
}

void check_samples_apart(const Graph& graph, const std::vector<int64_t>& batches) {
  const Node* prefetch = graph.find_op(op::Prefetch);
  if (!prefetch) return;
  const int64_t all = int_attribute(*prefetch, "batch");
  std::optional<int64_t> samples;
  for (const auto& [file, model] : exported_models(graph, ModelBatch::Fixed)) {
    for (const int64_t read : batches) {
      if (!samples) samples = other_batch(graph, model, read, all);
    }
  }
  if (!samples) return;
  if (const std::optional<MixingNode> mixing = find_mixing(graph)) {
    fail(mixing->node,
         fmt::format(
             "in a batch of {} samples do not stay apart here, so that what the model gives for one depends on the "
             "others; "
             "expected batches of {}, or a file whose batch may vary ('dynamic_axes' or 'dynamic_shapes' of "
             "torch.onnx.export, and no reshape to a batch that is a number)",
             *samples, mixing->batch));
  }
}

void verify_called(Graph& graph) {
  try {
    verify(graph);
  } catch (const GraphError& error) {
    const Node* prefetch = graph.find_op(op::Prefetch);
    const int64_t used = prefetch ? int_attribute(*prefetch, "batch") : 0;
    const int64_t batch = exported_batch(error.place().file);
    std::string hint;
    if (used > 0 && batch > 0 && batch != used && is_of_batch(graph, batch, error)) {
      hint = fmt::format(
          "\nthe model was exported for a batch of {0}, and the graph uses {1}: expected a file whose batch may vary "
          "('dynamic_axes' or 'dynamic_shapes' of torch.onnx.export){2}, or batches of {0} in Prefetch and Validate",
          batch, used, batch == 1 ? ", or that was exported with two samples" : "");
    } else if (const std::optional<MixingNode> mixing = mixing_before(graph, error)) {
      hint =
          fmt::format("\nsamples of a batch do not stay apart in the model before it: node '{}' ({}) of {} mixes them",
                      mixing->node.name, mixing->node.op->qualified_name(), mixing->node.where.file);
    }
    if (hint.empty()) throw;
    throw GraphError::about_places(error.place(), error.what() + hint);
  }
}

}  // namespace arbalest
