// SPDX-License-Identifier: Apache-2.0
#pragma once
// Kernels of LayerNormalization, RMSNormalization, arbalest.Normalize, arbalest.NormalizeSamples and their gradients
// over a matrix of rows. A warp, or as much of one as a row fills, holds a row in registers. Longer rows are read
// several times, after the first time from the nearest caches. A block takes such a row if there are few, and several
// blocks if there are fewer than blocks.

#include "ops/cuda/columns.cuh"
#include "ops/cuda/matrix_unit.cuh"
#include "ops/cuda/sums.cuh"
#include "ops/norm/layer_norm.h"

namespace arbalest::cuda {

// The rows that are normalised, of `length` elements each.
struct NormRows {
  int64_t rows = 1, length = 1;
  float epsilon;
  bool centred;

  NormRows(const Node& node, const TensorType& x)
      : epsilon(float(float_attribute(node, "epsilon"))), centred(is_centred(node)) {
    const int64_t rank = int64_t(x.shape.size()), axis = int_attribute(node, "axis");
    const int64_t first = axis < 0 ? axis + rank : axis;
    for (int64_t i = 0; i < rank; ++i) (i < first ? rows : length) *= x.shape[size_t(i)];
  }
  bool empty() const { return rows == 0 || length == 0; }
};

// f(row, this thread's place in the group); all threads of a group call it together.
template <int G, typename Function>
__device__ inline void for_each_row(int64_t rows, Function f) {
  for (int64_t row = thread_index() / G; row < rows; row += thread_count() / G) f(row, int(threadIdx.x) % G);
}

// The mean of a row, 0 if it stays, and 1 / √(mean square of the differences from it + ε). The mean is summed of
// differences from the row's first element, which are small even if the mean is large.
template <int G, int W, typename T>
__device__ inline float2 statistics_of(const NormRows& rows, const T* x, int lane) {
  const float length = float(rows.length);
  float mean = 0, squares = 0;
  if (rows.centred) {
    const float origin = widen(x[0]);
    float sum = 0;
    for (int64_t k = lane; k < rows.length / W; k += G) {
      const Pack<T, W> pack = load<W>(x + k * W);
#pragma unroll
      for (int w = 0; w < W; ++w) sum += widen(pack.element[w]) - origin;
    }
    mean = origin + group_sum<G>(sum) / length;
  }
  for (int64_t k = lane; k < rows.length / W; k += G) {
    const Pack<T, W> pack = load<W>(x + k * W);
#pragma unroll
    for (int w = 0; w < W; ++w) {
      const float difference = widen(pack.element[w]) - mean;
      squares += difference * difference;
    }
  }
  return {mean, 1.0f / sqrtf(group_sum<G>(squares) / length + rows.epsilon)};
}

template <int W>
__device__ inline Pack<float, W> parameters(const float* from, int64_t k, float fallback) {
  if (from != nullptr) return load<W>(from + k * W);
  Pack<float, W> pack;
#pragma unroll
  for (int w = 0; w < W; ++w) pack.element[w] = fallback;
  return pack;
}

// scale, bias, mean and inv_std may be null.
template <int G, int W, typename T>
__global__ void __launch_bounds__(kThreads) normalize_kernel(NormRows rows, const T* x, const float* scale,
                                                             const float* bias, T* y, float* mean, float* inv_std) {
  wait_for_dependencies();
  for_each_row<G>(rows.rows, [&](int64_t row, int lane) {
    const T* from = x + row * rows.length;
    const float2 s = statistics_of<G, W>(rows, from, lane);
    for (int64_t k = lane; k < rows.length / W; k += G) {
      const Pack<T, W> pack = load<W>(from + k * W);
      const Pack<float, W> factor = parameters<W>(scale, k, 1), addend = parameters<W>(bias, k, 0);
      Pack<T, W> result;
#pragma unroll
      for (int w = 0; w < W; ++w) {
        result.element[w] = narrow<T>((widen(pack.element[w]) - s.x) * s.y * factor.element[w] + addend.element[w]);
      }
      store(y + row * rows.length + k * W, result);
    }
    if (lane == 0 && mean != nullptr) mean[row] = s.x;
    if (lane == 0 && inv_std != nullptr) inv_std[row] = s.y;
  });
}

// statistics: (rows), may be null.
template <int G, int W, typename T>
__global__ void __launch_bounds__(kThreads)
    normalize_gradient_kernel(NormRows rows, const T* dy, const T* x, const float* scale, T* dx, float2* statistics) {
  wait_for_dependencies();
  for_each_row<G>(rows.rows, [&](int64_t row, int lane) {
    const T *from = x + row * rows.length, *gradients = dy + row * rows.length;
    const float2 s = statistics_of<G, W>(rows, from, lane);
    float sum = 0, product = 0;
    const auto for_packs = [&](auto f) {
      for (int64_t k = lane; k < rows.length / W; k += G) {
        const Pack<T, W> value = load<W>(from + k * W), gradient = load<W>(gradients + k * W);
        const Pack<float, W> factor = parameters<W>(scale, k, 1);
        float g[W], normal[W];
#pragma unroll
        for (int w = 0; w < W; ++w) {
          g[w] = widen(gradient.element[w]) * factor.element[w];
          normal[w] = (widen(value.element[w]) - s.x) * s.y;
        }
        f(k, g, normal);
      }
    };
    for_packs([&](int64_t, const float(&g)[W], const float(&normal)[W]) {
#pragma unroll
      for (int w = 0; w < W; ++w) sum += g[w], product += g[w] * normal[w];
    });
    sum = rows.centred ? group_sum<G>(sum) / float(rows.length) : 0;
    product = group_sum<G>(product) / float(rows.length);
    for_packs([&](int64_t k, const float(&g)[W], const float(&normal)[W]) {
      Pack<T, W> result;
#pragma unroll
      for (int w = 0; w < W; ++w) result.element[w] = narrow<T>(s.y * (g[w] - sum - normal[w] * product));
      store(dx + row * rows.length + k * W, result);
    });
    if (lane == 0 && statistics != nullptr) statistics[row] = s;
  });
}

inline constexpr int kMostHeld = 4;  // packs of a lane

// A row in the registers of G lanes: each holds P packs of W elements, G packs apart.
template <int G, int P, int W, typename T>
struct HeldRow {
  Pack<T, W> pack[P];

