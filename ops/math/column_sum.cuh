// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sums of the columns of a matrix: of the channels of a channels-last tensor, and over leading broadcast axes.

#include <limits>

#include "ops/cuda/columns.cuh"
#include "ops/cuda/partial_sums.cuh"

namespace arbalest::cuda {

// partials: (Columns::partials(), channels).
template <int W, typename T>
__global__ void __launch_bounds__(kThreads) partial_sums_kernel(Columns columns, const T* x, float* partials) {
  wait_for_dependencies();
  const Place<W> place(columns);
  float sums[1][W] = {};
  for_rows(
      columns, place,
      [&](int64_t, const Pack<T, W>& pack) {
#pragma unroll
        for (int w = 0; w < W; ++w) sums[0][w] += widen(pack.element[w]);
      },
      x);
  float total[1];
  sum_rows(place, sums, total);
  const int column = total_column(place);
  if (column >= 0) partials[int64_t(blockIdx.y) * columns.count + column] = total[0];
}

template <int W, typename T>
void column_sum(const KernelContext& c, const Columns& columns, float scale) {
  // A single partial sum is the result, except for the scale, which the second kernel applies.
  const bool direct = columns.partials() == 1 && scale == 1.0f;
  float* first = direct ? output<float>(c, 0) : static_cast<float*>(c.workspace);
  const bool small = is_small(columns.rows * columns.count * int64_t(sizeof(T)));
  launch_dependent(partial_sums_kernel<W, T>, Launch{columns.grid(), kThreads, 0, stream_of(c), small}, columns,
                   input<T>(c, 0), first);
  check_launch("column sum: partial sums");
  if (direct) return;
  column_totals(stream_of(c), columns.channels, columns.partials(), first, scale, {output<float>(c, 0), nullptr}, 1);
}

// Σ over rows of x (rows, channels), times `scale`: (channels), in float.
template <typename T>
std::unique_ptr<Kernel> make_column_sum(int64_t rows, int64_t channels, float scale, int multiprocessors) {
  constexpr int W = 16 / sizeof(T);
  const int64_t bytes = rows * channels * int64_t(sizeof(T));
  const auto columns_of = [&](int width, int fold) {
    // The totals are a kernel of their own: many partials cost little there, and few blocks much here.
    const bool small = bytes <= (int64_t{1} << 20);
    return make_columns(
        rows, channels, width,
        {.slice_columns = kSliceColumns, .blocks = multiprocessors * (small ? 1 : 4), .chunks = multiprocessors * 2},
        fold);
  };
  const Columns narrow = columns_of(1, 1);
  const int fold = fold_of(rows, channels, W);
  // Each row of a fold has partial sums of its own. Where there are few rows they are not worth it.
  const bool many = bytes > (int64_t{16} << 20) && rows >= int64_t{64} * fold;
  const bool folds = (many || fold <= narrow.chunks) && channels * fold <= std::numeric_limits<int>::max();
  const Columns wide = columns_of(W, folds ? fold : 1);
  const int64_t workspace = std::max(wide.partials(), narrow.partials()) * channels * int64_t(sizeof(float));
  return make_kernel(
      [=](const KernelContext& c) {
        if (channels == 0) return;
        if (wide.count % W == 0 && aligned(c.inputs[0])) {
          column_sum<W, T>(c, wide, scale);
        } else {
          column_sum<1, T>(c, narrow, scale);
        }
      },
      workspace);
}

}  // namespace arbalest::cuda
