// SPDX-License-Identifier: Apache-2.0
#pragma once
// Kernels of conv_colours.h. They sum over the numbers of a window, row by row: S · C numbers that follow each other in
// memory. Matrix units take them in pairs, a word each, so a row begins at an even number. If its first one is odd, the
// number before it comes along, whose weight is zero. Sixteen pixels at a distance of `parities` from each other have
// windows that all begin at even numbers, or all at odd ones. Images are bfloat16 (N,H,W,C), filters (K,R,S,C).

#include "ops/cuda/cuda_math.cuh"
#include "ops/cuda/matrix_unit.cuh"

namespace arbalest::cuda {

inline constexpr int kColoursWarps = kThreads / 32;

// A tile is `rows` rows of the result, of one image; blocks take one after the other. Its band is the rows of the image
// that it reads, in shared memory, with zeros around the image.
struct ColoursTiling {
  int images = 0, height = 0, row_numbers = 0;     // of the image; row_numbers: W · C
  int made = 0, out_height = 0, out_width = 0;     // of the result; made: its channels
  int taps_high = 0, run = 0;                      // rows of a window, and numbers of each
  int stride_high = 0, step = 0;                   // from a window to the next: rows, and numbers
  int pad_top = 0, first = 0;                      // first: the number of a row where the first window begins
  int pairs = 0;                                   // words of a window's row
  int parities = 1;                                // 2: every other window begins at an odd number
  int columns = 0;                                 // pixels of a row, rounded up to a multiple of `parities`
  int margin = 0, pitch = 0;                       // numbers of a band's row: before the image, and in all
  int rows = 0, bands = 0, tiles = 0, blocks = 0;  // bands: tiles of an image
  int across = 1;                                  // warps that share the channels of the result

  __host__ __device__ int band_rows() const { return (rows - 1) * stride_high + taps_high; }
  __host__ __device__ int band_bytes() const { return band_rows() * pitch * 2; }
  // Whether the first window of a parity begins at an odd number.
  __host__ __device__ int odd(int parity) const { return (first + parity * step) & 1; }
  __device__ int tile_rows(int tile) const { return min(rows, out_height - tile % bands * rows); }
  __device__ int64_t first_pixel(int tile) const {
    return (int64_t{tile / bands} * out_height + tile % bands * rows) * out_width;
  }
  // The word of a band where one of a tile's `pixels` has its window. Pixels past the last one get that of the last one
  // of their parity.
  __device__ int place(int pixel, int parity, int pixels) const {
    pixel = min(pixel, pixels - parities + parity);
    const int row = pixel / columns, column = pixel - row * columns;
    return (row * stride_high * pitch + margin + first + column * step - odd(parity)) / 2;
  }
  // The filter's number in row `row` of the taps that slot `slot` of that row holds; −1: none.
  __device__ int number(int row, int slot, int parity) const {
    const int at = slot - odd(parity);
    return row < taps_high && at >= 0 && at < run ? row * run + at : -1;
  }
};

// Zeros at both ends of a band's rows, once.
__device__ inline void clear_ends(const ColoursTiling& t, __nv_bfloat16* band) {
  const int ends = t.pitch - t.row_numbers;
  for (int i = int(threadIdx.x); i < t.band_rows() * ends; i += kThreads) {
    const int row = i / ends, at = i - row * ends;
    band[row * t.pitch + (at < t.margin ? at : at + t.row_numbers)] = __nv_bfloat16{};
  }
}

// Starts copying a tile's band: 16 bytes at a time, or four, or number by number, as the rows of images allow.
__device__ inline void copy_band(const ColoursTiling& t, int tile, const __nv_bfloat16* x, __nv_bfloat16* band) {
  const int image = tile / t.bands, top = tile % t.bands * t.rows * t.stride_high - t.pad_top;
  const __nv_bfloat16* const from = x + int64_t{image} * t.height * t.row_numbers;
  const int width = t.row_numbers % 8 == 0 ? 8 : t.row_numbers % 2 == 0 ? 2 : 1, units = t.row_numbers / width;
  for (int i = int(threadIdx.x); i < t.band_rows() * units; i += kThreads) {
    const int row = i / units, at = (i - row * units) * width;
    const bool there = unsigned(top + row) < unsigned(t.height);
    const __nv_bfloat16* const source = there ? from + (top + row) * t.row_numbers + at : x;
    __nv_bfloat16* const to = band + row * t.pitch + t.margin + at;
    if (width == 8) {
      copy_async(to, source, there);
    } else if (width == 2) {
      copy_word_async(to, source, there);
    } else {
      *to = there ? *source : __nv_bfloat16{};
    }
  }
}

// The places of a lane's words in a window: words `quarter` and `quarter` + 4 of each step of 16 numbers.
template <int Steps>
struct ColoursWords {
  int offset[Steps][2];  // words from a window's first

