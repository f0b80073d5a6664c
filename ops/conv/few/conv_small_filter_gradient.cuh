// SPDX-License-Identifier: Apache-2.0
#pragma once
// The filter gradient of conv_small.h. Sixteen filters are the rows of one operand, eight channels of X at a tap are
// the columns of the other, and the sum runs over pixels. For fewer than eight channels the windows are unfolded in
// shared memory, so that a column is one channel at one tap.

#include "ops/conv/few/conv_small.cuh"

namespace arbalest::cuda {

// Division of the columns. A pair is two groups of eight columns; a warp has at most two pairs, and blocks share them.
struct SmallGradientForm {
  SmallWindow window;
  SmallTiling tiling;
  bool unfolded;
  int groups;          // of eight columns
  int groups_per_tap;  // 0 if unfolded
  int pairs_per_block, warps_across;
  int tiles_per_block, blocks, blocks_across;

  int filters_wide() const { return window.made <= 16 ? 16 : window.made <= 32 ? 32 : 64; }
  __host__ __device__ int unfolded_pitch() const { return (groups + 1) / 2 * 16 + 8; }
  __host__ __device__ int padded_pixels() const { return (tiling.rows * window.out_width + 15) / 16 * 16; }
  int shared_bytes() const {
    const int tile = (tiling.band_elements() + (unfolded ? padded_pixels() * unfolded_pitch() : 0) +
                      padded_pixels() * (filters_wide() + 8)) *
                         2 +
                     padded_pixels() * 4;
    const int splits = kSmallWarps / warps_across;
    return std::max(tile, (splits - 1) * warps_across * filters_wide() * 32 * 4);
  }
  int64_t partial_count() const { return int64_t(window.made) * window.taps() * window.channels; }
};

// Partial sums of dW: (blocks, K, R, S, C), of each block's tiles. M: sixteens of filters.
template <int M, bool Unfolded>
__global__ void __launch_bounds__(kThreads) small_filter_gradient_kernel(SmallGradientForm form, const __nv_bfloat16* x,
                                                                         const __nv_bfloat16* dy, float* partials) {
  wait_for_dependencies();
  extern __shared__ __align__(16) unsigned char small_memory[];
  const SmallWindow& window = form.window;
  const SmallTiling& tiling = form.tiling;
  constexpr int kFilterPitch = M * 16 + 8;
  const int padded = form.padded_pixels(), unfolded_pitch = form.unfolded_pitch();
  auto* band = reinterpret_cast<__nv_bfloat16*>(small_memory);
  auto* unfolded = band + tiling.band_elements();
  auto* gradients = unfolded + (Unfolded ? padded * unfolded_pitch : 0);
  auto* places = reinterpret_cast<int*>(gradients + padded * kFilterPitch);  // in elements, of each pixel's window
  const int thread = int(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int across = warp % form.warps_across, split = warp / form.warps_across;
  const int splits = kSmallWarps / form.warps_across;

  // The warp's columns: two pairs of eight each.
  const int first_pair = int(blockIdx.y) * form.pairs_per_block + across * 2;
  const int last_pair = min((int(blockIdx.y) + 1) * form.pairs_per_block, (form.groups + 1) / 2);
  const int matrix = lane / 8;
  int offset[2];
#pragma unroll
  for (int p = 0; p < 2; ++p) {
    const int group = min((first_pair + p) * 2 + matrix / 2, form.groups - 1);
    offset[p] =
        Unfolded ? group * 8 : tiling.offset_of(window, group / form.groups_per_tap) + group % form.groups_per_tap * 8;
  }
  const int x_pixel = matrix % 2 * 8 + lane % 8, y_pixel = matrix / 2 * 8 + lane % 8;

  float sum[M][4][4] = {};
  const int first_tile = int(blockIdx.x) * form.tiles_per_block;
  const int last_tile = min(first_tile + form.tiles_per_block, tiling.tiles);
  for (int tile = first_tile; tile < last_tile; ++tile) {
    __syncthreads();
    const int pixels = tiling.rows_of(window, tile) * window.out_width;
    tiling.copy_band(window, tile, x, band);
#pragma unroll 1
    for (int i = thread; i < padded; i += kThreads) places[i] = tiling.place_of(window, min(i, pixels - 1));
    const int64_t begin =
        (int64_t(tile / tiling.bands) * window.out_height + tile % tiling.bands * tiling.rows) * window.out_width;
    const __nv_bfloat16* from = dy + begin * window.made;
    const bool words = window.made % 2 == 0;
#pragma unroll 1
    for (int i = thread; words && i < padded * M * 8; i += kThreads) {
      const int pixel = i / (M * 8), k = i % (M * 8) * 2;
      const bool there = pixel < pixels && k < window.made;
      copy_word_async(gradients + pixel * kFilterPitch + k, there ? from + pixel * window.made + k : dy, there);
    }
#pragma unroll 2
    for (int i = thread; i < (words ? 0 : padded * M * 16); i += kThreads) {
      const int pixel = i / (M * 16), k = i % (M * 16);
      const bool there = pixel < pixels && k < window.made;
      gradients[pixel * kFilterPitch + k] = there ? __ldg(from + pixel * window.made + k) : narrow<__nv_bfloat16>(0.0f);
    }
    commit_copies();
    wait_for_copies<0>();
    __syncthreads();
    if constexpr (Unfolded) {
      constexpr int kBatch = 4;  // that are on their way at once
      const int numbers = window.taps() * window.channels;
#pragma unroll 1
      for (int n = lane; n < unfolded_pitch; n += 32) {
        const int tap = n / window.channels;
        const bool there = n < numbers;
        const int in_window = there ? tiling.offset_of(window, tap) + n - tap * window.channels : 0;
#pragma unroll 1
        for (int first = warp; first < padded; first += kSmallWarps * kBatch) {
          __nv_bfloat16 value[kBatch];
#pragma unroll
          for (int k = 0; k < kBatch; ++k) {
            value[k] = band[places[min(first + k * kSmallWarps, padded - 1)] + in_window];
          }
#pragma unroll
          for (int k = 0; k < kBatch; ++k) {
            const int pixel = first + k * kSmallWarps;
            if (pixel >= padded) break;
            unfolded[pixel * unfolded_pitch + n] = there ? value[k] : narrow<__nv_bfloat16>(0.0f);
          }
        }
      }
      __syncthreads();
    }
    const __nv_bfloat16* image = Unfolded ? unfolded : band;
    const uint32_t gradient = shared_address(gradients + y_pixel * kFilterPitch + matrix % 2 * 8);
#pragma unroll 1
    for (int step = split * 16; step < padded && first_pair < last_pair; step += splits * 16) {
      const int pixel = step + x_pixel;
      const uint32_t place = shared_address(image + (Unfolded ? pixel * unfolded_pitch : places[pixel]));
      uint32_t a[M][4], b[2][4];
#pragma unroll
      for (int m = 0; m < M; ++m) {
        load_matrices_transposed(a[m], gradient + uint32_t(step * kFilterPitch + m * 16) * 2);
      }
#pragma unroll
      for (int p = 0; p < 2; ++p) load_matrices_transposed(b[p], place + uint32_t(offset[p]) * 2);
#pragma unroll
      for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int p = 0; p < 2; ++p) {
          multiply(sum[m][p * 2], a[m], b[p][0], b[p][1]);
          multiply(sum[m][p * 2 + 1], a[m], b[p][2], b[p][3]);
        }
      }
    }
  }

