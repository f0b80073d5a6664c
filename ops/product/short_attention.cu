// SPDX-License-Identifier: Apache-2.0

// Windows of an image have some fifty rows, but thousands of windows have one bias. Engines for long sequences spend
// most of their time on the gradient of that bias. Here a block takes one head of many samples after each other. Each
// of its warps has 16 rows of scores in registers, and the gradient of their bias with them. Blocks are of four warps,
// or of one if there are no more than 16 rows.

#include "ops/product/short_attention.h"

#include <cfloat>

#include "ops/cuda/cuda_math.cuh"
#include "ops/cuda/matrix_unit.cuh"

namespace arbalest {

using namespace cuda;

namespace {

using Element = __nv_bfloat16;

constexpr int kFewShortRows = 16;  // a block holds so many rows, or kMostShortRows
constexpr int kMostShortDepth = 128;
template <int kRows>
constexpr int kBlock = kRows * 2;  // threads: a warp has 16 rows
template <int kRows>
constexpr int kTiles = kRows / 8;  // of eight keys, side by side
template <int kRows, int kFour>
constexpr int kResident = kFour* kMostShortRows / kRows;  // blocks of a multiprocessor: so many of four warps
constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

struct ShortExtents {
  int queries, keys, depth, heads;
  int64_t rounds;  // samples that have one bias, or all
  int period;      // samples until the same bias comes again
  HeadSteps q, k, v, y, bias;
  float scale;
};

// A warp's lane has these numbers of a tile of scores: rows `row` and `row` + 8, columns `column` and the next.
struct Lane {
  int id, first, row, column;  // first: row of the warp
  __device__ Lane()
      : id(int(threadIdx.x) % 32), first(int(threadIdx.x) / 32 * 16), row(first + id / 4), column(id % 4 * 2) {}
};

template <int kRows>
using Scores = float[kTiles<kRows>][4];

// Rows in shared memory, 16 bytes apart from a multiple of 128, so that matrices are read without conflicts.
template <int kRows, int kDepth>
struct ShortRows {
  static constexpr int kStride = kDepth + 8;
  Element element[kRows * kStride];

  __device__ Element* at(int row, int column) { return element + row * kStride + column; }

  // Fetches rows of global memory in the background in packs of W elements, with zeros past their ends.
  template <int W>
  __device__ void fetch(const Element* from, int64_t step, int rows, int depth) {
    for (int i = int(threadIdx.x); i < kRows * kDepth / W; i += kBlock<kRows>) {
      const int row = i / (kDepth / W), column = i % (kDepth / W) * W;
      const bool there = row < rows && column < depth;
      const Element* const own = there ? from + row * step + column : from;
      W == 8 ? copy_async(at(row, column), own, there) : copy_word_async(at(row, column), own, there);
    }
  }
  // Copies the warp's own rows to global memory.
  template <int W>
  __device__ void flush(const Lane& lane, Element* to, int64_t step, int rows, int depth) {
    __syncwarp();
    for (int i = lane.id; i < 16 * kDepth / W; i += 32) {
      const int row = lane.first + i / (kDepth / W), column = i % (kDepth / W) * W;
      if (row < rows && column < depth) store<W>(to + row * step + column, load<W>(at(row, column)));
    }
  }

