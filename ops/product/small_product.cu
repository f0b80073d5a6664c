// SPDX-License-Identifier: Apache-2.0

// A block makes a tile of Y. It fetches the rows of A and the columns of B for it at once, since it would wait for
// memory longer than it multiplies. Its warps share out the depth, and their sums are added in a fixed order.

#include "ops/product/small_product.h"

#include "ops/cuda/cuda_math.cuh"
#include "ops/cuda/matrix_unit.cuh"

namespace arbalest::cuda {
namespace {

constexpr int kSmallWarps = 4, kSmallThreads = kSmallWarps * 32;
// The depth that is fetched at once.
template <int kTile>
constexpr int kSmallDepth = kTile == 16 ? 512 : 256;

// A tile's rows of A or columns of B as they lie in memory: lines along the depth, or, if kAcross, a line of the tile
// for each place along the depth. Lines are 16 bytes apart from a multiple of 32, so that matrices are read without
// conflicts.
template <int kTile, bool kAcross>
struct SmallSlab {
  static constexpr int kLines = kAcross ? kSmallDepth<kTile> : kTile, kLength = kAcross ? kTile : kSmallDepth<kTile>;
  static constexpr int kStride = kLength + 8;
  __nv_bfloat16 element[kLines * kStride];

  // Fetches in the background from the slab's first element. `rows` and `depth` are there; zeros follow up to a whole
  // tile and a multiple of 16.
  __device__ void fetch(const __nv_bfloat16* from, int64_t step, int rows, int depth) {
    constexpr int kLanes = kAcross ? kTile / 8 : kSmallThreads / kTile;  // threads of a line
    const int filled = (depth + 15) / 16 * 16;
    int line = int(threadIdx.x) / kLanes, at = int(threadIdx.x) % kLanes * 8;
    int& along = kAcross ? line : at;  // the place along the depth
    const int& across = kAcross ? at : line;
#pragma unroll 4
    for (; along < filled; along += kAcross ? kSmallThreads / kLanes : kLanes * 8) {
      const bool there = along < depth && across < rows;
      copy_async(element + line * kStride + at, there ? from + line * step + at : from, there);
    }
  }

  // 16 rows or columns from `first`, and 16 places of the depth, as operands of a product.
  __device__ void left(uint32_t (&a)[4], int first, int depth) {
    kAcross ? matrix().left_turned(a, first, depth) : matrix().left(a, first, depth);
  }
  __device__ void right(uint32_t (&b)[4], int first, int depth) {
    kAcross ? matrix().right(b, depth, first) : matrix().right_turned(b, first, depth);
  }

 private:
  __device__ SharedMatrix matrix() {
    return {element, kStride};
  }
};

struct SmallProduct {
  int m, n, k;
  float alpha, beta, summand_factor;
  int c_row, c_column;  // elements from one to the next; 0: the same for all
  MatrixSteps steps;    // from a product of the batch to the next
};

// grid: (tiles of columns, tiles of rows, products). c and summand may be null, and summand may be y.
template <int kTile, bool kTransA, bool kTransB, typename T>
__global__ void __launch_bounds__(kSmallThreads)
    small_product_kernel(SmallProduct p, const __nv_bfloat16* a, const __nv_bfloat16* b, const float* c,
                         const T* summand, T* y) {
  constexpr int kParts = kTile / 16, kOutputs = kTile * kTile / kSmallThreads;  // outputs of a thread
  struct Slabs {
    SmallSlab<kTile, kTransA> left;
    SmallSlab<kTile, !kTransB> right;
  };
  __shared__ union {
    alignas(16) Slabs slabs;
    float sums[kSmallWarps][kTile * kTile];
  } shared;
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int row = int(blockIdx.y) * kTile, column = int(blockIdx.x) * kTile;
  a += blockIdx.z * p.steps.a + (kTransA ? row : int64_t(row) * p.k);
  b += blockIdx.z * p.steps.b + (kTransB ? int64_t(column) * p.k : column);
  y += blockIdx.z * p.steps.y;
  if (summand != nullptr) summand += blockIdx.z * p.steps.y;
  wait_for_dependencies();
  launch_dependents();

  float sums[kParts][2 * kParts][4] = {}, added[kOutputs] = {};
  for (int first = 0; first < p.k; first += kSmallDepth<kTile>) {
    const int depth = min(kSmallDepth<kTile>, p.k - first);
    if (first > 0) __syncthreads();  // the slabs before are read
    shared.slabs.left.fetch(a + (kTransA ? int64_t(first) * p.m : first), kTransA ? p.m : p.k, p.m - row, depth);
    shared.slabs.right.fetch(b + (kTransB ? first : int64_t(first) * p.n), kTransB ? p.k : p.n, p.n - column, depth);
    commit_copies();
    if (first == 0) {
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) {
        const int place = int(threadIdx.x) + i * kSmallThreads, r = row + place / kTile, s = column + place % kTile;
        if (r >= p.m || s >= p.n) continue;
        if (c != nullptr) added[i] = p.beta * c[r * p.c_row + s * p.c_column];
        if (summand != nullptr) added[i] += p.summand_factor * widen(summand[r * p.n + s]);
      }
    }
    wait_for_copies<0>();
    __syncthreads();
#pragma unroll 2
    for (int k = warp * 16; k < depth; k += kSmallWarps * 16) {
      uint32_t left[kParts][4], right[kParts][4];
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        shared.slabs.left.left(left[i], i * 16, k);
        shared.slabs.right.right(right[i], i * 16, k);
      }
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
#pragma unroll
        for (int j = 0; j < 2 * kParts; ++j) {
          multiply(sums[i][j], left[i], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
        }
      }
    }
  }
  __syncthreads();  // the slabs are read, and sums take their place
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
#pragma unroll
    for (int j = 0; j < 2 * kParts; ++j) {
      float* const to = shared.sums[warp] + (i * 16 + lane / 4) * kTile + j * 8 + lane % 4 * 2;
      store(to, Pack<float, 2>{sums[i][j][0], sums[i][j][1]});
      store(to + 8 * kTile, Pack<float, 2>{sums[i][j][2], sums[i][j][3]});
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kOutputs; ++i) {
    const int place = int(threadIdx.x) + i * kSmallThreads, r = row + place / kTile, s = column + place % kTile;
    float sum = 0;
#pragma unroll
    for (int of = 0; of < kSmallWarps; ++of) sum += shared.sums[of][place];
    if (r < p.m && s < p.n) y[r * p.n + s] = narrow<T>(p.alpha * sum + added[i]);
  }
}

