// SPDX-License-Identifier: Apache-2.0
#include "ops/optim/orthogonal/orthogonal.cuh"

#include <algorithm>
#include <map>

#include "graph/optimizer.h"
#include "ops/cuda/matrix_unit.cuh"
#include "ops/cuda/sums.cuh"
#include "ops/cuda/upload.h"
#include "ops/optim/orthogonal/turns.h"
#include "ops/product/products.h"

namespace arbalest::cuda {
namespace {

using Element = __nv_bfloat16;

constexpr int kOrthogonalBlock = 512, kOrthogonalWarps = kOrthogonalBlock / 32;
constexpr int kMostRows = 128;  // a warp has so many rows of 16 columns in registers
constexpr int kLoads = 8;       // of a thread from global memory, under way at once

constexpr int64_t rounded(int64_t extent, int64_t step) {
  return (extent + step - 1) / step * step;
}

// Zeros fill a matrix up to multiples of 16. Rows in shared memory lie 16 bytes apart from a multiple of 32, so that
// eight of them are read without conflicts.
struct SmallExtents {
  int less, more;  // rows and columns of X, which is the parameter or its transpose
  bool tall;       // it is the transpose

  __host__ __device__ explicit SmallExtents(const MatrixPlace& place)
      : less((std::min(place.rows, place.columns) + 15) / 16 * 16),
        more((std::max(place.rows, place.columns) + 15) / 16 * 16),
        tall(place.rows > place.columns) {}
  __host__ __device__ int elements_of_x() const { return less * (more + 8); }
  __host__ __device__ int elements_of_a() const { return less * (less + 8); }
  int64_t shared_bytes() const {
    return int64_t(sizeof(Element)) * (int64_t(less) * (more + 8) + 2 * int64_t(less) * (less + 8));
  }
};

// Sums of a warp for 16 × 16 elements: a lane has two neighbours in each of two rows of either half of the columns.
struct Sums {
  float of[2][4] = {};

  __device__ void add(const uint32_t (&left)[4], const uint32_t (&right)[4]) {
    multiply(of[0], left, right[0], right[1]);
    multiply(of[1], left, right[2], right[3]);
  }
  // Writes each sum plus `factor` times the element of `from` at its place.
  __device__ void store(const SharedMatrix& to, int row, int column, float factor, const SharedMatrix& from) const {
    const int lane = int(threadIdx.x) % 32;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int r = row + lane / 4 + part % 2 * 8, c = column + part / 2 * 8 + lane % 4 * 2;
      const float* sum = of[part / 2] + part % 2 * 2;
      float2 all = make_float2(sum[0], sum[1]);
      if (factor != 0.0f) {
        const float2 old = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from.at(r, c)));
        all = make_float2(all.x + factor * old.x, all.y + factor * old.y);
      }
      *reinterpret_cast<__nv_bfloat162*>(to.at(r, c)) = __float22bfloat162_rn(all);
    }
  }
};

// Calls f(row, column) for the warp's parts of a square matrix.
template <typename F>
__device__ void for_each_part(int side, F f) {
  const int across = side / 16;
  for (int part = int(threadIdx.x) / 32; part < across * across; part += kOrthogonalWarps) {
    f(part / across * 16, part % across * 16);
  }
}

// X ← the parameter's values, divided by their norm + ε.
__device__ void fetch(const MatrixPlace& place, const SmallExtents& e, const float* values, const SharedMatrix& x) {
  auto* packs = reinterpret_cast<Pack<Element, 8>*>(x.element);
  const int count = e.elements_of_x() / 8;
  for (int i = int(threadIdx.x); i < count; i += kOrthogonalBlock) packs[i] = Pack<Element, 8>{};
  __syncthreads();
  double squares = 0;
  for (int row = int(threadIdx.x) / 32; row < place.rows; row += kOrthogonalWarps) {
    for (int first = int(threadIdx.x) % 32; first < place.columns; first += 32 * kLoads) {
      float value[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int column = first + 32 * i;
        value[i] = column < place.columns ? values[int64_t(row) * place.columns + column] : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int column = first + 32 * i;
        squares += double(value[i]) * double(value[i]);
        if (column < place.columns) *(e.tall ? x.at(column, row) : x.at(row, column)) = narrow<Element>(value[i]);
      }
    }
  }
  const auto share = float(1 / (sqrt(block_sum(squares)) + MuonTurns::kEpsilon));
  for (int i = int(threadIdx.x); i < count; i += kOrthogonalBlock) {
    Pack<Element, 8> pack = packs[i];
#pragma unroll
    for (Element& each : pack.element) each = narrow<Element>(share * widen(each));
    packs[i] = pack;
  }
  __syncthreads();
}

