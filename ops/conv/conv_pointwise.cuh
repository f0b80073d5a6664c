#pragma once
// The kernel of conv_pointwise.h: a product of matrices on Hopper, whose rows are pixels. One warp has the copy engine
// fetch tiles of pixels and of the filter, eight warps have the matrix units multiply them straight from shared memory
// and pass the sums, tile by tile, through an epilogue that sees eight neighbouring channels of a pixel at once. Images
// are bfloat16 (pixels, channels); the filter is (K, C).

#include <cuda.h>

#include "graph/passes/statistics_chunks.h"
#include "ops/norm/batch_norm.cuh"

// What only compute capability 9.0 has; elsewhere these kernels are never run.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)  // sm_90a
#define ARBALEST_ASM(...) asm volatile(__VA_ARGS__)
#else
#define ARBALEST_ASM(...) __trap()
#endif

namespace arbalest::cuda {

inline constexpr int kTilePixels = int(kPointwiseTilePixels);
inline constexpr int kInner = 64;              // channels summed over, of a stage: rows of 128 bytes
inline constexpr int kPointwiseThreads = 256;  // two groups of 64 pixels each
inline constexpr int kMostStages = 6;
inline constexpr int kImageStageBytes = kTilePixels * kInner * 2;
inline constexpr int kTileBytes = 112 << 10;  // of shared memory: two blocks share a processor
inline constexpr int kPointwiseShared = kTileBytes + 1024;

// How a block that makes kColumns channels of the result uses its shared memory.
template <int kColumns>
struct PointwiseMemory {
  static constexpr int kStaging = kTilePixels * kColumns * 2;  // a tile of the result
  static constexpr int kFilterStage = kColumns * kInner * 2;
  static constexpr int kMostFilter = 32 << 10;  // of a filter that stays
};

// Where the pixels of a folded image lie (conv_fold.h): a tile of the result is a part of a row, and the stages' rows
// are the windows of its pixels at one row of taps after the other, which overlap.
struct FoldedRows {
  int tiles_per_row = 0;          // of the result; 0: the image is not folded, and rows are pixels
  int height = 0;                 // of the result
  int image_rows = 0, width = 0;  // of the folded image
};

struct PointwiseTiling {
  int pixels = 0, channels = 0;   // of the result
  int tile_pixels = kTilePixels;  // at most that many
  FoldedRows folded;
  int steps = 0;  // stages of a tile
  int tiles_per_chunk = 0;
  bool filter_stays = false;  // in shared memory, whole; else it is fetched with each tile of pixels
  int stages = 0;
};

template <int kColumns>
PointwiseTiling pointwise_tiling(int64_t pixels, int64_t channels, int64_t inner, int64_t chunk_pixels) {
  using Memory = PointwiseMemory<kColumns>;
  PointwiseTiling t;
  t.pixels = int(pixels);
  t.channels = int(channels);
  t.steps = int((inner + kInner - 1) / kInner);
  t.tiles_per_chunk = int(chunk_pixels / kTilePixels);
  const int filter = t.steps * Memory::kFilterStage, room = kTileBytes - Memory::kStaging;
  t.filter_stays = filter <= Memory::kMostFilter;
  t.stages = t.filter_stays ? (room - filter) / kImageStageBytes : room / (kImageStageBytes + Memory::kFilterStage);
  t.stages = std::min(t.stages, kMostStages);
  return t;
}

namespace hopper {

__device__ inline uint32_t shared_address(const void* p) {
  return uint32_t(__cvta_generic_to_shared(p));
}

__device__ inline void init_barrier(uint32_t barrier, int arrivals) {
  ARBALEST_ASM("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ inline void expect_bytes(uint32_t barrier, int bytes) {
  ARBALEST_ASM("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ inline void arrive(uint32_t barrier) {
  ARBALEST_ASM("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void wait(uint32_t barrier, int phase) {
  ARBALEST_ASM(
      "{\n"
      ".reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(phase)
      : "memory");
}

// A box of the matrix that `map` describes, from (column, row) on.
__device__ inline void fetch(uint32_t to, const CUtensorMap& map, int column, int row, uint32_t barrier) {
  ARBALEST_ASM(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          to),
      "l"(&map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}

// Of a matrix in shared memory whose rows have 128 bytes, swizzled as widely: eight rows after each other, `leading`
// bytes between blocks of 64 columns where columns are what is not summed over.
__device__ inline uint64_t descriptor(uint32_t address, int leading) {
  return uint64_t((address & 0x3ffff) >> 4) | uint64_t(leading >> 4) << 16 | uint64_t(1024 >> 4) << 32 |
         uint64_t{1} << 62;
}

__device__ inline void begin_products() {
  ARBALEST_ASM("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void commit_products() {
  ARBALEST_ASM("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int Pending>
__device__ inline void wait_for_products() {
  ARBALEST_ASM("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

#define ARBALEST_SUMS8(s, i)                                                                                  \
  "+f"(s[i]), "+f"(s[i + 1]), "+f"(s[i + 2]), "+f"(s[i + 3]), "+f"(s[i + 4]), "+f"(s[i + 5]), "+f"(s[i + 6]), \
      "+f"(s[i + 7])
#define ARBALEST_SUMS32(s, i) \
  ARBALEST_SUMS8(s, i), ARBALEST_SUMS8(s, i + 8), ARBALEST_SUMS8(s, i + 16), ARBALEST_SUMS8(s, i + 24)

// sum += pixels (64 × 16) · filter (16 × 64 or × 128)
template <bool kTransposed>
__device__ inline void multiply(float (&sum)[32], uint64_t pixels, uint64_t filter) {
  ARBALEST_ASM(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"
      "%30,%31}, %32, %33, 1, 1, 1, 0, %34;"
      : ARBALEST_SUMS32(sum, 0)
      : "l"(pixels), "l"(filter), "n"(kTransposed));
}
template <bool kTransposed>
__device__ inline void multiply(float (&sum)[64], uint64_t pixels, uint64_t filter) {
  ARBALEST_ASM(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"
      "%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,"
      "%58,%59,%60,%61,%62,%63}, %64, %65, 1, 1, 1, 0, %66;"
      : ARBALEST_SUMS32(sum, 0), ARBALEST_SUMS32(sum, 32)
      : "l"(pixels), "l"(filter), "n"(kTransposed));
}

// 16 pixels of 16 channels, of a warp, as bfloat16: lane l gives the address of eight channels of pixel l % 16, the
// second eight where l ≥ 16.
__device__ inline void store_matrices(uint32_t address, const float* sum) {
  [[maybe_unused]] uint32_t pair[4];  // as on devices that only trap
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(sum[i * 2], sum[i * 2 + 1]);
    pair[i] = reinterpret_cast<const uint32_t&>(both);
  }
  ARBALEST_ASM("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(pair[0]),
               "r"(pair[1]), "r"(pair[2]), "r"(pair[3])
               : "memory");
}

// A barrier of `threads` of the block's threads, by number.
template <int Threads>
__device__ inline void meet(int number) {
  ARBALEST_ASM("bar.sync %0, %1;" ::"r"(number), "n"(Threads) : "memory");
}

}  // namespace hopper

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

struct PointwiseStatistics {
  Partial* partials;                      // (chunks, channels)
  static constexpr bool kShifted = true;  // sums are relative to the chunk's first pixel

  struct Terms {
    float shift[8];
    __device__ Terms(const PointwiseStatistics&, int, const float* shifts) {
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
  __device__ Partial partial(float2 total, float shift, int pixels) const {
    const float mean = total.x / float(pixels);
    return make_float2(shift + mean, fmaxf(total.y - total.x * mean, 0.0f));
  }
};

// The product is the gradient of what a batch norm made, or one of two: stored is the gradient g behind its Relu, and
// the partials of Σ g and Σ g · (x − mean), as by gradient_sums_kernel(). from.dy is not read.
template <Mask kMask, bool kTwo>
struct PointwiseGradientSums {
  GradientOf<__nv_bfloat16> from;
  Partial* partials;
  static constexpr bool kShifted = false;

  struct Terms {
    float mean[8], gain[8], bias[8];
    __device__ Terms(const PointwiseGradientSums& of, int channel, const float*) {
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
#pragma unroll
    for (int c = 0; c < 8; c += 2) value.set(c, g[c], g[c + 1]);
  }
  __device__ Partial partial(float2 total, float, int) const {
    return total;
  }
};

// block.x: kColumns channels of the result, block.y: a chunk of tiles. Transposed: the gradient of images, which
// sums over the filter's rows.
template <int kColumns, bool kTransposed, bool kFolded, typename Epilogue>
__global__ void __launch_bounds__(kPointwiseThreads, 2)
    pointwise_kernel(const __grid_constant__ CUtensorMap images, const __grid_constant__ CUtensorMap filters,
                     const __grid_constant__ PointwiseTiling tiling, __nv_bfloat16* y,
                     const __grid_constant__ Epilogue epilogue) {
  using namespace hopper;
  using Memory = PointwiseMemory<kColumns>;
  constexpr int kFilterStageBytes = Memory::kFilterStage;
  constexpr int kPacks = kColumns / 8;  // of a pixel
  constexpr int kTogether = 4;          // pixels whose operands a thread reads before it uses the first
  extern __shared__ __align__(1024) unsigned char tile_memory[];
  unsigned char* const staging = tile_memory;
  unsigned char* const filter_memory = staging + Memory::kStaging;
  unsigned char* const image_memory =
      filter_memory + (tiling.filter_stays ? tiling.steps : tiling.stages) * kFilterStageBytes;
  auto* const shifts = reinterpret_cast<float*>(tile_memory + kTileBytes);  // (kColumns)
  const uint32_t full = shared_address(shifts + kColumns), empty = full + kMostStages * 8;
  const uint32_t filter_full = empty + kMostStages * 8;

  const int first_tile = int(blockIdx.y) * tiling.tiles_per_chunk;
  const int tile_pixels = kFolded ? tiling.tile_pixels : kTilePixels;
  const int last_tile = min(first_tile + tiling.tiles_per_chunk, (tiling.pixels + tile_pixels - 1) / tile_pixels);
  const int first_channel = int(blockIdx.x) * kColumns;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < tiling.stages; ++stage) {
      init_barrier(full + stage * 8, 1);
      init_barrier(empty + stage * 8, kPointwiseThreads / 32);
    }
    init_barrier(filter_full, 1);
    ARBALEST_ASM("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();

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
  int next_tile = first_tile, next_step = 0;
  const auto fill = [&](int stage) {
    const uint32_t barrier = full + stage * 8;
    expect_bytes(barrier, tiling.tile_pixels * kInner * 2 + (tiling.filter_stays ? 0 : kFilterStageBytes));
    int column = next_step * kInner, row = next_tile * kTilePixels;
    if constexpr (kFolded) {
      const FoldedRows& folded = tiling.folded;
      const int of_image = next_tile / folded.tiles_per_row, image = of_image / folded.height;
      row = (image * folded.image_rows + of_image - image * folded.height + next_step) * folded.width +
            (next_tile - of_image * folded.tiles_per_row) * tiling.tile_pixels;
      column = 0;
    }
    fetch(shared_address(image_memory) + stage * kImageStageBytes, images, column, row, barrier);
    if (!tiling.filter_stays) fetch_filter(next_step, stage, barrier);
  };
  const auto advance = [&] {
    if (++next_step == tiling.steps) next_step = 0, ++next_tile;
  };
  if (threadIdx.x == 0 && tiling.filter_stays) {
    expect_bytes(filter_full, tiling.steps * kFilterStageBytes);
    for (int step = 0; step < tiling.steps; ++step) fetch_filter(step, step, filter_full);
  }
  for (int stage = 0; stage < tiling.stages && next_tile < last_tile; ++stage) {
    if (threadIdx.x == 0) fill(stage);
    advance();
  }

  const int t = int(threadIdx.x) % 128, group = int(threadIdx.x) / 128, lane = t % 32, warp = t / 32;
  unsigned char* const own_staging = staging + group * (Memory::kStaging / 2);
  const uint32_t images_at = shared_address(image_memory) + group * (64 * kInner * 2);
  const int pack = t % kPacks, row = t / kPacks;  // of what is staged: where the thread reads
  const int channel = first_channel + pack * 8;
  float sums[2][8] = {};
  if (tiling.filter_stays) wait(filter_full, 0);
  int stage = 0, phase = 0, last_stage = 0, last_phase = 0;
  // The stage before is free when all warps are done with it; it is filled again at once.
  const auto release = [&] {
    if (lane == 0) arrive(empty + last_stage * 8);
    if (next_tile == last_tile) return;
    if (threadIdx.x == 0) {
      wait(empty + last_stage * 8, last_phase);
      fill(last_stage);
    }
    advance();
  };
  for (int tile = first_tile; tile < last_tile; ++tile) {
    float sum[kColumns / 2] = {};
    for (int step = 0; step < tiling.steps; ++step) {
      wait(full + stage * 8, phase);
      const uint64_t pixels = descriptor(images_at + stage * kImageStageBytes, 16);
      const uint64_t filter = descriptor(filters_at + (tiling.filter_stays ? step : stage) * kFilterStageBytes,
                                         kTransposed ? kInner * 128 : 16);
      begin_products();
#pragma unroll
      for (int part = 0; part < kInner / 16; ++part) {
        multiply<kTransposed>(sum, pixels + part * 2, filter + part * (kTransposed ? 128 : 2));
      }
      commit_products();
      if (step > 0) {
        wait_for_products<1>();
        release();
      }
      last_stage = stage, last_phase = phase;
      if (++stage == tiling.stages) stage = 0, phase ^= 1;
    }
    wait_for_products<0>();
    release();

    const int first_pixel = tile * tile_pixels + group * 64;
    const int rows = min(tile_pixels, tiling.pixels - tile * tile_pixels) - group * 64;  // that the group has
    meet<128>(1 + group);  // what was staged before has been read
    uint32_t place =
        shared_address(own_staging) + (warp * 16 + lane % 16) * (kColumns * 2) + (lane % 8 ^ lane / 16) * 16;
    asm volatile("" : "+r"(place));  // what follows is not to be kept in registers from tile to tile
#pragma unroll
    for (int j = 0; j < kPacks; j += 2) {
      store_matrices((place ^ (j % 8 * 16)) + j / 8 * 128, &sum[j * 4]);
    }
    meet<128>(1 + group);
    if constexpr (Epilogue::kShifted) {
      if (tile == first_tile) {
        if (group == 0 && row == 0) {
          const Eight first = load_eight(own_staging + pack * 16);
#pragma unroll
          for (int c = 0; c < 8; ++c) shifts[pack * 8 + c] = first[c];
        }
        meet<kPointwiseThreads>(3);
      }
    }
    if (channel >= tiling.channels) continue;
    const typename Epilogue::Terms terms(epilogue, channel, shifts + pack * 8);
#pragma unroll 1
    for (int first = 0; first < 64; first += 128 / kPacks * kTogether) {
      typename Epilogue::Operands operands[kTogether];
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        const int at = min(first_pixel + first + u * (128 / kPacks) + row, tiling.pixels - 1);
        operands[u] = epilogue.operands(int64_t{at} * tiling.channels + channel);
      }
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        const int at = first + u * (128 / kPacks) + row;
        if (at >= rows) break;
        Eight value = load_eight(own_staging + at * (kColumns * 2) + ((pack ^ (at % 8)) * 16));
        epilogue.add(terms, operands[u], value, sums);
        store_eight(y + int64_t(first_pixel + at) * tiling.channels + channel, value);
      }
    }
  }

  // Totals of the chunk: lanes apart by the packs of a pixel hold the same channels, then the eight warps in order.
  auto* const totals = reinterpret_cast<float2*>(staging);  // (warps, kColumns)
  meet<kPointwiseThreads>(3);
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    float2 value = make_float2(sums[0][c], sums[1][c]);
#pragma unroll
    for (int offset = kPacks; offset < 32; offset *= 2) {
      value.x += __shfl_xor_sync(0xffffffffu, value.x, offset);
      value.y += __shfl_xor_sync(0xffffffffu, value.y, offset);
    }
    if (lane < kPacks) totals[(group * 4 + warp) * kColumns + lane * 8 + c] = value;
  }
  meet<kPointwiseThreads>(3);
  const int c = int(threadIdx.x);
  if (c < kColumns && first_channel + c < tiling.channels) {
    float2 total = make_float2(0, 0);
#pragma unroll
    for (int w = 0; w < kPointwiseThreads / 32; ++w) {
      total.x += totals[w * kColumns + c].x;
      total.y += totals[w * kColumns + c].y;
    }
    const int pixels = min(last_tile * tile_pixels, tiling.pixels) - first_tile * tile_pixels;
    epilogue.partials[int64_t(blockIdx.y) * tiling.channels + first_channel + c] =
        epilogue.partial(total, shifts[c], pixels);
  }
}

}  // namespace arbalest::cuda

#undef ARBALEST_ASM
