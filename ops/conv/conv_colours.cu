// SPDX-License-Identifier: Apache-2.0
#include "ops/conv/conv_colours.h"

#include "ops/cuda/cuda_math.cuh"
#include "ops/cuda/matrix_unit.cuh"

namespace arbalest {

using namespace cuda;

namespace {

using Kind = ConvolutionProblem::Kind;

constexpr int kColours = 3, kRowNumbers = 3 * kColours;  // of a row of taps
constexpr int kTileRows = 8, kTileColumns = 32;          // pixels of a tile: a warp makes a row of it
constexpr int kMade = 64;                                // channels of the result that a block makes
constexpr int kSlots = 10;                               // that a row of taps takes of the 32 that are summed over
constexpr int kPitch = 104;                              // elements of a row in shared memory, an even number
constexpr int kHeld = (kTileRows + 2) * kPitch;          // elements of the image
constexpr int kEach = (kHeld + kThreads - 1) / kThreads;

static_assert(kThreads == kTileRows * 32);
static_assert(kPitch > (kTileColumns + 2) * kColours);

struct ColoursShape {
  int images = 0, height = 0, width = 0, made = 0;
  int across = 0, down = 0;  // tiles of an image

  __host__ __device__ int64_t tiles() const { return int64_t{images} * across * down; }
};

struct TilePlace {
  int64_t image;
  int row, column;  // of its first pixel

  __device__ TilePlace(const ColoursShape& s, int64_t tile) {
    const int64_t band = tile / s.across;
    image = band / s.down;
    row = int(band - image * s.down) * kTileRows;
    column = int(tile - band * s.across) * kTileColumns;
  }
};

// Words of four lanes that hold a row each of a 4 × 4 matrix become its columns.
__device__ inline void transpose(uint32_t (&word)[4]) {
  const int lane = int(threadIdx.x) % 4;
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    const bool upper = (lane & step) != 0;
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const int low = step == 1 ? 2 * pair : pair, high = low + step;
      const uint32_t other = __shfl_xor_sync(0xffffffffu, upper ? word[low] : word[high], step);
      if (upper) {
        word[low] = other;
      } else {
        word[high] = other;
      }
    }
  }
}

// block.x: kMade channels of the result. Images are (N,H,W,3), the filter is (K,3,3,3). Slot r · 10 + s of what is
// summed over is number s of row r of the taps, or nothing if s is 9, as slots 30 and 31 are.
template <bool kRelu>
__global__ void __launch_bounds__(kThreads, 2)
    colours_kernel(const __grid_constant__ ColoursShape shape, const __nv_bfloat16* images, const __nv_bfloat16* filter,
                   const float* bias, __nv_bfloat16* y) {
  // The second copy begins an element later: a pair of neighbours is a word of either.
  __shared__ __align__(4) __nv_bfloat16 held[2][kHeld];
  __shared__ __align__(8) float biases[kMade];
  const int lane = int(threadIdx.x) % 32, row = int(threadIdx.x) / 32, group = lane / 4, quarter = lane % 4;
  const int first_made = int(blockIdx.x) * kMade;
  const __nv_bfloat16 zero = __float2bfloat16(0.0f);
  wait_for_dependencies();
  if (threadIdx.x < kMade) {
    const int channel = first_made + int(threadIdx.x);
    biases[threadIdx.x] = bias != nullptr && channel < shape.made ? bias[channel] : 0.0f;
  }

  // Pairs of slots that this lane holds, and where these are from a pixel's first number.
  int pairs[4];
  bool half[4], none[4];  // only the first of the pair is there; neither is
  uint32_t weights[kMade / 8][4];
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const int slot = q * 8 + quarter * 2, taps = slot / kSlots, number = slot % kSlots;
    none[q] = slot >= 3 * kSlots;
    half[q] = number == kRowNumbers - 1;
    pairs[q] = none[q] ? 0 : taps * kPitch + number;
#pragma unroll
    for (int made = 0; made < kMade / 8; ++made) {
      const int channel = first_made + made * 8 + group;
      const bool there = !none[q] && channel < shape.made;
      const __nv_bfloat16* from = filter + int64_t{channel} * 27 + taps * kRowNumbers + number;
      const __nv_bfloat162 both = {there ? from[0] : zero, there && !half[q] ? from[1] : zero};
      weights[made][q] = reinterpret_cast<const uint32_t&>(both);
    }
  }

  __nv_bfloat16 next[kEach];
  const auto fetch = [&](int64_t tile) {
    const TilePlace place(shape, tile);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = i * kThreads + int(threadIdx.x), number = at % kPitch;
      const int from_row = place.row - 1 + at / kPitch, from_column = place.column - 1 + number / kColours;
      const bool inside =
          at < kHeld && from_row >= 0 && from_row < shape.height && from_column >= 0 && from_column < shape.width;
      const int64_t pixel = (place.image * shape.height + from_row) * shape.width + from_column;
      next[i] = inside ? images[pixel * kColours + number % kColours] : zero;
    }
  };
  const int64_t tiles = shape.tiles();
  fetch(blockIdx.y);
  for (int64_t tile = blockIdx.y; tile < tiles; tile += gridDim.y) {
    __syncthreads();  // the tile before has been read
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = i * kThreads + int(threadIdx.x);
      if (at < kHeld) held[0][at] = next[i];
      if (at < kHeld && at > 0) held[1][at - 1] = next[i];
    }
    __syncthreads();
    if (tile + gridDim.y < tiles) fetch(tile + gridDim.y);

    const TilePlace place(shape, tile);
    const int to_row = place.row + row;
    const int64_t row_pixel = (place.image * shape.height + to_row) * shape.width;
