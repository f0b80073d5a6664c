// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "graph/layouts.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

// Parameters, states and constants are laid out as the first node wants them that does not take any layout. That costs
// nothing: their first content is brought into that order when it is made or read from a file.
void lay_out_stored_values(Graph& graph) {
  Table<ValueId, bool> settled(graph.values.size(), false);
  for (const Node& node : graph.nodes) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] == kNone || settled[node.inputs[i]]) continue;
      Value& value = graph.values[node.inputs[i]];
      const bool stored = value.role == Role::Parameter || value.role == Role::Frozen || value.role == Role::State ||
                          value.role == Role::Constant;
      const auto wanted = node.op->layout;
      if (!stored || value.producer != kNone || !wanted) continue;
      value.type = value.type.in(*wanted);
      settled[node.inputs[i]] = true;
    }
  }
}

// A transposition, or Flatten, that moves no element becomes one that shares its input's memory.
void share_unmoved(Rewriter& rewriter, NodeId id) {
  if (rewriter.is(id, op::Flatten) && rewriter.value(rewriter.input(id)).type.lies_as(Layout::RowMajor)) {
    rewriter.set_op(id, op::FlattenInPlace);
  }
  if (!rewriter.is(id, op::Transpose)) return;
  const Node& node = rewriter.node(id);
  const auto layout_of = [&](ValueId value) { return rewriter.value(value).type.layout; };
  if (keeps_memory(ints_attribute(node, "perm"), layout_of(node.input()), layout_of(node.output()))) {
    rewriter.set_op(id, op::TransposeInPlace);
  }
}

// Which values are wanted channels-last: by one reader that takes no other layout, or by all, where those count that
// hand on what they read element by element, or in parts.
class Wishes {
 public:
  explicit Wishes(const Graph& graph) : by_one_(graph.values.size()), by_all_(graph.values.size()) {
    Table<ValueId, std::vector<NodeId>> readers = graph.consumers();
    for (const ValueId output : graph.outputs) readers[output].push_back(kNone);
    for (const Carry& carry : graph.carries) readers[carry.next].push_back(kNone);
    for (const ValueId v : readers.ids()) {
      by_all_[v] = !readers[v].empty() && std::count(readers[v].begin(), readers[v].end(), kNone) == 0;
    }
    for (NodeId n = graph.nodes.end_id(); n-- > 0;) {
      const Node& node = graph.nodes[n];
      const bool wants = node.op->layout == Layout::ChannelsLast || (hands_on(graph, node) && all_wanted(node));
      for (const ValueId input : node.inputs) {
        if (input == kNone) continue;
        by_one_[input] = by_one_[input] || node.op->layout == Layout::ChannelsLast;
        by_all_[input] = by_all_[input] && wants;
      }
    }
  }

  bool by_one(ValueId value) const { return size_t(value) < by_one_.size() && by_one_[value]; }
  // Whether the node may as well read its first input channels-last, and all that it makes is wanted so and lies
  // otherwise.
  bool moves_ahead_of(const Graph& graph, const Node& node) const {
    if (!hands_on(graph, node) || !all_wanted(node)) return false;
    const TensorType& from = graph.values[node.input()].type;
    int64_t bytes = 0;  // that would be turned
    for (const ValueId output : node.outputs) {
      const TensorType& type = graph.values[output].type;
      bytes += type.lies_as(Layout::ChannelsLast) ? 0 : type.bytes();
    }
    return from.shape.size() > 2 && bytes > 0 && 2 * bytes >= from.bytes();
  }

 private:
  static bool hands_on(const Graph& graph, const Node& node) {
    if (node.input() == kNone) return false;
    if (node.is(op::Split) || node.is(op::Slice)) return true;
    return node.op->element && !node.op->layout &&
           std::all_of(node.inputs.begin() + 1, node.inputs.end(),
                       [&](ValueId v) { return v == kNone || graph.values[v].type.elements() == 1; });
  }
  bool all_wanted(const Node& node) const {
    return std::all_of(node.outputs.begin(), node.outputs.end(),
                       [&](ValueId output) { return output != kNone && by_all_[output]; });
  }

  Table<ValueId, bool> by_one_, by_all_;
};

// Operands of an elementwise operator that lie in another order than one of its shape which is channels-last, if a
// reader wants them, or the result, so.
std::vector<size_t> operands_to_turn(const Graph& graph, const Node& node, const Wishes& wishes) {
  std::vector<size_t> found;
  if (!node.op->element || node.op->layout) return found;
  const Shape& shape = graph.values[node.output()].type.shape;
  bool turns = false;
  for (size_t i = 0; i < node.inputs.size() && shape.size() > 2; ++i) {
    if (node.inputs[i] == kNone) continue;
    const TensorType& type = graph.values[node.inputs[i]].type;
    if (type.shape != shape) continue;
    if (type.lies_as(Layout::ChannelsLast)) {
      turns = turns || type.layout == Layout::ChannelsLast;
    } else if (wishes.by_one(node.inputs[i]) || wishes.by_one(node.output())) {
      found.push_back(i);
    }
  }
  return turns ? found : std::vector<size_t>();
}

}  // namespace

void place_layouts(Graph& graph) {
  lay_out_stored_values(graph);
  const Wishes wishes(graph);
  Rewriter rewriter(graph);
  std::map<std::pair<ValueId, Layout>, ValueId> converted;  // once for all readers, right before the first
  for (const NodeId n : rewriter.ids()) {
    const auto turn = [&](size_t i, Layout wanted) {
      const ValueId input = rewriter.input(n, i);
      if (input == kNone || rewriter.value(input).type.lies_as(wanted)) return;
      ValueId& fitting = converted.try_emplace({input, wanted}, kNone).first->second;
      if (fitting == kNone) {
        const std::string to(name_of(wanted));
        fitting = rewriter.add_before(n, op::ChangeLayout, fmt::format("{}.{}", rewriter.value(input).name, to),
                                      {input}, {{"to", to}});
      }
      rewriter.set_input(n, i, fitting);
    };
    const std::optional<Layout> wanted = rewriter.node(n).op->layout;
    for (size_t i = 0; wanted && i < rewriter.node(n).inputs.size(); ++i) turn(i, *wanted);
    if (wishes.moves_ahead_of(graph, rewriter.node(n))) turn(0, Layout::ChannelsLast);
    for (const size_t i : operands_to_turn(graph, rewriter.node(n), wishes)) turn(i, Layout::ChannelsLast);
    rewriter.infer(n);  // what an operator makes may be laid out as what it reads
    share_unmoved(rewriter, n);
  }
  rewriter.finish();
}

}  // namespace arbalest