  HeldRow() = default;
  // Loads a row, with zeros after its end.
  __device__ HeldRow(const T* from, int lane, int packs) {
#pragma unroll
    for (int p = 0; p < P; ++p) {
      pack[p] = {};
      if (lane + p * G < packs) pack[p] = load<W>(from + (lane + p * G) * W);
    }
  }
  __device__ float operator()(int p, int w) const {
    return widen(pack[p].element[w]);
  }
};

// f(row, lane of the row's group, packs) for the rows that G lanes hold; the lanes of a warp call it together. Those
// that are past the last row have no packs.
template <int G, int W, typename Function>
__device__ inline void for_each_held(const NormRows& rows, Function f) {
  const int within = int(threadIdx.x) % 32 / G, packs = int(rows.length / W);
  for (int64_t first = thread_index() / 32 * (32 / G); first < rows.rows; first += thread_count() / G) {
    f(first + within, int(threadIdx.x) % G, first + within < rows.rows ? packs : 0);
  }
}

// f(p, w) for the elements of the row that the lane holds.
template <int G, int P, int W, typename Function>
__device__ inline void for_held(int lane, int packs, Function f) {
#pragma unroll
  for (int p = 0; p < P; ++p) {
    if (lane + p * G >= packs) break;
#pragma unroll
    for (int w = 0; w < W; ++w) f(p, w);
  }
}

// The same as statistics_of(), for a row in registers.
template <int G, int P, int W, typename T>
__device__ inline float2 statistics_of_held(const NormRows& rows, const HeldRow<G, P, W, T>& x, int lane, int packs) {
  const float length = float(rows.length);
  float mean = 0, squares = 0;
  if (rows.centred) {
    const float origin = __shfl_sync(0xffffffffu, x(0, 0), 0, G);
    float sum = 0;
    for_held<G, P, W>(lane, packs, [&](int p, int w) { sum += x(p, w) - origin; });
    mean = origin + group_sum<G>(sum) / length;
  }
  for_held<G, P, W>(lane, packs, [&](int p, int w) {
    const float difference = x(p, w) - mean;
    squares += difference * difference;
  });
  return {mean, 1.0f / sqrtf(group_sum<G>(squares) / length + rows.epsilon)};
}

// The same as normalize_kernel, for rows in registers.
template <int G, int P, int W, typename T>
__global__ void __launch_bounds__(kThreads)
    normalize_held_kernel(NormRows rows, const T* x, const float* scale, const float* bias, T* y, float* mean,
                          float* inv_std) {
  wait_for_dependencies();
  for_each_held<G, W>(rows, [&](int64_t row, int lane, int packs) {
    const HeldRow<G, P, W, T> held(x + row * rows.length, lane, packs);
    const float2 s = statistics_of_held(rows, held, lane, packs);
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const int k = lane + p * G;
      if (k >= packs) break;
      const Pack<float, W> factor = parameters<W>(scale, k, 1), addend = parameters<W>(bias, k, 0);
      Pack<T, W> result;
#pragma unroll
      for (int w = 0; w < W; ++w) {
        result.element[w] = narrow<T>((held(p, w) - s.x) * s.y * factor.element[w] + addend.element[w]);
      }
      store(y + row * rows.length + k * W, result);
    }
    if (lane > 0 || packs == 0) return;
    if (mean != nullptr) mean[row] = s.x;
    if (inv_std != nullptr) inv_std[row] = s.y;
  });
}

