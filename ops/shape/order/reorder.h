// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reordering between the memory layouts of one tensor: for each image the transposition of (channels, pixels).

#include <algorithm>

#include "graph/types.h"

namespace arbalest {

// y (batch, columns, rows) = x (batch, rows, columns), transposed; a plain copy if the two orders agree.
struct Reordering {
  int64_t batch = 1, rows = 1, columns = 1;

  // From the layout of `type` to the same tensor in `layout`.
  Reordering(const TensorType& type, Layout layout) {
    if (type.lies_as(layout)) {
      columns = type.elements();
      return;
    }
    batch = type.shape[0];
    const int64_t channels = type.shape[1], pixels = type.elements() / std::max<int64_t>(1, batch * channels);
    rows = layout == Layout::RowMajor ? pixels : channels;
    columns = layout == Layout::RowMajor ? channels : pixels;
  }
  bool copies() const { return rows == 1; }
};

}  // namespace arbalest
