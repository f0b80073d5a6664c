// SPDX-License-Identifier: Apache-2.0
#pragma once
// CUDA kernel that brings planes of few channels together, position by position, or takes pixels apart into planes.

#include "ops/cuda/cuda_math.cuh"
#include "ops/cuda/matrix_unit.cuh"
#include "ops/shape/order/planes.h"

namespace arbalest::cuda {

// A walk through a tile in shared memory in the order of the pixels. kImages: the tile may have several matrices.
template <typename Word, bool kImages>
struct PixelWalk {
  Word* at;
  int channels, positions;  // that are left, of the pixel and of the matrix

  // From element e of the pixels on, in a tile that begins at `tile`.
  __device__ PixelWalk(const PlaneTiles& p, Word* tile, int e) {
    const int pixel = p.of_channels.quotient(e), image = kImages ? p.of_length.quotient(pixel) : 0;
    const int channel = e - pixel * p.channels, position = pixel - image * p.length;
    at = tile + (image * p.channels + channel) * p.step + position;
    channels = p.channels - channel;
    positions = p.length - position;
  }
  __device__ void advance(const PlaneTiles& p) {
    at += p.step;
    if (--channels > 0) return;
    channels = p.channels;
    at -= p.channels * p.step - 1;
    if (!kImages || --positions > 0) return;
    positions = p.length;
    at += p.channels * p.step - p.length;
  }
};

// A tile of a block, in memory and in shared memory.
template <typename Word, bool kFromPlanes>
struct PlaneTile {
  static constexpr int W = 16 / sizeof(Word);
  using In = const Word*;
  std::conditional_t<kFromPlanes, In, Word*> planes;
  std::conditional_t<kFromPlanes, Word*, In> pixels;
  Word* memory;  // shared
  int shift;     // the first plane's first element there
  int images, length;

  __device__ static int before_in_pack(const Word* p) { return int(reinterpret_cast<uintptr_t>(p) / sizeof(Word) % W); }

  __device__ PlaneTile(const Transposition& t, const PlaneTiles& p, const Word* x, Word* y, Word* memory)
      : memory(memory) {
    const uint32_t group = blockIdx.x / uint32_t(p.tiles);
    const int64_t matrix = int64_t(group) * p.images;
    const int64_t first = int64_t(blockIdx.x - group * uint32_t(p.tiles)) * p.length;
    images = int(min(int64_t(p.images), t.matrices.count - matrix));
    length = int(min(int64_t(p.length), p.positions - first));
    x += t.matrices.offset(matrix, 1) + first * (kFromPlanes ? 1 : p.channels);
    y += t.matrices.offset(matrix, 0) + first * (kFromPlanes ? p.channels : 1);
    if constexpr (kFromPlanes) {
      planes = x, pixels = y;
    } else {
      planes = y, pixels = x;
    }
    shift = before_in_pack(planes);
  }

  // Between memory and shared memory, in packs and what a row begins and ends with.
  __device__ void copy_planes(const PlaneTiles& p) const {
    const int packs = p.packs(W), rows = p.joined ? 1 : images * p.channels;
    const int count = p.joined ? images * p.channels * length : length;
    for (int k = int(threadIdx.x); k < rows * packs; k += kThreads) {
      const int row = p.of_packs.quotient(k), start = shift + row * p.step;
      const int first = (k - row * packs) * W - start % W;
      Word* const own = memory + start;
      auto* const plane = planes + row * p.distance;
      if (first >= 0 && first + W <= count) {
        if constexpr (kFromPlanes) {
          copy_async(own + first, plane + first, true);
        } else {
          *reinterpret_cast<uint4*>(plane + first) = *reinterpret_cast<const uint4*>(own + first);
        }
        continue;
      }
      for (int e = max(first, 0); e < min(first + W, count); ++e) {
        if constexpr (kFromPlanes) {
          own[e] = plane[e];
        } else {
          plane[e] = own[e];
        }
      }
    }
    if constexpr (kFromPlanes) {
      commit_copies();
      wait_for_copies<0>();
    }
  }

  // Between memory and shared memory, where a pack's elements lie apart.
  template <bool kImages>
  __device__ void move_pixels(const PlaneTiles& p) const {
    const auto move = [](auto& pixel, Word& own) {
      if constexpr (kFromPlanes) {
        pixel = own;
      } else {
        own = pixel;
      }
    };
    const int before = before_in_pack(pixels), count = images * length * p.channels;
    for (int first = int(threadIdx.x) * W - before; first < count; first += kThreads * W) {
      const int begin = max(first, 0), end = min(first + W, count);
      PixelWalk<Word, kImages> walk(p, memory + shift, begin);
      if (end - begin < W) {
        for (int e = begin; e < end; ++e, walk.advance(p)) move(pixels[e], *walk.at);
        continue;
      }
      Pack<Word, W> pack;
      if constexpr (!kFromPlanes) pack = load<W>(pixels + first);
#pragma unroll
      for (int i = 0; i < W; ++i, walk.advance(p)) move(pack.element[i], *walk.at);
      if constexpr (kFromPlanes) store(pixels + first, pack);
    }
  }
  __device__ void move_pixels(const PlaneTiles& p) const {
    if (p.images > 1) return move_pixels<true>(p);
    move_pixels<false>(p);
  }
};

template <typename Word, bool kFromPlanes>
__global__ void __launch_bounds__(kThreads)
    transpose_planes_kernel(Transposition t, PlaneTiles p, const Word* x, Word* y) {
  extern __shared__ uint4 plane_memory[];
  const PlaneTile<Word, kFromPlanes> tile(t, p, x, y, reinterpret_cast<Word*>(plane_memory));
  wait_for_dependencies();
  if constexpr (kFromPlanes) {
    tile.copy_planes(p);
  } else {
    tile.move_pixels(p);
  }
  __syncthreads();
  if constexpr (kFromPlanes) {
    tile.move_pixels(p);
  } else {
    tile.copy_planes(p);
  }
}

template <typename Word>
void transpose_planes(cudaStream_t stream, const Transposition& t, const PlaneTiles& p, const Word* x, Word* y) {
  if (p.count == 0) return;
  const auto kernel = p.from_planes ? transpose_planes_kernel<Word, true> : transpose_planes_kernel<Word, false>;
  launch_dependent(kernel, unsigned(p.count), kThreads, size_t(p.shared_bytes(sizeof(Word))), stream, t, p, x, y);
  check_launch("transposition of planes");
}

}  // namespace arbalest::cuda
