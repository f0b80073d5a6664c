// SPDX-License-Identifier: Apache-2.0
#pragma once
// The kernel of conv_halo.h. A group of four warps makes a tile of the result, and two groups share a block and its
// filter. A separate warp has the copy engine fetch 64 channels of a tile's pixels with their border once, as a raster
// of rows of 128 bytes. The pixels under a tap are that raster from another row on, so that each tap is a product of
// matrices of the same memory. Places without a pixel get sums that are left out.

#include "ops/conv/hopper/conv_tile.cuh"
#include "ops/norm/statistics_chunks.h"

namespace arbalest::cuda {

inline constexpr int kHaloThreads = kTileThreads + 32;
inline constexpr int kHaloBytes = 224 << 10;           // of shared memory for tiles: a block has a processor for itself
inline constexpr int kHaloShared = kHaloBytes + 3072;  // and for barriers and the like
inline constexpr int kHaloInner = 64;                  // channels summed over at a time: rows of 128 bytes
inline constexpr int kTaps = 9;
inline constexpr int kMostPlaces = 128;
inline constexpr int kImageStages = 2, kMostFilterStages = 8;

struct HaloTiling {
  int images = 0, height = 0, width = 0, channels = 0;                        // of the result
  int tile_images = 0, tile_rows = 0, tile_width = 0, pitch = 0, places = 0;  // HaloTile
  int box_rows = 0;                                                           // rows of each image that are fetched
  int stage_bytes = 0;  // of a raster, with the memory after it that is read
  int parts = 0, bands = 0, tiles = 0, tiles_per_chunk = 0;
  int steps = 0;  // of kHaloInner channels
  bool filter_stays = false;
  int filter_stages = 0;

