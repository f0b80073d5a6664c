#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "graph/op.h"
#include "graph/passes/batch_norms.h"
#include "graph/passes/passes.h"

namespace arbalest {
namespace {

// A batch norm, in training or inference form, with nothing added to it but Relu.
bool takes_parts(const Node& node) {
  const std::string op = node.op->qualified_name();
  return (op == "arbalest.BatchNormTraining" || op == "arbalest.BatchNormInference") && node.inputs.size() == 5;
}

class ConcatFusion {
 public:
  explicit ConcatFusion(Graph& graph)
      : graph_(graph),
        readers_(graph.consumers()),
        goes_(graph.values.size(), false),
        is_shared_(graph.values.size(), false),
        parts_(graph.values.size()),
        key_(graph.nodes.size()) {
    for (size_t n = 0; n < key_.size(); ++n) key_[n] = 2 * int64_t(n) + 2;
  }

  void run() {
    const size_t count = graph_.nodes.size();
    for (size_t n = 0; n < count; ++n) {
      if (is_concat(graph_.nodes[n])) take_apart(graph_.nodes[n]);
    }
    for (const Node& node : graph_.nodes) share_parts(node);
    for (size_t n = 0; n < count; ++n) {
      const Node node = graph_.nodes[n];
      if (takes_parts(node)) {
        const ValueId x = node.inputs[0];
        if (goes_[size_t(x)]) {
          give_parts(NodeId(n), parts_[size_t(x)]);
        } else if (is_training(node) && is_shared_[size_t(x)]) {
          give_parts(NodeId(n), {x});
        }
      } else if (is_concat(node)) {
        const ValueId whole = node.outputs[0];
        if (goes_[size_t(whole)]) key_[n] = -1;
        graph_.nodes[n].inputs = parts_[size_t(whole)];
      }
    }
    reorder_nodes(graph_, key_);
  }

 private:
  static bool is_training(const Node& node) { return node.op->name == "BatchNormTraining"; }

  // Along the channels, of tensors that lie in memory as the whole does.
  bool is_concat(const Node& node) const {
    if (node.op->qualified_name() != "Concat") return false;
    const TensorType& whole = graph_.values[size_t(node.outputs[0])].type;
    const int64_t rank = int64_t(whole.shape.size()), axis = int_attribute(node, "axis");
    return rank >= 2 && (axis < 0 ? axis + rank : axis) == 1 &&
           std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) {
             const TensorType& part = graph_.values[size_t(input)].type;
             return part.layout == whole.layout && part.elements() > 0;
           });
  }

  // Whether all that read the value can do with its parts.
  bool is_read_in_parts(ValueId whole) const {
    const std::vector<NodeId>& readers = readers_[size_t(whole)];
    const bool asked_for = std::find(graph_.outputs.begin(), graph_.outputs.end(), whole) != graph_.outputs.end();
    return !asked_for && !readers.empty() && std::all_of(readers.begin(), readers.end(), [&](NodeId reader) {
      const Node& node = graph_.nodes[size_t(reader)];
      return takes_parts(node) || is_concat(node);
    });
  }

  // The inputs, or instead of those that go what they are made of.
  std::vector<ValueId> flattened(const std::vector<ValueId>& inputs) const {
    std::vector<ValueId> parts;
    for (const ValueId input : inputs) {
      if (!goes_[size_t(input)]) {
        parts.push_back(input);
      } else {
        parts.insert(parts.end(), parts_[size_t(input)].begin(), parts_[size_t(input)].end());
      }
    }
    return parts;
  }

  // Decides whether a Concat goes. If there would be too many parts, those that it is made of stay.
  void take_apart(const Node& concat) {
    const ValueId whole = concat.outputs[0];
    std::vector<ValueId> parts = flattened(concat.inputs);
    if (parts.size() > kMostParts) {
      for (const ValueId input : concat.inputs) goes_[size_t(input)] = false;
      parts = concat.inputs;
    }
    goes_[size_t(whole)] = is_read_in_parts(whole) && parts.size() <= kMostParts;
    parts_[size_t(whole)] = std::move(parts);
  }

  // Parts whose statistics there will be.
  void share_parts(const Node& node) {
    if (!takes_parts(node) || !is_training(node) || !goes_[size_t(node.inputs[0])]) return;
    for (const ValueId part : parts_[size_t(node.inputs[0])]) is_shared_[size_t(part)] = true;
  }

  void give_parts(NodeId id, const std::vector<ValueId>& parts) {
    const bool training = is_training(graph_.nodes[size_t(id)]);
    std::vector<ValueId> inputs = graph_.nodes[size_t(id)].inputs;
    inputs[0] = parts[0];
    if (training) inputs.push_back(statistics_of(parts[0]));
    for (size_t i = 1; i < parts.size(); ++i) {
      inputs.push_back(parts[i]);
      if (training) inputs.push_back(statistics_of(parts[i]));
    }
    Node& norm = graph_.nodes[size_t(id)];
    norm.op = &builtin_ops().get(training ? "arbalest.BatchNormPartsTraining" : "arbalest.BatchNormPartsInference");
    norm.inputs = std::move(inputs);
    infer(graph_, id);
  }

  // Once for all batch norms over the part, right after the node that makes it.
  ValueId statistics_of(ValueId part) {
    ValueId& statistics = statistics_.try_emplace(part, kNone).first->second;
    if (statistics != kNone) return statistics;
    const NodeId producer = graph_.values[size_t(part)].producer;
    const NodeId node = graph_.add_node(builtin_ops().get("arbalest.ChannelStatistics"),
                                        fmt::format("{}.statistics", graph_.values[size_t(part)].name), {part}, 1);
    graph_.nodes[size_t(node)].where = graph_.values[size_t(part)].where;
    infer(graph_, node);
    key_.push_back(producer == kNone ? 0 : key_[size_t(producer)] + 1);
    return statistics = graph_.nodes[size_t(node)].outputs[0];
  }

  Graph& graph_;
  const std::vector<std::vector<NodeId>> readers_;
  std::vector<bool> goes_, is_shared_;       // by value
  std::vector<std::vector<ValueId>> parts_;  // of each Concat's result
  std::map<ValueId, ValueId> statistics_;
  std::vector<int64_t> key_;  // of each node in the order to come
};

}  // namespace

void fuse_concats(Graph& graph) {
  ConcatFusion(graph).run();
}

}  // namespace arbalest
