// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of Resize, Upsample and their gradients. Each element of the result gathers its terms in a fixed order,
// from tables that are made on the host:
// - a thread a pack of elements, if the innermost axis stays as it is (channels-last);
// - a block a few rows, if the innermost axis changes or is short: sums of source rows first, then their columns;
// - a block a few packs, if few elements have very many terms, which its threads share.

#include <algorithm>
#include <optional>

#include "ops/cuda/cuda_math.cuh"
#include "ops/cuda/upload.h"
#include "ops/math/divisor.h"
#include "ops/shape/resize.h"

namespace arbalest {

using namespace cuda;

namespace {

struct alignas(16) Term {
  int64_t offset;  // in elements of the source
  float weight;
};

// AxisTerms in device memory: those of place i are term[start[i]] to term[start[i + 1] − 1].
struct Lists {
  const int* start;
  const Term* term;
};

struct Extent {
  int64_t extent = 1;
  Divisor of_extent;

  explicit Extent(int64_t places) : extent(places), of_extent(places) {}
  // The place along this axis, the innermost of `index`, which keeps the others. `small`: it is below 2³¹.
  __device__ int64_t take(int64_t& index, bool small) const {
    const int64_t rest = small ? int64_t(of_extent.quotient(int(index))) : index / extent;
    const int64_t place = index - rest * extent;
    index = rest;
    return place;
  }
};

// RowResampling in device memory, with packs of elements along the innermost axis.
struct Walk {
  Lists row, column;
  Extent rows, columns, inner;  // inner: in packs
  int64_t outer_stride, inner_stride;
  int64_t count;  // packs of the result
  bool small;     // count is below 2³¹
  float outside;  // value of an element without terms
};

// The walk in packs of more elements, which the innermost axis is a multiple of.
Walk in_packs(Walk walk, int width) {
  walk.inner = Extent(walk.inner.extent / width);
  walk.inner_stride *= width;
  walk.count /= width;
  walk.small = walk.count < int64_t{1} << 31;
  return walk;
}

// sums += weight · x
template <int W, typename T>
__device__ inline void add(float (&sums)[W], const T* x, float weight) {
  const Pack<T, W> pack = load<W>(x);
#pragma unroll
  for (int w = 0; w < W; ++w) sums[w] += weight * widen(pack.element[w]);
}

template <int W, typename T>
__device__ inline void put(T* y, const float (&sums)[W]) {
  Pack<T, W> pack;
#pragma unroll
  for (int w = 0; w < W; ++w) pack.element[w] = narrow<T>(sums[w]);
  store(y, pack);
}

// The terms of one pack of the result.
struct PackTerms {
  const Term *row, *column;
  int rows, columns;
  int64_t base;  // in the source

