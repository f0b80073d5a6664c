// SPDX-License-Identifier: Apache-2.0
#include "passes/fuse/row_sums.h"

#include "ops/math/strided.h"
#include "passes/rewriter.h"

namespace arbalest {

bool is_number(DataType type) {
  return type == DataType::Float32 || type == DataType::Bfloat16;
}

std::optional<RegionSum> row_sum(const Graph& graph, const Node& node) {
  if (node.input() == kNone || node.outputs.size() != 1) return std::nullopt;
  const TensorType& x = graph.values[node.input()].type;
  const TensorType& y = graph.values[node.output()].type;
  if (!is_number(x.dtype) || !is_number(y.dtype) || x.elements() == 0 || x.shape.size() < 2) return std::nullopt;
  const size_t innermost = innermost_axis(x);
  const int64_t channels = x.shape[innermost];
  if (channels < 2) return std::nullopt;
  if (node.is(op::ChannelSum)) {
    if (int_attribute(node, "rank") != 1 || innermost != 1) return std::nullopt;
    return RegionSum{0, float_attribute(node, "scale")};
  }
  if (!node.op->sum || x.elements() == y.elements()) return std::nullopt;
  const AxisSum found = node.op->sum(node, x, y);
  const size_t rank = x.shape.size();
  const bool by_sample = rank > 2 && innermost > 0 && x.shape[0] > 1 && found.strides[0] != 0;
  for (size_t axis = 0; axis < rank; ++axis) {
    const int64_t wanted = axis == innermost ? 1 : axis == 0 && by_sample ? channels : 0;
    if (x.shape[axis] > 1 && found.strides[axis] != wanted) return std::nullopt;
  }
  RegionSum sum{0, found.scale, by_sample ? rank : 1};
  const TensorType whole = sum_type(x, sum);
  if (whole.shape == y.shape && whole.layout == y.layout) return sum;
  if (y.layout != Layout::RowMajor || graph.values[node.output()].view.base != kNone) return std::nullopt;
  if (by_sample) sum.rank = 2;
  return sum;  // which a view shows as y
}

bool region_reads(const Graph& graph, const Rewriter& rewriter, NodeId reader, ValueId value) {
  return reader != kNone &&
         (rewriter.is_elementwise(reader, rewriter.shape(value)) || row_sum(graph, rewriter.node(reader)));
}

}  // namespace arbalest
