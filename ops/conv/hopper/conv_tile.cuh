// SPDX-License-Identifier: Apache-2.0
#pragma once
// Epilogue of a tile of a convolution's result on Hopper. The matrix units' sums pass through shared memory, so that
// each thread sees eight neighbouring channels of a pixel at once. They are stored, and leave a batch norm its
// partials.

#include "ops/cuda/hopper.cuh"
#include "ops/norm/batch_norm.cuh"

namespace arbalest::cuda {

inline constexpr int kGroupThreads = 128;              // four warps, which multiply together
inline constexpr int kTileThreads = 256;               // of a block: two groups
inline constexpr int kTileBytes = 112 << 10;           // of shared memory for tiles: two blocks share a processor
inline constexpr int kTileShared = kTileBytes + 1024;  // and for barriers and the like

// Eight bfloat16 as they are read: a register holds two.
struct Eight {
  [[maybe_unused]] uint32_t pair[4];  // as on devices that only trap

  __device__ float operator[](int i) const {
    return __uint_as_float(i % 2 == 0 ? pair[i / 2] << 16 : pair[i / 2] & 0xffff0000u);
  }
  __device__ void set(int i, float even, float odd) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(even, odd);
    pair[i / 2] = reinterpret_cast<const uint32_t&>(both);
  }
};

__device__ inline Eight load_eight(const void* from) {
  const uint4 words = *static_cast<const uint4*>(from);
  return {words.x, words.y, words.z, words.w};
}
__device__ inline void store_eight(void* to, const Eight& value) {
  *static_cast<uint4*>(to) = make_uint4(value.pair[0], value.pair[1], value.pair[2], value.pair[3]);
}

struct TileStatistics {
  Partial* partials;                      // (chunks, channels)
  static constexpr bool kShifted = true;  // sums are relative to the chunk's first pixel
  static constexpr int kSums = 2;         // of a channel
  static constexpr int kTogether = 4;     // pixels whose operands a thread reads before it uses the first

  struct Terms {
    float shift[8];
    __device__ Terms(const TileStatistics&, int, const float* shifts) {
      const float4 low = *reinterpret_cast<const float4*>(shifts), high = *reinterpret_cast<const float4*>(shifts + 4);
      shift[0] = low.x, shift[1] = low.y, shift[2] = low.z, shift[3] = low.w;
      shift[4] = high.x, shift[5] = high.y, shift[6] = high.z, shift[7] = high.w;
    }
  };
  using Operands = char;
  __device__ Operands operands(int64_t) const { return 0; }

  __device__ void add(const Terms& terms, const Operands&, Eight& value, float (&sums)[2][8]) const {
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const float deviation = value[c] - terms.shift[c];
      sums[0][c] += deviation;
      sums[1][c] += deviation * deviation;
    }
  }
  // `at`: the place of a chunk and channel in the partials.
  __device__ void leave(int64_t at, const float (&total)[2], float shift, int pixels) const {
    const float mean = total[0] / float(pixels);
    partials[at] = make_float2(shift + mean, fmaxf(total[1] - total[0] * mean, 0.0f));
  }
};

// Stores the result alone, with Relu, which lets NaN through. If there is a bias (channels), sums begin with it.
template <bool kRelu>
struct TileResult {
  const float* bias;
  static constexpr bool kShifted = false;
  static constexpr int kSums = 0, kTogether = 4;

  struct Terms {
    __device__ Terms(const TileResult&, int, const float*) {}
  };
  using Operands = char;
  __device__ Operands operands(int64_t) const { return 0; }

  __device__ void add(const Terms&, const Operands&, Eight& value, float (&)[1][8]) const {
    if constexpr (kRelu) {
#pragma unroll
      for (int c = 0; c < 8; c += 2) {
        const float even = value[c], odd = value[c + 1];
        value.set(c, even < 0 ? 0.0f : even, odd < 0 ? 0.0f : odd);
      }
    }
  }
};

// For a product that is the gradient of a batch norm's result, or one of two whose sum is (kTwo). Stores the gradient
// g, masked by the batch norm's Relu, and the partials of Σ g and Σ g · (x − mean), as gradient_sums_kernel() does.
// from.dy is not read. If kStays, the product itself is stored, because every reader of it has x, too.
template <Mask kMask, bool kTwo>
struct TileGradientSums {
  static constexpr bool kStays = kMask == Mask::X && !kTwo;
  GradientOf<__nv_bfloat16> from;
  Partial* partials;
  static constexpr bool kShifted = false;
  static constexpr int kSums = 2, kTogether = 4;

