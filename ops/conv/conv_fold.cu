// SPDX-License-Identifier: Apache-2.0
#include "ops/conv/conv_fold.h"

#include <optional>

#include "ops/conv/conv_solution.h"
#include "ops/conv/hopper/conv_folded.h"
#include "ops/cuda/cuda_math.cuh"
#include "ops/cuda/tensor_map.h"
#include "ops/norm/statistics_chunks.h"

namespace arbalest {

using namespace cuda;

namespace {

// Source of a folded channel: the row and column within a group of fold × fold pixels, and the channel there.
// channel < 0: none, the folded channel is zero.
struct Part {
  int row, column, channel;
};

__device__ Part part_of(const Folding& f, int q) {
  if (q >= f.fold * f.fold * f.channels) return {0, 0, -1};
  return {q / (f.fold * f.channels), q / f.channels % f.fold, q % f.channels};
}

template <int W, typename T>
__global__ void __launch_bounds__(kThreads) fold_image_kernel(Folding f, const T* from, T* to) {
  const int packs = f.wide / W;
  const int64_t count = int64_t(f.images) * f.folded_height * f.folded_width * packs;
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    uint32_t rest = uint32_t(i / packs);
    const int column = int(rest % uint32_t(f.folded_width));
    rest /= uint32_t(f.folded_width);
    const int row = int(rest % uint32_t(f.folded_height));
    const T* image = from + int64_t(rest / uint32_t(f.folded_height)) * f.height * f.width * f.channels;
    Pack<T, W> pack = {};
#pragma unroll
    for (int w = 0; w < W; ++w) {
      const Part part = part_of(f, int(i % packs) * W + w);
      const int h = (row - f.pad) * f.fold + part.row, v = (column - f.pad) * f.fold + part.column;
      const bool inside = part.channel >= 0 && h >= 0 && h < f.height && v >= 0 && v < f.width;
      if (inside) pack.element[w] = image[(int64_t(h) * f.width + v) * f.channels + part.channel];
    }
    store(to + i * W, pack);
  }
}

// Images of three channels folded by two to 16, in bfloat16: six numbers that follow each other of each of two rows,
// and zeros. The width is even.
__global__ void __launch_bounds__(kThreads) fold_colours_kernel(Folding f, const uint32_t* from, uint4* to) {
  const uint32_t count = uint32_t(f.images) * uint32_t(f.folded_height) * uint32_t(f.folded_width);
  for (uint32_t i = uint32_t(thread_index()); i < count; i += uint32_t(thread_count())) {
    const int column = int(i % uint32_t(f.folded_width)) - f.pad;
    const uint32_t rows_before = i / uint32_t(f.folded_width), image = rows_before / uint32_t(f.folded_height);
    const int row = (int(rows_before - image * uint32_t(f.folded_height)) - f.pad) * 2;
    const int row_words = f.width / 2 * 3;
    uint32_t word[6] = {};
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      if (column < 0 || 2 * column >= f.width || row + part < 0 || row + part >= f.height) continue;
      const uint32_t* pixels = from + (int64_t{image} * f.height + row + part) * row_words + column * 3;
#pragma unroll
      for (int w = 0; w < 3; ++w) word[part * 3 + w] = pixels[w];
    }
    to[int64_t{i} * 2] = make_uint4(word[0], word[1], word[2], word[3]);
    to[int64_t{i} * 2 + 1] = make_uint4(word[4], word[5], 0, 0);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) fold_filter_kernel(Folding f, const T* from, T* to) {
  const int64_t count = int64_t(f.filters) * f.folded_kernel_height * f.folded_kernel_width * f.wide;
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    const Part part = part_of(f, int(i % f.wide));
    int64_t rest = i / f.wide;
    const int column = int(rest % f.folded_kernel_width) * f.fold + part.column - f.shift;
    rest /= f.folded_kernel_width;
    const int row = int(rest % f.folded_kernel_height) * f.fold + part.row - f.shift;
    const int64_t filter = rest / f.folded_kernel_height;
    const bool inside =
        part.channel >= 0 && row >= 0 && row < f.kernel_height && column >= 0 && column < f.kernel_width;
    to[i] = inside ? from[((filter * f.kernel_height + row) * f.kernel_width + column) * f.channels + part.channel]
                   : T(0.0f);
  }
}

