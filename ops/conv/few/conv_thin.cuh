// SPDX-License-Identifier: Apache-2.0
#pragma once
// Kernels of conv_thin.h. Filter and image are copied to shared memory once, and matrix units multiply straight from
// there, tap by tap. For them 16 neighbouring pixels are the rows of one operand, channels the columns of the other.
// Images are bfloat16 (N,H,W,C), filters (K,3,3,C).

#include "ops/cuda/cuda_math.cuh"
#include "ops/cuda/matrix_unit.cuh"
#include "ops/norm/statistics_chunks.h"

namespace arbalest::cuda {

// A tile is `rows` whole rows of an image, which divide its height; a block takes `tiles_per_block` tiles that follow
// each other.
struct ThinTiling {
  int height = 0, width = 0;
  int rows = 0;   // of a tile
  int tiles = 0;  // of all images
  int tiles_per_image = 0, tiles_per_block = 0;
  int blocks = 0;
};

// Elements after each pixel's or filter's channels, so that rows of a matrix lie in different banks.
inline constexpr int kThinSkew = 8;

// Images in shared memory have a column of zeros at either side, and a row of the image or of zeros above and below.
template <int C>
constexpr int thin_image_bytes(int rows, int width) {
  return (rows + 2) * (width + 2) * (C + kThinSkew) * 2;
}

// The columns at either side, once.
template <int C>
__device__ void clear_sides(const ThinTiling& tiling, __nv_bfloat16* image) {
  constexpr int kPacks = C / 8;
  const int count = (tiling.rows + 2) * 2 * kPacks;
  for (int i = int(threadIdx.x); i < count; i += int(blockDim.x)) {
    const int pack = i % kPacks, side = i / kPacks % 2, row = i / kPacks / 2;
    const int pixel = row * (tiling.width + 2) + side * (tiling.width + 1);
    *reinterpret_cast<uint4*>(image + pixel * (C + kThinSkew) + pack * 8) = uint4{0, 0, 0, 0};
  }
}

// A thread's share of the packs, of 16 bytes, of a tile's rows, which follow each other in memory.
struct RowWalk {
  int row, pack, row_step, pack_step, row_packs;
  __device__ explicit RowWalk(int packs_of_row) : row_packs(packs_of_row) {
    row = int(threadIdx.x) / row_packs;
    pack = int(threadIdx.x) % row_packs;
    row_step = int(blockDim.x) / row_packs;
    pack_step = int(blockDim.x) % row_packs;
  }
};

// Starts copying the tile with the rows above and below: `Part` of the image's C channels, from x's on.
template <int C, int Part>
__device__ void copy_image(const ThinTiling& tiling, RowWalk walk, int tile, const __nv_bfloat16* x,
                           __nv_bfloat16* image) {
  constexpr int kPacks = Part / 8;
  const int image_index = tile / tiling.tiles_per_image;
  const int first = (tile - image_index * tiling.tiles_per_image) * tiling.rows - 1;
  const __nv_bfloat16* from = x + (int64_t(image_index) * tiling.height + first) * tiling.width * C;
  while (walk.row < tiling.rows + 2) {
    const int column = walk.pack / kPacks, channel = walk.pack % kPacks * 8;
    const bool there = unsigned(first + walk.row) < unsigned(tiling.height);
    copy_async(image + (walk.row * (tiling.width + 2) + 1 + column) * (Part + kThinSkew) + channel,
               there ? from + (walk.row * tiling.width + column) * C + channel : x, there);
    walk.row += walk.row_step;
    walk.pack += walk.pack_step;
    if (walk.pack >= walk.row_packs) {
      walk.pack -= walk.row_packs;
      ++walk.row;
    }
  }
}

// Columns of a product lie so in shared memory that a lane's results, two of each 8, are neighbouring channels. Lane t
// of four holds channels t · 2J … (t + 1) · 2J − 1 of 8J.
template <int J>
__device__ inline int thin_column(int channel) {
  const int group = channel / (8 * J), t = channel % (8 * J) / (2 * J), rest = channel % (2 * J);
  return group * 8 * J + rest / 2 * 8 + 2 * t + rest % 2;
}

// The filter in shared memory, of Out channels of the result, which Across of the warps share. Its rows are those of
// the matrices: the summed channels of one tap and channel of the result. Transposed, for the gradient of images, they
// are the channels of the result for one tap and summed channel.
template <int C, int Out, int Across, bool Transposed>
struct ThinFilter {
  static constexpr int kTaps = 9, kColumns = Out / 8 / Across;  // kColumns: tiles of eight channels of a warp
  static constexpr int kRow = (Transposed ? Out : C) + kThinSkew, kRows = Transposed ? C : Out;
  static constexpr int kElements = kTaps * kRows * kRow;

