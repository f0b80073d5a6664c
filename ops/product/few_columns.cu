// SPDX-License-Identifier: Apache-2.0
#include "ops/product/few_columns.h"

#include "ops/cuda/cuda_math.cuh"
#include "ops/cuda/partial_sums.cuh"

namespace arbalest::cuda {
namespace {

constexpr int kFewColumns = 16, kMostOfFew = 64;  // columns of a matrix, elements of the small one
constexpr int64_t kManyRows = 1 << 14;
constexpr int kTileRows = kThreads;

// `rows` rows of `columns` elements, which follow each other, and zeros after them, by a block.
template <typename T>
__device__ void fetch_rows(const T* from, int rows, int columns, T* tile) {
  for (int i = int(threadIdx.x) * 2; i < kTileRows * columns; i += kThreads * 2) {
    const bool whole = i + 1 < rows * columns;
    Pack<T, 2> pair = {narrow<T>(0), narrow<T>(0)};
    if (whole) pair = load<2>(from + i);
    if (!whole && i < rows * columns) pair.element[0] = from[i];
    store(tile + i, pair);
  }
}

struct FewColumns {
  int64_t rows;
  int depth, columns;
  bool transposed;  // B is (columns, depth)
  float alpha, beta;
};

// A thread has a row of a tile. bias: `columns` numbers, or nullptr.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    few_columns_kernel(FewColumns p, const T* a, const T* b, const float* bias, T* y) {
  __shared__ alignas(16) T in[kTileRows * kFewColumns], out[kTileRows * kFewColumns];
  __shared__ float factor[kFewColumns * kFewColumns], added[kFewColumns];
  for (int i = int(threadIdx.x); i < kFewColumns * p.columns; i += kThreads) {
    const int k = i / p.columns, n = i % p.columns;
    factor[i] = k < p.depth ? p.alpha * widen(b[p.transposed ? n * p.depth + k : k * p.columns + n]) : 0;
    if (k == 0) added[n] = bias != nullptr ? p.beta * bias[n] : 0;
  }
  for (int64_t first = int64_t(blockIdx.x) * kTileRows; first < p.rows; first += int64_t(gridDim.x) * kTileRows) {
    const int rows = int(min(int64_t(kTileRows), p.rows - first));
    __syncthreads();  // the factors are there, and the tile before is written
    fetch_rows(a + first * p.depth, rows, p.depth, in);
    __syncthreads();
    float x[kFewColumns];
#pragma unroll
    for (int k = 0; k < kFewColumns; ++k) x[k] = k < p.depth ? widen(in[int(threadIdx.x) * p.depth + k]) : 0;
    for (int n = 0; n < p.columns; ++n) {
      float sum = added[n];
#pragma unroll
      for (int k = 0; k < kFewColumns; ++k) {
        if (k < p.depth) sum += x[k] * factor[k * p.columns + n];
      }
      out[int(threadIdx.x) * p.columns + n] = narrow<T>(sum);
    }
    __syncthreads();
    T* const to = y + first * p.columns;
    for (int i = int(threadIdx.x) * 2; i < rows * p.columns; i += kThreads * 2) {
      if (i + 1 < rows * p.columns) {
        store(to + i, load<2>(out + i));
      } else {
        to[i] = out[i];
      }
    }
  }
}

// Adds up products of a column of A and one of B. Threads share out the pairs of columns, and for each pair the rows of
// a tile. partials: (blocks, pairs).
template <typename T>
__global__ void __launch_bounds__(kThreads)
    few_columns_sums_kernel(int64_t rows, int a_columns, int b_columns, const T* a, const T* b, float* partials) {
  __shared__ alignas(16) T left[kTileRows * kFewColumns], right[kTileRows * kFewColumns];
  __shared__ float sums[kThreads];
  const int pairs = a_columns * b_columns, parts = kThreads / pairs;
  const int pair = int(threadIdx.x) % pairs, part = int(threadIdx.x) / pairs;
  float sum = 0;
  for (int64_t first = int64_t(blockIdx.x) * kTileRows; first < rows; first += int64_t(gridDim.x) * kTileRows) {
    const int there = int(min(int64_t(kTileRows), rows - first));
    __syncthreads();  // the tile before is read
    fetch_rows(a + first * a_columns, there, a_columns, left);
    fetch_rows(b + first * b_columns, there, b_columns, right);
    __syncthreads();
    if (part < parts) {
      for (int row = part; row < there; row += parts) {
        sum += widen(left[row * a_columns + pair / b_columns]) * widen(right[row * b_columns + pair % b_columns]);
      }
    }
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (part > 0) return;
  for (int other = 1; other < parts; ++other) sum += sums[other * pairs + pair];
  partials[int64_t(blockIdx.x) * pairs + pair] = sum;
}

bool is_one_product(const Problem& problem) {
  const MatrixSteps& first = problem.calls.front();
  return problem.products() == 1 && first.a == 0 && first.b == 0 && first.y == 0 && problem.inputs.summand < 0;
}

class FewColumnsSums final : public Kernel {
 public:
  FewColumnsSums(const KernelRequest& request, const Problem& problem)
      : problem_(problem),
        blocks_(int(
            std::min((problem.k + kTileRows - 1) / kTileRows, int64_t{4} * multiprocessors_of(request)))) {}

  int64_t workspace_bytes() const override { return blocks_ * problem_.m * problem_.n * int64_t(sizeof(float)); }

  void run(const KernelContext& c) const override {
    const void *a = c.inputs[problem_.inputs.a], *b = c.inputs[problem_.inputs.b];
    require_alignment("products of few columns", {a, b});
    auto* partials = static_cast<float*>(c.workspace);
    with_stored(problem_.in, [&](auto element) {
      using T = decltype(element);
      few_columns_sums_kernel<<<unsigned(blocks_), kThreads, 0, stream_of(c)>>>(
          problem_.k, int(problem_.m), int(problem_.n), static_cast<const T*>(a), static_cast<const T*>(b), partials);
    });
    check_launch("sums of products of few columns");
    column_totals(stream_of(c), problem_.m * problem_.n, blocks_, partials, problem_.alpha, {{output<float>(c, 0)}}, 1);
  }

 private:
  const Problem problem_;
  const int blocks_;
};

}  // namespace

std::unique_ptr<Kernel> product_of_few_columns(const KernelRequest& request, const Problem& problem) {
  const bool small = problem.k <= kFewColumns && problem.n <= kFewColumns && problem.k * problem.n <= kMostOfFew;
  const bool adds = problem.addend == Addend::None || problem.addend == Addend::Row;
  if (!small || !adds || problem.m < kManyRows || problem.trans_a || problem.in != problem.out ||
      !is_one_product(problem)) {
    return nullptr;
  }
  const FewColumns sizes = {problem.m, int(problem.k), int(problem.n), problem.trans_b, problem.alpha, problem.beta};
  return make_kernel([=, at = problem.inputs, type = problem.in, adds_bias = problem.addend == Addend::Row,
                      processors = multiprocessors_of(request)](const KernelContext& c) {
    require_alignment("products of few columns", {c.inputs[at.a], c.inputs[at.b], c.outputs[0]});
    with_stored(type, [&](auto element) {
      using T = decltype(element);
      few_columns_kernel<<<blocks_for(sizes.rows, processors), kThreads, 0, stream_of(c)>>>(
          sizes, static_cast<const T*>(c.inputs[at.a]), static_cast<const T*>(c.inputs[at.b]),
          adds_bias ? input<float>(c, size_t(at.c)) : nullptr, static_cast<T*>(c.outputs[0]));
    });
    check_launch("product of few columns");
  });
}

std::unique_ptr<Kernel> sums_of_few_columns(const KernelRequest& request, const Problem& problem) {
  const bool small = problem.m <= kFewColumns && problem.n <= kFewColumns && problem.m * problem.n <= kMostOfFew;
  if (!small || problem.k < kManyRows || !problem.trans_a || problem.trans_b || problem.addend != Addend::None ||
      problem.out != DataType::Float32 || !is_one_product(problem)) {
    return nullptr;
  }
  return std::make_unique<FewColumnsSums>(request, problem);
}

}  // namespace arbalest::cuda
