#pragma once
// The filter gradient of a convolution of few channels: 16 channels of Y are the rows of one operand, 16 of X the
// columns of the other, and pixels what is summed over.

#include "ops/conv/conv_thin.cuh"

namespace arbalest::cuda {

// Partial sums of dW: (blocks, C, 9, C), of each block's tiles. A warp has 16 channels of Y and 16 of X, at all taps,
// for its share of the pixels; block.y: which 16 · 16 of the channels, where there are more than warps.
// Dynamic shared memory: two images of X, two tiles of dY, later sums of the warps that share channels.
template <int C>
struct ThinGradient {
  static constexpr int kPairs = (C / 16) * (C / 16);  // of 16 channels each
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kPairsInBlock = kPairs < kWarps ? kPairs : kWarps;
  static constexpr int kShares = kWarps / kPairsInBlock;  // of a tile's pixels
  static constexpr int kBlocksY = kPairs / kPairsInBlock;
  static constexpr int gradient_bytes(int rows, int width) {
    return (rows * width + 15) / 16 * 16 * (C + kThinSkew) * 2;
  }
  static constexpr int shared_bytes(const ThinTiling& t) {
    const int tiles =
        (t.tiles_per_block > 1 ? 2 : 1) * (thin_image_bytes<C>(t.rows, t.width) + gradient_bytes(t.rows, t.width)) +
        (t.rows * t.width + 15) / 16 * 64;
    const int sums = (kShares - 1) * kPairsInBlock * 72 * 32 * 4;
    return tiles > sums ? tiles : sums;
  }
};

template <int C>
__global__ void __launch_bounds__(kThreads, 2)
    thin_gradient_kernel(ThinTiling tiling, const __nv_bfloat16* x, const __nv_bfloat16* dy, float* partials) {
  using Layout = ThinGradient<C>;
  constexpr int kTaps = 9;
  extern __shared__ __align__(16) unsigned char thin_memory[];
  const int image_elements = (tiling.rows + 2) * (tiling.width + 2) * (C + kThinSkew);
  const int tile_pixels = tiling.rows * tiling.width, padded_pixels = (tile_pixels + 15) / 16 * 16;
  const int gradient_elements = padded_pixels * (C + kThinSkew);
  auto* images = reinterpret_cast<__nv_bfloat16*>(thin_memory);
  const bool several = tiling.tiles_per_block > 1;
  auto* gradients = images + (several ? 2 : 1) * image_elements;
  auto* places = reinterpret_cast<uint32_t*>(gradients + (several ? 2 : 1) * gradient_elements);  // by pixel, bytes
  const int thread = int(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int pair = warp % Layout::kPairsInBlock + int(blockIdx.y) * Layout::kPairsInBlock;
  const int share = warp / Layout::kPairsInBlock;
  const int from_x = pair % (C / 16) * 16, from_y = pair / (C / 16) * 16;
  const int first_tile = int(blockIdx.x) * tiling.tiles_per_block;
  const int last_tile = min(first_tile + tiling.tiles_per_block, tiling.tiles);

  const RowWalk walk(tiling.width * (C / 8));
  const auto copy = [&](int tile, int buffer) {
    copy_image<C>(tiling, walk, tile, x, images + buffer * image_elements);
    constexpr int kChunks = C / 8;
    const int64_t begin = int64_t{tile} * tile_pixels;
    __nv_bfloat16* to = gradients + buffer * gradient_elements;
    for (int i = thread; i < padded_pixels * kChunks; i += int(blockDim.x)) {
      const int pixel = i / kChunks, chunk = i % kChunks;
      const bool there = pixel < tile_pixels;
      copy_async(to + pixel * (C + kThinSkew) + chunk * 8, dy + (there ? (begin + pixel) * C + chunk * 8 : 0), there);
    }
    commit_copies();
  };
  copy(first_tile, 0);
  for (int i = thread; i < padded_pixels; i += int(blockDim.x)) {
    const int pixel = min(i, tile_pixels - 1), row = pixel / tiling.width;
    places[i] = uint32_t((row * (tiling.width + 2) + pixel - row * tiling.width) * (C + kThinSkew)) * 2;
  }
  clear_sides<C>(tiling, images);
  if (several) clear_sides<C>(tiling, images + image_elements);

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
                              uint32_t(y_pixel * (C + kThinSkew) + from_y + matrix % 2 * 8) * 2;
    for (int begin = share * 16; begin < padded_pixels; begin += Layout::kShares * 16) {
      const uint32_t place = image + places[begin + x_pixel];
      uint32_t a[4];
      load_matrices_transposed(a, gradient + uint32_t(begin * (C + kThinSkew)) * 2);
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap) {
        uint32_t b[4];
        load_matrices_transposed(b, place + uint32_t((tap / 3 * (tiling.width + 2) + tap % 3) * (C + kThinSkew)) * 2);
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
      return (((s - 1) * Layout::kPairsInBlock + warp % Layout::kPairsInBlock) * 72 + i) * 32 + lane;
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
        const int k = from_y + half * 8 + lane / 4, c = from_x + n * 8 + lane % 4 * 2;
        *reinterpret_cast<float2*>(out + (k * kTaps + tap) * C + c) =
            make_float2(sum[tap][n][half * 2], sum[tap][n][half * 2 + 1]);
      }
    }
  }
}

}  // namespace arbalest::cuda
