// SPDX-License-Identifier: Apache-2.0
#pragma once
// Kernels of conv_small.h. Their loops are unrolled if that saves registers or hides latency, no further. For a kernel
// that runs for microseconds, once in a step, reading the instructions takes much of the time. A band of an image,
// zeros around it included, and all filters are copied to shared memory. Matrix units multiply 16 pixels by 8 filters,
// summing over taps and channels in one row of numbers, which a table finds in the image. Images are bfloat16
// (N,H,W,C), filters (K,R,S,C).

#include "ops/cuda/cuda_math.cuh"
#include "ops/cuda/matrix_unit.cuh"

namespace arbalest::cuda {

// A convolution as these kernels see it: input, result and sliding window. The gradient of images is a convolution of
// dY with the filter's taps in reverse.
struct SmallWindow {
  int images, channels, height, width;  // of the input
  int made, out_height, out_width;      // of the result: its channels and pixels
  int taps_high, taps_wide;
  int stride_high, stride_wide, step_high, step_wide;  // step: from a tap to the next
  int pad_top, pad_left;

  __host__ __device__ int taps() const { return taps_high * taps_wide; }
};

inline constexpr int kSmallWarps = kThreads / 32;

// A lane's share of the elements in consecutive rows of `size`, 32 lanes at a time, without a division for each.
struct LaneWalk {
  int outer, inner, outer_step, inner_step, size;
  __device__ LaneWalk(int lane, int size_of_row) : size(size_of_row) {
    outer = lane / size;
    inner = lane % size;
    outer_step = 32 / size;
    inner_step = 32 % size;
  }
  __device__ void advance() {
    outer += outer_step;
    inner += inner_step;
    if (inner >= size) {
      inner -= size;
      ++outer;
    }
  }
};

// A tile is `rows` rows of what is made, of one image; blocks take one after the other. In shared memory a pixel has
// `pitch` channels.
struct SmallTiling {
  int rows, bands, tiles, pitch;
  int band_height, band_width;  // of the image, for a whole tile

  SmallTiling() = default;
  SmallTiling(const SmallWindow& window, int most_rows, int pitch_of_pixel) : pitch(pitch_of_pixel) {
    bands = (window.out_height + most_rows - 1) / most_rows;
    rows = (window.out_height + bands - 1) / bands;
    bands = (window.out_height + rows - 1) / rows;
    tiles = window.images * bands;
    band_height = (rows - 1) * window.stride_high + (window.taps_high - 1) * window.step_high + 1;
    band_width = (window.out_width - 1) * window.stride_wide + (window.taps_wide - 1) * window.step_wide + 1;
  }
  __host__ __device__ int band_elements() const { return (band_height * band_width * pitch + 7) / 8 * 8; }

  // Rows of the result in a tile. The last tile of an image may have fewer.
  __device__ int rows_of(const SmallWindow& window, int tile) const {
    return min(rows, window.out_height - tile % bands * rows);
  }
  // Offset in the band, in elements, of the window of a tile's pixel.
  __device__ int place_of(const SmallWindow& window, int pixel) const {
    const int row = pixel / window.out_width, column = pixel - row * window.out_width;
    return (row * window.stride_high * band_width + column * window.stride_wide) * pitch;
  }
  // Offset in the window, in elements, of a tap.
  __device__ int offset_of(const SmallWindow& window, int tap) const {
    const int row = tap / window.taps_wide, column = tap - row * window.taps_wide;
    return (row * window.step_high * band_width + column * window.step_wide) * pitch;
  }