// X ← aX + BX, each warp columns of its own.
__device__ void advance(const SmallExtents& e, const SharedMatrix& b, const SharedMatrix& x) {
  for (int column = int(threadIdx.x) / 32 * 16; column < e.more; column += kOrthogonalWarps * 16) {
    uint32_t right[kMostRows / 16][4];
#pragma unroll
    for (int k = 0; k < kMostRows; k += 16) {
      if (k < e.less) x.right(right[k / 16], k, column);
    }
    __syncwarp();
    for (int row = 0; row < e.less; row += 16) {
      Sums sums;
#pragma unroll
      for (int k = 0; k < kMostRows; k += 16) {
        if (k >= e.less) break;
        uint32_t left[4];
        b.left(left, row, k);
        sums.add(left, right[k / 16]);
      }
      sums.store(x, row, column, float(MuonTurns::kA), x);
    }
  }
}

// A block a matrix.
__global__ void __launch_bounds__(kOrthogonalBlock, 2)
    orthogonal_kernel(const MatrixPlace* places, MatrixArrays arrays) {
  extern __shared__ uint4 orthogonal_shared[];
  if (arrays.idle()) return;
  const MatrixPlace place = places[blockIdx.x];
  const SmallExtents e(place);
  float* values = arrays.values + int64_t(arrays.tensors[2 * place.parameter]) * kParameterAlignment;
  const SharedMatrix x{reinterpret_cast<Element*>(orthogonal_shared), e.more + 8};
  const SharedMatrix a{x.element + e.elements_of_x(), e.less + 8};
  const SharedMatrix b{a.element + e.elements_of_a(), e.less + 8};
  fetch(place, e, values, x);
  for (int turn = 0; turn < MuonTurns::kCount; ++turn) {
    for_each_part(e.less, [&](int row, int column) {
      Sums sums;
      for (int k = 0; k < e.more; k += 16) {
        uint32_t left[4], right[4];
        x.left(left, row, k);
        x.right_turned(right, column, k);
        sums.add(left, right);
      }
      sums.store(a, row, column, 0.0f, a);
    });
    __syncthreads();
    for_each_part(e.less, [&](int row, int column) {
      Sums sums;
      for (int k = 0; k < e.less; k += 16) {
        uint32_t left[4], right[4];
        a.left(left, row, k);
        a.right(right, k, column);
        sums.add(left, right);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) sums.of[i / 4][i % 4] *= float(MuonTurns::kC);
      sums.store(b, row, column, float(MuonTurns::kB), a);
    });
    __syncthreads();
    advance(e, b, x);
    __syncthreads();
  }
  for (int row = int(threadIdx.x) / 32; row < place.rows; row += kOrthogonalWarps) {
    for (int column = int(threadIdx.x) % 32; column < place.columns; column += 32) {
      values[int64_t(row) * place.columns + column] =
          place.scale * widen(*(e.tall ? x.at(column, row) : x.at(row, column)));
    }
  }
}

constexpr int kParts = 32;  // of the sum of a large matrix's squares

// One matrix of the large ones of a shape. block.y: the matrix.
struct LargeMatrix {
  MatrixPlace place;
  float* values;
  int64_t count;

  __device__ LargeMatrix(const MatrixPlace* places, const MatrixArrays& arrays)
      : place(places[blockIdx.y]),
        values(arrays.values + int64_t(arrays.tensors[2 * place.parameter]) * kParameterAlignment),
        count(int64_t(place.rows) * place.columns) {}
};

// sums (matrices, kParts) of squares. block.x: the part.
__global__ void __launch_bounds__(kThreads)
    large_squares_kernel(const MatrixPlace* places, MatrixArrays arrays, double* sums) {
  if (arrays.idle()) return;
  const LargeMatrix matrix(places, arrays);
  double squares = 0;
  for (int64_t i = thread_index(); i < matrix.count; i += thread_count()) {
    squares += double(matrix.values[i]) * double(matrix.values[i]);
  }
  squares = block_sum(squares);
  if (threadIdx.x == 0) sums[blockIdx.y * kParts + blockIdx.x] = squares;
}