// Blocks of gradient_held_kernel. So few fit on a multiprocessor that what a thread sums stays in registers.
inline constexpr int kHeldThreads = 128;
template <int P>
constexpr int kHeldBlocks = P < 3           ? 4
                            : P < kMostHeld ? 3
                                            : 2;

// The rows of N tensors that a lane will hold next, on their way to shared memory while it works on those before. A
// tensor may be null.
template <int G, int P, int W, typename T, int N>
struct FetchedRows {
  const T* tensor[N];
  Pack<T, W>* own;  // the first pack of this thread; those after it are kHeldThreads apart

  __device__ void fetch(int64_t row, int64_t length, int lane, int packs) {
    for_all([&](int n, int p, Pack<T, W>* to) {
      const int k = lane + p * G;
      copy_async(to, k < packs ? tensor[n] + row * length + k * W : tensor[n], k < packs);
    });
  }
  // Reads the rows that were fetched, and have arrived. The next may be fetched then.
  __device__ void take(HeldRow<G, P, W, T> (&rows)[N]) {
    for_all([&](int n, int p, Pack<T, W>* from) { rows[n].pack[p] = load<W>(from->element); });
    __syncwarp();
  }

 private:
  template <typename Function>
  __device__ void for_all(Function f) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      if (tensor[n] == nullptr) continue;
#pragma unroll
      for (int p = 0; p < P; ++p) f(n, p, own + (n * P + p) * kHeldThreads);
    }
  }
};