  __device__ SharedMatrix matrix() { return {element, kStride}; }
};

__device__ inline uint32_t pair_of(float a, float b) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
  return reinterpret_cast<const uint32_t&>(pair);
}

// Sums over the four lanes of a row.
__device__ inline float row_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
__device__ inline float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

// The warp's 16 rows of a, times rows of b as columns.
template <int kRows, int kDepth>
__device__ inline void compare(Scores<kRows>& scores, const Lane& lane, ShortRows<kRows, kDepth>& a,
                               ShortRows<kRows, kDepth>& b, int keys) {
#pragma unroll
  for (int k = 0; k < kDepth; k += 16) {
    uint32_t left[4];
    a.matrix().left(left, lane.first, k);
#pragma unroll
    for (int tile = 0; tile < kTiles<kRows>; tile += 2) {
      if (tile * 8 >= keys) break;
      uint32_t right[4];
      b.matrix().right_turned(right, tile * 8, k);
      multiply(scores[tile], left, right[0], right[1]);
      multiply(scores[tile + 1], left, right[2], right[3]);
    }
  }
}

// out += the warp's 16 rows of weights, which lie in registers as bfloat16, times rows of b.
template <int kRows, int kDepth>
__device__ inline void combine(float (&out)[kDepth / 8][4], const uint32_t (&weights)[kRows / 8][2],
                               ShortRows<kRows, kDepth>& b, int keys) {
#pragma unroll
  for (int tile = 0; tile < kTiles<kRows>; tile += 2) {
    if (tile * 8 >= keys) break;
    const uint32_t left[4] = {weights[tile][0], weights[tile][1], weights[tile + 1][0], weights[tile + 1][1]};
#pragma unroll
    for (int column = 0; column < kDepth; column += 16) {
      uint32_t right[4];
      b.matrix().right(right, tile * 8, column);
      multiply(out[column / 8], left, right[0], right[1]);
      multiply(out[column / 8 + 1], left, right[2], right[3]);
    }
  }
}

// out += 16 columns of weights, from the warp's first, as rows, times rows of b.
template <int kRows, int kDepth>
__device__ inline void combine_turned(float (&out)[kDepth / 8][4], const Lane& lane, ShortRows<kRows, kRows>& weights,
                                      ShortRows<kRows, kDepth>& b, int queries) {
#pragma unroll
  for (int row = 0; row < kRows; row += 16) {
    if (row >= queries) break;
    uint32_t left[4];
    weights.matrix().left_turned(left, lane.first, row);
#pragma unroll
    for (int column = 0; column < kDepth; column += 16) {
      uint32_t right[4];
      b.matrix().right(right, row, column);
      multiply(out[column / 8], left, right[0], right[1]);
      multiply(out[column / 8 + 1], left, right[2], right[3]);
    }
  }
}

// Puts 16 rows of results in place of the warp's own rows.
template <int kRows, int kDepth>
__device__ inline void place(ShortRows<kRows, kDepth>& to, const Lane& lane, const float (&from)[kDepth / 8][4],
                             float factor, float factor_below) {
#pragma unroll
  for (int tile = 0; tile < kDepth / 8; ++tile) {
    const float* each = from[tile];
    *reinterpret_cast<uint32_t*>(to.at(lane.row, tile * 8 + lane.column)) = pair_of(each[0] * factor, each[1] * factor);
    *reinterpret_cast<uint32_t*>(to.at(lane.row + 8, tile * 8 + lane.column)) =
        pair_of(each[2] * factor_below, each[3] * factor_below);
  }
}

// The numbers that are added to the scores of a lane.
template <int kRows>
struct Bias {
  uint32_t pair[kTiles<kRows>][2];

  __device__ Bias(const ShortExtents& e, const Element* bias, const Lane& lane) : pair() {
    if (bias == nullptr) return;
#pragma unroll
    for (int tile = 0; tile < kTiles<kRows>; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = lane.row + i / 2 * 8, key = tile * 8 + lane.column + i % 2;
        if (row >= e.queries || key >= e.keys) continue;
        const auto bits = reinterpret_cast<const uint16_t*>(bias)[row * e.keys + key];
        pair[tile][i / 2] |= uint32_t(bits) << (i % 2 * 16);
      }
    }
  }
  __device__ float at(int tile, int i) const {
    return __uint_as_float(i % 2 == 0 ? pair[tile][i / 2] << 16 : pair[tile][i / 2] & 0xffff0000u);
  }
};

// Scores become logarithms to the base 2. Those of keys that are not there become minus infinity.
template <int kRows>
__device__ inline void add_bias(Scores<kRows>& scores, const ShortExtents& e, const Bias<kRows>& bias,
                                const Lane& lane) {
#pragma unroll
  for (int tile = 0; tile < kTiles<kRows>; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool there = tile * 8 + lane.column + i % 2 < e.keys;
      const float added = bias.at(tile, i), score = (scores[tile][i] * e.scale + added) * kLog2e;
      // A score is infinite only if its bias is: a row of the least numbers has equal weights.
      scores[tile][i] = !there ? -INFINITY : score < -FLT_MAX && added != -INFINITY ? -FLT_MAX : score;
    }
  }
}

// The weight of a score less the logarithm of the sum of all, which rounding may bring above 0.
__device__ inline float weight_of(float logarithm) {
  return exp2f(logarithm > 0 ? 0.0f : logarithm);
}