  __device__ PackTerms(const Walk& walk, int64_t index) {
    const int64_t inner = walk.inner.take(index, walk.small);
    const int64_t c = walk.columns.take(index, walk.small), r = walk.rows.take(index, walk.small);
    const int first_row = walk.row.start[r], first_column = walk.column.start[c];
    rows = walk.row.start[r + 1] - first_row;
    columns = walk.column.start[c + 1] - first_column;
    row = walk.row.term + first_row;
    column = walk.column.term + first_column;
    base = index * walk.outer_stride + inner * walk.inner_stride;
  }
  __device__ bool none() const { return rows == 0 || columns == 0; }
};

template <int W, typename T>
__global__ void __launch_bounds__(kThreads) gather_kernel(Walk walk, const T* x, T* y) {
  wait_for_dependencies();
  for (int64_t i = thread_index(); i < walk.count; i += thread_count()) {
    const PackTerms terms(walk, i);
    float sums[W];
#pragma unroll
    for (int w = 0; w < W; ++w) sums[w] = terms.none() ? walk.outside : 0.0f;
    for (int r = 0; r < terms.rows; ++r) {
      const Term row = terms.row[r];
      const T* from = x + terms.base + row.offset;
#pragma unroll 2
      for (int c = 0; c < terms.columns; ++c) {
        const Term column = terms.column[c];
        add(sums, from + column.offset, row.weight * column.weight);
      }
    }
    put(y + i * W, sums);
  }
}

// A block takes `across` neighbouring packs, a power of two. Its threads share the terms of each.
template <int W, typename T>
__global__ void __launch_bounds__(kThreads) shared_terms_kernel(Walk walk, int across, const T* x, T* y) {
  __shared__ float parts[W][kThreads];
  const int t = int(threadIdx.x), part = t / across, step = kThreads / across;
  const int64_t i = int64_t(blockIdx.x) * across + t % across;
  wait_for_dependencies();
  float sums[W] = {};
  bool none = false;
  if (i < walk.count) {
    const PackTerms terms(walk, i);
    none = terms.none();
    if (!none) {
      const int rows_of_step = step / terms.columns, rest_of_step = step % terms.columns;
      int r = part / terms.columns, c = part % terms.columns;
#pragma unroll 4
      while (r < terms.rows) {
        const Term row = terms.row[r], column = terms.column[c];
        add(sums, x + terms.base + row.offset + column.offset, row.weight * column.weight);
        r += rows_of_step;
        c += rest_of_step;
        if (c >= terms.columns) c -= terms.columns, ++r;
      }
    }
  }
#pragma unroll
  for (int w = 0; w < W; ++w) parts[w][t] = sums[w];
  for (int half = kThreads / 2; half >= across; half /= 2) {
    __syncthreads();
    if (t >= half) continue;
#pragma unroll
    for (int w = 0; w < W; ++w) parts[w][t] += parts[w][t + half];
  }
  if (t >= across || i >= walk.count) return;
#pragma unroll
  for (int w = 0; w < W; ++w) sums[w] = none ? walk.outside : parts[w][t];
  put(y + i * W, sums);
}

// A block's part of the result: `rows` rows, and `columns` columns of each, which read a window of the source's rows.
struct Tiles {
  static constexpr int kFloats = 6144;  // of shared memory, so that eight blocks share a multiprocessor
  static constexpr int kMostRows = 64;

  int rows = 1, columns = 1;
  int chunks = 1;                // of a row
  int width = 0;                 // of the widest window; windows begin and end at whole packs, if rows have those
  const int2* window = nullptr;  // (chunks): first element in a source row, and the end
};

// Sums of source rows for each row of the tile: (tiles.rows, tiles.width).
template <int W, typename T>
__device__ inline void sum_rows(const Walk& walk, const Tiles& tiles, int64_t first, int rows, const T* x,
                                float* tile) {
  const int2 window = tiles.window[int(blockIdx.x) % tiles.chunks];
  const int packs = (window.y - window.x) / W;
  for (int task = int(threadIdx.x); task < rows * packs; task += kThreads) {
    const int r = task / packs, at = (task - r * packs) * W;
    int64_t outer = first + r;
    const int64_t row = walk.rows.take(outer, walk.small);
    const T* from = x + outer * walk.outer_stride + window.x + at;
    float sums[W] = {};
    const int past = walk.row.start[row + 1];
#pragma unroll 4
    for (int t = walk.row.start[row]; t < past; ++t) {
      const Term term = walk.row.term[t];
      add(sums, from + term.offset, term.weight);
    }
    put(tile + r * tiles.width + at, sums);
  }
}

// Terms of one column. K: the most that a column has, which are in registers; 0: any number, in memory.
template <int K>
struct ColumnTerms {
  int at[K];
  float weight[K];

  __device__ ColumnTerms(const Lists& list, int64_t column, int64_t base) {
    const int first = list.start[column], number = list.start[column + 1] - first;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const Term term = k < number ? list.term[first + k] : Term{-base, 0};
      at[k] = int(term.offset + base);
      weight[k] = term.weight;
    }
  }
  // A weight of 0 is of no term: what is read there may be infinite.
  __device__ float sum(const float* row) const {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (weight[k] != 0) sum += weight[k] * row[at[k]];
    }
    return sum;
  }
};
template <>
struct ColumnTerms<0> {
  const Term *begin, *end;
  int64_t base;