  struct Terms {
    float mean[8], gain[8], bias[8];
    __device__ Terms(const TileGradientSums& of, int channel, const float*) {
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        mean[c] = of.from.mean[channel + c];
        if constexpr (kMask == Mask::X) {
          gain[c] = of.from.scale[channel + c] * of.from.inv_std[channel + c];
          bias[c] = of.from.bias[channel + c];
        }
      }
    }
  };
  struct Operands {
    Eight x, more, y;
  };
  __device__ Operands operands(int64_t at) const {
    Operands read;
    read.x = load_eight(from.x + at);
    if constexpr (kTwo) read.more = load_eight(from.dy2 + at);
    if constexpr (kMask == Mask::Y) read.y = load_eight(from.y + at);
    return read;
  }
  __device__ void add(const Terms& terms, const Operands& read, Eight& value, float (&sums)[2][8]) const {
    float g[8];
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      g[c] = value[c];
      const float x = read.x[c];
      if constexpr (kTwo) g[c] += read.more[c];
      bool passes = true;
      if constexpr (kMask == Mask::Y) passes = read.y[c] > 0;
      if constexpr (kMask == Mask::X) passes = normalized(x, terms.mean[c], terms.gain[c], terms.bias[c]) > 0;
      if (!passes) g[c] = 0;
      sums[0][c] += g[c];
      sums[1][c] += g[c] * (x - terms.mean[c]);
    }
    if constexpr (!kStays) {
#pragma unroll
      for (int c = 0; c < 8; c += 2) value.set(c, g[c], g[c + 1]);
    }
  }
  __device__ void leave(int64_t at, const float (&total)[2], float, int) const {
    partials[at] = make_float2(total[0], total[1]);
  }
};

// The same of two batch norms whose sum has gone through Relu, as by pair_gradient_sums_kernel(): the product and dy2
// are two gradients of that.
struct TilePairGradientSums {
  PairGradientOf<__nv_bfloat16> from;
  Partial *partials, *partials2;
  static constexpr bool kShifted = false;
  static constexpr int kSums = 3, kTogether = 2;

  struct Terms {
    float mean[8], mean2[8];
    __device__ Terms(const TilePairGradientSums& of, int channel, const float*) {
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        mean[c] = of.from.mean[channel + c];
        mean2[c] = of.from.mean2[channel + c];
      }
    }
  };
  struct Operands {
    Eight x, x2, more, y;
  };
  __device__ Operands operands(int64_t at) const {
    return {load_eight(from.x + at), load_eight(from.x2 + at), load_eight(from.dy2 + at), load_eight(from.y + at)};
  }
  __device__ void add(const Terms& terms, const Operands& read, Eight& value, float (&sums)[3][8]) const {
    float g[8];
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      g[c] = read.y[c] > 0 ? value[c] + read.more[c] : 0;
      sums[0][c] += g[c];
      sums[1][c] += g[c] * (read.x[c] - terms.mean[c]);
      sums[2][c] += g[c] * (read.x2[c] - terms.mean2[c]);
    }
#pragma unroll
    for (int c = 0; c < 8; c += 2) value.set(c, g[c], g[c + 1]);
  }
  __device__ void leave(int64_t at, const float (&total)[3], float, int) const {
    partials[at] = make_float2(total[0], total[1]);
    partials2[at] = make_float2(total[0], total[2]);
  }
};

// The pixels of a group's rows if they are consecutive, −1 after the tile's last. `end`: one past the tile's last.
struct PixelRows {
  int first, end;
  __device__ int operator()(int row) const { return first + row < end ? first + row : -1; }
};

// Writes the tiles of one block: kColumns channels of one chunk.
template <int kColumns, typename Epilogue>
class TileWriter {
 public:
  static constexpr int kStagingBytes = 128 * kColumns * 2;

  // `staging`: kStagingBytes of shared memory, aligned to 1024; `shifts`: kColumns floats there; y: (pixels, channels).
  __device__ TileWriter(const Epilogue& epilogue, unsigned char* staging, float* shifts, __nv_bfloat16* y, int channels,
                        int first_channel)
      : epilogue_(epilogue),
        staging_(staging + group() * (kStagingBytes / 2)),
        shifts_(shifts),
        y_(y),
        channels_(channels),
        first_channel_(first_channel) {}