__device__ inline int64_t first_of(const HeadSteps& steps, int64_t sample, int64_t head) {
  return steps.first + sample * steps.sample + head * steps.head;
}

// block.x: a bias of a head; block.y: a share of the samples that have it.
struct Group {
  int turn, head;
  __device__ explicit Group(const ShortExtents& e) : turn(int(blockIdx.x) / e.heads), head(int(blockIdx.x) % e.heads) {}
};

template <int kRows, int kDepth, int W>
__global__ void __launch_bounds__(kBlock<kRows>, kResident<kRows, kDepth <= 64 ? 4 : 2>)
    short_attention_kernel(ShortExtents e, const Element* q, const Element* k, const Element* v, const Element* biases,
                           Element* y, float* statistics) {
  extern __shared__ __align__(16) unsigned char short_memory[];
  auto& [queries, keys, values] = *reinterpret_cast<ShortRows<kRows, kDepth>(*)[3]>(short_memory);
  const Lane lane;
  const Group group(e);
  wait_for_dependencies();
  const Bias<kRows> bias(e, biases ? biases + first_of(e.bias, group.turn, group.head) : nullptr, lane);
  for (int64_t round = blockIdx.y; round < e.rounds; round += gridDim.y) {
    const int64_t sample = round * e.period + group.turn;
    __syncthreads();  // what the round before reads is read
    queries.template fetch<W>(q + first_of(e.q, sample, group.head), e.q.row, e.queries, e.depth);
    keys.template fetch<W>(k + first_of(e.k, sample, group.head), e.k.row, e.keys, e.depth);
    values.template fetch<W>(v + first_of(e.v, sample, group.head), e.v.row, e.keys, e.depth);
    commit_copies();
    wait_for_copies<0>();
    __syncthreads();
    if (lane.first >= e.queries) continue;

    Scores<kRows> scores = {};
    compare(scores, lane, queries, keys, e.keys);
    add_bias(scores, e, bias, lane);
    float largest[2] = {-INFINITY, -INFINITY}, total[2] = {};
#pragma unroll
    for (int tile = 0; tile < kTiles<kRows>; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) largest[i / 2] = fmaxf(largest[i / 2], scores[tile][i]);
    }
    largest[0] = row_max(largest[0]);
    largest[1] = row_max(largest[1]);
    uint32_t weights[kTiles<kRows>][2];
#pragma unroll
    for (int tile = 0; tile < kTiles<kRows>; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[tile][i] = exp2f(scores[tile][i] - largest[i / 2]);
        total[i / 2] += scores[tile][i];
      }
      weights[tile][0] = pair_of(scores[tile][0], scores[tile][1]);
      weights[tile][1] = pair_of(scores[tile][2], scores[tile][3]);
    }
    total[0] = row_sum(total[0]);
    total[1] = row_sum(total[1]);
    float sums[kDepth / 8][4] = {};
    combine<kRows>(sums, weights, values, e.keys);
    place(queries, lane, sums, 1 / total[0], 1 / total[1]);
    queries.template flush<W>(lane, y + first_of(e.y, sample, group.head), e.y.row, e.queries, e.depth);
    if (statistics == nullptr || lane.id % 4 != 0) continue;
    float* of_rows = statistics + (sample * e.heads + group.head) * e.queries;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (lane.row + i * 8 < e.queries) of_rows[lane.row + i * 8] = (largest[i] + log2f(total[i])) * kLn2;
    }
  }
}

struct Gradients {
  Element *q, *k, *v;
  float* bias;  // a matrix of scores for each block; nullptr: not wanted
};

template <int kRows, int kDepth>
struct GradientTiles {
  ShortRows<kRows, kDepth> q, k, v, dy;
  ShortRows<kRows, kRows> weights, slopes;
  float means[kRows];
};