  // Splits of the same columns are added up in order.
  if (splits > 1) {
    __syncthreads();
    auto* sums = reinterpret_cast<float*>(small_memory);
    const auto at = [&](int s, int i) { return (((s - 1) * form.warps_across + across) * M * 16 + i) * 32 + lane; };
    if (split > 0) {
#pragma unroll
      for (int i = 0; i < M * 16; ++i) sums[at(split, i)] = sum[i / 16][i / 4 % 4][i % 4];
    }
    __syncthreads();
    if (split > 0) return;
#pragma unroll 1
    for (int other = 1; other < splits; ++other) {
#pragma unroll
      for (int i = 0; i < M * 16; ++i) sum[i / 16][i / 4 % 4][i % 4] += sums[at(other, i)];
    }
  }
  const int numbers = window.taps() * window.channels;
  float* out = partials + int64_t(blockIdx.x) * window.made * numbers;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const int pair = first_pair + n / 2, group = pair * 2 + n % 2;
    if (pair >= last_pair || group >= form.groups) continue;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      int number = group * 8 + lane % 4 * 2 + c;  // in a filter
      if constexpr (!Unfolded) {
        const int channel = number - group / form.groups_per_tap * form.groups_per_tap * 8;
        if (channel >= window.channels) continue;
        number = group / form.groups_per_tap * window.channels + channel;
      }
      if (number >= numbers) continue;
#pragma unroll
      for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int filter = m * 16 + half * 8 + lane / 4;
          if (filter < window.made) out[filter * numbers + number] = sum[m][n][half * 2 + c];
        }
      }
    }
  }
}

}  // namespace arbalest::cuda