  __device__ ColumnTerms(const Lists& list, int64_t column, int64_t base_of_row)
      : begin(list.term + list.start[column]), end(list.term + list.start[column + 1]), base(base_of_row) {}
  __device__ float sum(const float* row) const {
    float sum = 0;
#pragma unroll 4
    for (const Term* t = begin; t < end; ++t) sum += t->weight * row[t->offset + base];
    return sum;
  }
};

// `rows`: of the result, outer · rows. W: elements of a pack of the source.
template <int W, int K, typename T>
__global__ void __launch_bounds__(kThreads) rows_kernel(Walk walk, Tiles tiles, int64_t rows, const T* x, T* y) {
  extern __shared__ __align__(16) float tile[];
  const int t = int(threadIdx.x), chunk = int(blockIdx.x) % tiles.chunks;
  const int64_t first = int64_t(int(blockIdx.x) / tiles.chunks) * tiles.rows;
  const int count = int(min(int64_t(tiles.rows), rows - first));
  wait_for_dependencies();
  sum_rows<W>(walk, tiles, first, count, x, tile);
  __syncthreads();
  // Neighbouring threads take neighbouring elements. If a row has few, groups of threads take rows in turn.
  const int inner = int(walk.inner.extent), begin = chunk * tiles.columns;
  const int span = tiles.columns * inner;
  const int elements = min(tiles.columns, int(walk.columns.extent) - begin) * inner;
  const int groups = max(1, kThreads / span), group = groups == 1 ? 0 : t / span;
  if (group >= groups) return;
  const int64_t row_elements = walk.columns.extent * inner;
  const int64_t base = -int64_t(tiles.window[chunk].x);
  for (int i = t - group * span; i < elements; i += groups == 1 ? kThreads : span) {
    const int column = i / inner;
    const ColumnTerms<K> terms(walk.column, begin + column, base + (i - column * inner));
    T* to = y + (first + group) * row_elements + int64_t(begin) * inner + i;
#pragma unroll 4
    for (int r = group; r < count; r += groups, to += groups * row_elements) {
      *to = narrow<T>(terms.sum(tile + r * tiles.width));
    }
  }
}

// Tables in device memory, which live as long as the kernel.
using Memory = std::shared_ptr<std::vector<DeviceBuffer>>;

template <typename T>
const T* kept(const std::vector<T>& list, const Memory& memory) {
  return static_cast<const T*>(memory->emplace_back(uploaded(list)).data());
}

Lists kept(const AxisTerms& terms, const Memory& memory) {
  std::vector<Term> list(terms.index.size());
  for (size_t t = 0; t < list.size(); ++t) list[t] = {terms.index[t], float(terms.weight[t])};
  return {kept(std::vector<int>(terms.start.begin(), terms.start.end()), memory), kept(list, memory)};
}

int64_t most_terms(const AxisTerms& terms) {
  int64_t most = 0;
  for (size_t i = 0; i + 1 < terms.start.size(); ++i) most = std::max(most, terms.start[i + 1] - terms.start[i]);
  return most;
}

bool lacks_terms(const AxisTerms& terms) {
  return std::adjacent_find(terms.start.begin(), terms.start.end()) != terms.start.end();
}

bool are_multiples(const std::vector<int64_t>& offsets, int64_t of) {
  return std::all_of(offsets.begin(), offsets.end(), [=](int64_t offset) { return offset % of == 0; });
}

// Kernels for one resampling, chosen when it is made.
struct Plan {
  RowResampling r;
  int64_t source;  // elements
  int wide;        // elements of 16 bytes
  int multiprocessors;
  double outside;
  int64_t rows = r.outer * r.rows.places(), count = rows * r.columns.places() * r.inner;