  // Starts copying the filter: channels of the result from `first` on.
  static __device__ void copy(const __nv_bfloat16* w, int first, __nv_bfloat16* filter) {
    constexpr int kPacks = (Transposed ? Out : C) / 8;
    for (int i = int(threadIdx.x); i < kRows * kTaps * kPacks; i += int(blockDim.x)) {
      const int pack = i % kPacks, tap = i / kPacks % kTaps, k = i / kPacks / kTaps;
      if constexpr (Transposed) {
        const Pack<__nv_bfloat16, 8> from = load<8>(w + (int64_t(k) * kTaps + tap) * C + first + pack * 8);
        __nv_bfloat16* row = filter + ((kTaps - 1 - tap) * C + k) * kRow;
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
          *reinterpret_cast<uint32_t*>(row + thin_column<kColumns>(pack * 8 + pair * 2)) =
              reinterpret_cast<const uint32_t*>(&from)[pair];
        }
      } else {
        copy_async(filter + (tap * Out + thin_column<kColumns>(k)) * kRow + pack * 8,
                   w + (int64_t(first + k) * kTaps + tap) * C + pack * 8, true);
      }
    }
  }

  // Shared address of the lane's row for load_matrices, at the first tap.
  static __device__ uint32_t place(const __nv_bfloat16* filter, int lane, int across) {
    const int matrix = lane / 8;
    return shared_address(filter) +
           2u * uint32_t(Transposed ? (matrix % 2 * 8 + lane % 8) * kRow + across * kColumns * 8 + matrix / 2 * 8
                                    : (across * kColumns * 8 + matrix / 2 * 8 + lane % 8) * kRow + matrix % 2 * 8);
  }

  // Loads tiles j and j + 1 of eight columns at a tap, for the 16 summed channels of step `step`.
  static __device__ void load_columns(uint32_t (&b)[4], uint32_t place, int tap, int step, int j) {
    if constexpr (Transposed) {
      load_matrices_transposed(b, place + 2 * ((tap * C + step * 16) * kRow + j * 8));
    } else {
      load_matrices(b, place + 2 * ((tap * Out + j * 8) * kRow + step * 16));
    }
  }
};

// Adds the products of M · 16 pixels at all taps to `sum`. `place`: byte offsets of the pixels in the image at the
// first tap.
template <int C, typename Filter, int M>
__device__ void multiply_taps(const ThinTiling& tiling, uint32_t image, const uint32_t (&place)[M],
                              uint32_t filter_place, float (&sum)[M][Filter::kColumns][4]) {
#pragma unroll
  for (int tap = 0; tap < Filter::kTaps; ++tap) {
    const uint32_t shift = uint32_t((tap / 3 * (tiling.width + 2) + tap % 3) * (C + kThinSkew)) * 2;
#pragma unroll
    for (int step = 0; step < C / 16; ++step) {
      uint32_t a[M][4];
#pragma unroll
      for (int m = 0; m < M; ++m) load_matrices(a[m], image + place[m] + shift + step * 32);
#pragma unroll
      for (int j = 0; j < Filter::kColumns; j += 2) {
        uint32_t b[4];
        Filter::load_columns(b, filter_place, tap, step, j);
#pragma unroll
        for (int m = 0; m < M; ++m) {
          multiply(sum[m][j], a[m], b[0], b[1]);
          multiply(sum[m][j + 1], a[m], b[2], b[3]);
        }
      }
    }
  }
}

// y = x ∗ w, channels of Y from block.y · Out on; Transposed: dX of the convolution with the filter w, from dY.
// Across of the warps share the channels, Along the tile's pixels, M · 16 each. Dynamic shared memory: the filter, then
// one image, or two if a block has several tiles.
template <int C, int Out, int M, int Along, int Across, bool Transposed, typename Epilogue>
__global__ void __launch_bounds__(32 * Along * Across)
    thin_convolution_kernel(ThinTiling tiling, const __nv_bfloat16* x, const __nv_bfloat16* w, __nv_bfloat16* y,
                            Epilogue epilogue) {
  using Filter = ThinFilter<C, Out, Across, Transposed>;
  constexpr int J = Filter::kColumns;
  extern __shared__ __align__(16) unsigned char thin_memory[];
  __shared__ float shifts[Out];
  auto* filter = reinterpret_cast<__nv_bfloat16*>(thin_memory);
  auto* images = filter + Filter::kElements;
  const int image_elements = (tiling.rows + 2) * (tiling.width + 2) * (C + kThinSkew);
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int across = warp % Across, along = warp / Across;
  const int first_tile = int(blockIdx.x) * tiling.tiles_per_block;
  const int last_tile = min(first_tile + tiling.tiles_per_block, tiling.tiles);
  const int first_channel = int(blockIdx.y) * Out;
  const RowWalk walk(tiling.width * (C / 8));
  const int pixels = tiling.rows * tiling.width;

  wait_for_dependencies();
  copy_image<C, C>(tiling, walk, first_tile, x, images);
  Filter::copy(w, first_channel, filter);
  commit_copies();
  clear_sides<C>(tiling, images);
  if (tiling.tiles_per_block > 1) clear_sides<C>(tiling, images + image_elements);

  // Byte offsets in the image of the lane's rows for load_matrices, at the first tap.
  uint32_t place[M];
#pragma unroll
  for (int m = 0; m < M; ++m) {
    const int pixel = min((along * M + m) * 16 + lane % 16, pixels - 1);
    const int row = pixel / tiling.width, column = pixel % tiling.width;
    place[m] = uint32_t((row * (tiling.width + 2) + column) * (C + kThinSkew) + lane / 16 * 8) * 2;
  }
  const uint32_t filter_place = Filter::place(filter, lane, across);
  const int channel = first_channel + (across * 4 + lane % 4) * 2 * J;  // the first of the lane's
  typename Epilogue::template State<J> state(epilogue, channel);

  for (int tile = first_tile; tile < last_tile; ++tile) {
    const int buffer = (tile - first_tile) % 2;
    if (tile + 1 < last_tile) copy_image<C, C>(tiling, walk, tile + 1, x, images + (1 - buffer) * image_elements);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    float sum[M][J][4] = {};
    const uint32_t image = shared_address(images + buffer * image_elements);
    if (along * M * 16 < pixels) multiply_taps<C, Filter>(tiling, image, place, filter_place, sum);
    const auto values = [&](int m, int half, float(&value)[2 * J]) {
#pragma unroll
      for (int c = 0; c < 2 * J; ++c) value[c] = sum[m][c / 2][half * 2 + c % 2];
    };
    if (tile == first_tile) {
      float value[2 * J];
      values(0, 0, value);
      state.start(shifts, channel - first_channel, along == 0 && lane < 4, value);
    }
    const int64_t begin = int64_t{tile} * pixels;
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int pixel = (along * M + m) * 16 + half * 8 + lane / 4;
        if (pixel >= pixels) continue;
        float value[2 * J];
        values(m, half, value);
        const int64_t at = (begin + pixel) * C + channel;
        state.add(epilogue, at, value);
        Pack<__nv_bfloat16, 2 * J> pack;
#pragma unroll
        for (int c = 0; c < 2 * J; ++c) pack.element[c] = narrow<__nv_bfloat16>(value[c]);
        store(y + at, pack);
      }
    }
    __syncthreads();  // the buffer is free
  }
  state.template finish<C, Along, Across>(epilogue, first_channel, (last_tile - first_tile) * pixels, thin_memory);
}