// x (matrices, rows, columns) ← values divided by their norm + ε, with zeros past their ends.
__global__ void __launch_bounds__(kThreads) fetch_large_kernel(const MatrixPlace* places, MatrixArrays arrays,
                                                               const double* sums, int rows, int columns, Element* x) {
  if (arrays.idle()) return;
  const LargeMatrix matrix(places, arrays);
  double squares = 0;
  for (int part = 0; part < kParts; ++part) squares += sums[blockIdx.y * kParts + part];
  const auto share = float(1 / (sqrt(squares) + MuonTurns::kEpsilon));
  const int64_t count = int64_t(rows) * columns;
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    const int64_t row = i / columns, column = i - row * columns;
    const bool there = row < matrix.place.rows && column < matrix.place.columns;
    const float value = there ? matrix.values[row * matrix.place.columns + column] : 0.0f;
    x[blockIdx.y * count + i] = narrow<Element>(share * value);
  }
}

// values ← scale · x.
__global__ void __launch_bounds__(kThreads)
    return_large_kernel(const MatrixPlace* places, MatrixArrays arrays, int rows, int columns, const Element* x) {
  if (arrays.idle()) return;
  const LargeMatrix matrix(places, arrays);
  x += int64_t(blockIdx.y) * rows * columns;
  for (int64_t i = thread_index(); i < matrix.count; i += thread_count()) {
    const int64_t row = i / matrix.place.columns, column = i - row * matrix.place.columns;
    matrix.values[i] = matrix.place.scale * widen(x[row * columns + column]);
  }
}

// Shared memory that a block of orthogonal_kernel may have beyond its own.
int shared_limit(const CudaContext& context) {
  cudaFuncAttributes own = {};
  CUDA_CHECK(cudaFuncGetAttributes(&own, orthogonal_kernel));
  return context.model.shared_bytes - int(own.sharedSizeBytes);
}

}  // namespace

// Rows and columns are padded to multiples of eight elements, as matrix units want them. All of X lie in the order of
// the parameter, so that tall matrices are multiplied from the other side.
class OrthogonalMatrices::Large {
 public:
  Large(const KernelRequest& request, const std::vector<MatrixPlace>& places)
      : places_(uploaded(places)),
        matrices_(int64_t(places.size())),
        rows_(rounded(places[0].rows, 8)),
        columns_(rounded(places[0].columns, 8)),
        side_(std::min(rows_, columns_)),
        tall_(rows_ > columns_),
        gram_(product_kernel(request, gram())),
        square_(product_kernel(request, square())),
        advance_(product_kernel(request, advance())) {}

  // Bytes for one matrix, but for what products take.
  static int64_t bytes_each(const MatrixPlace& place) {
    const int64_t rows = rounded(place.rows, 8), columns = rounded(place.columns, 8), side = std::min(rows, columns);
    return int64_t(sizeof(Element)) * 2 * (rows * columns + side * side) + int64_t(sizeof(double)) * kParts;
  }

  int64_t workspace_bytes() const {
    return products_at() +
           std::max({gram_->workspace_bytes(), square_->workspace_bytes(), advance_->workspace_bytes()});
  }

  void run(const MatrixArrays& arrays, void* workspace, cudaStream_t stream) const {
    const auto* places = static_cast<const MatrixPlace*>(places_.data());
    const int64_t count = rows_ * columns_;
    auto* sums = static_cast<double*>(workspace);
    auto *x = reinterpret_cast<Element*>(sums + matrices_ * kParts), *other = x + matrices_ * count;
    Element *a = other + matrices_ * count, *b = a + matrices_ * side_ * side_;
    const dim3 grid(unsigned(std::clamp<int64_t>(count / (8 * kThreads), 1, 1024)), unsigned(matrices_));
    large_squares_kernel<<<dim3(kParts, unsigned(matrices_)), kThreads, 0, stream>>>(places, arrays, sums);
    check_launch("squares of large matrices");
    fetch_large_kernel<<<grid, kThreads, 0, stream>>>(places, arrays, sums, int(rows_), int(columns_), x);
    check_launch("large matrices");
    const auto multiply = [&](const std::unique_ptr<Kernel>& kernel, const void* left, const void* right,
                              const void* summand, void* result) {
      const void* inputs[] = {left, right, summand};
      void* products = static_cast<char*>(workspace) + products_at();
      kernel->run({stream, inputs, &result, products, arrays.idle.scalars});
    };
    for (int turn = 0; turn < MuonTurns::kCount; ++turn) {
      multiply(gram_, x, x, nullptr, a);
      multiply(square_, a, a, a, b);
      tall_ ? multiply(advance_, x, b, x, other) : multiply(advance_, b, x, x, other);
      std::swap(x, other);
    }
    return_large_kernel<<<grid, kThreads, 0, stream>>>(places, arrays, int(rows_), int(columns_), x);
    check_launch("large orthogonal matrices");
  }