#pragma unroll 1
    for (int from = 0; from < kTileColumns; from += 16) {
      float sum[kMade / 8][4];
#pragma unroll
      for (int made = 0; made < kMade / 8; ++made) {
        const float2 start = *reinterpret_cast<const float2*>(biases + made * 8 + quarter * 2);
        sum[made][0] = sum[made][2] = start.x;
        sum[made][1] = sum[made][3] = start.y;
      }
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        uint32_t a[4];  // pixels group and group + 8, of the step's first pairs and of its second
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int q = step * 2 + i / 2, pixel = from + group + i % 2 * 8, odd = pixel & 1;
          const int at = row * kPitch + pixel * kColours + pairs[q] - odd;
          const uint32_t word = *reinterpret_cast<const uint32_t*>(&held[odd][at]);
          a[i] = none[q] ? 0 : half[q] ? word & 0xffffu : word;
        }
#pragma unroll
        for (int made = 0; made < kMade / 8; ++made) {
          multiply(sum[made], a, weights[made][step * 2], weights[made][step * 2 + 1]);
        }
      }
      // Eight channels of a pixel for each lane: of pixel group, then of group + 8, from each half of the channels.
#pragma unroll
      for (int half_tile = 0; half_tile < 2; ++half_tile) {
        const int column = place.column + from + group + half_tile * 8;
#pragma unroll
        for (int part = 0; part < kMade / 32; ++part) {
          uint32_t word[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            float even = sum[part * 4 + i][half_tile * 2], odd = sum[part * 4 + i][half_tile * 2 + 1];
            if (kRelu) even = even < 0 ? 0.0f : even, odd = odd < 0 ? 0.0f : odd;  // NaN stays NaN
            const __nv_bfloat162 both = __floats2bfloat162_rn(even, odd);
            word[i] = reinterpret_cast<const uint32_t&>(both);
          }
          transpose(word);
          const int channel = first_made + part * 32 + quarter * 8;
          if (to_row < shape.height && column < shape.width && channel < shape.made) {
            *reinterpret_cast<uint4*>(y + (row_pixel + column) * shape.made + channel) =
                make_uint4(word[0], word[1], word[2], word[3]);
          }
        }
      }
    }
  }
}

bool takes_colours(const DeviceModel& device, const ConvolutionProblem& p) {
  return device.architecture >= 80 && (p.kind == Kind::Forward || p.kind == Kind::ForwardBias) &&
         p.type == DataType::Bfloat16 && p.output_type == DataType::Bfloat16 && p.x.size() == 4 && p.x[1] == kColours &&
         p.w == Shape{p.y[1], kColours, 3, 3} && all_are(p.stride, 1) && all_are(p.dilation, 1) &&
         all_are(p.pad_begin, 1) && all_are(p.pad_end, 1) && p.y[1] % 8 == 0 && element_count(p.y) > 0 &&
         std::max(p.x[0], std::max(p.x[2], p.x[3])) <= INT32_MAX / 64 && p.y[1] <= 65536;
}

void run_colours(const ConvolutionProblem& problem, const ConvolutionCall& call) {
  constexpr int kBlocks = 2;  // of a multiprocessor
  const auto part = [](int64_t all, int of) { return int((all + of - 1) / of); };
  const ColoursShape shape{int(problem.x[0]),
                           int(problem.x[2]),
                           int(problem.x[3]),
                           int(problem.y[1]),
                           part(problem.x[3], kTileColumns),
                           part(problem.x[2], kTileRows)};
  const dim3 grid(unsigned(part(shape.made, kMade)),
                  unsigned(std::min<int64_t>(shape.tiles(), int64_t{kBlocks} * call.multiprocessors)));
  const auto kernel = problem.relu ? colours_kernel<true> : colours_kernel<false>;
  launch_dependent(kernel, grid, kThreads, 0, call.stream, shape, static_cast<const __nv_bfloat16*>(call.a),
                   static_cast<const __nv_bfloat16*>(call.b), call.bias, static_cast<__nv_bfloat16*>(call.result));
  check_launch("convolution of colours");
}

}  // namespace

constexpr ConvolutionEngine kColoursEngine = {
    .name = "colours",
    .revision = "colours 1",
    .adds = ConvolutionEngine::Adds::BiasAndRelu,
    .accepts = takes_colours,
    .is_faster = [](const DeviceModel&, const ConvolutionProblem& problem) { return problem.y[1] == 64; },
    .run = run_colours};

}  // namespace arbalest