  // Starts copying a tile's band, with zeros outside the image and after its channels. Words of two channels are copied
  // asynchronously.
  __device__ void copy_band(const SmallWindow& window, int tile, const __nv_bfloat16* x, __nv_bfloat16* band) const {
    const int image = tile / bands, thread = int(threadIdx.x);
    const int top = tile % bands * rows * window.stride_high - window.pad_top;
    const __nv_bfloat16* from = x + int64_t(image) * window.height * window.width * window.channels;
    if (window.channels % 2 == 0) {
      const int units = pitch / 2;
      const LaneWalk first(thread % 32, units);
#pragma unroll 1
      for (int down = thread / 32; down < band_height; down += kSmallWarps) {
        const int row = top + down;
        const bool inside = row >= 0 && row < window.height;
        __nv_bfloat16* to = band + down * band_width * pitch;
#pragma unroll 1
        for (LaneWalk at = first; at.outer < band_width; at.advance()) {
          const int column = at.outer - window.pad_left, channel = at.inner * 2;
          const bool there = inside && channel < window.channels && column >= 0 && column < window.width;
          const int place = (row * window.width + column) * window.channels + channel;
          copy_word_async(to + at.outer * pitch + channel, there ? from + place : x, there);
        }
      }
      return;
    }
    const int row_elements = band_width * pitch, count = band_height * row_elements;
#pragma unroll 2
    for (int i = thread; i < count; i += kThreads) {
      const int down = i / row_elements, row = top + down, within = i - down * row_elements;
      const int right = within / pitch, column = right - window.pad_left, channel = within - right * pitch;
      const bool there =
          channel < window.channels && row >= 0 && row < window.height && column >= 0 && column < window.width;
      const int place = (row * window.width + column) * window.channels + channel;
      band[i] = there ? __ldg(from + place) : narrow<__nv_bfloat16>(0.0f);
    }
  }
};

__device__ inline void clear_words(void* memory, int bytes) {
#pragma unroll 1
  for (int i = int(threadIdx.x); i < bytes / 16; i += int(blockDim.x)) {
    static_cast<uint4*>(memory)[i] = uint4{0, 0, 0, 0};
  }
}

inline constexpr int kSmallRowTiles = 2;  // of 16 pixels each, that a warp has at a time

// How a block does a tile: the sum over taps and channels is shared by `splits` warps each.
struct SmallForm {
  SmallWindow window;
  SmallTiling tiling;
  int columns;  // tiles of eight of what is made
  int steps;    // of 16 numbers that are summed over
  int splits;
  bool reversed, relu;  // reversed: the gradient of images

