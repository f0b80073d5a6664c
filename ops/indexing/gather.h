// SPDX-License-Identifier: Apache-2.0
#pragma once
// How Gather and its gradient walk through their tensors, on every device.

#include "graph/kernel.h"
#include "graph/types.h"

namespace arbalest {

// Gather, GatherElements and GatherND, and ScatterElements and ScatterND, which alone have updates. Their gradients
// have dY in place of the data.
struct IndexedInput {
  enum : size_t { Data, Indices, Updates };
};

// data: (outer, extent, inner), row-major; indices: (count); what is gathered: (outer, count, inner).
struct Gathering {
  int64_t outer = 1, extent = 1, inner = 1, count = 0;

  Gathering(const TensorType& data, const TensorType& indices, size_t axis)
      : extent(data.shape[axis]), count(indices.elements()) {
    for (size_t i = 0; i < axis; ++i) outer *= data.shape[i];
    for (size_t i = axis + 1; i < data.shape.size(); ++i) inner *= data.shape[i];
  }
};

}  // namespace arbalest