int64_t tiles_of(const Problem& problem, int tile) {
  return problem.batch * ((problem.m + tile - 1) / tile) * ((problem.n + tile - 1) / tile);
}

template <int kTile, typename T>
void launch_small_product(const SmallProduct& p, const Problem& problem, const KernelContext& c) {
  const bool a = problem.trans_a, b = problem.trans_b;
  const auto kernel = a   ? b ? small_product_kernel<kTile, true, true, T> : small_product_kernel<kTile, true, false, T>
                        : b ? small_product_kernel<kTile, false, true, T>
                          : small_product_kernel<kTile, false, false, T>;
  const ProductInputs& at = problem.inputs;
  const dim3 grid(unsigned((p.n + kTile - 1) / kTile), unsigned((p.m + kTile - 1) / kTile), unsigned(problem.batch));
  launch_dependent(
      kernel, grid, kSmallThreads, 0, stream_of(c), p, static_cast<const __nv_bfloat16*>(c.inputs[at.a]),
      static_cast<const __nv_bfloat16*>(c.inputs[at.b]), at.c < 0 ? nullptr : static_cast<const float*>(c.inputs[at.c]),
      at.summand < 0 ? nullptr : static_cast<const T*>(c.inputs[at.summand]), static_cast<T*>(c.outputs[0]));
}

}  // namespace

bool is_small_product(const DeviceModel& device, const Problem& p) {
  constexpr int64_t kMostTiles = 512, kMostDepth = 1024;
  const MatrixSteps& first = p.calls.front();
  const bool one_call = p.calls.size() == 1 && first.a == 0 && first.b == 0 && first.y == 0;
  const bool types = p.in == DataType::Bfloat16 && (p.out == DataType::Bfloat16 || p.out == DataType::Float32);
  const int64_t lines = (p.trans_a ? p.m : p.k) | (p.trans_b ? p.k : p.n);
  const int64_t steps = p.batch > 1 ? p.steps.a | p.steps.b : 0;
  const bool adds = p.batch == 1 || p.addend == Addend::None;
  return device.architecture >= 80 && one_call && types && adds && (lines | steps) % 8 == 0 && p.k <= kMostDepth &&
         tiles_of(p, 16) <= kMostTiles;
}

std::unique_ptr<Kernel> small_product(const KernelRequest& request, const Problem& problem) {
  const CudaContext& context = cuda_context(request);
  if (!is_small_product(context.model, problem)) return nullptr;
  const bool rows = problem.addend == Addend::Column || problem.addend == Addend::Matrix;
  const bool columns = problem.addend == Addend::Row || problem.addend == Addend::Matrix;
  const SmallProduct sizes = {.m = int(problem.m),
                              .n = int(problem.n),
                              .k = int(problem.k),
                              .alpha = problem.alpha,
                              .beta = problem.beta,
                              .summand_factor = problem.summand_factor,
                              .c_row = !rows     ? 0
                                       : columns ? int(problem.n)
                                                 : 1,
                              .c_column = columns ? 1 : 0,
                              .steps = problem.batch > 1 ? problem.steps : MatrixSteps()};
  // Small tiles as long as all of them run at the same time.
  const bool large = tiles_of(problem, 16) > 2 * context.multiprocessors;
  return make_kernel([=](const KernelContext& c) {
    require_alignment("small product", {c.inputs[problem.inputs.a], c.inputs[problem.inputs.b]});
    with_stored(problem.out, [&](auto stored) {
      using T = decltype(stored);
      large ? launch_small_product<32, T>(sizes, problem, c) : launch_small_product<16, T>(sizes, problem, c);
    });
    check_launch("small product");
  });
}

}  // namespace arbalest::cuda