  // Rows of eight lie in different banks. A row is what a number that is made sums over; reversed, what is made of a
  // number that is summed over.
  int filter_pitch() const {
    return reversed ? (columns % 2 == 0 ? columns + 1 : columns) * 8 : (steps * 16 + 63) / 64 * 64 + 8;
  }
  __host__ __device__ int filter_elements(int row) const {
    return (reversed ? steps * 16 : (columns + 1) / 2 * 16) * row;
  }
  int sums() const { return (kSmallWarps - kSmallWarps / splits) * kSmallRowTiles * columns * 4 * 32; }  // floats
  int shared_bytes() const {
    return (tiling.band_elements() + filter_elements(filter_pitch())) * 2 + steps * 16 * 4 + sums() * 4;
  }
};

// Starts copying the filter into memory that holds zeros; elements that have no number of the filter stay as they are.
__device__ inline void copy_small_filter(const SmallForm& form, int pitch, const __nv_bfloat16* w,
                                         __nv_bfloat16* filter) {
  const SmallWindow& window = form.window;
  const int lane = int(threadIdx.x) % 32, first = int(threadIdx.x) / 32, taps = window.taps(), each = form.tiling.pitch;
  const int outer = form.reversed ? window.channels : window.made;
  const int inner = form.reversed ? window.made : window.channels;
  const auto place = [&](int row, int tap, int channel) {
    return form.reversed ? ((taps - 1 - tap) * each + row) * pitch + channel : row * pitch + tap * each + channel;
  };
#pragma unroll 1
  for (int row = first; row < outer; row += kSmallWarps) {
    const __nv_bfloat16* from = w + row * taps * inner;
    if (inner % 2 == 0) {
#pragma unroll 1
      for (LaneWalk at(lane, inner / 2); at.outer < taps; at.advance()) {
        copy_word_async(filter + place(row, at.outer, at.inner * 2), from + at.outer * inner + at.inner * 2, true);
      }
      continue;
    }
#pragma unroll 2
    for (int i = lane; i < taps * inner; i += 32) {
      const int tap = i / inner;
      filter[place(row, tap, i - tap * inner)] = __ldg(from + i);
    }
  }
}

// Columns: tiles of eight channels of the result, rounded up. Pairs: two neighbouring terms of the sum are one word of
// the image. Terms after the last multiply a number of the window by a zero of the filter.
template <int Columns, bool Pairs, bool Reversed>
__global__ void __launch_bounds__(kThreads)
    small_convolution_kernel(SmallForm form, int pitch, const __nv_bfloat16* x, const __nv_bfloat16* w,
                             const float* bias, __nv_bfloat16* y) {
  extern __shared__ __align__(16) unsigned char small_memory[];
  const SmallWindow& window = form.window;
  const SmallTiling& tiling = form.tiling;
  constexpr int M = kSmallRowTiles;
  auto* band = reinterpret_cast<__nv_bfloat16*>(small_memory);
  auto* filter = band + tiling.band_elements();
  auto* offsets = reinterpret_cast<int*>(filter + form.filter_elements(pitch));
  auto* sums = reinterpret_cast<float*>(offsets + form.steps * 16);
  const int thread = int(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int split = warp % form.splits, group = warp / form.splits, groups = kSmallWarps / form.splits;

  clear_words(filter, form.filter_elements(pitch) * 2);
  const int numbers = window.taps() * tiling.pitch;
#pragma unroll 1
  for (int i = thread; i < form.steps * 16; i += kThreads) {
    const int tap = i / tiling.pitch;
    offsets[i] = i < numbers ? tiling.offset_of(window, tap) + i - tap * tiling.pitch : 0;
  }
  wait_for_dependencies();
  __syncthreads();
  copy_small_filter(form, pitch, w, filter);

  const int g = lane / 4, t = lane % 4, matrix = lane / 8;
  // Shared address of the lane's row for load_matrices: two tiles of columns by 16 terms of the sum.
  const uint32_t filter_place =
      shared_address(filter) + 2u * uint32_t(Reversed ? (matrix % 2 * 8 + lane % 8) * pitch + matrix / 2 * 8
                                                      : (matrix / 2 * 8 + lane % 8) * pitch + matrix % 2 * 8);
  const int split_steps = (form.steps + form.splits - 1) / form.splits;
  const int first_step = split * split_steps, last_step = min(form.steps, first_step + split_steps);
  for (int tile = int(blockIdx.x); tile < tiling.tiles; tile += int(gridDim.x)) {
    __syncthreads();
    tiling.copy_band(window, tile, x, band);
    commit_copies();
    wait_for_copies<0>();
    __syncthreads();
    const int pixels = tiling.rows_of(window, tile) * window.out_width;
    const int64_t begin =
        (int64_t(tile / tiling.bands) * window.out_height + tile % tiling.bands * tiling.rows) * window.out_width;
    for (int first = 0; first < pixels; first += groups * M * 16) {
      const int own = first + group * M * 16;
      int place[M][2];
#pragma unroll
      for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          place[m][half] = tiling.place_of(window, min(own + m * 16 + half * 8 + g, pixels - 1));
        }
      }
      float sum[M][Columns][4] = {};
      const auto two = [&](int base, int number) {
        if constexpr (Pairs) {
          return *reinterpret_cast<const uint32_t*>(band + base + offsets[number]);
        } else {
          const auto* bits = reinterpret_cast<const uint16_t*>(band) + base;
          return uint32_t(bits[offsets[number]]) | uint32_t(bits[offsets[number + 1]]) << 16;
        }
      };
#pragma unroll 2
      for (int step = first_step; step < last_step; ++step) {
        if (own >= pixels) break;
        uint32_t a[M][4];
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
          for (int i = 0; i < 4; ++i) a[m][i] = two(place[m][i % 2], step * 16 + i / 2 * 8 + t * 2);
        }
#pragma unroll
        for (int n = 0; n < Columns; n += 2) {
          uint32_t b[4];
          if constexpr (Reversed) {
            load_matrices_transposed(b, filter_place + 2u * uint32_t(step * 16 * pitch + n * 8));
          } else {
            load_matrices(b, filter_place + 2u * uint32_t(n * 8 * pitch + step * 16));
          }
#pragma unroll
          for (int m = 0; m < M; ++m) {
            multiply(sum[m][n], a[m], b[0], b[1]);
            if (n + 1 < Columns) multiply(sum[m][n + 1], a[m], b[2], b[3]);
          }
        }
      }

      // Splits of the same pixels are added up in order.
      if (form.splits > 1) {
        const auto at = [&](int s, int i) { return (((s - 1) * groups + group) * M * Columns * 4 + i) * 32 + lane; };
        if (split > 0) {
#pragma unroll
          for (int i = 0; i < M * Columns * 4; ++i) sums[at(split, i)] = sum[i / 4 / Columns][i / 4 % Columns][i % 4];
        }
        __syncthreads();
        for (int other = 1; split == 0 && other < form.splits; ++other) {
#pragma unroll
          for (int i = 0; i < M * Columns * 4; ++i) sum[i / 4 / Columns][i / 4 % Columns][i % 4] += sums[at(other, i)];
        }
        __syncthreads();
      }
      if (split > 0) continue;
#pragma unroll
      for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int pixel = own + m * 16 + half * 8 + g;
          if (pixel >= pixels) continue;
          __nv_bfloat16* out = y + (begin + pixel) * window.made;
#pragma unroll
          for (int n = 0; n < Columns; ++n) {
            const int channel = n * 8 + t * 2;
            float value[2];
#pragma unroll
            for (int c = 0; c < 2; ++c) {
              value[c] = sum[m][n][half * 2 + c];
              if (bias != nullptr && channel + c < window.made) value[c] += bias[channel + c];
              if (form.relu && value[c] < 0) value[c] = 0;
            }
            if (window.made % 2 == 0) {
              if (channel >= window.made) continue;
              *reinterpret_cast<__nv_bfloat162*>(out + channel) = __floats2bfloat162_rn(value[0], value[1]);
            } else {
#pragma unroll
              for (int c = 0; c < 2; ++c) {
                if (channel + c < window.made) out[channel + c] = narrow<__nv_bfloat16>(value[c]);
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace arbalest::cuda
