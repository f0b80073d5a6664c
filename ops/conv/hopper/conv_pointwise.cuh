// SPDX-License-Identifier: Apache-2.0
#pragma once
// The kernel of conv_pointwise.h: a product of matrices on Hopper, whose rows are pixels. One thread has the copy
// engine fetch tiles of pixels and of the filter ahead. Two groups of four warps have the matrix units multiply them
// straight from shared memory. Tiles of the result go through a TileWriter. Images are bfloat16 (pixels, channels); the
// filter is (K, C).

#include "ops/conv/hopper/conv_tile.cuh"
#include "ops/norm/statistics_chunks.h"

namespace arbalest::cuda {

inline constexpr int kTilePixels = int(kPointwiseTilePixels);
inline constexpr int kInner = 64;  // channels summed over, of a stage: rows of 128 bytes
inline constexpr int kMostStages = 6;
inline constexpr int kImageStageBytes = kTilePixels * kInner * 2;

struct PointwiseTiling {
  int pixels = 0, channels = 0;  // of the result
  int steps = 0;                 // stages of a tile
  int tiles_per_chunk = 0, chunks = 0;
  // If chunks take turns at the tiles, so that all blocks go through the image together: the tiles of the last chunk,
  // which may have fewer than the others. 0: the tiles of a chunk are consecutive.
  int rounds = 0;
  bool filter_stays = false;  // in shared memory, whole; else it is fetched with each tile of pixels
  int stages = 0;