// The other way: each element of the filter has one place in the folded one.
template <typename From, typename To>
__global__ void __launch_bounds__(kThreads) unfold_filter_kernel(Folding f, const From* from, To* to) {
  const int64_t count = int64_t(f.filters) * f.kernel_height * f.kernel_width * f.channels;
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    const int channel = int(i % f.channels);
    int64_t rest = i / f.channels;
    const int column = int(rest % f.kernel_width) + f.shift;
    rest /= f.kernel_width;
    const int row = int(rest % f.kernel_height) + f.shift;
    const int64_t filter = rest / f.kernel_height;
    const int64_t pixel = (filter * f.folded_kernel_height + row / f.fold) * f.folded_kernel_width + column / f.fold;
    const int q = (row % f.fold * f.fold + column % f.fold) * f.channels + channel;
    to[i] = narrow<To>(widen(from[pixel * f.wide + q]));
  }
}

}  // namespace

bool fold(ConvolutionProblem& problem, int by, int64_t wide, Folding& folding) {
  const Shape &x = problem.x, &w = problem.w;
  const int64_t images = x[0] * x[2] * x[3];
  if (x.size() != 4 || w[1] != x[1] || wide % 4 != 0 || wide < x[1] * by * by || images > INT32_MAX) return false;
  folding = {.fold = by,
             .channels = int(x[1]),
             .wide = int(wide),
             .images = int(x[0]),
             .height = int(x[2]),
             .width = int(x[3]),
             .filters = int(w[0]),
             .kernel_height = int(w[2]),
             .kernel_width = int(w[3])};
  if (by > 1) {
    const int64_t pad = problem.pad_begin[0];
    if (!all_are(problem.stride, by) || !all_are(problem.dilation, 1) || !all_are(problem.pad_begin, pad)) return false;
    folding.shift = int((by - pad % by) % by);
    folding.pad = int((pad + folding.shift) / by);
    const auto kernel = [&](int64_t extent) { return (extent + folding.shift + by - 1) / by; };
    problem.w = {w[0], wide, kernel(w[2]), kernel(w[3])};
    problem.x = {x[0], wide, problem.y[2] + problem.w[2] - 1, problem.y[3] + problem.w[3] - 1};
    problem.stride = {1, 1};
    problem.pad_begin = problem.pad_end = {0, 0};
  } else {
    problem.x[1] = problem.w[1] = wide;
  }
  folding.folded_height = int(problem.x[2]);
  folding.folded_width = int(problem.x[3]);
  folding.folded_kernel_height = int(problem.w[2]);
  folding.folded_kernel_width = int(problem.w[3]);
  return true;
}

void fold_image(cudaStream_t stream, int multiprocessors, const Folding& folding, DataType type, const void* from,
                void* to) {
  const int64_t count = int64_t(folding.images) * folding.folded_height * folding.folded_width * folding.wide;
  if (type == DataType::Bfloat16 && folding.fold == 2 && folding.channels == 3 && folding.wide == 16 &&
      folding.width % 2 == 0) {
    fold_colours_kernel<<<blocks_for(count / 16, multiprocessors), kThreads, 0, stream>>>(
        folding, static_cast<const uint32_t*>(from), static_cast<uint4*>(to));
    check_launch("conv folding");
    return;
  }
  with_stored(type, [&](auto element) {
    using T = decltype(element);
    constexpr int kWide = 16 / sizeof(T);
    const auto* source = static_cast<const T*>(from);
    auto* target = static_cast<T*>(to);
    if (folding.wide % kWide == 0) {
      fold_image_kernel<kWide>
          <<<blocks_for(count / kWide, multiprocessors), kThreads, 0, stream>>>(folding, source, target);
    } else {
      fold_image_kernel<4><<<blocks_for(count / 4, multiprocessors), kThreads, 0, stream>>>(folding, source, target);
    }
  });
  check_launch("conv folding");
}