  // Whether packs along the innermost axis can be moved at once.
  bool packs_inner() const {
    return r.inner_stride == 1 && r.inner % wide == 0 && r.outer_stride % wide == 0 &&
           are_multiples(r.rows.index, wide) && are_multiples(r.columns.index, wide);
  }
  // Whether packs of source rows can be.
  bool packs_rows() const {
    return source % wide == 0 && r.outer_stride % wide == 0 && are_multiples(r.rows.index, wide);
  }
  // Whether there are so few elements, of so many terms, that threads are idle unless they share them. `tasks`: threads
  // that have work otherwise.
  bool shares_terms(int64_t tasks) const {
    constexpr double kMany = 64;
    const double terms = double(r.rows.index.size()) * double(r.columns.index.size());
    return count > 0 && tasks < int64_t(multiprocessors) * 512 &&
           terms >= kMany * double(r.rows.places()) * double(r.columns.places());
  }

  // In packs of one element.
  Walk walk(const Memory& memory) const {
    return {.row = kept(r.rows, memory),
            .column = kept(r.columns, memory),
            .rows = Extent(r.rows.places()),
            .columns = Extent(r.columns.places()),
            .inner = Extent(r.inner),
            .outer_stride = r.outer_stride,
            .inner_stride = r.inner_stride,
            .count = count,
            .small = count < int64_t{1} << 31,
            .outside = float(outside)};
  }

  // The part of a source row that each chunk of so many columns reads.
  std::vector<int2> windows(int64_t columns) const {
    std::vector<int2> windows;
    const int64_t pack = packs_rows() ? wide : 1;
    for (int64_t first = 0; first < r.columns.places(); first += columns) {
      const int64_t past = std::min(first + columns, r.columns.places());
      const auto begin = r.columns.index.begin() + r.columns.start[size_t(first)];
      const auto end = r.columns.index.begin() + r.columns.start[size_t(past)];
      if (begin == end) {
        windows.push_back({0, 0});
        continue;
      }
      const auto [least, most] = std::minmax_element(begin, end);
      windows.push_back({int(*least / pack * pack), int((*most + r.inner + pack - 1) / pack * pack)});
    }
    return windows;
  }

  // Tiles for rows_kernel(), unless source rows have gaps, are read in small part, or columns have too many terms.
  std::optional<Tiles> tiles(const Memory& memory) const {
    constexpr int64_t kWider = 4, kMost = int64_t{1} << 30;
    const bool whole = outside == 0 || !(lacks_terms(r.rows) || lacks_terms(r.columns));
    if (!whole || r.column_stride != r.inner || (r.inner > 1 && r.inner_stride != 1)) return {};
    if (r.columns.index.empty() || r.columns.places() * r.inner > kMost || source > kMost) return {};
    Tiles tiles;
    std::vector<int2> list;
    for (int64_t columns = r.columns.places();; columns = (columns + 1) / 2) {
      list = windows(columns);
      tiles.columns = int(columns);
      tiles.chunks = int(list.size());
      tiles.width = 0;
      for (const int2 window : list) tiles.width = std::max(tiles.width, window.y - window.x);
      if (tiles.width <= Tiles::kFloats) break;
      if (columns == 1) return {};
    }
    if (int64_t(tiles.width) * tiles.chunks > kWider * int64_t(r.columns.index.size()) * r.inner + wide) return {};
    const auto blocks = [&](int each) { return (rows + each - 1) / each * tiles.chunks; };
    while (tiles.rows < Tiles::kMostRows && 2 * tiles.rows * tiles.width <= Tiles::kFloats &&
           blocks(2 * tiles.rows) >= 2 * multiprocessors) {
      tiles.rows *= 2;
    }
    if (blocks(tiles.rows) > kMost) return {};
    tiles.window = kept(list, memory);
    return tiles;
  }
};

