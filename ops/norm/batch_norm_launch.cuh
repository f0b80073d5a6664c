// SPDX-License-Identifier: Apache-2.0
#pragma once
// Helpers that launchers of batch norms share: the layouts that their kernels run over.

#include <algorithm>

#include "ops/norm/batch_norm.cuh"
#include "ops/norm/statistics_chunks.h"

namespace arbalest::cuda {

// Layouts for 16-byte packs and for single elements.
struct NormLayouts {
  Columns wide_reduction, wide_broadcast, reduction, broadcast;
  int64_t rows = 0, channels = 0;
  int width = 1;  // of a 16-byte pack
  int fold = 1;   // rows side by side that such packs need

  // `resident`: blocks of the broadcast's kernel that a multiprocessor runs at once.
  NormLayouts(const KernelRequest& request, const TensorType& x, int resident) {
    const int multiprocessors = multiprocessors_of(request);
    channels = x.shape[1];
    rows = channels == 0 ? 0 : x.elements() / channels;
    width = int(16 / size_of(x.dtype));
    fold = fold_of(rows, channels, width);
    wide_reduction = reduction_columns(rows, channels, width, x.bytes(), multiprocessors, fold);
    wide_broadcast = turned_columns(rows, channels, width, x.bytes(), multiprocessors, resident, fold);
    reduction = reduction_columns(rows, channels, 1, x.bytes(), multiprocessors);
    broadcast = turned_columns(rows, channels, 1, x.bytes(), multiprocessors, resident);
  }
  int64_t partials() const {  // of one reduction
    return std::max(wide_reduction.partials(), reduction.partials()) * channels;
  }
  int64_t workspace_bytes() const { return partials() * int64_t(sizeof(Partial)); }
};

// Layout of the partials that a convolution has left of the images `x`. `attribute` names the one that states the
// pixels of a chunk.
inline Columns chunks_of(const KernelRequest& request, const TensorType& x, const char* attribute = "chunk_pixels") {
  const PixelChunks chunks = pixel_chunks(x.shape, int_attribute(request.node, attribute));
  Columns columns;
  columns.rows = x.elements() / x.shape[1];
  columns.count = columns.channels = int(x.shape[1]);
  columns.chunk_rows = chunks.pixels;
  columns.chunks = int(chunks.chunks);
  return columns;
}

// Calls function(W, reduction layout, broadcast layout), with wide packs if the rows and every pointer allow.
template <typename T, typename Function>
void with_width(const NormLayouts& layouts, bool all_aligned, Function function) {
  if (layouts.rows == 0 || layouts.channels == 0) return;
  if (all_aligned && layouts.channels * layouts.fold % layouts.width == 0) {
    function(std::integral_constant<int, int(16 / sizeof(T))>{}, layouts.wide_reduction, layouts.wide_broadcast);
  } else {
    function(std::integral_constant<int, 1>{}, layouts.reduction, layouts.broadcast);
  }
}

}  // namespace arbalest::cuda
