// SPDX-License-Identifier: Apache-2.0
#pragma once
// The division of a convolution's result into chunks of rows, if the convolution leaves partial statistics of each
// chunk for the batch norm after it. Both kernels, on any device, must agree on it.

#include <algorithm>
#include <cstdint>

#include "graph/types.h"

namespace arbalest {

struct StatisticsChunks {
  int tile_rows = 0;  // image rows that a block takes at once: a divisor of the height
  int tiles = 0;      // of all images
  int tiles_per_chunk = 0;
  int chunks = 0;          // none is empty
  int64_t chunk_rows = 0;  // pixels of each but the last
};

// Few enough for one wave of an H200's blocks that work on 64 pixels each. The same on every device, as
// statistics_chunks() follows from it: no attribute of a node says what these are.
inline bool has_few_pixels(const Shape& image) {
  return image[0] * image[2] * image[3] <= 33792;
}

inline constexpr int64_t kWidestThin = 64;  // pixels of a row that kernels for few channels take

inline int64_t most_tile_pixels(const Shape& image) {
  return image[1] >= 64 ? 64 : image[1] >= 32 && has_few_pixels(image) ? 128 : 256;
}

// `image`: (N,C,H,W), nothing empty. Where kernels of so many learners run at the same time, blocks of four fill a
// device, and of more learners each takes fewer.
inline StatisticsChunks statistics_chunks(const Shape& image, int learners = 1) {
  constexpr int kFewTiles = 512, kLeastChunks = 8;
  const int64_t height = image[2], width = image[3];
  int64_t rows = std::clamp<int64_t>(most_tile_pixels(image) / width, 1, height);
  while (height % rows != 0) --rows;
  StatisticsChunks c;
  c.tile_rows = int(rows);
  c.tiles = int(image[0] * (height / rows));
  // Every block of the batch norm reads all of them again.
  const int most_chunks = std::max(kLeastChunks, (c.tiles <= kFewTiles ? 128 : 256) * 4 / std::max(learners, 4));
  c.tiles_per_chunk = (c.tiles + most_chunks - 1) / most_chunks;
  c.chunks = (c.tiles + c.tiles_per_chunk - 1) / c.tiles_per_chunk;
  c.chunk_rows = int64_t{c.tiles_per_chunk} * rows * width;
  return c;
}

// Whether rows that divide the height fill tiles by half at least, as far as the image has them.
inline bool fills_tiles(const Shape& image) {
  const int64_t pixels = statistics_chunks(image).tile_rows * image[3];
  return 2 * pixels >= std::min(most_tile_pixels(image), image[2] * image[3]);
}

// Pixels that kernels of pointwise convolutions (1 × 1) take at once.
inline constexpr int64_t kPointwiseTilePixels = 128;

inline int64_t pointwise_slice_channels(const Shape& image) {
  return image[1] <= 64 ? 64 : 128;
}

// Number of tiles per chunk so that one wave fills a device, two blocks a multiprocessor. Each block handles one of
// `slices` slices of the channels.
inline int64_t tiles_per_chunk(int64_t tiles, int64_t slices, int64_t multiprocessors) {
  const int64_t chunks = std::max<int64_t>(1, 2 * multiprocessors / slices);
  return (tiles + chunks - 1) / chunks;
}

// Pixels per chunk of a pointwise convolution's result (N,C,H,W): whole tiles.
inline int64_t pointwise_chunk_pixels(const Shape& image, int64_t multiprocessors) {
  const auto parts = [](int64_t whole, int64_t part) { return (whole + part - 1) / part; };
  const int64_t tiles = parts(image[0] * image[2] * image[3], kPointwiseTilePixels);
  return kPointwiseTilePixels *
         tiles_per_chunk(tiles, parts(image[1], pointwise_slice_channels(image)), multiprocessors);
}

// The tile that a group of warps computes at once of the result (N,C,H,W) of a padded 3 × 3 convolution: `width` ×
// `rows` pixels of each of `images` images. The tile lies in a raster with a row pitch of `pitch` places and an image
// pitch of (H + 1) · pitch. The right border of a row is the left border of the next. The same holds for images, and
// for neither if tiles are parts of rows.
struct HaloTile {
  int64_t width = 0, rows = 0, images = 0, pitch = 0;
  int64_t places = 0;  // of the raster that a tile's pixels span: 64 or 128

