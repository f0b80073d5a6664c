// SPDX-License-Identifier: Apache-2.0
#pragma once
// Loops of CPU kernels over the pixels of images.

#include "ops/cpu.h"
#include "ops/nn/window.h"

namespace arbalest {

// f(image, (depth, height, 0), the row's first pixel counted over the batch) for each row of pixels of a batch of
// images; `work`: simple operations a pixel.
template <typename F>
void for_each_row(int64_t batch, const Pixels& extents, int64_t work, const F& f) {
  parallel_for(batch * extents[0] * extents[1], extents[2] * work, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      f(row / extents[1] / extents[0], Pixels{row / extents[1] % extents[0], row % extents[1], 0}, row * extents[2]);
    }
  });
}

}  // namespace arbalest
