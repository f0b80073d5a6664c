// SPDX-License-Identifier: Apache-2.0

// Channel shuffles, which exporters write as a Reshape that cuts the channels in two axes, a Transpose of these and a
// Reshape back. Images would lose their layout there, and every shuffle be three copies.

#include "ops/shape/transpose.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

constexpr size_t kChannels = 1;  // the axis

// The shape with its channels cut into groups.
Shape in_groups(const Shape& shape, int64_t groups) {
  Shape cut = shape;
  cut[kChannels] = groups == 0 ? 0 : shape[kChannels] / groups;
  cut.insert(cut.begin() + kChannels, groups);
  return cut;
}

// Returns whether the transposition was part of a shuffle.
bool fuse_shuffle(Rewriter& rewriter, NodeId transpose) {
  const ValueId cut = rewriter.input(transpose), turned = rewriter.output(transpose);
  const NodeId first = rewriter.producer(cut, op::Reshape), last = rewriter.only_reader(turned, op::Reshape);
  if (first == kNone || last == kNone || rewriter.only_reader(cut) != transpose) return false;
  const ValueId x = rewriter.input(first), y = rewriter.output(last);
  const Shape shape = rewriter.shape(x), inner = rewriter.shape(cut);
  if (inner[kChannels] < 1 || element_count(shape) == 0) return false;
  if (rewriter.input(last) != turned || rewriter.shape(y) != shape || shape.size() < 3) return false;
  if (inner.size() != shape.size() + 1 || inner != in_groups(shape, inner[kChannels])) return false;
  std::vector<int64_t> swapped(inner.size());
  for (size_t axis = 0; axis < swapped.size(); ++axis) swapped[axis] = int64_t(axis);
  std::swap(swapped[kChannels], swapped[kChannels + 1]);
  if (permutation_of(rewriter.node(transpose), inner.size()) != swapped) return false;
  const int64_t groups = inner[kChannels];
  rewriter.remove(first);
  rewriter.remove(transpose);
  rewriter.become(last, op::Interleave, {x}, {y}, {{"axis", int64_t{kChannels}}, {"groups", groups}});
  return true;
}

}  // namespace

void fuse_shuffles(Graph& graph) {
  Rewriter rewriter(graph);
  bool changed = false;
  for (const NodeId n : rewriter.ids()) {
    if (rewriter.is(n, op::Transpose) && fuse_shuffle(rewriter, n)) changed = true;
  }
  rewriter.finish();
  for (NodeId n = 0; changed && n < graph.nodes.end_id(); ++n) infer(graph, n);  // layouts
}

}  // namespace arbalest