template <typename T>
std::unique_ptr<Kernel> rows_kernel_of(const Plan& plan, const Tiles& tiles, const Memory& memory) {
  constexpr int kWide = 16 / sizeof(T);
  const int64_t rows = plan.rows, terms = most_terms(plan.r.columns);
  const bool packs = plan.packs_rows();
  return make_kernel([=, tables = memory, walk = plan.walk(memory)](const KernelContext& c) {
    const auto launch = [&]<int W, int K>(std::integral_constant<int, W>, std::integral_constant<int, K>) {
      const auto blocks = unsigned((rows + tiles.rows - 1) / tiles.rows * tiles.chunks);
      launch_dependent(rows_kernel<W, K, T>, blocks, kThreads, sizeof(float) * size_t(tiles.rows * tiles.width),
                       stream_of(c), walk, tiles, rows, input<T>(c, 0), output<T>(c, 0));
      check_launch("resize of rows");
    };
    const auto with_terms = [&](auto width) {
      if (terms <= 2) return launch(width, std::integral_constant<int, 2>{});
      if (terms <= 4) return launch(width, std::integral_constant<int, 4>{});
      launch(width, std::integral_constant<int, 0>{});
    };
    if (packs && aligned(c.inputs[0])) {
      with_terms(std::integral_constant<int, kWide>{});
    } else {
      with_terms(std::integral_constant<int, 1>{});
    }
  });
}

template <typename T>
std::unique_ptr<Kernel> packs_kernel_of(const Plan& plan, bool shares, const Memory& memory) {
  const bool packs = plan.packs_inner();
  const int multiprocessors = plan.multiprocessors;
  return make_kernel([=, tables = memory, single = plan.walk(memory)](const KernelContext& c) {
    const T* x = input<T>(c, 0);
    T* y = output<T>(c, 0);
    const auto launch = [&]<int W>(std::integral_constant<int, W>) {
      const Walk walk = in_packs(single, W);
      if (shares) {  // 64 neighbouring bytes, or 16 elements, are so few that each has many threads
        const int across = walk.inner.extent < 4 ? 1 : W > 1 ? 4 : 16;
        launch_dependent(shared_terms_kernel<W, T>, unsigned((walk.count + across - 1) / across), kThreads, 0,
                         stream_of(c), walk, across, x, y);
      } else {
        launch_dependent(gather_kernel<W, T>, blocks_for(walk.count, multiprocessors), kThreads, 0, stream_of(c), walk,
                         x, y);
      }
      check_launch("resize");
    };
    if (packs && aligned(x) && aligned(y)) {
      launch(std::integral_constant<int, int(16 / sizeof(T))>{});
    } else {
      launch(std::integral_constant<int, 1>{});
    }
  });
}

std::unique_ptr<Kernel> resample(const KernelRequest& request, bool backward) {
  const TensorType &from = request.inputs[0], &to = request.outputs[0];
  const auto memory = std::make_shared<std::vector<DeviceBuffer>>();
  const Resampling resampling(request.node, backward ? to : from, backward ? from : to, backward);
  const Plan plan{.r = RowResampling(resampling),
                  .source = from.elements(),
                  .wide = int(16 / size_of(from.dtype)),
                  .multiprocessors = multiprocessors_of(request),
                  .outside = resampling.outside};
  return with_type(request, from.dtype, [&](auto element) -> std::unique_ptr<Kernel> {
    using T = decltype(element);
    if (plan.count == 0) return make_kernel([](const KernelContext&) {});
    const bool packs = plan.packs_inner();
    const std::optional<Tiles> tiles = packs ? std::nullopt : plan.tiles(memory);
    const bool shares = plan.shares_terms(tiles ? plan.rows * tiles->width / plan.wide : plan.count / plan.wide);
    if (tiles && !shares) return rows_kernel_of<T>(plan, *tiles, memory);
    return packs_kernel_of<T>(plan, shares, memory);
  });
}

}  // namespace

void register_shape_resize_cuda(OpRegistry& registry) {
  for (const std::string name : {"Resize", "Upsample"}) {
    registry.find(name)->cuda = [](const KernelRequest& request) { return resample(request, false); };
    registry.find("arbalest." + name + "Grad")->cuda = [](const KernelRequest& request) {
      return resample(request, true);
    };
  }
}

}  // namespace arbalest
