// SPDX-License-Identifier: Apache-2.0
#pragma once
// Matrix products on the CPU, as Gemm and MatMul have them: oneDNN if it has them, plain loops elsewhere.

#include "ops/cpu.h"
#ifdef ARBALEST_ONEDNN
#include "ops/onednn/onednn.h"
#endif

namespace arbalest {

// y (rows × columns) = alpha · a · b + beta · c, with each operand's strides in elements.
struct Multiplication {
  int64_t rows, depth, columns;
  int64_t a_row, a_depth, b_depth, b_column;
  double alpha = 1, beta = 0;
  int64_t c_row = 0, c_column = 0;  // 0: the same for all rows or columns
};

// T: type of the elements of a and b; Y: that of the result. `c` may be null.
template <typename T, typename Y>
void multiply(const Multiplication& m, const T* a, const T* b, const Wide<T>* c, Y* y) {
  using W = Wide<T>;
  constexpr int64_t kBlock = 64;
  parallel_for(m.rows, m.depth * m.columns, [=, &m](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t first = 0; first < m.columns; first += kBlock) {
        const int64_t count = std::min(kBlock, m.columns - first);
        W sums[kBlock] = {};
        for (int64_t k = 0; k < m.depth; ++k) {
          const W factor = widen(a[row * m.a_row + k * m.a_depth]);
          const T* from = b + k * m.b_depth + first * m.b_column;
          for (int64_t i = 0; i < count; ++i) sums[i] += factor * widen(from[i * m.b_column]);
        }
        for (int64_t i = 0; i < count; ++i) {
          W value = W(m.alpha) * sums[i];
          if (c) value += W(m.beta) * c[row * m.c_row + (first + i) * m.c_column];
          y[row * m.columns + first + i] = narrow<Y>(value);
        }
      }
    }
  });
}

#ifdef ARBALEST_ONEDNN
// y = a · b [+ bias along the rows, input 2]; nullptr if oneDNN has no kernel for it. `deterministic`: the same bits
// with any number of threads.
std::unique_ptr<Kernel> onednn_matmul(const onednn::Desc& a, const onednn::Desc& b, const onednn::Desc& y,
                                      int64_t a_input, int64_t b_input, int64_t bias_columns, bool deterministic);
#endif

}  // namespace arbalest