  // `sum`: the group's 64 rows of the tile as the matrix units leave them. pixel(row): the pixel of a row in the
  // result, or −1 for none. `first`: true for the chunk's first tile.
  template <typename Pixels>
  __device__ void write(const float (&sum)[kColumns / 2], const Pixels& pixel, bool first) {
    const int lane = t() % 32, warp = t() / 32, pack = t() % kPacks, row = t() / kPacks;
    hopper::meet<128>(1 + group());  // earlier staged values have been read
    uint32_t place = shared_address(staging_) + (warp * 16 + lane % 16) * (kColumns * 2) + (lane % 8 ^ lane / 16) * 16;
    asm volatile("" : "+r"(place));  // keeps addresses made of it out of registers from tile to tile
#pragma unroll
    for (int j = 0; j < kPacks; j += 2) {
      hopper::store_matrices((place ^ (j % 8 * 16)) + j / 8 * 128, &sum[j * 4]);
    }
    hopper::meet<128>(1 + group());
    if constexpr (Epilogue::kShifted) {
      if (first) {
        if (group() == 0 && row == 0) {
          const Eight value = load_eight(staging_ + pack * 16);
#pragma unroll
          for (int c = 0; c < 8; ++c) shifts_[pack * 8 + c] = value[c];
        }
        hopper::meet<kTileThreads>(3);
      }
    }
    const int channel = first_channel_ + pack * 8;
    if (channel >= channels_) return;
    const typename Epilogue::Terms terms(epilogue_, channel, shifts_ + pack * 8);
#pragma unroll 1
    for (int from = 0; from < 64; from += 128 / kPacks * kTogether) {
      typename Epilogue::Operands operands[kTogether];
      int pixels[kTogether];
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        pixels[u] = pixel(from + u * (128 / kPacks) + row);
        operands[u] = epilogue_.operands(int64_t{max(pixels[u], 0)} * channels_ + channel);
      }
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        if (pixels[u] < 0) continue;
        const int at = from + u * (128 / kPacks) + row;
        Eight value = load_eight(staging_ + at * (kColumns * 2) + ((pack ^ (at % 8)) * 16));
        epilogue_.add(terms, operands[u], value, sums_);
        store_eight(y_ + int64_t{pixels[u]} * channels_ + channel, value);
      }
    }
  }

  // The partials of the chunk, which has so many pixels.
  __device__ void finish(int chunk, int pixels) {
    const int lane = t() % 32, warp = int(threadIdx.x) / 32;
    // (warps, kColumns, kSums)
    auto* const totals = reinterpret_cast<float*>(staging_ - group() * (kStagingBytes / 2));
    hopper::meet<kTileThreads>(3);
    // Lanes apart by the packs of a pixel hold the same channels; then the eight warps in order.
#pragma unroll
    for (int c = 0; c < 8; ++c) {
#pragma unroll
      for (int s = 0; s < kSums; ++s) {
        float value = sums_[s][c];
#pragma unroll
        for (int offset = kPacks; offset < 32; offset *= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
        if (lane < kPacks) totals[(warp * kColumns + lane * 8 + c) * kSums + s] = value;
      }
    }
    hopper::meet<kTileThreads>(3);
    const int c = int(threadIdx.x);
    if (c >= kColumns || first_channel_ + c >= channels_) return;
    float total[kSums] = {};
#pragma unroll
    for (int w = 0; w < kTileThreads / 32; ++w) {
#pragma unroll
      for (int s = 0; s < kSums; ++s) total[s] += totals[(w * kColumns + c) * kSums + s];
    }
    epilogue_.leave(int64_t{chunk} * channels_ + first_channel_ + c, total, shifts_[c], pixels);
  }

 private:
  static constexpr int kPacks = kColumns / 8;  // of a pixel
  static constexpr int kTogether = Epilogue::kTogether;
  static constexpr int kSums = Epilogue::kSums;

  static __device__ int t() {
    return int(threadIdx.x) % 128;
  }
  static __device__ int group() {
    return int(threadIdx.x) / 128;
  }

  const Epilogue& epilogue_;
  unsigned char* const staging_;  // the group's
  float* const shifts_;
  __nv_bfloat16* const y_;
  const int channels_, first_channel_;
  float sums_[kSums == 0 ? 1 : kSums][8] = {};
};

}  // namespace arbalest::cuda
