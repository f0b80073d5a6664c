// SPDX-License-Identifier: Apache-2.0
#pragma once
// How tensors of one broadcast shape are walked through together: elementwise operators with operands of other shapes,
// sums over broadcast axes, permutations of axes.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/host_device.h"
#include "graph/types.h"
#include "ops/math/divisor.h"

namespace arbalest {

// Strides of the tensor's axes in memory, in elements.
std::vector<int64_t> memory_strides(const TensorType& type);

// The axis that lies innermost in memory, of a tensor with one axis at least.
size_t innermost_axis(const TensorType& type);

// The strides of a tensor along the axes of a shape of `rank` axes that it broadcasts to.
std::vector<int64_t> broadcast_strides(const TensorType& type, size_t rank);

// Axes that several tensors have in common, with the strides of each tensor.
struct MergedAxes {
  std::vector<int64_t> extents;
  std::vector<std::vector<int64_t>> strides;  // by tensor
};
// Axes in the order in which the first tensor lies in memory, outermost first. Neighbouring axes are merged if one
// stride of each tensor serves both, and extents of 1 are left out. Rank 0 becomes one axis of extent 1.
MergedAxes merge_axes(const Shape& shape, const std::vector<std::vector<int64_t>>& strides);

// The axes of merge_axes(), in memory of their own: for kernels.
struct Strided {
  static constexpr size_t kMaxRank = 8, kMaxTensors = 4;
  int rank = 1;
  int64_t extent[kMaxRank] = {1};
  Divisor of_extent[kMaxRank];
  int64_t stride[kMaxTensors][kMaxRank] = {};  // in elements; 0 if the tensor is broadcast

  // The first tensor has the shape that is walked through; those of the others broadcast to it.
  explicit Strided(const std::vector<TensorType>& tensors);
  // The same from strides for each axis.
  Strided(const Shape& shape, const std::vector<std::vector<int64_t>>& strides);

  void set_extent(int axis, int64_t elements) {
    extent[axis] = elements;
    of_extent[axis] = Divisor(elements);
  }
  int64_t inner() const { return extent[rank - 1]; }
  int64_t inner_stride(size_t tensor) const { return stride[tensor][rank - 1]; }
  // Whether the first `tensors` tensors all hold the elements in one order, without gaps.
  bool contiguous(size_t tensors) const {
    if (rank != 1) return false;
    for (size_t t = 0; t < tensors; ++t) {
      if (stride[t][0] != 1 && extent[0] != 1) return false;
    }
    return true;
  }
};

// The vectors of a tensor along one axis, in any layout; a negative axis counts from the end.
struct AxisVectors {
  int64_t count = 0;   // of vectors
  int64_t length = 0;  // of each
  int64_t step = 1;    // between neighbours in a vector, in elements

  AxisVectors(const TensorType& type, int64_t axis);

  // Offset of the first element of vector i.
  ARBALEST_HOST_DEVICE int64_t first(int64_t i) const { return i / step * step * length + i % step; }
};

}  // namespace arbalest
