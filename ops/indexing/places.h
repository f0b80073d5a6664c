// SPDX-License-Identifier: Apache-2.0
#pragma once
// Places of the elements that GatherElements, GatherND, ScatterElements, ScatterND and their gradients take from a
// tensor or put into it, on every device.

#include <type_traits>

#include "base/host_device.h"
#include "graph/kernel.h"
#include "graph/op.h"

namespace arbalest {

// Indices, int32 or int64, in the memory of the device.
struct Indices {
  const void* first;
  bool wide;  // int64

  ARBALEST_HOST_DEVICE int64_t operator[](int64_t i) const {
    return wide ? static_cast<const int64_t*>(first)[i] : static_cast<const int32_t*>(first)[i];
  }
};

// The elements that are taken or put are a row-major tensor (outer, length, inner): GatherElements' output, ScatterND's
// updates. Those that differ along `length` alone are a group: indices may give them one place in `data`, while
// elements of different groups never share one.
struct IndexedPlaces {
  static constexpr int kMaxRank = 8;
  int64_t outer = 1, length = 1, inner = 1;
  // GatherND and ScatterND: a tuple of `depth` indices for each place along `length`. Else one index for each element.
  bool tuples = false;
  int depth = 1;
  int64_t extent[kMaxRank] = {}, stride[kMaxRank] = {};  // of `data` along the axes that the indices name
  // Axes of `data` that a group's number runs over: how many there are, their extents and their strides.
  int rank = 0;
  int64_t group_extent[kMaxRank] = {}, group_stride[kMaxRank] = {};
  // GatherND's batches: the tuples in each, and the stride between batches in `data`.
  int64_t per_batch = 1, batch_stride = 0;

  // Relates `data` and `indices` by the operator's attribute `axis` or `batch_dims`.
  IndexedPlaces(const Node& node, const Shape& data, const Shape& indices);

  ARBALEST_HOST_DEVICE int64_t groups() const { return outer * inner; }
  ARBALEST_HOST_DEVICE int64_t elements() const { return outer * length * inner; }
  ARBALEST_HOST_DEVICE int64_t element(int64_t group, int64_t j) const {
    return (group / inner * length + j) * inner + group % inner;
  }
  // The group of an element, and its position along `length`.
  ARBALEST_HOST_DEVICE int64_t group_of(int64_t element) const {
    return element / inner / length * inner + element % inner;
  }
  ARBALEST_HOST_DEVICE int64_t position_of(int64_t element) const { return element / inner % length; }

  // Offset in `data` where the group begins. That of (outer, inner) is the sum of those of (outer, 0) and (0, inner).
  ARBALEST_HOST_DEVICE int64_t start(int64_t group) const {
    int64_t at = 0;
    for (int axis = rank - 1; axis >= 0; --axis) {
      at += group % group_extent[axis] * group_stride[axis];
      group /= group_extent[axis];
    }
    return at;
  }
  // Offset from there for position j, whose indices begin with the one of number `first`; −1 if one is out of range.
  ARBALEST_HOST_DEVICE int64_t step(int64_t j, int64_t first, const Indices& indices) const {
    int64_t at = j / per_batch * batch_stride;
    for (int i = 0; i < depth; ++i) {
      const int64_t index = indices[first + i], counted = index < 0 ? index + extent[i] : index;
      if (counted < 0 || counted >= extent[i]) return -1;
      at += counted * stride[i];
    }
    return at;
  }
  // Offset in `data` of element j of the group; −1 if an index is out of range.
  ARBALEST_HOST_DEVICE int64_t place(int64_t group, int64_t j, const Indices& indices) const {
    const int64_t at = step(j, tuples ? j * depth : element(group, j), indices);
    return at < 0 ? -1 : start(group) + at;
  }
};

// How an update is combined with the element at its place.
enum class Reduction : uint8_t { None, Add, Mul, Max, Min };  // in the order of the attribute's choices
Reduction reduction_of(const Node& node);

// Combines element a with update b. Integers wrap around; a NaN stays.
template <typename W>
ARBALEST_HOST_DEVICE inline W reduced(Reduction reduction, W a, W b) {
  using U = std::conditional_t<std::is_integral_v<W>, uint64_t, W>;
  switch (reduction) {
    case Reduction::Add: return W(U(a) + U(b));
    case Reduction::Mul: return W(U(a) * U(b));
    case Reduction::Max: return a > b || a != a ? a : b;
    case Reduction::Min: return a < b || a != a ? a : b;
    default: return b;
  }
}

// Take: Y of `data` and indices. Put: Y is `data` with updates put in. Sum: dX, zeros to which dY is added. Clear: Y is
// dY with zeros put in. Indices are always input 1.
enum class IndexedKind : uint8_t { Take, Put, Sum, Clear };

struct IndexedOperator {
  const char* name;
  IndexedKind kind;
};
inline constexpr IndexedOperator kIndexedOperators[] = {{"GatherElements", IndexedKind::Take},
                                                        {"GatherND", IndexedKind::Take},
                                                        {"ScatterElements", IndexedKind::Put},
                                                        {"ScatterND", IndexedKind::Put},
                                                        {"arbalest.GatherElementsGrad", IndexedKind::Sum},
                                                        {"arbalest.GatherNDGrad", IndexedKind::Sum},
                                                        {"arbalest.ScatterElementsGrad", IndexedKind::Clear},
                                                        {"arbalest.ScatterNDGrad", IndexedKind::Clear}};

IndexedPlaces places_of(const KernelRequest& request, IndexedKind kind);

// The operators' records, without kernels.
void add_gather_elements(OpRegistry& registry);
void add_scatter(OpRegistry& registry);

// Checks of GatherElements and ScatterElements: 'indices' are int32 or int64 and have the rank of 'data'. Along all
// axes but `axis` they extend no further than 'data'.
void check_element_indices(const InferContext& context);
// Shape of the elements that tuples of indices name: (places of the tuples, the axes of 'data' that they leave).
Shape shape_by_tuples(const InferContext& context, int64_t batch_dims);

}  // namespace arbalest
