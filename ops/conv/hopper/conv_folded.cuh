// SPDX-License-Identifier: Apache-2.0
#pragma once
// Kernels of conv_folded.h. A tile is a part of a row of the result, or a whole one. For each of its pixels the copy
// engine fetches the 64 elements of a row of taps, for each row of taps in turn. If tiles are whole rows, what a tile
// has fetched except for the first row serves the next one as well.

#include "ops/conv/hopper/conv_tile.cuh"

namespace arbalest::cuda {

struct FoldedTiling {
  int pixels = 0, channels = 0;           // of the result
  int tile_pixels = 0;                    // at most 128
  int tiles_per_row = 0, height = 0;      // of the result
  int image_height = 0, image_width = 0;  // of the folded image
  int tiles = 0, tiles_per_block = 0;

  // True if the tile shares no row of the folded image with the tile before it, or is the first of a block.
  __device__ bool is_fresh(int tile) const {
    return tiles_per_row != 1 || tile % height == 0 || tile % tiles_per_block == 0;
  }
  // First pixel, in the folded images, of the tile's first row of taps.
  __device__ int place(int tile) const {
    const int row = tile / tiles_per_row, image = row / height;
    return (image * image_height + row - image * height) * image_width + (tile - row * tiles_per_row) * tile_pixels;
  }
};

inline constexpr int kFoldedTaps = 4;  // rows of the filter

// Rows that a block fetches, in order: all of a fresh tile, the last of another one.
struct FoldedRows {
  int tile, tap;
  const int last_tile;

  __device__ bool done() const { return tile == last_tile; }
  __device__ void advance(const FoldedTiling& tiling) {
    if (++tap < kFoldedTaps) return;
    ++tile;
    tap = done() || tiling.is_fresh(tile) ? 0 : kFoldedTaps - 1;
  }
};

// block.x: 64 channels of the result, block.y: a chunk of tiles. The filter is (K, taps · 64).
template <typename Epilogue>
__global__ void __launch_bounds__(kTileThreads, 2)
    folded_kernel(const __grid_constant__ CUtensorMap images, const __grid_constant__ CUtensorMap filters,
                  const __grid_constant__ FoldedTiling tiling, __nv_bfloat16* y,
                  const __grid_constant__ Epilogue epilogue) {
  using namespace hopper;
  using Writer = TileWriter<64, Epilogue>;
  constexpr int kFilterBytes = 64 * 64 * 2;  // of a row of taps
  constexpr int kStages = 4, kStageBytes = 128 * 64 * 2;
  extern __shared__ __align__(1024) unsigned char tile_memory[];
  const uint32_t filters_at = shared_address(tile_memory) + Writer::kStagingBytes;
  const uint32_t images_at = filters_at + kFoldedTaps * kFilterBytes;
  auto* const shifts = reinterpret_cast<float*>(tile_memory + kTileBytes);
  const Ring ring(shared_address(shifts + 64), kStages);
  const uint32_t filter_full = ring.end;
  const int first_tile = int(blockIdx.y) * tiling.tiles_per_block;
  const int last_tile = min(first_tile + tiling.tiles_per_block, tiling.tiles);
  const int first_channel = int(blockIdx.x) * 64;
  if (threadIdx.x == 0) {
    ring.init(kStages, kTileThreads / 32);
    init_barrier(filter_full, 1);
    fence_barriers();
  }
  __syncthreads();
  wait_for_dependencies();

  FoldedRows next = {first_tile, 0, last_tile};
  const auto fill = [&](int stage) {
    ring.fill(stage, tiling.tile_pixels * 128, [&](uint32_t barrier) {
      fetch(images_at + stage * kStageBytes, images, 0, tiling.place(next.tile) + next.tap * tiling.image_width,
            barrier);
    });
    next.advance(tiling);
  };
  if (threadIdx.x == 0) {
    expect_bytes(filter_full, kFoldedTaps * kFilterBytes);
    for (int tap = 0; tap < kFoldedTaps; ++tap) {
      fetch(filters_at + tap * kFilterBytes, filters, tap * 64, first_channel, filter_full);
    }
    for (int stage = 0; stage < kStages && !next.done(); ++stage) fill(stage);
  }

  const int group = int(threadIdx.x) / 128;
  Writer writer(epilogue, tile_memory, shifts, y, tiling.channels, first_channel);
  wait(filter_full, 0);
  Turn first;  // of the tile's first row of taps
  for (int tile = first_tile; tile < last_tile; ++tile) {
    float sum[32] = {};
    hold(sum);
#pragma unroll
    for (int tap = 0; tap < kFoldedTaps; ++tap) {
      ring.wait_full(first.after(tap, kStages));
    }
    begin_products();
#pragma unroll
    for (int tap = 0; tap < kFoldedTaps; ++tap) {
      const int stage = first.after(tap, kStages).stage;
      const uint64_t rows = descriptor(images_at + stage * kStageBytes + group * (64 * 128), 16);
      const uint64_t filter = descriptor(filters_at + tap * kFilterBytes, 16);
#pragma unroll
      for (int part = 0; part < 4; ++part) multiply<false, false>(sum, rows + part * 2, filter + part * 2);
    }
    commit_products();
    wait_for_products<0>();
    hold(sum);
    // Rows that the next tile does not need are free after all warps have used them, and are refilled at once.
    const int freed = tile + 1 == last_tile ? 0 : tiling.is_fresh(tile + 1) ? kFoldedTaps : 1;
    for (int i = 0; i < freed; ++i, first = first.after(1, kStages)) {
      ring.recycle(first, !next.done(), fill);
    }
    const int first_pixel = tile * tiling.tile_pixels;
    writer.write(sum, PixelRows{first_pixel + group * 64, first_pixel + tiling.tile_pixels}, tile == first_tile);
  }
  writer.finish(int(blockIdx.y), (last_tile - first_tile) * tiling.tile_pixels);
}

// How a block of the filter's gradient uses its shared memory: slots of a tile's rows, of 128 bytes, for the gradient
// of the result and for rows of taps.
struct FoldedGradientMemory {
  static constexpr int kOfResult = 2;
  int slot_bytes, stages;

