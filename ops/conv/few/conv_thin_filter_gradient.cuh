// SPDX-License-Identifier: Apache-2.0
#pragma once
// The filter gradient of a convolution of few channels. Sixteen channels of Y are the rows of one operand, 16 of X the
// columns of the other, and pixels what is summed over.

#include "ops/conv/few/conv_thin.cuh"

namespace arbalest::cuda {

// Partial sums of dW: (blocks, C, 9, C), of each block's tiles. A block has From channels of X and To of dY, which ones
// says block.y; a warp has 16 of each, at all taps, for its share of the pixels.
// Dynamic shared memory: images of X, tiles of dY, two of each if a block has several tiles, and the pixels' places;
// later sums of the warps that share channels.
template <int C, int From, int To>
struct ThinFilterGradient {
  static constexpr int kPairs = (From / 16) * (To / 16);  // of 16 channels each
  static constexpr int kShares = kThreads / 32 / kPairs;  // of a tile's pixels
  static constexpr int kBlocksY = (C / From) * (C / To);
  static constexpr int gradient_bytes(int pixels) { return (pixels + 15) / 16 * 16 * (To + kThinSkew) * 2; }
  static constexpr int shared_bytes(const ThinTiling& t) {
    const int pixels = t.rows * t.width;
    const int tile = thin_image_bytes<From>(t.rows, t.width) + gradient_bytes(pixels);
    const int tiles = (t.tiles_per_block > 1 ? 2 : 1) * tile + (pixels + 15) / 16 * 64;
    const int sums = (kShares - 1) * kPairs * 72 * 32 * 4;
    return tiles > sums ? tiles : sums;
  }
};

template <int C, int From, int To>
__global__ void __launch_bounds__(kThreads, 2)
    thin_filter_gradient_kernel(ThinTiling tiling, const __nv_bfloat16* x, const __nv_bfloat16* dy, float* partials) {
  using Layout = ThinFilterGradient<C, From, To>;
  constexpr int kTaps = 9;
  extern __shared__ __align__(16) unsigned char thin_memory[];
  const int image_elements = (tiling.rows + 2) * (tiling.width + 2) * (From + kThinSkew);
  const int tile_pixels = tiling.rows * tiling.width, padded_pixels = (tile_pixels + 15) / 16 * 16;
  const int gradient_elements = padded_pixels * (To + kThinSkew);
  auto* images = reinterpret_cast<__nv_bfloat16*>(thin_memory);
  const bool several = tiling.tiles_per_block > 1;
  auto* gradients = images + (several ? 2 : 1) * image_elements;
  auto* places = reinterpret_cast<uint32_t*>(gradients + (several ? 2 : 1) * gradient_elements);  // by pixel, bytes
  const int thread = int(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int pair = warp % Layout::kPairs, share = warp / Layout::kPairs;
  const int from_x = pair % (From / 16) * 16, from_y = pair / (From / 16) * 16;  // of the block's channels
  const int block_x = int(blockIdx.y) % (C / From) * From, block_y = int(blockIdx.y) / (C / From) * To;
  const int first_tile = int(blockIdx.x) * tiling.tiles_per_block;
  const int last_tile = min(first_tile + tiling.tiles_per_block, tiling.tiles);

  const RowWalk walk(tiling.width * (From / 8));
  const auto copy = [&](int tile, int buffer) {
    copy_image<C, From>(tiling, walk, tile, x + block_x, images + buffer * image_elements);
    constexpr int kPacks = To / 8;
    const int64_t begin = int64_t{tile} * tile_pixels;
    __nv_bfloat16* to = gradients + buffer * gradient_elements;
    for (int i = thread; i < padded_pixels * kPacks; i += int(blockDim.x)) {
      const int pixel = i / kPacks, pack = i % kPacks;
      const bool there = pixel < tile_pixels;
      copy_async(to + pixel * (To + kThinSkew) + pack * 8, dy + (there ? (begin + pixel) * C + block_y + pack * 8 : 0),
                 there);
    }
    commit_copies();
  };
  wait_for_dependencies();
  copy(first_tile, 0);
  for (int i = thread; i < padded_pixels; i += int(blockDim.x)) {
    const int pixel = min(i, tile_pixels - 1), row = pixel / tiling.width;
    places[i] = uint32_t((row * (tiling.width + 2) + pixel - row * tiling.width) * (From + kThinSkew)) * 2;
  }
  clear_sides<From>(tiling, images);
  if (several) clear_sides<From>(tiling, images + image_elements);

  float sum[kTaps][2][4] = {};
  const int matrix = lane / 8;
  const int x_pixel = matrix % 2 * 8 + lane % 8, y_pixel = matrix / 2 * 8 + lane % 8;
  for (int tile = first_tile; tile < last_tile; ++tile) {
    const int buffer = (tile - first_tile) % 2;
    if (tile + 1 < last_tile) {
      copy(tile + 1, 1 - buffer);
    } else {
      commit_copies();
    }
    wait_for_copies<1>();
    __syncthreads();
    const uint32_t image = shared_address(images + buffer * image_elements) + uint32_t(from_x + matrix / 2 * 8) * 2;
    const uint32_t gradient = shared_address(gradients + buffer * gradient_elements) +
                              uint32_t(y_pixel * (To + kThinSkew) + from_y + matrix % 2 * 8) * 2;
    for (int begin = share * 16; begin < padded_pixels; begin += Layout::kShares * 16) {
      const uint32_t place = image + places[begin + x_pixel];
      uint32_t a[4];
      load_matrices_transposed(a, gradient + uint32_t(begin * (To + kThinSkew)) * 2);
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap) {
        uint32_t b[4];
        load_matrices_transposed(b,
                                 place + uint32_t((tap / 3 * (tiling.width + 2) + tap % 3) * (From + kThinSkew)) * 2);
        multiply(sum[tap][0], a, b[0], b[1]);
        multiply(sum[tap][1], a, b[2], b[3]);
      }
    }
    __syncthreads();
  }

  // Shares of the same channels are added up in order.
  if constexpr (Layout::kShares > 1) {
    auto* sums = reinterpret_cast<float*>(thin_memory);
    const auto at = [&](int s, int i) {
      return (((s - 1) * Layout::kPairs + warp % Layout::kPairs) * 72 + i) * 32 + lane;
    };
    if (share > 0) {
#pragma unroll
      for (int i = 0; i < 72; ++i) sums[at(share, i)] = sum[i / 8][i / 4 % 2][i % 4];
    }
    __syncthreads();
    if (share == 0) {
#pragma unroll
      for (int i = 0; i < 72; ++i) {
        for (int s = 1; s < Layout::kShares; ++s) sum[i / 8][i / 4 % 2][i % 4] += sums[at(s, i)];
      }
    }
  }
  if (share > 0) return;
  float* out = partials + int64_t(blockIdx.x) * C * kTaps * C;
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int k = block_y + from_y + half * 8 + lane / 4, c = block_x + from_x + n * 8 + lane % 4 * 2;
        *reinterpret_cast<float2*>(out + (k * kTaps + tap) * C + c) =
            make_float2(sum[tap][n][half * 2], sum[tap][n][half * 2 + 1]);
      }
    }
  }
}

}  // namespace arbalest::cuda
