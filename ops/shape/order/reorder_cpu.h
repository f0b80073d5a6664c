// SPDX-License-Identifier: Apache-2.0
#pragma once
// CPU kernel between the memory layouts of one tensor.

#include "ops/cpu.h"
#include "ops/shape/order/reorder.h"
#include "ops/words.h"

namespace arbalest {

template <typename T>
void reorder(const Reordering& order, const T* x, T* y) {
  const int64_t rows = order.rows, columns = order.columns, matrix = rows * columns;
  if (order.copies()) {
    const int64_t count = order.batch * matrix;
    if (count > 0 && y != x) std::memcpy(y, x, size_t(count) * sizeof(T));
    return;
  }
  constexpr int64_t kRows = 8;
  parallel_for(order.batch, matrix * 2, [=](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const T* from = x + n * matrix;
      T* to = y + n * matrix;
      // Few rows at a time: if they are a multiple of 4096 bytes apart, all of them share one set of the first cache.
      for (int64_t first_row = 0; first_row < rows; first_row += kRows) {
        const int64_t past_row = std::min(rows, first_row + kRows);
        for (int64_t column = 0; column < columns; ++column) {
          for (int64_t row = first_row; row < past_row; ++row) to[column * rows + row] = from[row * columns + column];
        }
      }
    }
  });
}

// A kernel that brings input 0, of type `type`, into `layout`. Elements are moved, whatever they are.
inline std::unique_ptr<Kernel> reorder_cpu(const TensorType& type, Layout layout) {
  return with_word(type.dtype, [order = Reordering(type, layout)](auto word) {
    using Word = decltype(word);
    return make_kernel(
        [order](const KernelContext& context) { reorder(order, input<Word>(context, 0), output<Word>(context, 0)); });
  });
}

}  // namespace arbalest