// dX, to which `more` is added unless it is null, and the block's sums over its rows of dY · normalised X and of dY:
// partial (2, blocks, length); null: dX alone.
template <int G, int P, int W, typename T>
__global__ void __launch_bounds__(kHeldThreads, kHeldBlocks<P>)
    gradient_held_kernel(NormRows rows, const T* dy, const T* x, const float* scale, const T* more, T* dx,
                         float* partial) {
  extern __shared__ __align__(16) float totals[];  // (2, length), where rows were before
  auto* const own = reinterpret_cast<Pack<T, W>*>(totals) + threadIdx.x;
  FetchedRows<G, P, W, T, 2> fetched = {{x, dy}, own};
  FetchedRows<G, P, W, T, 1> addends = {{more}, own + 2 * P * kHeldThreads};
  const int length = int(rows.length), within = int(threadIdx.x) % 32 / G, lane = int(threadIdx.x) % G;
  const int64_t step = thread_count() / G, start = thread_index() / 32 * (32 / G);  // of the warp's rows
  const auto packs_of = [&](int64_t row) { return row < rows.rows ? length / W : 0; };
  wait_for_dependencies();
  const auto fetch = [&](auto& which, int64_t first) {
    if (first < rows.rows) which.fetch(first + within, length, lane, packs_of(first + within));
    commit_copies();  // maybe none, so that all but the last fetch have always arrived before one is taken
  };
  fetch(fetched, start);
  fetch(addends, start);
  float sums[2][P][W] = {};
  for (int64_t first = start; first < rows.rows; first += step) {
    const int64_t row = first + within;
    const int packs = packs_of(row);
    HeldRow<G, P, W, T> held[2], added[1] = {};
    wait_for_copies<1>();
    fetched.take(held);
    const auto& [value, gradient] = held;
    fetch(fetched, first + step);
    const float2 s = statistics_of_held(rows, value, lane, packs);
    float sum = 0, product = 0;
#pragma unroll
    for (int p = 0; p < P; ++p) {
      if (lane + p * G >= packs) break;
      const Pack<float, W> factor = parameters<W>(scale, lane + p * G, 1);
#pragma unroll
      for (int w = 0; w < W; ++w) {
        const float normal = (value(p, w) - s.x) * s.y, g = gradient(p, w) * factor.element[w];
        sums[0][p][w] += gradient(p, w) * normal;
        sums[1][p][w] += gradient(p, w);
        sum += g;
        product += g * normal;
      }
    }
    sum = rows.centred ? group_sum<G>(sum) / float(length) : 0;
    product = group_sum<G>(product) / float(length);
    wait_for_copies<1>();
    addends.take(added);
    fetch(addends, first + step);
#pragma unroll
    for (int p = 0; p < P; ++p) {
      if (lane + p * G >= packs) break;
      const Pack<float, W> factor = parameters<W>(scale, lane + p * G, 1);
      const int64_t at = row * length + (lane + p * G) * W;
      Pack<T, W> result;
#pragma unroll
      for (int w = 0; w < W; ++w) {
        const float g = gradient(p, w) * factor.element[w];
        result.element[w] = narrow<T>(s.y * (g - sum - (value(p, w) - s.x) * s.y * product) + added[0](p, w));
      }
      store(dx + at, result);
    }
  }
  if (partial == nullptr) return;
  __syncthreads();  // no row is in shared memory any more

  // The groups of a warp, then the warps in order.
#pragma unroll
  for (int offset = G; offset < 32; offset *= 2) {
#pragma unroll
    for (int q = 0; q < 2; ++q) {
#pragma unroll
      for (int i = 0; i < P * W; ++i) {
        sums[q][i / W][i % W] += __shfl_xor_sync(0xffffffffu, sums[q][i / W][i % W], offset);
      }
    }
  }
  for (int warp = 0; warp < kHeldThreads / 32; ++warp) {
    if (int(threadIdx.x) / 32 == warp && int(threadIdx.x) % 32 < G) {
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        for_held<G, P, W>(lane, length / W, [&](int p, int w) {
          float& total = totals[q * length + (lane + p * G) * W + w];
          total = warp == 0 ? sums[q][p][w] : total + sums[q][p][w];
        });
      }
    }
    __syncthreads();
  }
  for (int i = int(threadIdx.x); i < 2 * length; i += kHeldThreads) {
    const int q = i / length;
    partial[(int64_t(q) * gridDim.x + blockIdx.x) * length + i % length] = totals[i];
  }
}

// Sums over a chunk of rows of dY · normalised X and of dY: partial (2, chunks, length).
template <int W, typename T>
__global__ void __launch_bounds__(kThreads)
    parameter_sums_kernel(Columns columns, const T* dy, const T* x, const float2* statistics, float* partial) {
  wait_for_dependencies();
  const Place<W> place(columns);
  float sums[2][W] = {};
  for_rows(
      columns, place,
      [&](int64_t at, const Pack<T, W>& gradient, const Pack<T, W>& value) {
        const float2 s =
            statistics[at <= INT32_MAX ? int64_t(uint32_t(at) / uint32_t(columns.count)) : at / columns.count];
#pragma unroll
        for (int w = 0; w < W; ++w) {
          const float g = widen(gradient.element[w]);
          sums[0][w] += g * (widen(value.element[w]) - s.x) * s.y;
          sums[1][w] += g;
        }
      },
      dy, x);
  float total[2];
  sum_rows(place, sums, total);
  const int t = int(threadIdx.x), column = int(blockIdx.x) * place.slice_columns + t;
  if (t >= place.slice_columns || column >= columns.count) return;
#pragma unroll
  for (int q = 0; q < 2; ++q) {
    partial[(int64_t(q) * columns.chunks + blockIdx.y) * columns.count + column] = total[q];
  }
}

// Rows of which there are fewer than blocks: a block takes a share of one.
struct RowShares {
  int count = 1;
  int64_t length = 0;  // elements of each, at most

  // Shares are of packs of W. There is a single one where whole rows serve as well.
  RowShares(const NormRows& rows, int multiprocessors, int width) : length(rows.length) {
    const int64_t least = int64_t(kThreads) * width * 2;
    if (!rows.centred || rows.empty() || rows.length % width != 0 || rows.rows >= multiprocessors) return;
    if (rows.length < 4 * least) return;
    count = int(std::min<int64_t>(int64_t(multiprocessors) * 8 / rows.rows, rows.length / least));
    length = (rows.length / width + count - 1) / count * width;
  }
};