  __device__ int box_bytes() const { return tile_images * box_rows * pitch * 128; }
};

template <int kColumns>
HaloTiling halo_tiling(const Shape& image, const HaloTile& tile, int64_t inner, int64_t chunk_pixels) {
  constexpr int kFilterStage = kColumns * kHaloInner * 2, kMostFilter = 80 << 10;  // of a filter that stays
  HaloTiling t;
  t.images = int(image[0]), t.height = int(image[2]), t.width = int(image[3]), t.channels = int(image[1]);
  t.tile_images = int(tile.images), t.tile_rows = int(tile.rows), t.tile_width = int(tile.width);
  t.pitch = int(tile.pitch), t.places = int(tile.places);
  t.box_rows = tile.images > 1 ? t.height + 1 : t.tile_rows + 2;
  const int fetched = t.tile_images * t.box_rows * t.pitch, last_border = tile.images > 1 ? t.pitch + 1 : 1;
  t.stage_bytes = (std::max(fetched + last_border, t.places + 2 * t.pitch + 2) + 7) / 8 * 1024;
  t.parts = t.width / t.tile_width, t.bands = t.height / t.tile_rows;
  t.tiles = int(tile.count(image));
  t.tiles_per_chunk = int(chunk_pixels / tile.pixels());
  t.steps = int((inner + kHaloInner - 1) / kHaloInner);
  const int filter = t.steps * kTaps * kFilterStage;
  t.filter_stays = filter <= kMostFilter;
  const int room = kHaloBytes - 2 * kImageStages * t.stage_bytes - 128 * kColumns * 2;
  t.filter_stages = t.filter_stays ? t.steps * kTaps : std::min(room / kFilterStage, kMostFilterStages);
  return t;
}

// block.x: kColumns channels of the result, block.y: a chunk of tiles. Transposed: the gradient of images, which sums
// over the filter's rows. kHalves: halves of 64 places in a tile. kParts: parts of 16 channels that are summed over, of
// the kHaloInner that are fetched at a time. Images are (N,H,W,C) in bfloat16, filters (K, taps · C).
template <int kColumns, int kHalves, bool kTransposed, int kParts, typename Epilogue>
__global__ void __launch_bounds__(kHaloThreads, 1)
    halo_kernel(const __grid_constant__ CUtensorMap images, const __grid_constant__ CUtensorMap filters,
                const __grid_constant__ HaloTiling tiling, int inner, __nv_bfloat16* y,
                const __grid_constant__ Epilogue epilogue) {
  using namespace hopper;
  using Writer = TileWriter<kColumns, Epilogue>;
  constexpr int kFilterStageBytes = kColumns * kHaloInner * 2, kGroupWarps = kGroupThreads / 32;
  constexpr bool kPartials = requires(const Epilogue& e) {
    e.partials;
  };
  constexpr bool kBias = requires(const Epilogue& e) {
    e.bias;
  };
  extern __shared__ __align__(1024) unsigned char tile_memory[];
  const uint32_t filters_at = shared_address(tile_memory) + Writer::kStagingBytes;
  const int images_from = Writer::kStagingBytes + tiling.filter_stages * kFilterStageBytes;
  const uint32_t images_at = shared_address(tile_memory) + images_from;     // (groups, kImageStages, stage_bytes)
  auto* const shifts = reinterpret_cast<float*>(tile_memory + kHaloBytes);  // (kColumns)
  auto* const pixels = reinterpret_cast<int*>(shifts + kColumns);           // (groups, kMostPlaces)
  const Ring image_ring(shared_address(pixels + 2 * kMostPlaces), 2 * kImageStages);  // (groups, kImageStages)
  const Ring filter_ring(image_ring.end, kMostFilterStages);

  const int first_tile = int(blockIdx.y) * tiling.tiles_per_chunk;
  const int last_tile = min(first_tile + tiling.tiles_per_chunk, tiling.tiles);
  const int first_channel = int(blockIdx.x) * kColumns;
  if (threadIdx.x == 0) {
    image_ring.init(2 * kImageStages, kGroupWarps);
    filter_ring.init(kMostFilterStages, 2 * kGroupWarps);
    fence_barriers();
  }
  // Zeros the memory after each raster. It is read as the raster's last border, or for sums that are left out.
  const int box = tiling.box_bytes(), behind = (tiling.stage_bytes - box) / 16;
  for (int i = int(threadIdx.x); i < 2 * kImageStages * behind; i += kHaloThreads) {
    const int at = images_from + i / behind * tiling.stage_bytes + box + i % behind * 16;
    *reinterpret_cast<uint4*>(tile_memory + at) = uint4{0, 0, 0, 0};
  }
  fence_writes();
  __syncthreads();
  wait_for_dependencies();

  if (threadIdx.x >= kTileThreads) {
    if (threadIdx.x != kTileThreads) return;
    const auto fetch_filter = [&](int step, int tap, int stage, uint32_t barrier) {
      const uint32_t to = filters_at + stage * kFilterStageBytes;
      if constexpr (kTransposed) {
        const int column = (kTaps - 1 - tap) * tiling.channels + first_channel;
#pragma unroll
        for (int block = 0; block < kColumns / 64; ++block) {
          fetch(to + block * (kHaloInner * 128), filters, column + block * 64, step * kHaloInner, barrier);
        }
      } else {
        fetch(to, filters, tap * inner + step * kHaloInner, first_channel, barrier);
      }
    };
    if (tiling.filter_stays) {
      filter_ring.fill(0, tiling.steps * kTaps * kFilterStageBytes, [&](uint32_t barrier) {
        for (int i = 0; i < tiling.steps * kTaps; ++i) fetch_filter(i / kTaps, i % kTaps, i, barrier);
      });
    }
    Turn image, filter;
    for (int pair = first_tile; pair < last_tile; pair += 2) {
      for (int step = 0; step < tiling.steps; ++step) {
        for (int group = 0; group < 2; ++group) {
          const int tile = pair + group, row = tile / tiling.parts, slot = group * kImageStages + image.stage;
          image_ring.wait_empty({slot, image.parity});
          image_ring.fill(slot, box, [&](uint32_t barrier) {
            fetch(images_at + slot * tiling.stage_bytes, images, step * kHaloInner,
                  (tile - row * tiling.parts) * tiling.tile_width - 1, row % tiling.bands * tiling.tile_rows - 1,
                  row / tiling.bands * tiling.tile_images, barrier);
          });
        }
        image = image.after(1, kImageStages);
        if (tiling.filter_stays) continue;
        for (int tap = 0; tap < kTaps; ++tap) {
          filter_ring.wait_empty(filter);
          filter_ring.fill(filter.stage, kFilterStageBytes,
                           [&](uint32_t barrier) { fetch_filter(step, tap, filter.stage, barrier); });
          filter = filter.after(1, tiling.filter_stages);
        }
      }
    }
    return;
  }

  const int group = int(threadIdx.x) / kGroupThreads, lane = int(threadIdx.x) % 32;
  int* const own_pixels = pixels + group * kMostPlaces;
  Writer writer(epilogue, tile_memory, shifts, y, tiling.channels, first_channel);
  Turn image, filter;
  if (tiling.filter_stays) filter_ring.wait_full({});
  for (int pair = first_tile; pair < last_tile; pair += 2) {
    float sum[kHalves][kColumns / 2] = {};
    if constexpr (kBias) {
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
        const int channel = first_channel + j * 8 + lane % 4 * 2;
        const bool biased = epilogue.bias != nullptr && channel < tiling.channels;
        const float even = biased ? epilogue.bias[channel] : 0, odd = biased ? epilogue.bias[channel + 1] : 0;
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          sum[half][j * 4] = sum[half][j * 4 + 2] = even;
          sum[half][j * 4 + 1] = sum[half][j * 4 + 3] = odd;
        }
      }
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half) hold(sum[half]);
    int last_image = -1, last_filter = -1;
    for (int step = 0; step < tiling.steps; ++step) {
      const int slot = group * kImageStages + image.stage;
      image_ring.wait_full({slot, image.parity});
      for (int tap = 0; tap < kTaps; ++tap) {
        if (!tiling.filter_stays) filter_ring.wait_full(filter);
        const int stage = tiling.filter_stays ? step * kTaps + tap : filter.stage;
        const uint64_t b = descriptor(filters_at + stage * kFilterStageBytes, kTransposed ? kHaloInner * 128 : 16);
        const int place = tap / 3 * tiling.pitch + tap % 3;
        const uint64_t a = descriptor(images_at + slot * tiling.stage_bytes + place * 128, 16);
        begin_products();
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
#pragma unroll
          for (int half = 0; half < kHalves; ++half) {
            multiply<false, kTransposed>(sum[half], a + half * (64 * 128 / 16) + part * 2,
                                         b + part * (kTransposed ? 128 : 2));
          }
        }
        commit_products();
        wait_for_products<1>();
        if (last_filter >= 0) filter_ring.release(last_filter);
        if (last_image >= 0) image_ring.release(group * kImageStages + last_image);
        last_image = -1;
        if (!tiling.filter_stays) {
          last_filter = filter.stage;
          filter = filter.after(1, tiling.filter_stages);
        }
      }
      last_image = image.stage;
      image = image.after(1, kImageStages);
    }
    wait_for_products<0>();