// The mean that Softmax's gradient takes off, for each of the warp's rows: the product of y and dy.
template <int W, int kRows, int kDepth>
__device__ inline void find_means(GradientTiles<kRows, kDepth>& tiles, const Lane& lane, const ShortExtents& e,
                                  const Element* y) {
  constexpr int kParts = kDepth / 8, kAtOnce = 32 / kParts;
#pragma unroll
  for (int each = 0; each < 16 / kAtOnce; ++each) {
    const int row = lane.first + each * kAtOnce + lane.id / kParts, column = lane.id % kParts * 8;
    float sum = 0;
    if (row < e.queries && column < e.depth) {
      const Element* const own = y + row * e.y.row + column;
      Pack<Element, 8> a = {};
      const Pack<Element, 8> b = load<8>(tiles.dy.at(row, column));
#pragma unroll
      for (int i = 0; i < 8; i += W) {
        if (column + i >= e.depth) continue;
        const Pack<Element, W> part = load<W>(own + i);
#pragma unroll
        for (int w = 0; w < W; ++w) a.element[i + w] = part.element[w];
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) sum += widen(a.element[i]) * widen(b.element[i]);
    }
#pragma unroll
    for (int offset = kParts / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (lane.id % kParts == 0) tiles.means[row] = sum;
  }
  __syncwarp();
}

template <int kRows, int kDepth, int W>
__global__ void __launch_bounds__(kBlock<kRows>, kResident<kRows, kDepth <= 64 ? 3 : 2>)
    short_attention_grad_kernel(ShortExtents e, const Element* q, const Element* k, const Element* v, const Element* y,
                                const float* statistics, const Element* dy, const Element* biases, Gradients d) {
  extern __shared__ __align__(16) unsigned char short_memory[];
  auto& tiles = *reinterpret_cast<GradientTiles<kRows, kDepth>*>(short_memory);
  const Lane lane;
  const Group group(e);
  wait_for_dependencies();
  const Bias<kRows> bias(e, biases ? biases + first_of(e.bias, group.turn, group.head) : nullptr, lane);
  Scores<kRows> of_bias = {};
  for (int64_t round = blockIdx.y; round < e.rounds; round += gridDim.y) {
    const int64_t sample = round * e.period + group.turn;
    __syncthreads();
    tiles.q.template fetch<W>(q + first_of(e.q, sample, group.head), e.q.row, e.queries, e.depth);
    tiles.k.template fetch<W>(k + first_of(e.k, sample, group.head), e.k.row, e.keys, e.depth);
    tiles.v.template fetch<W>(v + first_of(e.v, sample, group.head), e.v.row, e.keys, e.depth);
    tiles.dy.template fetch<W>(dy + first_of(e.y, sample, group.head), e.y.row, e.queries, e.depth);
    commit_copies();
    float sum[2];  // of the rows' weights, as logarithms
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = lane.row + i * 8;
      const float* of_rows = statistics + (sample * e.heads + group.head) * e.queries;
      sum[i] = row < e.queries ? of_rows[row] * kLog2e : 0;
    }
    wait_for_copies<0>();
    __syncthreads();
    const bool has_queries = lane.first < e.queries, has_keys = lane.first < e.keys;

    float dq[kDepth / 8][4] = {};
    if (has_queries) {
      find_means<W>(tiles, lane, e, y + first_of(e.y, sample, group.head));
      Scores<kRows> scores = {}, slopes = {};
      compare(scores, lane, tiles.q, tiles.k, e.keys);
      compare(slopes, lane, tiles.dy, tiles.v, e.keys);
      add_bias(scores, e, bias, lane);
      const float mean[2] = {tiles.means[lane.row], tiles.means[lane.row + 8]};
      uint32_t kept[kTiles<kRows>][2];
#pragma unroll
      for (int tile = 0; tile < kTiles<kRows>; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float weight = lane.row + i / 2 * 8 < e.queries ? weight_of(scores[tile][i] - sum[i / 2]) : 0.0f;
          scores[tile][i] = weight;
          slopes[tile][i] = weight * (slopes[tile][i] - mean[i / 2]);
          of_bias[tile][i] += slopes[tile][i];
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          kept[tile][i] = pair_of(slopes[tile][2 * i] * e.scale, slopes[tile][2 * i + 1] * e.scale);
          const int row = lane.row + i * 8, column = tile * 8 + lane.column;
          *reinterpret_cast<uint32_t*>(tiles.weights.at(row, column)) =
              pair_of(scores[tile][2 * i], scores[tile][2 * i + 1]);
          *reinterpret_cast<uint32_t*>(tiles.slopes.at(row, column)) = kept[tile][i];
        }
      }
      combine<kRows>(dq, kept, tiles.k, e.keys);
    }
    __syncthreads();
    float dk[kDepth / 8][4] = {}, dv[kDepth / 8][4] = {};
    if (has_keys) {
      combine_turned(dk, lane, tiles.slopes, tiles.q, e.queries);
      combine_turned(dv, lane, tiles.weights, tiles.dy, e.queries);
    }
    __syncthreads();  // rows are read: results take their place
    if (has_queries) {
      place(tiles.q, lane, dq, 1, 1);
      tiles.q.template flush<W>(lane, d.q + first_of(e.q, sample, group.head), e.q.row, e.queries, e.depth);
    }
    if (has_keys) {
      place(tiles.k, lane, dk, 1, 1);
      place(tiles.v, lane, dv, 1, 1);
      tiles.k.template flush<W>(lane, d.k + first_of(e.k, sample, group.head), e.k.row, e.keys, e.depth);
      tiles.v.template flush<W>(lane, d.v + first_of(e.v, sample, group.head), e.v.row, e.keys, e.depth);
    }
  }
  if (d.bias == nullptr) return;
  float* own = d.bias + (int64_t(blockIdx.x) * gridDim.y + blockIdx.y) * e.queries * e.keys;
