#pragma once
// Kernels of conv_thin.h. Filter and image are copied to shared memory once, and matrix units multiply straight from
// there, tap by tap: 16 neighbouring pixels are the rows of one operand, channels the columns of the other. Images are
// bfloat16 (N,H,W,C), filters (K,3,3,C).

#include "ops/cuda/cuda_math.cuh"

// Instructions that older devices lack; there these kernels are never run.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define ARBALEST_ASM(...) __trap()
#else
#define ARBALEST_ASM(...) asm volatile(__VA_ARGS__)
#endif

namespace arbalest::cuda {

// A tile is `rows` whole rows of an image; a block takes `tiles_per_block` tiles that follow each other.
struct ThinTiling {
  int height = 0, width = 0;
  int rows = 0;   // of a tile
  int tiles = 0;  // of all images
  int tiles_per_image = 0, tiles_per_block = 0;
  int blocks = 0;
};

__device__ inline uint32_t shared_address(const void* p) {
  return uint32_t(__cvta_generic_to_shared(p));
}

// 16 bytes from global to shared memory, in the background; zeros where not `there`.
__device__ inline void copy_async(void* to, const void* from, bool there) {
  const int bytes = there ? 16 : 0;
  ARBALEST_ASM("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes));
}
__device__ inline void commit_copies() {
  ARBALEST_ASM("cp.async.commit_group;");
}
template <int Pending>
__device__ inline void wait_for_copies() {
  ARBALEST_ASM("cp.async.wait_group %0;" ::"n"(Pending));
}

// Four 8 × 8 matrices; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void load_matrices(uint32_t (&r)[4], uint32_t address) {
  ARBALEST_ASM("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
__device__ inline void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
  ARBALEST_ASM("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
// (16 × 16) · (16 × 8)
__device__ inline void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

inline constexpr int kThinSkew =
    8;  // elements after each pixel's or filter's channels: rows of matrices lie in other banks

// Images in shared memory have a column of zeros at either side, and a row of the image or of zeros above and below.
template <int C>
constexpr int thin_image_bytes(int rows, int width) {
  return (rows + 2) * (width + 2) * (C + kThinSkew) * 2;
}

// The columns at either side, once.
template <int C>
__device__ void clear_sides(const ThinTiling& tiling, __nv_bfloat16* image) {
  constexpr int kChunks = C / 8;
  const int count = (tiling.rows + 2) * 2 * kChunks;
  for (int i = int(threadIdx.x); i < count; i += int(blockDim.x)) {
    const int chunk = i % kChunks, side = i / kChunks % 2, row = i / kChunks / 2;
    const int pixel = row * (tiling.width + 2) + side * (tiling.width + 1);
    *reinterpret_cast<uint4*>(image + pixel * (C + kThinSkew) + chunk * 8) = uint4{0, 0, 0, 0};
  }
}

// A thread's share of the 16-byte chunks of a tile's rows, which follow each other in memory.
struct RowWalk {
  int row, chunk, row_step, chunk_step, row_chunks;
  __device__ explicit RowWalk(int chunks_of_row) : row_chunks(chunks_of_row) {
    row = int(threadIdx.x) / row_chunks;
    chunk = int(threadIdx.x) % row_chunks;
    row_step = int(blockDim.x) / row_chunks;
    chunk_step = int(blockDim.x) % row_chunks;
  }
};

// Begins to copy the tile with the rows above and below.
template <int C>
__device__ void copy_image(const ThinTiling& tiling, RowWalk walk, int tile, const __nv_bfloat16* x,
                           __nv_bfloat16* image) {
  constexpr int kChunks = C / 8;
  const int image_index = tile / tiling.tiles_per_image;
  const int first = (tile - image_index * tiling.tiles_per_image) * tiling.rows - 1;
  const __nv_bfloat16* from =
      x + (int64_t(image_index) * tiling.height + first) * tiling.width * C + int(threadIdx.x) * 8;
  while (walk.row < tiling.rows + 2) {
    const int pixel = walk.row * (tiling.width + 2) + 1 + walk.chunk / kChunks;
    const bool there = unsigned(first + walk.row) < unsigned(tiling.height);
    copy_async(image + pixel * (C + kThinSkew) + walk.chunk % kChunks * 8, there ? from : x, there);
    from += blockDim.x * 8;
    walk.row += walk.row_step;
    walk.chunk += walk.chunk_step;
    if (walk.chunk >= walk.row_chunks) {
      walk.chunk -= walk.row_chunks;
      ++walk.row;
    }
  }
}

__device__ inline int valid_pixels(const ThinTiling& tiling, int tile) {
  const int first = tile % tiling.tiles_per_image * tiling.rows;
  return min(tiling.rows, tiling.height - first) * tiling.width;
}

// Of the tile's first pixel in the tensor of all images.
__device__ inline int64_t first_pixel(const ThinTiling& tiling, int tile) {
  return (int64_t(tile / tiling.tiles_per_image) * tiling.height +
          int64_t(tile % tiling.tiles_per_image) * tiling.rows) *
         tiling.width;
}

// Columns of a product lie so in shared memory that a lane's results, two of each 8, are neighbouring channels:
// lane t of four holds channels t · 2J … (t + 1) · 2J − 1 of 8J.
template <int J>
__device__ inline int thin_column(int channel) {
  const int group = channel / (8 * J), t = channel % (8 * J) / (2 * J), rest = channel % (2 * J);
  return group * 8 * J + rest / 2 * 8 + 2 * t + rest % 2;
}

// What becomes of a product: nothing more.
struct ThinPlain {
  template <int J>
  struct State {
    __device__ State(const ThinPlain&, int, int) {}
    __device__ void add(const ThinPlain&, int64_t, float (&)[2 * J]) {}
    template <int Along, int Across>
    __device__ void finish(const ThinPlain&, int, void*) {}
  };
};

// A mean and a sum of squared deviations from it, of `count` values.
struct Spread {
  float mean, squares;
};
__device__ inline Spread together(Spread a, float a_count, Spread b, float b_count) {
  const float count = a_count + b_count, apart = b.mean - a.mean;
  const float share = count > 0 ? b_count / count : 0.0f;
  return {a.mean + apart * share, a.squares + b.squares + apart * apart * a_count * share};
}

// Of what is stored, by channel and block: its mean and its sum of squared deviations from that mean.
struct ThinStatistics {
  float2* partials;  // (blocks, channels)

  template <int J>
  struct State {
    float first[2 * J], sums[2 * J] = {}, squares[2 * J] = {};
    int count = 0, first_channel, channels;
    __device__ State(const ThinStatistics&, int channel, int all) : first_channel(channel), channels(all) {}
    __device__ void add(const ThinStatistics&, int64_t, float (&value)[2 * J]) {
#pragma unroll
      for (int c = 0; c < 2 * J; ++c) {
        const float v = widen(narrow<__nv_bfloat16>(value[c]));
        if (count == 0) first[c] = v;
        sums[c] += v - first[c];
        squares[c] += (v - first[c]) * (v - first[c]);
      }
      ++count;
    }
    // `scratch`: shared memory that all threads are done with.
    template <int Along, int Across>
    __device__ void finish(const ThinStatistics& to, int first_of_block, void* scratch) {
      constexpr int kOut = 8 * J * Across;
      auto* spreads = static_cast<Spread*>(scratch);                    // (Along, kOut)
      auto* counts = reinterpret_cast<float*>(spreads + Along * kOut);  // (Along)
      const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
      Spread spread[2 * J];
      float number = float(count);
#pragma unroll
      for (int c = 0; c < 2 * J; ++c) {
        const float shift = count > 0 ? sums[c] / number : 0.0f;
        spread[c] = {count > 0 ? first[c] + shift : 0.0f, fmaxf(squares[c] - sums[c] * shift, 0.0f)};
      }
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2) {
        const float other_number = __shfl_xor_sync(0xffffffffu, number, offset);
#pragma unroll
        for (int c = 0; c < 2 * J; ++c) {
          const Spread other = {__shfl_xor_sync(0xffffffffu, spread[c].mean, offset),
                                __shfl_xor_sync(0xffffffffu, spread[c].squares, offset)};
          spread[c] = together(spread[c], number, other, other_number);
        }
        number += other_number;
      }
      if (lane < 4) {
#pragma unroll
        for (int c = 0; c < 2 * J; ++c) {
          spreads[warp / Across * kOut + (warp % Across * 4 + lane) * 2 * J + c] = spread[c];
        }
        if (lane == 0 && warp % Across == 0) counts[warp / Across] = number;
      }
      __syncthreads();
      for (int c = int(threadIdx.x); c < kOut; c += int(blockDim.x)) {
        Spread total = spreads[c];
        float total_count = counts[0];
        for (int along = 1; along < Along; ++along) {
          total = together(total, total_count, spreads[along * kOut + c], counts[along]);
          total_count += counts[along];
        }
        to.partials[int64_t(blockIdx.x) * channels + first_of_block + c] = make_float2(total.mean, total.squares);
      }
    }
  };
};

// y = x ∗ w, channels of Y from block.y · Out on; Transposed: dX of the convolution with the filter w, from dY.
// Across of the warps share the channels, Along the tile's pixels, M · 16 each. Dynamic shared memory: the filter, then
// one image, or two where a block has several tiles.
template <int C, int Out, int M, int Along, int Across, bool Transposed, typename Epilogue>
__global__ void __launch_bounds__(32 * Along * Across)
    thin_convolution_kernel(ThinTiling tiling, const __nv_bfloat16* x, const __nv_bfloat16* w, __nv_bfloat16* y,
                            Epilogue epilogue) {
  constexpr int J = Out / 8 / Across, kSteps = C / 16, kTaps = 9;
  constexpr int kFilterRow = Transposed ? Out + kThinSkew : C + kThinSkew;
  constexpr int kFilterRows = Transposed ? C : Out;
  extern __shared__ __align__(16) unsigned char thin_memory[];
  auto* filter = reinterpret_cast<__nv_bfloat16*>(thin_memory);
  auto* images = filter + kTaps * kFilterRows * kFilterRow;
  const int image_elements = (tiling.rows + 2) * (tiling.width + 2) * (C + kThinSkew);
  const int thread = int(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int across = warp % Across, along = warp / Across;
  const int first_tile = int(blockIdx.x) * tiling.tiles_per_block;
  const int last_tile = min(first_tile + tiling.tiles_per_block, tiling.tiles);
  const int first_channel = int(blockIdx.y) * Out;
  const RowWalk walk(tiling.width * (C / 8));

  copy_image<C>(tiling, walk, first_tile, x, images);
  if constexpr (Transposed) {
    constexpr int kChunks = Out / 8;
    for (int i = thread; i < C * kTaps * kChunks; i += int(blockDim.x)) {
      const int chunk = i % kChunks, tap = i / kChunks % kTaps, k = i / kChunks / kTaps;
      const Pack<__nv_bfloat16, 8> pack = load<8>(w + (int64_t(k) * kTaps + tap) * C + first_channel + chunk * 8);
      __nv_bfloat16* row = filter + ((kTaps - 1 - tap) * C + k) * kFilterRow;
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        *reinterpret_cast<uint32_t*>(row + thin_column<J>(chunk * 8 + pair * 2)) =
            reinterpret_cast<const uint32_t*>(&pack)[pair];
      }
    }
  } else {
    constexpr int kChunks = C / 8;
    for (int i = thread; i < Out * kTaps * kChunks; i += int(blockDim.x)) {
      const int chunk = i % kChunks, tap = i / kChunks % kTaps, k = i / kChunks / kTaps;
      copy_async(filter + (tap * Out + thin_column<J>(k)) * kFilterRow + chunk * 8,
                 w + (int64_t(first_channel + k) * kTaps + tap) * C + chunk * 8, true);
    }
  }
  commit_copies();
  clear_sides<C>(tiling, images);
  if (tiling.tiles_per_block > 1) clear_sides<C>(tiling, images + image_elements);

  // Where a lane's rows of matrices lie in the image, at the first tap.
  uint32_t place[M];
#pragma unroll
  for (int m = 0; m < M; ++m) {
    const int pixel = min((along * M + m) * 16 + lane % 16, tiling.rows * tiling.width - 1);
    const int row = pixel / tiling.width, column = pixel % tiling.width;
    place[m] = uint32_t((row * (tiling.width + 2) + column) * (C + kThinSkew) + lane / 16 * 8) * 2;
  }
  const int matrix = lane / 8;
  const uint32_t filter_place =
      shared_address(filter) +
      2u * uint32_t(Transposed ? (matrix % 2 * 8 + lane % 8) * kFilterRow + across * J * 8 + matrix / 2 * 8
                               : (across * J * 8 + matrix / 2 * 8 + lane % 8) * kFilterRow + matrix % 2 * 8);
  const int channel = first_channel + (across * 4 + lane % 4) * 2 * J;  // the first of the lane's
  typename Epilogue::template State<J> state(epilogue, channel, C);

  for (int tile = first_tile; tile < last_tile; ++tile) {
    const int buffer = (tile - first_tile) % 2;
    if (tile + 1 < last_tile) copy_image<C>(tiling, walk, tile + 1, x, images + (1 - buffer) * image_elements);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    float sum[M][J][4] = {};
    const uint32_t image = shared_address(images + buffer * image_elements);
    const int pixels = valid_pixels(tiling, tile);
    if (along * M * 16 < pixels) {
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap) {
        const uint32_t shift = uint32_t((tap / 3 * (tiling.width + 2) + tap % 3) * (C + kThinSkew)) * 2;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          uint32_t a[M][4];
#pragma unroll
          for (int m = 0; m < M; ++m) load_matrices(a[m], image + place[m] + shift + step * 32);
#pragma unroll
          for (int j = 0; j < J; j += 2) {
            uint32_t b[4];
            if constexpr (Transposed) {
              load_matrices_transposed(b, filter_place + 2 * ((tap * C + step * 16) * kFilterRow + j * 8));
            } else {
              load_matrices(b, filter_place + 2 * ((tap * Out + j * 8) * kFilterRow + step * 16));
            }
#pragma unroll
            for (int m = 0; m < M; ++m) {
              multiply(sum[m][j], a[m], b[0], b[1]);
              multiply(sum[m][j + 1], a[m], b[2], b[3]);
            }
          }
        }
      }
    }
    const int64_t begin = first_pixel(tiling, tile);
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int pixel = (along * M + m) * 16 + half * 8 + lane / 4;
        if (pixel >= pixels) continue;
        float value[2 * J];
#pragma unroll
        for (int c = 0; c < 2 * J; ++c) value[c] = sum[m][c / 2][half * 2 + c % 2];
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
  state.template finish<Along, Across>(epilogue, first_channel, thin_memory);
}

template <int C, int Out, bool Transposed>
constexpr int thin_shared_bytes(const ThinTiling& tiling) {
  const int filter = Transposed ? 9 * C * (Out + kThinSkew) * 2 : 9 * Out * (C + kThinSkew) * 2;
  return filter + (tiling.tiles_per_block > 1 ? 2 : 1) * thin_image_bytes<C>(tiling.rows, tiling.width);
}

// Partial sums of dW: (blocks, C, 9, C), of each block's tiles. A warp has 16 channels of Y and 16 of X, at all taps,
// for its share of the pixels; block.y: which 16 · 16 of the channels, where there are more than warps.
// Dynamic shared memory: two images of X, two tiles of dY, later sums of the warps that share channels.
template <int C>
struct ThinGradient {
  static constexpr int kPairs = (C / 16) * (C / 16);  // of 16 channels each
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kPairsInBlock = kPairs < kWarps ? kPairs : kWarps;
  static constexpr int kShares = kWarps / kPairsInBlock;  // of a tile's pixels
  static constexpr int kBlocksY = kPairs / kPairsInBlock;
  static constexpr int gradient_bytes(int rows, int width) {
    return (rows * width + 15) / 16 * 16 * (C + kThinSkew) * 2;
  }
  static constexpr int shared_bytes(const ThinTiling& t) {
    const int tiles =
        (t.tiles_per_block > 1 ? 2 : 1) * (thin_image_bytes<C>(t.rows, t.width) + gradient_bytes(t.rows, t.width)) +
        (t.rows * t.width + 15) / 16 * 64;
    const int sums = (kShares - 1) * kPairsInBlock * 72 * 32 * 4;
    return tiles > sums ? tiles : sums;
  }
};

template <int C>
__global__ void __launch_bounds__(kThreads, 2)
    thin_gradient_kernel(ThinTiling tiling, const __nv_bfloat16* x, const __nv_bfloat16* dy, float* partials) {
  using Layout = ThinGradient<C>;
  constexpr int kTaps = 9;
  extern __shared__ __align__(16) unsigned char thin_memory[];
  const int image_elements = (tiling.rows + 2) * (tiling.width + 2) * (C + kThinSkew);
  const int tile_pixels = tiling.rows * tiling.width, padded_pixels = (tile_pixels + 15) / 16 * 16;
  const int gradient_elements = padded_pixels * (C + kThinSkew);
  auto* images = reinterpret_cast<__nv_bfloat16*>(thin_memory);
  const bool several = tiling.tiles_per_block > 1;
  auto* gradients = images + (several ? 2 : 1) * image_elements;
  auto* places = reinterpret_cast<uint32_t*>(gradients + (several ? 2 : 1) * gradient_elements);  // by pixel, bytes
  const int thread = int(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int pair = warp % Layout::kPairsInBlock + int(blockIdx.y) * Layout::kPairsInBlock;
  const int share = warp / Layout::kPairsInBlock;
  const int from_x = pair % (C / 16) * 16, from_y = pair / (C / 16) * 16;
  const int first_tile = int(blockIdx.x) * tiling.tiles_per_block;
  const int last_tile = min(first_tile + tiling.tiles_per_block, tiling.tiles);

  const RowWalk walk(tiling.width * (C / 8));
  const auto copy = [&](int tile, int buffer) {
    copy_image<C>(tiling, walk, tile, x, images + buffer * image_elements);
    constexpr int kChunks = C / 8;
    const int64_t begin = first_pixel(tiling, tile);
    const int pixels = valid_pixels(tiling, tile);
    __nv_bfloat16* to = gradients + buffer * gradient_elements;
    for (int i = thread; i < padded_pixels * kChunks; i += int(blockDim.x)) {
      const int pixel = i / kChunks, chunk = i % kChunks;
      const bool there = pixel < pixels;
      copy_async(to + pixel * (C + kThinSkew) + chunk * 8, dy + (there ? (begin + pixel) * C + chunk * 8 : 0), there);
    }
    commit_copies();
  };
  copy(first_tile, 0);
  for (int i = thread; i < padded_pixels; i += int(blockDim.x)) {
    const int pixel = min(i, tile_pixels - 1), row = pixel / tiling.width;
    places[i] = uint32_t((row * (tiling.width + 2) + pixel - row * tiling.width) * (C + kThinSkew)) * 2;
  }
  clear_sides<C>(tiling, images);
  if (several) clear_sides<C>(tiling, images + image_elements);

  float sum[kTaps][2][4] = {};
  const int matrix = lane / 8;
  const int x_pixel = matrix % 2 * 8 + lane % 8, y_pixel = matrix / 2 * 8 + lane % 8;
  for (int tile = first_tile; tile < last_tile; ++tile) {
    const int buffer = (tile - first_tile) % 2;
    if (tile + 1 < last_tile) {
      copy(tile + 1, 1 - buffer);
    } else {
      commit_copies();
    }
    wait_for_copies<1>();
    __syncthreads();
    const uint32_t image = shared_address(images + buffer * image_elements) + uint32_t(from_x + matrix / 2 * 8) * 2;
    const uint32_t gradient = shared_address(gradients + buffer * gradient_elements) +
                              uint32_t(y_pixel * (C + kThinSkew) + from_y + matrix % 2 * 8) * 2;
    for (int begin = share * 16; begin < padded_pixels; begin += Layout::kShares * 16) {
      const uint32_t place = image + places[begin + x_pixel];
      uint32_t a[4];
      load_matrices_transposed(a, gradient + uint32_t(begin * (C + kThinSkew)) * 2);
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap) {
        uint32_t b[4];
        load_matrices_transposed(b, place + uint32_t((tap / 3 * (tiling.width + 2) + tap % 3) * (C + kThinSkew)) * 2);
        multiply(sum[tap][0], a, b[0], b[1]);
        multiply(sum[tap][1], a, b[2], b[3]);
      }
    }
    __syncthreads();
  }

  // Shares of the same channels are added up in order.
  if constexpr (Layout::kShares > 1) {
    auto* sums = reinterpret_cast<float*>(thin_memory);
    const auto at = [&](int s, int i) {
      return (((s - 1) * Layout::kPairsInBlock + warp % Layout::kPairsInBlock) * 72 + i) * 32 + lane;
    };
    if (share > 0) {
#pragma unroll
      for (int i = 0; i < 72; ++i) sums[at(share, i)] = sum[i / 8][i / 4 % 2][i % 4];
    }
    __syncthreads();
    if (share == 0) {
#pragma unroll
      for (int i = 0; i < 72; ++i) {
        for (int s = 1; s < Layout::kShares; ++s) sum[i / 8][i / 4 % 2][i % 4] += sums[at(s, i)];
      }
    }
  }
  if (share > 0) return;
  float* out = partials + int64_t(blockIdx.x) * C * kTaps * C;
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int k = from_y + half * 8 + lane / 4, c = from_x + n * 8 + lane % 4 * 2;
        *reinterpret_cast<float2*>(out + (k * kTaps + tap) * C + c) =
            make_float2(sum[tap][n][half * 2], sum[tap][n][half * 2 + 1]);
      }
    }
  }
}

// Sums of partials (blocks, count), four neighbours by each of eight lanes, which share the blocks.
__global__ void __launch_bounds__(kThreads) thin_sum_kernel(int blocks, int count, const float* partials, float* out) {
  const int item = int(thread_index() / 8), part = int(threadIdx.x) % 8;
  float4 total = {0, 0, 0, 0};
  if (item < count / 4) {
#pragma unroll 4
    for (int block = part; block < blocks; block += 8) {
      const float4 more = *reinterpret_cast<const float4*>(partials + int64_t(block) * count + item * 4);
      total.x += more.x;
      total.y += more.y;
      total.z += more.z;
      total.w += more.w;
    }
  }
#pragma unroll
  for (int offset = 4; offset > 0; offset /= 2) {
    total.x += __shfl_xor_sync(0xffffffffu, total.x, offset);
    total.y += __shfl_xor_sync(0xffffffffu, total.y, offset);
    total.z += __shfl_xor_sync(0xffffffffu, total.z, offset);
    total.w += __shfl_xor_sync(0xffffffffu, total.w, offset);
  }
  if (item < count / 4 && part == 0) *reinterpret_cast<float4*>(out + item * 4) = total;
}

}  // namespace arbalest::cuda

#undef ARBALEST_ASM
