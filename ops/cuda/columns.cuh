// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reductions over the rows of a channels-last tensor, and passes that broadcast per-channel values back over them.
//
// The tensor is a matrix (rows, channels), cut into slices of columns and chunks of rows; a block takes one of each.
// In a block, thread t holds pack t % lanes of row t / lanes. Neighbouring threads read neighbouring bytes, and a
// thread's columns stay the same while it walks down its chunk, or, in a turned layout, up the whole matrix. A first
// kernel writes one partial result a chunk and column. The kernel that needs the whole sums the partials itself, in
// every block. That means fewer launches than a pass of its own, no atomics, and the same order, hence the same bits,
// each time.
//
// If packs do not divide a row's channels, `fold` rows lie side by side as one row of the matrix. For example, 122
// channels in packs of eight are 488 columns, and four rows are one. Column c has channel c mod 122 of the tensor. Each
// chunk leaves four partials of a channel, which lie as those of four chunks do.

#include <numeric>

#include "ops/cuda/cuda_math.cuh"

namespace arbalest::cuda {

inline constexpr int kUnroll = 4;          // rows that a thread loads before it uses the first
inline constexpr int kPartialsAtOnce = 8;  // partial sums that a thread loads before it uses the first
inline constexpr int kSliceColumns = 64;   // of a reduction, at most: bounds the partials that each block reads again

struct Columns {
  int64_t rows = 0;
  int64_t chunk_rows = 0;
  int count = 0;     // of columns
  int fold = 1;      // rows of the tensor in a row
  int channels = 0;  // of the tensor
  int lanes = 1;     // packs of a slice's row
  int slices = 1;
  int chunks = 1;  // of each slice, a block each; all hold rows, at least one even if rows = 0
  // In a turned layout blocks have no chunk, but take turns at whole batches, of kUnroll rows a thread, from the last
  // to the first. Rows after the whole batches go to the last block.
  bool turned = false;
  int batches = 0;

  dim3 grid() const { return dim3(unsigned(slices), unsigned(chunks)); }
  __host__ __device__ int64_t tensor_rows() const { return rows * fold; }
  __host__ __device__ int partials() const { return chunks * fold; }  // of each channel
};

// The channel of the tensor that a column has, of `channels`; −1 of −1.
__device__ inline int channel_of(int column, int channels) {
  return column < channels ? column : column % channels;
}

struct ColumnLimits {
  int slice_columns;  // at most
  int blocks;         // about
  int chunks;         // at most
};

// Cuts the rows into chunks; `slices` of them all work on each.
inline void cut_rows(Columns& columns, int slices, ColumnLimits limits) {
  const int depth = kThreads / columns.lanes;
  const int64_t batch = int64_t(depth) * kUnroll;  // rows of a block whose loads are in flight together
  const int64_t most_chunks = std::max<int64_t>(1, std::min(limits.chunks, limits.blocks / slices));
  const int64_t batches = (columns.rows + batch - 1) / batch;
  columns.chunk_rows = std::max<int64_t>(1, (batches + most_chunks - 1) / most_chunks) * batch;
  columns.chunks = int(std::max<int64_t>(1, (columns.rows + columns.chunk_rows - 1) / columns.chunk_rows));
}

// Packs of `width` columns, which divides `channels` or those of `fold` rows.
inline Columns make_columns(int64_t rows, int64_t channels, int width, ColumnLimits limits, int fold = 1) {
  Columns columns;
  columns.rows = rows / fold;
  columns.count = int(channels) * fold;
  columns.fold = fold;
  columns.channels = int(channels);
  limits.chunks = std::max(1, limits.chunks / fold);
  const int packs = std::max(1, columns.count / width);
  const int most = std::max(1, limits.slice_columns / width);
  columns.slices = (packs + most - 1) / most;
  columns.lanes = (packs + columns.slices - 1) / columns.slices;
  cut_rows(columns, columns.slices, limits);
  return columns;
}

// Limits for a kernel that writes partials. Small tensors sit in L2 and their passes last a few µs, so the partials are
// kept few.
inline ColumnLimits reduction_limits(int64_t bytes, int multiprocessors) {
  const bool large = bytes > (int64_t{16} << 20);
  return {.slice_columns = kSliceColumns,
          .blocks = multiprocessors * (large ? 4 : 1),
          .chunks = large ? 192 : multiprocessors};
}
inline Columns reduction_columns(int64_t rows, int64_t channels, int width, int64_t bytes, int multiprocessors,
                                 int fold = 1) {
  return make_columns(rows, channels, width, reduction_limits(bytes, multiprocessors), fold);
}

// Rows side by side that packs of `width` channels need; 1 where the rows of the tensor do not come in as many.
inline int fold_of(int64_t rows, int64_t channels, int width) {
  const int fold = channels == 0 ? 1 : width / int(std::gcd(channels, int64_t(width)));
  return rows % fold == 0 ? fold : 1;
}

// Limits for a kernel that reads partials of the same slices and writes every row.
inline ColumnLimits broadcast_limits(int64_t bytes, int multiprocessors) {
  const bool large = bytes > (int64_t{16} << 20);
  return {.slice_columns = kSliceColumns, .blocks = multiprocessors * (large ? 8 : 2), .chunks = 65535};
}

// Layout for a kernel that reads partials of the same slices and writes every row. A multiprocessor runs `resident` of
// its blocks at once: with more blocks there would be a last wave of few, and partials would be read more often. Blocks
// take turns at all rows, from the last to the first. The rows that the kernel before wrote last are in L2, and those
// that this one writes last are read first by the next (docs/design.md, Execution). A place's rows are of no use to it.
inline Columns turned_columns(int64_t rows, int64_t channels, int width, int64_t bytes, int multiprocessors,
                              int resident, int fold = 1) {
  const bool large = bytes > (int64_t{16} << 20);
  const int64_t blocks = int64_t(multiprocessors) * (large ? resident : std::min(resident, 2));
  Columns columns =
      make_columns(rows, channels, width, {.slice_columns = kSliceColumns, .blocks = 1, .chunks = 1}, fold);
  const int64_t batch = int64_t(kThreads / columns.lanes) * kUnroll;
  columns.turned = true;
  columns.batches = int(columns.rows / batch);
  columns.chunks =
      int(std::clamp<int64_t>((columns.rows + batch - 1) / batch, 1, std::max<int64_t>(1, blocks / columns.slices)));
  return columns;
}

// Slice, rows and columns of a thread; a pack is W columns.
template <int W>
struct Place {
  int lane, row, depth;  // pack of the slice's row, row of the block, rows of the block
  int slice_columns;     // of a full slice
  int first;             // column of the slice
  int column;            // the first of the thread's W
  int count;             // of columns
  int channels;          // of the tensor
  bool active;
  int64_t begin, end;  // rows of the chunk

