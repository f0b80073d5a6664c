// SPDX-License-Identifier: Apache-2.0
#include "ops/conv/hopper/conv_folded.h"

#include "ops/conv/hopper/conv_folded.cuh"
#include "ops/cuda/partial_sums.cuh"
#include "ops/cuda/tensor_map.h"
#include "ops/norm/statistics_chunks.h"

namespace arbalest {

using namespace cuda;

namespace {

using Kind = ConvolutionProblem::Kind;

constexpr int kSlice = 64;  // channels of a block

FoldedTiling tiling_of(const ConvolutionProblem& problem, int64_t tiles_per_block) {
  const Shape &x = problem.x, &y = problem.y;
  FoldedTiling t;
  t.pixels = int(y[0] * y[2] * y[3]);
  t.channels = int(y[1]);
  t.tile_pixels = int(row_tile_pixels(y[3]));
  t.tiles_per_row = int(y[3]) / t.tile_pixels;
  t.height = int(y[2]);
  t.image_height = int(x[2]);
  t.image_width = int(x[3]);
  t.tiles = t.pixels / t.tile_pixels;
  t.tiles_per_block = int(tiles_per_block);
  return t;
}

// The gradient's: two blocks a processor.
FoldedTiling gradient_tiling(const ConvolutionProblem& problem, int multiprocessors) {
  FoldedTiling t = tiling_of(problem, 1);
  const int slices = (t.channels + kSlice - 1) / kSlice, blocks = std::max(1, 2 * multiprocessors / slices);
  t.tiles_per_block = (t.tiles + blocks - 1) / blocks;
  return t;
}

dim3 grid_of(const FoldedTiling& t) {
  return dim3(unsigned((t.channels + kSlice - 1) / kSlice),
              unsigned((t.tiles + t.tiles_per_block - 1) / t.tiles_per_block));
}

CUtensorMap image_map(const ConvolutionProblem& problem, const FoldedTiling& tiling, const void* images) {
  const Shape& x = problem.x;
  const int64_t rows = x[0] * x[2] * x[3] - (problem.w[3] - 1);  // pixels that a row of taps can begin with
  return tensor_map(images, rows, kFoldedRowElements, x[1], tiling.tile_pixels);
}

}  // namespace

bool is_folded_row(const ConvolutionProblem& p) {
  const DataType made = p.kind == Kind::GradWeight ? DataType::Float32 : DataType::Bfloat16;
  return (p.kind == Kind::Forward || p.kind == Kind::GradWeight) && p.type == DataType::Bfloat16 &&
         p.output_type == made && p.x.size() == 4 && all_are(p.stride, 1) && all_are(p.dilation, 1) &&
         all_are(p.pad_begin, 0) && all_are(p.pad_end, 0) && p.x[1] > 0 && kFoldedRowElements % p.x[1] == 0 &&
         p.w == Shape{p.y[1], p.x[1], kFoldedTaps, kFoldedRowElements / p.x[1]} && p.x[1] % 8 == 0 && p.y[1] % 8 == 0 &&
         element_count(p.y) > 0 && 2 * row_tile_pixels(p.y[3]) >= kPointwiseTilePixels &&
         p.x[0] * p.x[2] * p.x[3] <= INT32_MAX / 2;
}

void run_folded_statistics(const ConvolutionProblem& problem, int64_t chunk_pixels, const ConvolutionCall& call,
                           void* partials) {
  const FoldedTiling tiling = tiling_of(problem, chunk_pixels / row_tile_pixels(problem.y[3]));
  const auto kernel = folded_kernel<TileStatistics>;
  allow_shared(kernel, kTileShared);
  constexpr int64_t kElements = kFoldedTaps * kFoldedRowElements;
  launch_dependent(kernel, grid_of(tiling), kTileThreads, kTileShared, call.stream, image_map(problem, tiling, call.a),
                   tensor_map(call.b, problem.w[0], kElements, kElements, kSlice), tiling,
                   static_cast<__nv_bfloat16*>(call.result), TileStatistics{static_cast<Partial*>(partials)});
  check_launch("folded convolution");
}

namespace {

bool takes_folded_gradient(const DeviceModel& device, const ConvolutionProblem& problem) {
  return problem.kind == Kind::GradWeight && is_folded_row(problem) && has_hopper_kernels(device);
}

int64_t folded_gradient_workspace(const ConvolutionProblem& problem, int multiprocessors) {
  const dim3 grid = grid_of(gradient_tiling(problem, multiprocessors));
  return int64_t{grid.y} * element_count(problem.w) * int64_t(sizeof(float));
}

void run_folded_gradient(const ConvolutionProblem& problem, const ConvolutionCall& call) {
  const FoldedTiling tiling = gradient_tiling(problem, call.multiprocessors);
  const dim3 grid = grid_of(tiling);
  auto* const partials = static_cast<float*>(call.workspace);
  const auto kernel = [&] {
    switch ((tiling.tile_pixels + 15) / 16) {  // half a tile to a whole one: is_folded_row()
      case 4: return folded_gradient_kernel<4>;
      case 5: return folded_gradient_kernel<5>;
      case 6: return folded_gradient_kernel<6>;
      case 7: return folded_gradient_kernel<7>;
      default: return folded_gradient_kernel<8>;
    }
  }();
  allow_shared(kernel, kTileShared);
  launch_dependent(kernel, grid, kTileThreads, kTileShared, call.stream, image_map(problem, tiling, call.a),
                   tensor_map(call.b, tiling.pixels, tiling.channels, tiling.channels, tiling.tile_pixels), tiling,
                   FoldedGradientMemory(tiling.tile_pixels), partials);
  check_launch("gradient of a folded convolution");
  sum_partials(call.stream, int(grid.y), int(element_count(problem.w)), partials, static_cast<float*>(call.result));
}

}  // namespace

// It was faster than plans wherever it was timed.
constexpr ConvolutionEngine kFoldedGradientEngine = {
    .name = "folded rows",
    .revision = "folded rows 3",
    .accepts = takes_folded_gradient,
    .is_faster = [](const DeviceModel&, const ConvolutionProblem&) { return true; },
    .workspace = folded_gradient_workspace,
    .run = run_folded_gradient};

}  // namespace arbalest