  // The k-th tile of a chunk.
  __device__ int tile(int chunk, int k) const {
    return rounds == 0 ? chunk * tiles_per_chunk + k : k * chunks + chunk - max(0, k - rounds);
  }
};

// Tiling for blocks that make kColumns channels of the result.
template <int kColumns>
PointwiseTiling pointwise_tiling(int64_t pixels, int64_t channels, int64_t inner, int64_t chunk_pixels) {
  constexpr int kMostFilter = 32 << 10;  // bytes of a filter that stays
  constexpr int kFilterStage = kColumns * kInner * 2, kRoom = kTileBytes - kTilePixels * kColumns * 2;
  PointwiseTiling t;
  t.pixels = int(pixels);
  t.channels = int(channels);
  t.steps = int((inner + kInner - 1) / kInner);
  const int tiles = int((pixels + kTilePixels - 1) / kTilePixels);
  t.tiles_per_chunk = int(std::min<int64_t>(chunk_pixels / kTilePixels, tiles));
  t.chunks = (tiles + t.tiles_per_chunk - 1) / t.tiles_per_chunk;
  // A tile that is not full is the last of the last chunk.
  if (pixels % kTilePixels == 0) t.rounds = tiles - (t.chunks - 1) * t.tiles_per_chunk;
  const int filter = t.steps * kFilterStage;
  t.filter_stays = filter <= kMostFilter;
  t.stages = t.filter_stays ? (kRoom - filter) / kImageStageBytes : kRoom / (kImageStageBytes + kFilterStage);
  t.stages = std::min(t.stages, kMostStages);
  return t;
}

// block.x: kColumns channels of the result, block.y: a chunk of tiles. Transposed: the gradient of images, which
// sums over the filter's rows.
template <int kColumns, bool kTransposed, typename Epilogue>
__global__ void __launch_bounds__(kTileThreads, 2)
    pointwise_kernel(const __grid_constant__ CUtensorMap images, const __grid_constant__ CUtensorMap filters,
                     const __grid_constant__ PointwiseTiling tiling, __nv_bfloat16* y,
                     const __grid_constant__ Epilogue epilogue) {
  using namespace hopper;
  using Writer = TileWriter<kColumns, Epilogue>;
  constexpr int kFilterStageBytes = kColumns * kInner * 2;
  extern __shared__ __align__(1024) unsigned char tile_memory[];
  unsigned char* const filter_memory = tile_memory + Writer::kStagingBytes;
  unsigned char* const image_memory =
      filter_memory + (tiling.filter_stays ? tiling.steps : tiling.stages) * kFilterStageBytes;
  auto* const shifts = reinterpret_cast<float*>(tile_memory + kTileBytes);  // (kColumns)
  const Ring ring(shared_address(shifts + kColumns), kMostStages);
  const uint32_t filter_full = ring.end;

  const int chunk = int(blockIdx.y), first_pixel = chunk * tiling.tiles_per_chunk * kTilePixels;
  const int pixels = min(tiling.tiles_per_chunk * kTilePixels, tiling.pixels - first_pixel);
  const int tiles = (pixels + kTilePixels - 1) / kTilePixels;
  const int first_channel = int(blockIdx.x) * kColumns;
  if (threadIdx.x == 0) {
    ring.init(tiling.stages, kTileThreads / 32);
    init_barrier(filter_full, 1);
    fence_barriers();
  }
  __syncthreads();
  wait_for_dependencies();

  // The first thread has the copy engine fill stages, as far ahead as there are any.
  const uint32_t filters_at = shared_address(filter_memory);
  const auto fetch_filter = [&](int step, int place, uint32_t barrier) {
    const uint32_t to = filters_at + place * kFilterStageBytes;
    if constexpr (kTransposed) {
#pragma unroll
      for (int block = 0; block < kColumns / 64; ++block) {
        fetch(to + block * (kInner * 128), filters, first_channel + block * 64, step * kInner, barrier);
      }
    } else {
      fetch(to, filters, step * kInner, first_channel, barrier);
    }
  };
  int next = 0, next_step = 0;
  const auto fill = [&](int stage) {
    ring.fill(stage, kImageStageBytes + (tiling.filter_stays ? 0 : kFilterStageBytes), [&](uint32_t barrier) {
      fetch(shared_address(image_memory) + stage * kImageStageBytes, images, next_step * kInner,
            tiling.tile(chunk, next) * kTilePixels, barrier);
      if (!tiling.filter_stays) fetch_filter(next_step, stage, barrier);
    });
  };
  const auto advance = [&] {
    if (++next_step == tiling.steps) next_step = 0, ++next;
  };
  if (threadIdx.x == 0 && tiling.filter_stays) {
    expect_bytes(filter_full, tiling.steps * kFilterStageBytes);
    for (int step = 0; step < tiling.steps; ++step) fetch_filter(step, step, filter_full);
  }
  for (int stage = 0; stage < tiling.stages && next < tiles; ++stage) {
    if (threadIdx.x == 0) fill(stage);
    advance();
  }

  const int group = int(threadIdx.x) / 128;
  const uint32_t images_at = shared_address(image_memory) + group * (64 * kInner * 2);
  Writer writer(epilogue, tile_memory, shifts, y, tiling.channels, first_channel);
  if (tiling.filter_stays) wait(filter_full, 0);
  Turn turn, last;
  // The stage before is filled again as soon as all warps are done with it.
  const auto release = [&] {
    ring.recycle(last, next < tiles, fill);
    if (next < tiles) advance();
  };
  for (int k = 0; k < tiles; ++k) {
    float sum[kColumns / 2] = {};
    hold(sum);
    for (int step = 0; step < tiling.steps; ++step) {
      ring.wait_full(turn);
      const uint64_t image = descriptor(images_at + turn.stage * kImageStageBytes, 16);
      const uint64_t filter = descriptor(filters_at + (tiling.filter_stays ? step : turn.stage) * kFilterStageBytes,
                                         kTransposed ? kInner * 128 : 16);
      begin_products();
#pragma unroll
      for (int part = 0; part < kInner / 16; ++part) {
        multiply<false, kTransposed>(sum, image + part * 2, filter + part * (kTransposed ? 128 : 2));
      }
      commit_products();
      if (step > 0) {
        wait_for_products<1>();
        release();
      }
      last = turn;
      turn = turn.after(1, tiling.stages);
    }
    wait_for_products<0>();
    hold(sum);
    release();

    const int first = tiling.tile(chunk, k) * kTilePixels + group * 64;
    writer.write(sum, PixelRows{first, min(first + 64, tiling.pixels)}, k == 0);
  }
  launch_dependents();
  writer.finish(chunk, pixels);
}

}  // namespace arbalest::cuda