  __device__ explicit Place(const Columns& layout, int slice = int(blockIdx.x)) {
    lane = int(threadIdx.x) % layout.lanes;
    row = int(threadIdx.x) / layout.lanes;
    depth = kThreads / layout.lanes;
    slice_columns = layout.lanes * W;
    first = slice * slice_columns;
    column = first + lane * W;
    count = layout.count;
    channels = layout.channels;
    active = row < depth && column < count;
    begin = int64_t(blockIdx.y) * layout.chunk_rows;
    end = min(begin + layout.chunk_rows, layout.rows);
  }
  // f(w, channel) for the thread's W columns, w being known when this is compiled.
  template <typename Function>
  __device__ void for_channels(Function f) const {
    if (count == channels) {
#pragma unroll
      for (int w = 0; w < W; ++w) f(w, column + w);
      return;
    }
    int next = channel_of(column, channels);
#pragma unroll
    for (int w = 0; w < W; ++w, next = next + 1 == channels ? 0 : next + 1) f(w, next);
  }
  // Whether the thread that has the totals of `column` is the one that stores those of its channel.
  __device__ bool stores(int column) const {
    return blockIdx.y == 0 && column < channels;
  }
};

template <typename T, int W>
struct RowPacks {
  Pack<T, W> pack[kUnroll];
};

// f(offset in elements, packs of each tensor there) for the thread's rows of the chunk, in order, or of the block's
// turns. The loads of kUnroll rows are issued before the first is used.
template <int W, typename Function, typename... T>
__device__ inline void for_rows(const Columns& columns, const Place<W>& place, Function f, const T*... tensor) {
  if (!place.active) return;
  const int64_t step = int64_t(place.depth) * columns.count;
  const int block = int(blockIdx.y), batch_rows = kUnroll * place.depth;
  int64_t row = place.begin + place.row, turn = batch_rows, end = place.end;
  int64_t last = end - (kUnroll - 1) * place.depth;  // end of the rows that a batch may begin with
  if (columns.turned) {
    row = int64_t(columns.batches - 1 - block) * batch_rows + place.row;
    turn = -int64_t(columns.chunks) * batch_rows;
    last = columns.rows;
  }
  const auto batch = [&](int64_t at, RowPacks<T, W>... rows) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) ((rows.pack[u] = load<W>(tensor + at + u * step)), ...);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) f(at + u * step, rows.pack[u]...);
  };
  int64_t at = row * columns.count + place.column;
  for (; row >= 0 && row < last; row += turn, at += turn * columns.count) batch(at, RowPacks<T, W>()...);
  if (columns.turned) {
    if (block != columns.chunks - 1) return;
    row = int64_t(columns.batches) * batch_rows + place.row;
    at = row * columns.count + place.column;
    end = columns.rows;
  }
  for (; row < end; row += place.depth, at += step) f(at, load<W>(tensor + at)...);
}