// Sums over a share: of x − origin, of its square, of dY, and of dY (x − origin). The origin is near the row's mean.
struct ShareSums {
  float first = 0, squares = 0, gradient = 0, product = 0;
};

template <int W, typename T>
__device__ inline float origin_of(const T* row) {
  const Pack<T, W> pack = load<W>(row + threadIdx.x % 32 * W);
  float sum = 0;
#pragma unroll
  for (int w = 0; w < W; ++w) sum += widen(pack.element[w]);
  return __shfl_sync(0xffffffffu, warp_sum(sum), 0) / float(32 * W);
}

// Block (share, row). dy: nullptr without a gradient.
template <int W, typename T>
__global__ void __launch_bounds__(kThreads)
    share_sums_kernel(NormRows rows, RowShares shares, const T* dy, const T* x, ShareSums* sums) {
  wait_for_dependencies();
  for (int64_t row = blockIdx.y; row < rows.rows; row += gridDim.y) {
    const T* from = x + row * rows.length;
    const float origin = origin_of<W>(from);
    const int64_t begin = blockIdx.x * shares.length, end = min(begin + shares.length, rows.length);
    ShareSums own;
    for (int64_t k = begin + int64_t(threadIdx.x) * W; k < end; k += kThreads * W) {
      const Pack<T, W> pack = load<W>(from + k);
      Pack<T, W> gradient = {};
      if (dy != nullptr) gradient = load<W>(dy + row * rows.length + k);
#pragma unroll
      for (int w = 0; w < W; ++w) {
        const float difference = widen(pack.element[w]) - origin, g = widen(gradient.element[w]);
        own.first += difference;
        own.squares += difference * difference;
        own.gradient += g;
        own.product += g * difference;
      }
    }
    own.first = block_sum(own.first);
    own.squares = block_sum(own.squares);
    if (dy != nullptr) {
      own.gradient = block_sum(own.gradient);
      own.product = block_sum(own.product);
    }
    if (threadIdx.x == 0) sums[row * shares.count + blockIdx.x] = own;
  }
}

// Block (share, row). y = (x − mean) / deviation or, with dy, its gradient.
template <int W, typename T>
__global__ void __launch_bounds__(kThreads)
    normalize_share_kernel(NormRows rows, RowShares shares, const T* dy, const T* x, const ShareSums* sums, T* y) {
  wait_for_dependencies();
  const float length = float(rows.length);
  for (int64_t row = blockIdx.y; row < rows.rows; row += gridDim.y) {
    const T* from = x + row * rows.length;
    const float origin = origin_of<W>(from);
    ShareSums all;
    for (int share = int(threadIdx.x) % 32; share < shares.count; share += 32) {
      const ShareSums part = sums[row * shares.count + share];
      all.first += part.first;
      all.squares += part.squares;
      all.gradient += part.gradient;
      all.product += part.product;
    }
    const auto whole = [](float part) { return __shfl_sync(0xffffffffu, warp_sum(part), 0); };
    const float offset = whole(all.first) / length, mean = origin + offset;
    const float variance = fmaxf(whole(all.squares) / length - offset * offset, 0.0f);
    const float inv_std = 1.0f / sqrtf(variance + rows.epsilon);
    const float gradients = whole(all.gradient);
    const float mean_gradient = gradients / length;
    const float mean_product = (whole(all.product) - offset * gradients) * inv_std / length;
    const int64_t begin = blockIdx.x * shares.length, end = min(begin + shares.length, rows.length);
    for (int64_t k = begin + int64_t(threadIdx.x) * W; k < end; k += kThreads * W) {
      const Pack<T, W> pack = load<W>(from + k);
      Pack<T, W> gradient = {}, result;
      if (dy != nullptr) gradient = load<W>(dy + row * rows.length + k);
#pragma unroll
      for (int w = 0; w < W; ++w) {
        const float normalized = (widen(pack.element[w]) - mean) * inv_std;
        const float slope = inv_std * (widen(gradient.element[w]) - mean_gradient - normalized * mean_product);
        result.element[w] = narrow<T>(dy != nullptr ? slope : normalized);
      }
      store(y + row * rows.length + k, result);
    }
  }
}

}  // namespace arbalest::cuda
