// SPDX-License-Identifier: Apache-2.0
#pragma once
// How OneHot walks through its tensors, on every device.

#include "base/host_device.h"
#include "graph/kernel.h"
#include "ops/names.h"

namespace arbalest {

// indices: (outer, inner); Y: (outer, depth, inner), row-major.
struct OneHotExtents {
  int64_t depth = 1, inner = 1;
  int64_t elements = 0;  // of Y

  explicit OneHotExtents(const KernelRequest& request);

  ARBALEST_HOST_DEVICE int64_t index_of(int64_t element) const {
    return element / inner / depth * inner + element % inner;
  }
  // Whether the index, which counts from the end if it is negative, names the element's place along the axis.
  ARBALEST_HOST_DEVICE bool is_on(int64_t element, int64_t index) const {
    return element / inner % depth == (index < 0 ? index + depth : index);
  }
};

}  // namespace arbalest
