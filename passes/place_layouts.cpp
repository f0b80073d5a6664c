// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

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
  std::vector<bool> settled(graph.values.size(), false);
  for (const Node& node : graph.nodes) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] == kNone || settled[size_t(node.inputs[i])]) continue;
      Value& value = graph.values[size_t(node.inputs[i])];
      const bool stored = value.role == Role::Parameter || value.role == Role::Frozen || value.role == Role::State ||
                          value.role == Role::Constant;
      const auto wanted = node.op->layout;
      if (!stored || value.producer != kNone || !wanted) continue;
      value.type = value.type.in(*wanted);
      settled[size_t(node.inputs[i])] = true;
    }
  }
}

// A transposition, or Flatten, that moves no element becomes one that shares its input's memory.
void share_unmoved(Rewriter& rewriter, NodeId id) {
  if (rewriter.is(id, "Flatten") && rewriter.value(rewriter.input(id, 0)).type.lies_as(Layout::RowMajor)) {
    rewriter.set_op(id, "arbalest.FlattenInPlace");
  }
  if (!rewriter.is(id, "Transpose")) return;
  const Node& node = rewriter.node(id);
  const auto layout_of = [&](ValueId value) { return rewriter.value(value).type.layout; };
  if (keeps_memory(ints_attribute(node, "perm"), layout_of(node.inputs[0]), layout_of(node.outputs[0]))) {
    rewriter.set_op(id, "arbalest.TransposeInPlace");
  }
}

}  // namespace

void place_layouts(Graph& graph) {
  lay_out_stored_values(graph);
  Rewriter rewriter(graph);
  std::map<std::pair<ValueId, Layout>, ValueId> converted;  // once for all readers, right before the first
  for (NodeId n = 0; n < rewriter.count(); ++n) {
    const std::optional<Layout> wanted = rewriter.node(n).op->layout;
    for (size_t i = 0; wanted && i < rewriter.node(n).inputs.size(); ++i) {
      const ValueId input = rewriter.input(n, i);
      if (input == kNone || rewriter.value(input).type.lies_as(*wanted)) continue;
      ValueId& fitting = converted.try_emplace({input, *wanted}, kNone).first->second;
      if (fitting == kNone) {
        const std::string to(name_of(*wanted));
        fitting = rewriter.add_before(n, "arbalest.ChangeLayout", fmt::format("{}.{}", rewriter.value(input).name, to),
                                      {input}, {{"to", to}});
      }
      rewriter.set_input(n, i, fitting);
    }
    rewriter.infer(n);  // what an operator makes may be laid out as what it reads
    share_unmoved(rewriter, n);
  }
  rewriter.finish();
}

}  // namespace arbalest