  explicit FoldedGradientMemory(int tile_pixels)
      : slot_bytes((tile_pixels + 15) / 16 * 2048), stages(std::min(kTileBytes / slot_bytes - kOfResult, 6)) {}
};

// block.x: 64 channels of the result, block.y: tiles_per_block tiles, of kParts times sixteen pixels. Each group of
// warps makes the products of two rows of taps: partials (block.y, K, kFoldedTaps · 64). With a number of parts that is
// not known when it is compiled, the compiler has the products wait for each other.
template <int kParts>
__global__ void __launch_bounds__(kTileThreads, 2)
    folded_gradient_kernel(const __grid_constant__ CUtensorMap images, const __grid_constant__ CUtensorMap gradients,
                           const __grid_constant__ FoldedTiling tiling,
                           const __grid_constant__ FoldedGradientMemory memory, float* partials) {
  using namespace hopper;
  constexpr int kOfResult = FoldedGradientMemory::kOfResult;
  extern __shared__ __align__(1024) unsigned char tile_memory[];
  const int slots = kOfResult + memory.stages;
  const uint32_t results_at = shared_address(tile_memory);
  const uint32_t images_at = results_at + kOfResult * memory.slot_bytes;
  const Ring result_ring(shared_address(tile_memory) + kTileBytes, kOfResult);
  const Ring ring(result_ring.end, memory.stages);
  const int first_tile = int(blockIdx.y) * tiling.tiles_per_block;
  const int last_tile = min(first_tile + tiling.tiles_per_block, tiling.tiles);
  const int first_channel = int(blockIdx.x) * 64;
  if (threadIdx.x == 0) {
    result_ring.init(kOfResult, kTileThreads / 32);
    ring.init(memory.stages, kTileThreads / 32);
    fence_barriers();
  }
  // Sixteen pixels are summed over at a time; those that a tile lacks stay zeros.
  const int begin = tiling.tile_pixels * 128, count = (memory.slot_bytes - begin) / 16;
  for (int i = int(threadIdx.x); i < slots * count; i += kTileThreads) {
    *reinterpret_cast<uint4*>(tile_memory + i / count * memory.slot_bytes + begin + i % count * 16) = uint4{0, 0, 0, 0};
  }
  fence_writes();
  __syncthreads();
  wait_for_dependencies();

  FoldedRows next = {first_tile, 0, last_tile};
  int next_result = first_tile;
  const auto fill = [&](int stage) {
    ring.fill(stage, tiling.tile_pixels * 128, [&](uint32_t barrier) {
      fetch(images_at + stage * memory.slot_bytes, images, 0, tiling.place(next.tile) + next.tap * tiling.image_width,
            barrier);
    });
    next.advance(tiling);
  };
  const auto fill_result = [&](int slot) {
    result_ring.fill(slot, tiling.tile_pixels * 128, [&](uint32_t barrier) {
      fetch(results_at + slot * memory.slot_bytes, gradients, first_channel, next_result * tiling.tile_pixels, barrier);
    });
    ++next_result;
  };
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < kOfResult && next_result < last_tile; ++slot) fill_result(slot);
    for (int stage = 0; stage < memory.stages && !next.done(); ++stage) fill(stage);
  }

  const int group = int(threadIdx.x) / 128, lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) % 128 / 32;
  float sum[2][32] = {};  // of the group's rows of taps
  hold(sum[0]);
  hold(sum[1]);
  Turn first, result;
  for (int tile = first_tile; tile < last_tile; ++tile) {
    result_ring.wait_full(result);
    for (int tap = 0; tap < kFoldedTaps; ++tap) ring.wait_full(first.after(tap, memory.stages));
    const uint64_t dy = descriptor(results_at + result.stage * memory.slot_bytes, 16);
    begin_products();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int stage = first.after(group * 2 + i, memory.stages).stage;
      const uint64_t rows = descriptor(images_at + stage * memory.slot_bytes, 16);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        multiply<true, true>(sum[i], dy + part * 128, rows + part * 128);
      }
    }
    commit_products();
    wait_for_products<0>();
    const int freed = tile + 1 == last_tile ? 0 : tiling.is_fresh(tile + 1) ? kFoldedTaps : 1;
    for (int i = 0; i < freed; ++i, first = first.after(1, memory.stages)) {
      ring.recycle(first, !next.done(), fill);
    }
    result_ring.recycle(result, next_result < last_tile, fill_result);
    result = result.after(1, kOfResult);
  }

  hold(sum[0]);
  hold(sum[1]);
  float* const own = partials + int64_t{blockIdx.y} * tiling.channels * (kFoldedTaps * 64);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int channel = first_channel + warp * 16 + half * 8 + lane / 4;
        if (channel >= tiling.channels) continue;
        float* const to = own + int64_t{channel} * (kFoldedTaps * 64) + (group * 2 + i) * 64 + j * 8 + lane % 4 * 2;
        *reinterpret_cast<float2*>(to) = make_float2(sum[i][j * 4 + half * 2], sum[i][j * 4 + half * 2 + 1]);
      }
    }
  }
}

}  // namespace arbalest::cuda
