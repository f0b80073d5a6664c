#pragma once
// What the kernels of conv_thin.cuh do with a product before and after they store it: State<J> is a thread's, of 2J
// neighbouring channels from `channel` on; add() sees each value that the thread has, at its place in the result, and
// may change it; finish() is called by all threads at the end.

#include "ops/norm/batch_norm.cuh"

namespace arbalest::cuda {

struct ThinPlain {
  template <int J>
  struct State {
    __device__ State(const ThinPlain&, int) {}
    __device__ void add(const ThinPlain&, int64_t, float (&)[2 * J]) {}
    template <int C, int Along, int Across>
    __device__ void finish(const ThinPlain&, int, void*) {}
  };
};

// The sums or spreads of a block's threads, which hold 2J neighbouring channels each, as a row of partials (blocks, C).
// merge(a, a's count, b, b's count). `scratch`: shared memory that all threads are done with.
template <int C, int J, int Along, int Across, typename Item, typename Merge>
__device__ void write_block_partials(Item (&own)[2 * J], float count, int first_channel, void* scratch,
                                     float2* partials, Merge merge) {
  constexpr int kOut = 8 * J * Across;
  auto* items = static_cast<Item*>(scratch);                      // (Along, kOut)
  auto* counts = reinterpret_cast<float*>(items + Along * kOut);  // (Along)
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
#pragma unroll
  for (int offset = 4; offset < 32; offset *= 2) {  // lanes apart by four hold the same channels
    const float other_count = __shfl_xor_sync(0xffffffffu, count, offset);
#pragma unroll
    for (int c = 0; c < 2 * J; ++c) {
      const Item other = {__shfl_xor_sync(0xffffffffu, own[c].first, offset),
                          __shfl_xor_sync(0xffffffffu, own[c].second, offset)};
      // The same bits in both lanes.
      own[c] = lane & offset ? merge(other, other_count, own[c], count) : merge(own[c], count, other, other_count);
    }
    count += other_count;
  }
  if (lane < 4) {
#pragma unroll
    for (int c = 0; c < 2 * J; ++c) items[warp / Across * kOut + (warp % Across * 4 + lane) * 2 * J + c] = own[c];
    if (lane == 0 && warp % Across == 0) counts[warp / Across] = count;
  }
  __syncthreads();
  for (int c = int(threadIdx.x); c < kOut; c += int(blockDim.x)) {
    Item total = items[c];
    float total_count = counts[0];
    for (int along = 1; along < Along; ++along) {
      total = merge(total, total_count, items[along * kOut + c], counts[along]);
      total_count += counts[along];
    }
    partials[int64_t(blockIdx.x) * C + first_channel + c] = make_float2(total.first, total.second);
  }
}

// Of what is stored: the partials of batch norm's statistics.
struct ThinStatistics {
  Partial* partials;

  template <int J>
  struct State {
    float first[2 * J], sums[2 * J] = {}, squares[2 * J] = {};  // relative to the first value
    int count = 0;
    __device__ State(const ThinStatistics&, int) {}
    __device__ void add(const ThinStatistics&, int64_t, float (&value)[2 * J]) {
#pragma unroll
      for (int c = 0; c < 2 * J; ++c) {
        const float v = widen(narrow<__nv_bfloat16>(value[c]));
        if (count == 0) first[c] = v;
        sums[c] += v - first[c];
        squares[c] += (v - first[c]) * (v - first[c]);
      }
      ++count;
    }
    template <int C, int Along, int Across>
    __device__ void finish(const ThinStatistics& to, int first_channel, void* scratch) {
      struct Spread {
        float first, second;  // mean, sum of squared deviations from it
      };
      Spread spread[2 * J];
      const float number = float(count);
#pragma unroll
      for (int c = 0; c < 2 * J; ++c) {
        const float shift = count > 0 ? sums[c] / number : 0.0f;
        spread[c] = {count > 0 ? first[c] + shift : 0.0f, fmaxf(squares[c] - sums[c] * shift, 0.0f)};
      }
      const auto merge = [](const Spread& a, float a_count, const Spread& b, float b_count) {
        const float all = a_count + b_count, apart = b.first - a.first, share = all > 0 ? b_count / all : 0.0f;
        return Spread{a.first + apart * share, a.second + b.second + apart * apart * a_count * share};
      };
      write_block_partials<C, J, Along, Across>(spread, number, first_channel, scratch, to.partials, merge);
    }
  };
};

// The product is the gradient of what a batch norm made, or one of two: stored is the gradient g behind its Relu, and
// the partials of Σ g and Σ g · (x − mean), as by gradient_sums_kernel(). from.dy is not read.
template <Mask kMask, bool kTwo>
struct ThinGradientSums {
  GradientOf<__nv_bfloat16> from;
  Partial* partials;

  template <int J>
  struct State {
    float mean[2 * J], gain[2 * J], bias[2 * J], sums[2][2 * J] = {};
    __device__ State(const ThinGradientSums& of, int channel) {
#pragma unroll
      for (int c = 0; c < 2 * J; ++c) {
        mean[c] = of.from.mean[channel + c];
        if constexpr (kMask == Mask::X) {
          gain[c] = of.from.scale[channel + c] * of.from.inv_std[channel + c];
          bias[c] = of.from.bias[channel + c];
        }
      }
    }
    __device__ void add(const ThinGradientSums& of, int64_t at, float (&value)[2 * J]) {
      const Pack<__nv_bfloat16, 2 * J> x = load<2 * J>(of.from.x + at);
      Pack<__nv_bfloat16, 2 * J> more, y;
      if constexpr (kTwo) more = load<2 * J>(of.from.dy2 + at);
      if constexpr (kMask == Mask::Y) y = load<2 * J>(of.from.y + at);
#pragma unroll
      for (int c = 0; c < 2 * J; ++c) {
        if constexpr (kTwo) value[c] += widen(more.element[c]);
        bool passes = true;
        if constexpr (kMask == Mask::Y) passes = widen(y.element[c]) > 0;
        if constexpr (kMask == Mask::X) passes = normalized(widen(x.element[c]), mean[c], gain[c], bias[c]) > 0;
        if (!passes) value[c] = 0;
        sums[0][c] += value[c];
        sums[1][c] += value[c] * (widen(x.element[c]) - mean[c]);
      }
    }
    template <int C, int Along, int Across>
    __device__ void finish(const ThinGradientSums& to, int first_channel, void* scratch) {
      struct Sums {
        float first, second;
      };
      Sums own[2 * J];
#pragma unroll
      for (int c = 0; c < 2 * J; ++c) own[c] = {sums[0][c], sums[1][c]};
      const auto merge = [](const Sums& a, float, const Sums& b, float) {
        return Sums{a.first + b.first, a.second + b.second};
      };
      write_block_partials<C, J, Along, Across>(own, 0, first_channel, scratch, to.partials, merge);
    }
  };
};

}  // namespace arbalest::cuda