  __device__ ColoursWords(const ColoursTiling& t, int quarter) {
#pragma unroll
    for (int i = 0; i < Steps * 2; ++i) {
      const int pair = i * 4 + quarter, row = pair / t.pairs;
      offset[i / 2][i % 2] = row < t.taps_high ? row * (t.pitch / 2) + pair - row * t.pairs : 0;
    }
  }
};

// A warp has J · 8 channels of the result. So that a lane's results are neighbours, column n of tile j of eight is this
// one of them.
template <int J>
__device__ inline int colours_channel(int j, int n) {
  return n / 2 * (2 * J) + 2 * j + n % 2;
}

// Blocks that a multiprocessor has registers for.
template <int Steps, int J, int Parities>
inline constexpr int kColoursResident = (Steps * J * Parities <= 16) ? 2 : 1;
template <int Steps, int J, int Parities>
inline constexpr int kColoursGradientResident = (Steps * J * Parities <= 12) ? 2 : 1;

// y = x ∗ w, plus a bias if there is one, and the Relu of that if `relu`. Dynamic shared memory: two bands, then the
// results of each warp for 16 · Parities pixels. Numbers that are not of a pixel's window do not change it, even if
// they are NaN.
template <int Steps, int J, int Parities>
__global__ void __launch_bounds__(kThreads, kColoursResident<Steps, J, Parities>)
    colours_kernel(const ColoursTiling t, const __nv_bfloat16* x, const __nv_bfloat16* w, const float* bias, bool relu,
                   __nv_bfloat16* y) {
  constexpr int kUnit = 16 * Parities;  // pixels
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, group = lane / 4, quarter = lane % 4;
  const int across = warp % t.across, along = warp / t.across, shares = kColoursWarps / t.across;
  unsigned char* const memory = dynamic_shared();
  __nv_bfloat16* const bands = reinterpret_cast<__nv_bfloat16*>(memory);
  const int band_numbers = t.band_bytes() / 2;
  uint32_t* const made = reinterpret_cast<uint32_t*>(memory + 2 * t.band_bytes()) + warp * (kUnit * J * 4);
  const int first_channel = across * (J * 8), channels = max(0, min(J * 8, t.made - first_channel));

  wait_for_dependencies();
  copy_band(t, int(blockIdx.x), x, bands);
  commit_copies();
  clear_ends(t, bands);
  clear_ends(t, bands + band_numbers);

  const ColoursWords<Steps> words(t, quarter);
  uint32_t weight[Parities][Steps][J][2], mask[Parities][Steps][2];
  float start[2 * J];
#pragma unroll
  for (int c = 0; c < 2 * J; ++c) {
    const int channel = quarter * (2 * J) + c;
    start[c] = bias != nullptr && channel < channels ? bias[first_channel + channel] : 0.0f;
  }
#pragma unroll
  for (int parity = 0; parity < Parities; ++parity) {
#pragma unroll
    for (int i = 0; i < Steps * 2; ++i) {
      const int pair = i * 4 + quarter, row = pair / t.pairs, slot = (pair - row * t.pairs) * 2;
      const int even = t.number(row, slot, parity), odd = t.number(row, slot + 1, parity);
      mask[parity][i / 2][i % 2] = (even >= 0 ? 0xffffu : 0) | (odd >= 0 ? 0xffff0000u : 0);
#pragma unroll
      for (int j = 0; j < J; ++j) {
        const int channel = colours_channel<J>(j, group);
        const auto* const of =
            reinterpret_cast<const uint16_t*>(w) + int64_t{first_channel + channel} * (t.taps_high * t.run);
        const bool there = channel < channels;
        weight[parity][i / 2][j][i % 2] =
            (there && even >= 0 ? of[even] : 0u) | (there && odd >= 0 ? uint32_t{of[odd]} << 16 : 0u);
      }
    }
  }

  for (int tile = int(blockIdx.x), turn = 0; tile < t.tiles; tile += t.blocks, turn ^= 1) {
    if (tile + t.blocks < t.tiles) copy_band(t, tile + t.blocks, x, bands + (turn ^ 1) * band_numbers);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    const auto* const band = reinterpret_cast<const uint32_t*>(bands + turn * band_numbers);
    const int rows = t.tile_rows(tile), pixels = rows * t.columns;
    const int64_t first_pixel = t.first_pixel(tile);
    for (int first = along * kUnit; first < pixels; first += shares * kUnit) {
#pragma unroll
      for (int parity = 0; parity < Parities; ++parity) {
        int place[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          place[half] = t.place(first + (group + half * 8) * Parities + parity, parity, pixels);
        }
        float sum[J][4];
#pragma unroll
        for (int j = 0; j < J; ++j) {
          sum[j][0] = sum[j][2] = start[2 * j];
          sum[j][1] = sum[j][3] = start[2 * j + 1];
        }
#pragma unroll
        for (int step = 0; step < Steps; ++step) {
          uint32_t a[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            a[i] = band[place[i % 2] + words.offset[step][i / 2]] & mask[parity][step][i / 2];
          }
#pragma unroll
          for (int j = 0; j < J; ++j) multiply(sum[j], a, weight[parity][step][j][0], weight[parity][step][j][1]);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t* const to = made + (((group + half * 8) * Parities + parity) * channels + quarter * (2 * J)) / 2;
#pragma unroll
          for (int j = 0; j < J; ++j) {
            float even = sum[j][half * 2], odd = sum[j][half * 2 + 1];
            if (relu) even = even < 0 ? 0.0f : even, odd = odd < 0 ? 0.0f : odd;  // NaN stays NaN
            const __nv_bfloat162 both = __floats2bfloat162_rn(even, odd);
            if (quarter * (2 * J) + 2 * j < channels) to[j] = reinterpret_cast<const uint32_t&>(both);
          }
        }
      }
      __syncwarp();
      const auto* const packs = reinterpret_cast<const uint4*>(made);
      if (t.across == 1 && t.columns == t.out_width) {
        const int count = min(kUnit, pixels - first) * channels / 8;
        auto* const to = reinterpret_cast<uint4*>(y + (first_pixel + first) * t.made);
        for (int i = lane; i < count; i += 32) to[i] = packs[i];
      } else {
        const int each = channels / 8;
        for (int i = lane; i < kUnit * each; i += 32) {
          const int pixel = first + i / each, row = pixel / t.columns, column = pixel - row * t.columns;
          if (row >= rows || column >= t.out_width) continue;
          const int64_t at = (first_pixel + row * t.out_width + column) * t.made + first_channel;
          reinterpret_cast<uint4*>(y + at)[i % each] = packs[i];
        }
      }
      __syncwarp();
    }
    __syncthreads();  // the band is free
  }
}

// Partial sums of dW: (blocks, K, R · S · C), of each block's tiles. Dynamic shared memory: two bands, then sums.
template <int Steps, int J, int Parities>
__global__ void __launch_bounds__(kThreads, kColoursGradientResident<Steps, J, Parities>)
    colours_gradient_kernel(const ColoursTiling t, const __nv_bfloat16* x, const __nv_bfloat16* dy, float* partials) {
  constexpr int kUnit = 16 * Parities;  // pixels
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, group = lane / 4, quarter = lane % 4;
  const int across = warp % t.across, along = warp / t.across, shares = kColoursWarps / t.across;
  unsigned char* const memory = dynamic_shared();
  __nv_bfloat16* const bands = reinterpret_cast<__nv_bfloat16*>(memory);
  const int band_numbers = t.band_bytes() / 2;
  const int first_channel = across * (J * 8), channels = max(0, min(J * 8, t.made - first_channel));

  wait_for_dependencies();
  copy_band(t, int(blockIdx.x), x, bands);
  commit_copies();
  clear_ends(t, bands);
  clear_ends(t, bands + band_numbers);
  const ColoursWords<Steps> words(t, quarter);
  float sum[Parities][Steps][J][4] = {};

  for (int tile = int(blockIdx.x), turn = 0; tile < t.tiles; tile += t.blocks, turn ^= 1) {
    const int rows = t.tile_rows(tile), pixels = rows * t.columns;
    const int64_t first_pixel = t.first_pixel(tile);
    const auto* const from = reinterpret_cast<const uint32_t*>(dy + first_pixel * t.made + first_channel) + quarter * J;
    uint32_t next[Parities][2][J];  // of dY: words of pixels `group` and `group` + 8
    const auto fetch = [&](int first) {
#pragma unroll
      for (int i = 0; i < Parities * 2; ++i) {
        const int pixel = first + (group + i % 2 * 8) * Parities + i / 2, row = pixel / t.columns;
        const int column = pixel - row * t.columns;
        const bool there = pixel < pixels && column < t.out_width;
        const auto* const word = from + int64_t{row * t.out_width + column} * (t.made / 2);
#pragma unroll
        for (int j = 0; j < J; ++j) {
          next[i / 2][i % 2][j] = there && quarter * (2 * J) + 2 * j < channels ? word[j] : 0;
        }
      }
    };
    fetch(along * kUnit);
    if (tile + t.blocks < t.tiles) copy_band(t, tile + t.blocks, x, bands + (turn ^ 1) * band_numbers);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    const auto* const band = reinterpret_cast<const uint32_t*>(bands + turn * band_numbers);
    for (int first = along * kUnit; first < pixels; first += shares * kUnit) {
      uint32_t b[Parities][J][2];
#pragma unroll
      for (int i = 0; i < Parities * 2 * J; ++i) {
        b[i / (2 * J)][i % J][i / J % 2] = transpose(next[i / (2 * J)][i / J % 2][i % J]);
      }
      fetch(first + shares * kUnit);
#pragma unroll
      for (int parity = 0; parity < Parities; ++parity) {
        int place[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          place[half] = t.place(first + (group + half * 8) * Parities + parity, parity, pixels);
        }
#pragma unroll
        for (int step = 0; step < Steps; ++step) {
          uint32_t a[4];  // rows: numbers of windows
#pragma unroll
          for (int i = 0; i < 4; ++i) a[i] = transpose(band[place[i / 2] + words.offset[step][i % 2]]);
#pragma unroll
          for (int j = 0; j < J; ++j) multiply(sum[parity][step][j], a, b[parity][j][0], b[parity][j][1]);
        }
      }
    }
    __syncthreads();  // the band is free
  }

  // Warps add what they have, one share of the pixels after the other.
  auto* const sums = reinterpret_cast<float*>(memory + 2 * t.band_bytes());  // (parities, numbers, channels)
  const int width = t.across * (J * 8);
  for (int share = 0; share < shares; ++share) {
    if (along == share) {
#pragma unroll
      for (int i = 0; i < Parities * Steps * J * 4; ++i) {
        const int parity = i / (Steps * J * 4), step = i / (J * 4) % Steps, j = i / 4 % J, r = i % 4;
        const int number = (parity * Steps + step) * 16 + r / 2 * 8 + group;
        float* const to = sums + number * width + first_channel + colours_channel<J>(j, quarter * 2 + r % 2);
        *to = (share == 0 ? 0.0f : *to) + sum[parity][step][j][r];
      }
    }
    __syncthreads();
  }
  const int each = t.taps_high * t.run;
  float* const out = partials + int64_t{blockIdx.x} * (t.made * each);
  for (int i = int(threadIdx.x); i < t.made * each; i += kThreads) {
    const int channel = i / each, number = i - channel * each, row = number / t.run;
    float total = 0;
    for (int parity = 0; parity < t.parities; ++parity) {
      const int slot = row * (t.pairs * 2) + number - row * t.run + t.odd(parity);
      total += sums[(parity * Steps * 16 + slot) * width + channel];
    }
    out[i] = total;
  }
}

}  // namespace arbalest::cuda