  int64_t pixels() const { return width * rows * images; }
  int64_t count(const Shape& image) const {
    return (image[0] + images - 1) / images * (image[2] / rows) * (image[3] / width);
  }
};

// The most places of a tile's raster in shared memory, border included. Shared memory holds four such rasters (two for
// each of two groups of warps) and one filter.
inline constexpr int64_t kMostHaloPlaces = 256;

// Among tiles with `places` places, the one with the most pixels; ties go to the smaller border.
inline HaloTile fullest_halo_tile(const Shape& image, int64_t places) {
  const int64_t height = image[2], width = image[3];
  HaloTile best;
  int64_t best_box = 0;
  for (int64_t columns = std::min(width, places); columns > 0; --columns) {
    if (width % columns != 0) continue;
    HaloTile tile;
    tile.places = places;
    tile.width = columns;
    tile.pitch = columns + (columns == width ? 1 : 2);
    tile.rows = std::min(height, (places - tile.width) / tile.pitch + 1);
    while (height % tile.rows != 0) --tile.rows;
    tile.images = 1;
    if (columns == width && tile.rows == height) {
      const int64_t one = (height - 1) * tile.pitch + width;
      tile.images = std::min(image[0], (places - one) / ((height + 1) * tile.pitch) + 1);
    }
    const int64_t box = (tile.rows + 2) * tile.pitch * tile.images;
    if (std::max(box, places + 2 * tile.pitch) + 2 > kMostHaloPlaces) continue;
    const bool fuller = tile.pixels() > best.pixels();
    if (fuller || (tile.pixels() == best.pixels() && box < best_box)) best = tile, best_box = box;
  }
  return best;
}

// The tile of 64 or 128 places that needs the least time in waves of blocks, one a multiprocessor. Each of a block's
// two groups of warps takes one tile at a time.
inline HaloTile halo_tile(const Shape& image, int64_t multiprocessors) {
  const int64_t slices = (image[1] + pointwise_slice_channels(image) - 1) / pointwise_slice_channels(image);
  const auto time = [&](const HaloTile& tile) {
    const int64_t blocks = (tile.count(image) + 1) / 2 * slices;
    return (blocks + multiprocessors - 1) / multiprocessors * tile.places;
  };
  const HaloTile narrow = fullest_halo_tile(image, 64), wide = fullest_halo_tile(image, 128);
  return time(narrow) < time(wide) ? narrow : wide;
}

// Pixels per chunk of such tiles: whole pairs of tiles. If tiles are parts of rows, the pixels of a chunk may not be
// contiguous.
inline int64_t halo_chunk_pixels(const Shape& image, int64_t multiprocessors) {
  const HaloTile tile = halo_tile(image, multiprocessors);
  const int64_t slices = (image[1] + pointwise_slice_channels(image) - 1) / pointwise_slice_channels(image);
  const int64_t pairs = (tile.count(image) + 1) / 2, chunks = std::max<int64_t>(1, multiprocessors / slices);
  return (pairs + chunks - 1) / chunks * 2 * tile.pixels();
}

inline constexpr int64_t kFewestHaloChannels = 48;  // fewer leave most of what a tile multiplies unused

// Whether tiles have pixels in most of their places.
inline bool fills_halo_tiles(const Shape& image, int64_t multiprocessors) {
  const HaloTile tile = halo_tile(image, multiprocessors);
  return tile.pixels() * 4 >= tile.places * 3;
}

// Pixels per tile if a row of `width` pixels is cut into equal parts, for a convolution of a folded image
// (ops/conv/conv_fold.h).
inline int64_t row_tile_pixels(int64_t width) {
  int64_t parts = (width + kPointwiseTilePixels - 1) / kPointwiseTilePixels;
  while (width % parts != 0) ++parts;
  return width / parts;
}

// Pixels per chunk of such tiles, for blocks that take 64 channels.
inline int64_t row_chunk_pixels(const Shape& image, int64_t multiprocessors) {
  const int64_t tile = row_tile_pixels(image[3]);
  return tile * tiles_per_chunk(image[0] * image[2] * image[3] / tile, (image[1] + 63) / 64, multiprocessors);
}

// The image and filter of a convolution after folding the image by the stride: channels, rounded up to a multiple of 8,
// and taps per row of the filter.
struct FoldedRow {
  int64_t channels = 0, taps = 0;
};
inline FoldedRow folded_row(int64_t channels, int64_t kernel, int64_t stride, int64_t pad) {
  const int64_t shift = (stride - pad % stride) % stride;
  return {(stride * stride * channels + 7) / 8 * 8, (kernel + shift + stride - 1) / stride};
}

inline constexpr int64_t kFoldedRowElements = 64;  // of a row of taps: what the kernel for such convolutions takes

inline constexpr const char* kChunkPixelsDoc =
    "pixels of each chunk of 'partials' but the last, whichever these are; 0: as kernels for few channels take them";

// The chunks that the attribute `chunk_pixels` of both nodes describes: its value is the pixels of each chunk but the
// last; 0: those of statistics_chunks().
struct PixelChunks {
  int64_t pixels = 0;
  int64_t chunks = 0;  // none is empty
};

inline PixelChunks pixel_chunks(const Shape& image, int64_t chunk_pixels) {
  if (chunk_pixels > 0) return {chunk_pixels, (image[0] * image[2] * image[3] + chunk_pixels - 1) / chunk_pixels};
  const StatisticsChunks chunks = statistics_chunks(image);
  return {chunks.chunk_rows, chunks.chunks};
}

}  // namespace arbalest