template <int C, int Out, bool Transposed>
constexpr int thin_shared_bytes(const ThinTiling& tiling) {
  constexpr int kFilter = ThinFilter<C, Out, 1, Transposed>::kElements * 2;
  return kFilter + (tiling.tiles_per_block > 1 ? 2 : 1) * thin_image_bytes<C>(tiling.rows, tiling.width);
}

// The blocks have a chunk each, of so many pixels, as the attribute chunk_pixels has them.
inline ThinTiling image_tiling(const Shape& image, int64_t chunk_pixels) {
  const StatisticsChunks chunks = statistics_chunks(image);
  ThinTiling t;
  t.height = int(image[2]);
  t.width = int(image[3]);
  t.rows = chunks.tile_rows;
  t.tiles = chunks.tiles;
  t.tiles_per_image = t.height / t.rows;
  t.tiles_per_block = int(pixel_chunks(image, chunk_pixels).pixels / (t.rows * t.width));
  t.blocks = (t.tiles + t.tiles_per_block - 1) / t.tiles_per_block;
  return t;
}

template <int C, int Out, int M, int Along, int Across, bool Transposed, typename Epilogue>
void launch_thin_form(const Shape& image, int64_t chunk_pixels, cudaStream_t stream, const __nv_bfloat16* x,
                      const __nv_bfloat16* w, __nv_bfloat16* y, const Epilogue& epilogue) {
  const ThinTiling tiling = image_tiling(image, chunk_pixels);
  const auto kernel = thin_convolution_kernel<C, Out, M, Along, Across, Transposed, Epilogue>;
  const int shared = thin_shared_bytes<C, Out, Transposed>(tiling);
  allow_shared(kernel, shared);
  launch_dependent(kernel, dim3(unsigned(tiling.blocks), C / Out), 32 * Along * Across, size_t(shared), stream, tiling,
                   x, w, y, epilogue);
  check_launch("convolution of few channels");
}

// Images (N,C,H,W) in, the same out, in the form that was the fastest for so many pixels on an H200. Transposed: the
// gradient of images. Throws RunError.
template <bool Transposed, typename Epilogue>
void launch_thin(const Shape& image, int64_t chunk_pixels, cudaStream_t stream, const __nv_bfloat16* x,
                 const __nv_bfloat16* w, __nv_bfloat16* y, const Epilogue& epilogue) {
  const bool few = has_few_pixels(image);
  const auto launch = [&](auto form) { form(image, chunk_pixels, stream, x, w, y, epilogue); };
  switch (image[1]) {
    case 16: return launch(launch_thin_form<16, 16, 2, 8, 1, Transposed, Epilogue>);
    case 32:
      return few ? launch(launch_thin_form<32, 32, 1, 8, 1, Transposed, Epilogue>)
                 : launch(launch_thin_form<32, 32, 2, 8, 1, Transposed, Epilogue>);
    default:
      return few ? launch(launch_thin_form<64, 32, 1, 4, 2, Transposed, Epilogue>)
                 : launch(launch_thin_form<64, 64, 1, 4, 2, Transposed, Epilogue>);
  }
}

}  // namespace arbalest::cuda