 private:
  int64_t products_at() const {
    const int64_t elements = 2 * matrices_ * (rows_ * columns_ + side_ * side_);
    return rounded(matrices_ * kParts * int64_t(sizeof(double)) + elements * int64_t(sizeof(Element)), 256);
  }

  Problem product(int64_t m, int64_t n, int64_t k) const {
    Problem problem = {.m = m,
                       .n = n,
                       .k = k,
                       .trans_a = false,
                       .trans_b = false,
                       .in = DataType::Bfloat16,
                       .out = DataType::Bfloat16};
    problem.batch = matrices_;
    return problem;
  }
  // A = XXᵀ, or XᵀX of a tall X.
  Problem gram() const {
    Problem problem = product(side_, side_, std::max(rows_, columns_));
    problem.trans_a = tall_;
    problem.trans_b = !tall_;
    problem.steps = {rows_ * columns_, rows_ * columns_, side_ * side_};
    return problem;
  }
  // B = cA² + bA.
  Problem square() const {
    Problem problem = product(side_, side_, side_);
    problem.alpha = float(MuonTurns::kC);
    problem.summand_factor = float(MuonTurns::kB);
    problem.inputs.summand = 2;
    problem.steps = {side_ * side_, side_ * side_, side_ * side_};
    return problem;
  }
  // BX + aX, or XB + aX.
  Problem advance() const {
    Problem problem = product(rows_, columns_, side_);
    problem.summand_factor = float(MuonTurns::kA);
    problem.inputs.summand = 2;
    problem.steps = {side_ * side_, rows_ * columns_, rows_ * columns_};
    if (tall_) std::swap(problem.steps.a, problem.steps.b);
    return problem;
  }

  DeviceBuffer places_;
  int64_t matrices_, rows_, columns_, side_;
  bool tall_;
  std::unique_ptr<Kernel> gram_, square_, advance_;
};

OrthogonalMatrices::OrthogonalMatrices(const KernelRequest& request, const std::vector<MatrixPlace>& places) {
  const int limit = shared_limit(cuda_context(request));
  std::vector<MatrixPlace> small;
  std::map<std::pair<int, int>, std::vector<MatrixPlace>> large;
  for (const MatrixPlace& place : places) {
    const SmallExtents e(place);
    const bool fits = e.less <= kMostRows && e.shared_bytes() <= limit;
    (fits ? small : large[{place.rows, place.columns}]).push_back(place);
    if (fits) small_shared_ = std::max(small_shared_, int(e.shared_bytes()));
  }
  // Blocks start in this order, and the largest take the longest.
  const auto is_larger = [](const MatrixPlace& a, const MatrixPlace& b) {
    return SmallExtents(a).shared_bytes() > SmallExtents(b).shared_bytes();
  };
  std::stable_sort(small.begin(), small.end(), is_larger);
  small_ = uploaded(small);
  small_count_ = int(small.size());
  CUDA_CHECK(cudaFuncSetAttribute(orthogonal_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, limit));
  for (const auto& [shape, all] : large) {
    const auto together = size_t(std::max<int64_t>(1, request.workspace_limit / Large::bytes_each(all[0])));
    for (size_t i = 0; i < all.size(); i += together) {
      const auto begin = all.begin() + int64_t(i), end = all.begin() + int64_t(std::min(all.size(), i + together));
      large_.push_back(std::make_unique<Large>(request, std::vector<MatrixPlace>(begin, end)));
      workspace_bytes_ = std::max(workspace_bytes_, large_.back()->workspace_bytes());
    }
  }
}

OrthogonalMatrices::~OrthogonalMatrices() = default;

void OrthogonalMatrices::run(const MatrixArrays& arrays, void* workspace, cudaStream_t stream) const {
  if (small_count_ > 0) {
    orthogonal_kernel<<<unsigned(small_count_), kOrthogonalBlock, size_t(small_shared_), stream>>>(
        static_cast<const MatrixPlace*>(small_.data()), arrays);
    check_launch("orthogonal matrices");
  }
  for (const auto& each : large_) each->run(arrays, workspace, stream);
}

}  // namespace arbalest::cuda