void fold_filter(cudaStream_t stream, int multiprocessors, const Folding& folding, DataType type, const void* from,
                 void* to) {
  const int64_t count =
      int64_t(folding.filters) * folding.folded_kernel_height * folding.folded_kernel_width * folding.wide;
  with_stored(type, [&](auto element) {
    using T = decltype(element);
    fold_filter_kernel<<<blocks_for(count, multiprocessors), kThreads, 0, stream>>>(
        folding, static_cast<const T*>(from), static_cast<T*>(to));
  });
  check_launch("conv folding");
}

void unfold_filter(cudaStream_t stream, int multiprocessors, const Folding& folding, DataType from_type,
                   const void* from, DataType to_type, void* to) {
  const int64_t count = int64_t(folding.filters) * folding.kernel_height * folding.kernel_width * folding.channels;
  with_stored(from_type, [&](auto source) {
    with_stored(to_type, [&](auto target) {
      unfold_filter_kernel<<<blocks_for(count, multiprocessors), kThreads, 0, stream>>>(
          folding, static_cast<const decltype(source)*>(from), static_cast<decltype(target)*>(to));
    });
  });
  check_launch("conv folding");
}

namespace {

// The problem folded by its stride. Nothing: a row of its taps is not what the kernel takes.
struct FoldedProblem {
  ConvolutionProblem problem;
  Folding folding;
};
std::optional<FoldedProblem> folded_by_stride(const ConvolutionProblem& asked) {
  const int64_t stride = asked.stride[0];
  FoldedProblem folded{asked, {}};
  const int64_t channels = folded_row(asked.x[1], asked.w.back(), stride, asked.pad_begin[0]).channels;
  if (!fold(folded.problem, int(stride), channels, folded.folding) || !is_folded_row(folded.problem)) return {};
  return folded;
}

bool takes_folded_statistics(const DeviceModel& device, const ConvolutionProblem& problem, int64_t chunk_pixels) {
  return has_hopper_kernels(device) && problem.kind == ConvolutionProblem::Kind::Forward && problem.stride[0] >= 2 &&
         chunk_pixels > 0 && chunk_pixels % row_tile_pixels(problem.y.back()) == 0 && folded_by_stride(problem);
}

int64_t folded_statistics_workspace(const ConvolutionProblem& problem) {
  const ConvolutionProblem folded = folded_by_stride(problem)->problem;
  return aligned_bytes(folded.x, folded.type) + aligned_bytes(folded.w, folded.type);
}

void fold_for_statistics(const ConvolutionProblem& asked, int64_t chunk_pixels, const ConvolutionCall& call,
                         void* partials) {
  const auto [problem, folding] = *folded_by_stride(asked);
  ConvolutionCall folded = call;
  char* const images = static_cast<char*>(call.workspace);
  char* const filter = images + aligned_bytes(problem.x, problem.type);
  fold_image(call.stream, call.multiprocessors, folding, problem.type, call.a, images);
  fold_filter(call.stream, call.multiprocessors, folding, problem.type, call.b, filter);
  folded.a = images;
  folded.b = filter;
  run_folded_statistics(problem, chunk_pixels, folded, partials);
}

}  // namespace

constexpr StatisticsEngine kFoldedStatistics = {.name = "folded rows",
                                                .accepts = takes_folded_statistics,
                                                .workspace = folded_statistics_workspace,
                                                .statistics = fold_for_statistics};

}  // namespace arbalest
