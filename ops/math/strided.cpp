// SPDX-License-Identifier: Apache-2.0
#include "ops/math/strided.h"

#include <algorithm>
#include <numeric>

namespace arbalest {

std::vector<int64_t> broadcast_strides(const TensorType& type, size_t rank) {
  const std::vector<int64_t> own = memory_strides(type);
  std::vector<int64_t> strides(rank, 0);
  const size_t missing = rank - own.size();
  for (size_t axis = 0; axis < own.size(); ++axis) {
    strides[missing + axis] = type.shape[axis] == 1 ? 0 : own[axis];
  }
  return strides;
}

namespace {

std::vector<std::vector<int64_t>> all_strides(const std::vector<TensorType>& tensors) {
  std::vector<std::vector<int64_t>> strides;
  for (const TensorType& type : tensors) strides.push_back(broadcast_strides(type, tensors[0].shape.size()));
  return strides;
}

}  // namespace

std::vector<int64_t> memory_strides(const TensorType& type) {
  const size_t rank = type.shape.size();
  std::vector<size_t> order(rank);  // outermost first
  std::iota(order.begin(), order.end(), size_t{0});
  if (type.layout == Layout::ChannelsLast) std::rotate(order.begin() + 1, order.begin() + 2, order.end());
  std::vector<int64_t> strides(rank);
  int64_t stride = 1;
  for (size_t i = rank; i-- > 0;) {
    strides[order[i]] = stride;
    stride *= type.shape[order[i]];
  }
  return strides;
}

size_t innermost_axis(const TensorType& type) {
  const size_t rank = type.shape.size();
  return type.layout == Layout::ChannelsLast && rank > 2 ? 1 : rank - 1;
}

Strided::Strided(const std::vector<TensorType>& tensors) : Strided(tensors[0].shape, all_strides(tensors)) {}

MergedAxes merge_axes(const Shape& shape, const std::vector<std::vector<int64_t>>& strides) {
  std::vector<size_t> axes;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] != 1) axes.push_back(axis);
  }
  std::stable_sort(axes.begin(), axes.end(), [&](size_t a, size_t b) { return strides[0][a] > strides[0][b]; });
  MergedAxes merged;
  merged.strides.resize(strides.size());
  for (const size_t axis : axes) {
    bool merge = !merged.extents.empty();
    for (size_t t = 0; merge && t < strides.size(); ++t) {
      merge = merged.strides[t].back() == strides[t][axis] * shape[axis];
    }
    if (!merge) {
      merged.extents.push_back(1);
      for (std::vector<int64_t>& own : merged.strides) own.push_back(0);
    }
    merged.extents.back() *= shape[axis];
    for (size_t t = 0; t < strides.size(); ++t) merged.strides[t].back() = strides[t][axis];
  }
  if (!merged.extents.empty()) return merged;
  return {{1}, std::vector<std::vector<int64_t>>(strides.size(), {0})};
}

Strided::Strided(const Shape& shape, const std::vector<std::vector<int64_t>>& strides) {
  const MergedAxes merged = merge_axes(shape, strides);
  rank = int(merged.extents.size());
  for (int axis = 0; axis < rank; ++axis) set_extent(axis, merged.extents[size_t(axis)]);
  for (size_t t = 0; t < strides.size(); ++t) std::copy(merged.strides[t].begin(), merged.strides[t].end(), stride[t]);
}

AxisVectors::AxisVectors(const TensorType& type, int64_t axis) {
  const size_t place = normalized_axis(axis, type.shape.size());
  length = type.shape[place];
  step = memory_strides(type)[place];
  count = length == 0 ? 0 : type.elements() / length;
}

}  // namespace arbalest