#pragma unroll
  for (int tile = 0; tile < kTiles<kRows>; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = lane.row + i / 2 * 8, key = tile * 8 + lane.column + i % 2;
      if (row < e.queries && key < e.keys) own[row * e.keys + key] = of_bias[tile][i];
    }
  }
}

// out (matrices, scores) = Σ over parts of partials (matrices, parts, scores). block.x: a matrix, block.y: 32 scores.
constexpr int kSumRows = 16;
__global__ void __launch_bounds__(32 * kSumRows)
    sum_bias_kernel(int scores, int parts, const float* partials, Element* out) {
  __shared__ float sums[kSumRows][32];
  wait_for_dependencies();
  const int column = int(threadIdx.x) % 32, row = int(threadIdx.x) / 32, score = int(blockIdx.y) * 32 + column;
  const float* from = partials + int64_t(blockIdx.x) * parts * scores;
  float sum = 0;
  if (score < scores) {
#pragma unroll 4
    for (int part = row; part < parts; part += kSumRows) sum += from[int64_t(part) * scores + score];
  }
  sums[row][column] = sum;
  __syncthreads();
  if (row > 0 || score >= scores) return;
#pragma unroll
  for (int i = 1; i < kSumRows; ++i) sum += sums[i][column];
  out[int64_t(blockIdx.x) * scores + score] = narrow<Element>(sum);
}

// Whether all rows, and what they begin with, come in packs of so many elements.
bool comes_in_packs(const AttentionProblem& p, int64_t width) {
  int64_t all = p.depth;
  for (const HeadSteps& steps : {p.q, p.k, p.v, p.y}) all |= steps.sample | steps.head | steps.row | steps.first;
  return all % width == 0;
}

ShortExtents short_extents(const AttentionProblem& p) {
  const int64_t period = p.biased() ? p.bias_samples : 1;
  return {int(p.queries), int(p.keys),   int(p.depth), int(p.heads), p.samples / period,
          int(period),    p.q,           p.k,          p.v,          p.y,
          p.bias,         float(p.scale)};
}

// `blocks_each`: about how many blocks there are for each multiprocessor.
dim3 grid_of(const ShortExtents& e, int multiprocessors, int blocks_each) {
  const int64_t groups = int64_t(e.period) * e.heads;
  const int64_t chunks = (int64_t(multiprocessors) * blocks_each + groups - 1) / groups;
  return dim3(unsigned(groups), unsigned(std::clamp<int64_t>(chunks, 1, std::min<int64_t>(e.rounds, 65535))));
}

