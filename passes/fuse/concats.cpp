// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "ops/norm/batch_norms.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

class ConcatFusion {
 public:
  explicit ConcatFusion(Graph& graph)
      : rewriter_(graph),
        goes_(graph.values.size(), false),
        is_shared_(graph.values.size(), false),
        parts_(graph.values.size()) {}

  void run() {
    std::vector<NodeId> concats, norms;
    for (const NodeId n : rewriter_.ids()) {
      if (takes_parts(node(n))) norms.push_back(n);
      if (!is_concat(node(n))) continue;
      concats.push_back(n);
      take_apart(node(n));
    }
    for (const NodeId norm : norms) share_parts(node(norm));
    for (const NodeId norm : norms) {
      const ValueId x = node(norm).inputs[BatchNormInput::X];
      if (goes_[x]) {
        give_parts(norm, parts_[x]);
      } else if (is_training(node(norm)) && is_shared_[x]) {
        give_parts(norm, {x});
      }
    }
    for (const NodeId concat : concats) {
      const ValueId whole = node(concat).output();
      goes_[whole] ? rewriter_.remove(concat) : rewriter_.set_inputs(concat, parts_[whole]);
    }
    rewriter_.finish();
  }

 private:
  const Node& node(NodeId id) const { return rewriter_.node(id); }
  const TensorType& type(ValueId id) const { return rewriter_.value(id).type; }
  static bool is_training(const Node& node) { return node.is(op::BatchNormTraining); }

  // A batch norm, in training or inference form, with nothing added to it but Relu. No gradient reaches the statistics
  // of parts, so that those of inference have to be values of the model.
  bool takes_parts(const Node& node) const {
    if (!is_batch_norm(node) || node.inputs.size() != BatchNormInput::Residual) return false;
    const auto is_made = [&](size_t input) { return rewriter_.value(node.inputs[input]).producer != kNone; };
    return is_training(node) || !(is_made(BatchNormInput::Mean) || is_made(BatchNormInput::Variance));
  }

  // Along the channels, of tensors that lie in memory as the whole does.
  bool is_concat(const Node& node) const {
    if (!node.is(op::Concat)) return false;
    const TensorType& whole = type(node.output());
    const size_t rank = whole.shape.size();
    return rank >= 2 && normalized_axis(int_attribute(node, "axis"), rank) == 1 &&
           std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) {
             const TensorType& part = type(input);
             return part.layout == whole.layout && part.elements() > 0;
           });
  }

  // Whether all that read the value can do with its parts.
  bool is_read_in_parts(ValueId whole) const {
    const std::vector<NodeId>& readers = rewriter_.readers(whole);
    return !readers.empty() && std::all_of(readers.begin(), readers.end(), [&](NodeId reader) {
      return reader != kNone && (takes_parts(node(reader)) || is_concat(node(reader)));
    });
  }

  // The inputs, or instead of those that go what they are made of.
  std::vector<ValueId> flattened(const std::vector<ValueId>& inputs) const {
    std::vector<ValueId> parts;
    for (const ValueId input : inputs) {
      if (!goes_[input]) {
        parts.push_back(input);
      } else {
        parts.insert(parts.end(), parts_[input].begin(), parts_[input].end());
      }
    }
    return parts;
  }

  // Decides whether a Concat goes. If there would be too many parts, those that it is made of stay.
  void take_apart(const Node& concat) {
    const ValueId whole = concat.output();
    std::vector<ValueId> parts = flattened(concat.inputs);
    if (parts.size() > kMostParts) {
      for (const ValueId input : concat.inputs) goes_[input] = false;
      parts = concat.inputs;
    }
    goes_[whole] = is_read_in_parts(whole) && parts.size() <= kMostParts;
    parts_[whole] = std::move(parts);
  }

  // Parts whose statistics there will be.
  void share_parts(const Node& node) {
    if (!takes_parts(node) || !is_training(node) || !goes_[node.inputs[BatchNormInput::X]]) return;
    for (const ValueId part : parts_[node.inputs[BatchNormInput::X]]) is_shared_[part] = true;
  }

  void give_parts(NodeId id, const std::vector<ValueId>& parts) {
    const bool training = is_training(node(id));
    std::vector<ValueId> inputs = node(id).inputs;
    inputs[BatchNormInput::X] = parts[0];
    if (training) inputs.push_back(statistics_of(parts[0]));
    for (size_t i = 1; i < parts.size(); ++i) {
      inputs.push_back(parts[i]);
      if (training) inputs.push_back(statistics_of(parts[i]));
    }
    rewriter_.become(id, training ? op::BatchNormPartsTraining : op::BatchNormPartsInference, std::move(inputs),
                     node(id).outputs, node(id).attributes);
  }

  // Once for all batch norms over the part, right after the node that makes it.
  ValueId statistics_of(ValueId part) {
    ValueId& statistics = statistics_.try_emplace(part, kNone).first->second;
    if (statistics != kNone) return statistics;
    const Value& value = rewriter_.value(part);
    const std::string name = fmt::format("{}.statistics", value.name);
    statistics = value.producer == kNone ? rewriter_.add_before(0, op::ChannelStatistics, name, {part})
                                         : rewriter_.add_after(value.producer, op::ChannelStatistics, name, {part});
    return statistics;
  }

  Rewriter rewriter_;
  Table<ValueId, bool> goes_, is_shared_;       // as there were at the start
  Table<ValueId, std::vector<ValueId>> parts_;  // of each Concat's result
  std::map<ValueId, ValueId> statistics_;
};

}  // namespace

void fuse_concats(Graph& graph) {
  ConcatFusion(graph).run();
}

}  // namespace arbalest
