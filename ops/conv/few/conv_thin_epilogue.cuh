// SPDX-License-Identifier: Apache-2.0
#pragma once
// Epilogues of the kernels of conv_thin.cuh: what they do with a product before and after they store it. State<J> is
// that of one thread, for 2J neighbouring channels from `channel` on. All threads call start() with their first values,
// `first` if these are of the block's first pixel, and finish() at the end. The function add() sees each value of the
// thread, at its place in the result, and may change it.

#include "ops/norm/batch_norm.cuh"

namespace arbalest::cuda {

struct ThinPlain {
  template <int J>
  struct State {
    __device__ State(const ThinPlain&, int) {}
    __device__ void add(const ThinPlain&, int64_t, float (&)[2 * J]) {}
    __device__ void start(float*, int, bool, const float (&)[2 * J]) {}
    template <int C, int Along, int Across>
    __device__ void finish(const ThinPlain&, int, int, void*) {}
  };
};

// Totals over a block of what its threads have summed, for 2J neighbouring channels each, as a row of partials
// (blocks, C). `make`: a channel of the block and its two totals → the partial. `scratch`: shared memory that all
// threads are done with.
template <int C, int J, int Along, int Across, typename Make>
__device__ void write_block_partials(float (&sums)[2][2 * J], int first_channel, void* scratch, Partial* partials,
                                     Make make) {
  constexpr int kOut = 8 * J * Across;
  auto* totals = static_cast<float2*>(scratch);  // (Along, kOut)
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
#pragma unroll
  for (int offset = 4; offset < 32; offset *= 2) {  // lanes apart by four hold the same channels
#pragma unroll
    for (int c = 0; c < 2 * J; ++c) {
#pragma unroll
      for (int q = 0; q < 2; ++q) sums[q][c] += __shfl_xor_sync(0xffffffffu, sums[q][c], offset);
    }
  }
  if (lane < 4) {
    float2* own = totals + warp / Across * kOut + (warp % Across * 4 + lane) * 2 * J;
#pragma unroll
    for (int c = 0; c < 2 * J; ++c) own[c] = make_float2(sums[0][c], sums[1][c]);
  }
  __syncthreads();
  for (int c = int(threadIdx.x); c < kOut; c += int(blockDim.x)) {
    float2 total = {0, 0};
#pragma unroll
    for (int along = 0; along < Along; ++along) {
      const float2 more = totals[along * kOut + c];
      total.x += more.x;
      total.y += more.y;
    }
    partials[int64_t(blockIdx.x) * C + first_channel + c] = make(c, total);
  }
}

// Makes the partials of batch norm's statistics from the stored values. Sums are relative to the block's first pixel.
struct ThinStatistics {
  Partial* partials;

  template <int J>
  struct State {
    float shift[2 * J], sums[2][2 * J] = {};
    float* shifts;  // by channel of the block
    __device__ State(const ThinStatistics&, int) {}
    __device__ void start(float* shared, int channel, bool first, const float (&value)[2 * J]) {
      shifts = shared;
#pragma unroll
      for (int c = 0; c < 2 * J && first; ++c) shifts[channel + c] = widen(narrow<__nv_bfloat16>(value[c]));
      __syncthreads();
#pragma unroll
      for (int c = 0; c < 2 * J; ++c) shift[c] = shifts[channel + c];
    }
    __device__ void add(const ThinStatistics&, int64_t, float (&value)[2 * J]) {
#pragma unroll
      for (int c = 0; c < 2 * J; ++c) {
        const float deviation = widen(narrow<__nv_bfloat16>(value[c])) - shift[c];
        sums[0][c] += deviation;
        sums[1][c] += deviation * deviation;
      }
    }
    template <int C, int Along, int Across>
    __device__ void finish(const ThinStatistics& to, int first_channel, int pixels, void* scratch) {
      const auto make = [&](int channel, float2 total) {
        const float mean = total.x / float(pixels);
        return make_float2(shifts[channel] + mean, fmaxf(total.y - total.x * mean, 0.0f));
      };
      write_block_partials<C, J, Along, Across>(sums, first_channel, scratch, to.partials, make);
    }
  };
};

// For a product that is the gradient of a batch norm's result, or one of two whose sum is (kTwo). Stores the gradient
// g, masked by the batch norm's Relu, and the partials of Σ g and Σ g · (x − mean), as gradient_sums_kernel() does.
// from.dy is not read. If kStays, the product itself is stored, because every reader of it has x, too.
template <Mask kMask, bool kTwo>
struct ThinGradientSums {
  static constexpr bool kStays = kMask == Mask::X && !kTwo;
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
        const float g = passes ? value[c] : 0.0f;
        if constexpr (!kStays) value[c] = g;
        sums[0][c] += g;
        sums[1][c] += g * (widen(x.element[c]) - mean[c]);
      }
    }
    __device__ void start(float*, int, bool, const float (&)[2 * J]) {}
    template <int C, int Along, int Across>
    __device__ void finish(const ThinGradientSums& to, int first_channel, int, void* scratch) {
      const auto make = [](int, float2 total) { return total; };
      write_block_partials<C, J, Along, Across>(sums, first_channel, scratch, to.partials, make);
    }
  };
};

}  // namespace arbalest::cuda