#pragma unroll
    for (int half = 0; half < kHalves; ++half) hold(sum[half]);
    if (last_filter >= 0) filter_ring.release(last_filter);
    image_ring.release(group * kImageStages + last_image);

    // Which pixel of the result each place of the raster is.
    const int tile = pair + group, row = tile / tiling.parts, v = int(threadIdx.x) % kGroupThreads;
    const int of_image = tiling.tile_images > 1 ? v / ((tiling.height + 1) * tiling.pitch) : 0;
    const int in_image = v - of_image * (tiling.height + 1) * tiling.pitch;
    const int h = in_image / tiling.pitch, w = in_image - h * tiling.pitch;  // in the tile
    const int n = row / tiling.bands * tiling.tile_images + of_image;
    const bool is_pixel = tile < last_tile && of_image < tiling.tile_images && n < tiling.images &&
                          h < tiling.tile_rows && w < tiling.tile_width;
    meet<kGroupThreads>(1 + group);  // the map before has been read
    own_pixels[v] = is_pixel ? (n * tiling.height + row % tiling.bands * tiling.tile_rows + h) * tiling.width +
                                   (tile - row * tiling.parts) * tiling.tile_width + w
                             : -1;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const auto pixel = [&](int place) { return own_pixels[half * 64 + place]; };
      writer.write(sum[half], pixel, pair == first_tile && half == 0);
    }
  }
  launch_dependents();
  if constexpr (kPartials) {
    const int tile_pixels = tiling.tile_images * tiling.tile_rows * tiling.tile_width;
    const int all = tiling.images * tiling.height * tiling.width;
    writer.finish(int(blockIdx.y), min(last_tile * tile_pixels, all) - first_tile * tile_pixels);
  }
}

}  // namespace arbalest::cuda
