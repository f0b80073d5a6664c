// SPDX-License-Identifier: Apache-2.0
#pragma once
// Declarations that Gemm's CPU and CUDA kernels share.

#include <cstddef>
#include <cstdint>

#include "graph/types.h"

namespace arbalest {

// Gemm, and arbalest.GemmSum, which alone has a summand. MatMul and arbalest.BatchMatMul have A and B.
struct GemmInput {
  enum : size_t { A, B, C, Summand };
};
struct GemmGradBInput {
  enum : size_t { A, dY };
};

// How Gemm reads C, of a shape that broadcasts to (rows, columns): with one number a column, a row, an element, or one
// for all.
enum class Addend : uint8_t { None, Row, Column, Matrix, Scalar };

inline Addend addend_of(const Shape& c, int64_t rows, int64_t columns) {
  const bool along_columns = !c.empty() && (c.back() != 1 || columns == 1);
  const bool along_rows = c.size() == 2 && c[0] != 1 && rows != 1;
  if (along_columns) return along_rows ? Addend::Matrix : Addend::Row;
  return along_rows ? Addend::Column : Addend::Scalar;
}

}  // namespace arbalest
