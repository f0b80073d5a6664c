// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a product of matrices is computed in padded memory: which matrices get rows of a multiple of 16 bytes, and which
// part of the product is computed at a time. Fast kernels of cuBLASLt take no other rows. Needs no CUDA.

#include <array>
#include <vector>

#include "base/device_model.h"
#include "ops/product/products.h"

namespace arbalest::cuda {

// A product's matrices, in the order of MatrixSteps.
enum ProductMatrix : uint8_t { kOfA, kOfB, kOfY };

inline constexpr std::array<int64_t MatrixSteps::*, 3> kStepOf = {&MatrixSteps::a, &MatrixSteps::b, &MatrixSteps::y};

enum class ProductAxis : uint8_t { Batch, M, N, K };

// Inputs: the operands whose rows need it lie in padded memory. Rows: the result as well. Extents: besides, extents are
// rounded up, with zeros, so that every matrix that has such an extent is in padded memory.
enum class PaddingWay : uint8_t { Inputs, Rows, Extents };

// (m, k) times (k, n), `batch` times.
struct ProductExtents {
  int64_t batch, m, n, k;
};

struct ProductPadding {
  PaddingWay way = PaddingWay::Rows;
  ProductAxis axis = ProductAxis::M;  // parts follow each other along it
  int64_t part = 0;                   // extent of a part; the last may have less
  std::array<bool, 3> own = {};       // by ProductMatrix: whether it lies in memory of the kernel's own
  bool round_m = false, round_n = false, round_k = false;
};

// A part of a product: its extents, and how many elements of each matrix lie before it.
struct ProductPart {
  ProductExtents extents;
  MatrixSteps first;
};

int64_t parts_of(const Problem& problem, const ProductPadding& padding);
ProductPart part_of(const Problem& problem, const ProductPadding& padding, int64_t index);
// Whether a part needs other elements of an operand than the part before it.
bool moves_with_part(const Problem& problem, const ProductPadding& padding, ProductMatrix matrix);

// Inputs of a part's product. The summand is the problem's if Y is not the kernel's own, or the sum so far along K.
struct PartInput {
  enum : int { A, B, Summand };
};
// The product of a part, with operands at PartInput.
Problem problem_of_part(const Problem& problem, const ProductPadding& padding, int64_t index);

// Copies matrices of (rows, columns) elements into rows of `to_columns`, and `to_rows` of them. The rest is zeros.
struct RowsMove {
  struct Side {
    int64_t step, pitch;  // elements from a matrix to the next and from a row to the next
  };
  int64_t batch, rows, columns, to_rows, to_columns;
  Side from, to;
};

// An operand's way into padded memory, or the result's way out.
RowsMove move_of_part(const Problem& problem, const ProductPadding& padding, int64_t index, ProductMatrix matrix);

// Offsets in bytes of the kernel's own matrices, by ProductMatrix, and the bytes of all, a multiple of 256.
struct PaddedMemory {
  std::array<int64_t, 3> offset = {};
  int64_t bytes = 0;
};
PaddedMemory padded_memory(const Problem& problem, const ProductPadding& padding);

// Type of Y's elements in the kernel's own memory: sums along several parts of K are floats.
DataType type_of_sums(const Problem& problem, const ProductPadding& padding);

// Estimated µs of what padding adds to the products: copies, and launches of more products than one.
double padding_microseconds(const DeviceModel& device, const Problem& problem, const ProductPadding& padding);

// Ways to pad a product that may be faster than none, in at most `memory` bytes. Empty for products in other types than
// bfloat16, with aligned rows, or too small. `surely`: only ways that are faster by all that was measured.
std::vector<ProductPadding> proposed_paddings(const DeviceModel& device, const Problem& problem, int64_t memory,
                                              bool surely);

}  // namespace arbalest::cuda