// function(rows, depth, pack), integral constants: the least block, and the least depth of tiles, that hold the
// problem, and elements that are read at once.
template <typename Function>
auto with_extents(const AttentionProblem& p, Function function) {
  const auto with_depth = [&](auto rows) {
    const std::integral_constant<int, 8> wide;
    const std::integral_constant<int, 16> least;
    const std::integral_constant<int, kMostPairs> pairs;
    if (!comes_in_packs(p, wide)) {
      const std::integral_constant<int, 2> narrow;
      return p.depth <= least ? function(rows, least, narrow) : function(rows, pairs, narrow);
    }
    if (p.depth <= least) return function(rows, least, wide);
    if (p.depth <= 32) return function(rows, std::integral_constant<int, 32>{}, wide);
    if (p.depth <= 64) return function(rows, std::integral_constant<int, 64>{}, wide);
    return function(rows, std::integral_constant<int, kMostShortDepth>{}, wide);
  };
  if (std::max(p.queries, p.keys) <= kFewShortRows) return with_depth(std::integral_constant<int, kFewShortRows>{});
  return with_depth(std::integral_constant<int, kMostShortRows>{});
}

}  // namespace

bool takes_short_attention(const KernelRequest& request, const AttentionProblem& p) {
  const bool empty = p.samples * p.heads * p.queries * p.keys * p.depth == 0;
  const bool fits = p.queries <= kMostShortRows && p.keys <= kMostShortRows && p.depth <= kMostShortDepth;
  return request.inputs[0].dtype == DataType::Bfloat16 && !empty && fits &&
         comes_in_packs(p, p.depth <= kMostPairs ? 2 : 8);
}

std::unique_ptr<Kernel> short_attention(const KernelRequest& request, const AttentionProblem& p) {
  using Out = AttentionOutput;
  const ShortExtents e = short_extents(p);
  return with_extents(p, [&](auto rows, auto depth, auto pack) {
    const dim3 grid = grid_of(e, multiprocessors_of(request), 32 * (kMostShortRows / rows()));
    const auto kernel = short_attention_kernel<rows(), depth(), pack()>;
    constexpr int kShared = int(3 * sizeof(ShortRows<rows(), depth()>));
    allow_shared(kernel, kShared);
    return make_kernel([=, at = p.at, biased = p.biased(),
                        stored = request.has_output(Out::Statistics)](const KernelContext& c) {
      launch_dependent(kernel, grid, kBlock<rows()>, kShared, stream_of(c), e, input<Element>(c, 0),
                       input<Element>(c, at.k), input<Element>(c, at.v), biased ? input<Element>(c, at.bias) : nullptr,
                       output<Element>(c, Out::Y), stored ? output<float>(c, Out::Statistics) : nullptr);
      check_launch("attention of few rows");
    });
  });
}

std::unique_ptr<Kernel> short_attention_grad(const KernelRequest& request, const AttentionProblem& p) {
  const ShortExtents e = short_extents(p);
  const int warps = std::max(p.queries, p.keys) <= kFewShortRows ? 1 : kMostShortRows / 16;
  const dim3 grid = grid_of(e, multiprocessors_of(request), 32 / warps);
  const bool of_bias = request.has_output(p.at.dbias);
  const int scores = e.queries * e.keys, matrices = int(p.bias_samples * p.bias_heads);
  const int64_t partials = int64_t(grid.x) * grid.y;
  return with_extents(p, [&](auto rows, auto depth, auto pack) {
    const auto kernel = short_attention_grad_kernel<rows(), depth(), pack()>;
    constexpr int kShared = int(sizeof(GradientTiles<rows(), depth()>));
    allow_shared(kernel, kShared);
    return make_kernel(
        [=, at = p.at, biased = p.biased()](const KernelContext& c) {
          float* const own = of_bias ? static_cast<float*>(c.workspace) : nullptr;
          const Gradients d{output<Element>(c, 0), output<Element>(c, at.k), output<Element>(c, at.v), own};
          launch_dependent(kernel, grid, kBlock<rows()>, kShared, stream_of(c), e, input<Element>(c, 0),
                           input<Element>(c, at.k), input<Element>(c, at.v), input<Element>(c, at.y),
                           input<float>(c, at.statistics), input<Element>(c, at.dy),
                           biased ? input<Element>(c, at.bias) : nullptr, d);
          check_launch("gradient of attention of few rows");
          if (!of_bias) return;
          launch_dependent(sum_bias_kernel, dim3(unsigned(matrices), unsigned((scores + 31) / 32)), 32 * kSumRows, 0,
                           stream_of(c), scores, int(partials / matrices), own, output<Element>(c, at.dbias));
          check_launch("gradient of attention's bias");
        },
        of_bias ? partials * scores * int64_t(sizeof(float)) : 0);
  });
}

}  // namespace arbalest