// Thread t of the block brings what it has summed for column t % slice_columns; thread t < slice_columns leaves with
// the block's total for column t. All threads of the block call it. `scratch`: Q × kThreads floats.
template <int Q>
__device__ inline void fold_groups(int slice_columns, float* scratch, float (&value)[Q]) {
  const int t = int(threadIdx.x), groups = kThreads / slice_columns;
#pragma unroll
  for (int q = 0; q < Q; ++q) scratch[q * kThreads + t] = value[q];
  __syncthreads();
  if (t < slice_columns) {
#pragma unroll
    for (int q = 0; q < Q; ++q) value[q] = 0;
#pragma unroll 8
    for (int group = 0; group < groups; ++group) {
#pragma unroll
      for (int q = 0; q < Q; ++q) value[q] += scratch[q * kThreads + group * slice_columns + t];
    }
  }
  __syncthreads();
}

// The column whose totals this thread holds after fold_groups() or sum_rows(); −1: none.
template <int W>
__device__ inline int total_column(const Place<W>& place) {
  const int t = int(threadIdx.x), column = place.first + t;
  return t < place.slice_columns && column < place.count ? column : -1;
}

// Each thread brings sums over its rows for its W columns; thread t < slice_columns leaves with the block's totals for
// column t of the slice. All threads call it; inactive ones bring zeros. slice_columns ≤ kThreads.
template <int W, int Q>
__device__ inline void sum_rows(const Place<W>& place, const float (&sums)[Q][W], float (&total)[Q]) {
  __shared__ __align__(16) float scratch[Q * kThreads * W];
  if (place.row < place.depth) {
#pragma unroll
    for (int q = 0; q < Q; ++q) {
      Pack<float, W> pack;
#pragma unroll
      for (int w = 0; w < W; ++w) pack.element[w] = sums[q][w];
      store(scratch + q * kThreads * W + (place.row * (place.slice_columns / W) + place.lane) * W, pack);
    }
  }
  __syncthreads();
  const int t = int(threadIdx.x), groups = kThreads / place.slice_columns;
  const int column = t % place.slice_columns, group = t / place.slice_columns;
#pragma unroll
  for (int q = 0; q < Q; ++q) total[q] = 0;
  if (group < groups) {
    for (int row = group; row < place.depth; row += groups) {
#pragma unroll
      for (int q = 0; q < Q; ++q) total[q] += scratch[q * kThreads * W + row * place.slice_columns + column];
    }
  }
  __syncthreads();
  fold_groups(place.slice_columns, scratch, total);
}

// f(number of the partial, channel, partial) for the thread's share of a slice's partials: those of the channel of
// column t % slice_columns, every groups-th, in order.
template <int W, typename T, typename Function>
__device__ inline void for_partials(const Columns& reduced, const Place<W>& place, const T* partials, Function f) {
  const int t = int(threadIdx.x), groups = kThreads / place.slice_columns;
  const int column = place.first + t % place.slice_columns, group = t / place.slice_columns;
  if (group >= groups || column >= place.count) return;
  const int channel = channel_of(column, place.channels), count = reduced.partials();
  for (int first = group; first < count; first += kPartialsAtOnce * groups) {
    T partial[kPartialsAtOnce];
#pragma unroll
    for (int u = 0; u < kPartialsAtOnce; ++u) {
      const int i = first + u * groups;
      if (i < count) partial[u] = partials[int64_t(i) * place.channels + channel];
    }
#pragma unroll
    for (int u = 0; u < kPartialsAtOnce; ++u) {
      const int i = first + u * groups;
      if (i < count) f(i, channel, partial[u]);
    }
  }
}

}  // namespace arbalest::cuda
