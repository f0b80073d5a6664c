// SPDX-License-Identifier: Apache-2.0
#include "passes/fuse/row_sums.h"

#include "ops/math/strided.h"
#include "ops/reduce/reduce.h"

namespace arbalest {

bool is_number(DataType type) {
  return type == DataType::Float32 || type == DataType::Bfloat16;
}

namespace {

// How far neighbours along the axes of the node's operand are in its result, if that is a sum or a mean, and the factor
// of a sum that makes it.
struct SumWalk {
  std::vector<int64_t> strides;
  double scale = 1;
};
std::optional<SumWalk> sum_walk(const Node& node, const TensorType& x, const TensorType& y) {
  const std::string name = node.op->qualified_name();
  const size_t rank = x.shape.size();
  const double share = double(y.elements()) / double(x.elements());
  if (name == "ReduceSum") return SumWalk{ReducedAxes(node, rank).strides(y)};
  if (name == "ReduceMean") return SumWalk{ReducedAxes(node, rank).strides(y), share};
  if (name == "GlobalAveragePool") return SumWalk{broadcast_strides(y, rank), share};
  if (name == "arbalest.SumTo") return SumWalk{broadcast_strides(y, rank)};
  return std::nullopt;
}

}  // namespace

std::optional<RegionSum> row_sum(const Graph& graph, const Node& node) {
  if (node.inputs.empty() || node.inputs[0] == kNone || node.outputs.size() != 1) return std::nullopt;
  const TensorType& x = graph.values[node.inputs[0]].type;
  const TensorType& y = graph.values[node.outputs[0]].type;
  if (!is_number(x.dtype) || !is_number(y.dtype) || x.elements() == 0 || x.shape.size() < 2) return std::nullopt;
  const size_t innermost = innermost_axis(x);
  const int64_t channels = x.shape[innermost];
  if (channels < 2) return std::nullopt;
  if (node.op->qualified_name() == "arbalest.ChannelSum") {
    if (int_attribute(node, "rank") != 1 || innermost != 1) return std::nullopt;
    return RegionSum{0, float_attribute(node, "scale")};
  }
  const std::optional<SumWalk> walk = sum_walk(node, x, y);
  if (!walk || x.elements() == y.elements()) return std::nullopt;
  const size_t rank = x.shape.size();
  const bool by_sample = rank > 2 && innermost > 0 && x.shape[0] > 1 && walk->strides[0] != 0;
  for (size_t axis = 0; axis < rank; ++axis) {
    const int64_t wanted = axis == innermost ? 1 : axis == 0 && by_sample ? channels : 0;
    if (x.shape[axis] > 1 && walk->strides[axis] != wanted) return std::nullopt;
  }
  RegionSum sum{0, walk->scale, by_sample ? rank : 1};
  const TensorType whole = sum_type(x, sum);
  if (whole.shape == y.shape && whole.layout == y.layout) return sum;
  if (y.layout != Layout::RowMajor || graph.values[node.outputs[0]].view.base != kNone) return std::nullopt;
  if (by_sample) sum.rank = 2;
  return sum;  // which a view shows as y
}

}  // namespace arbalest
