// SPDX-License-Identifier: Apache-2.0
#include "ops/conv/conv_pixel_sums.h"

#include "ops/conv/conv_pixel_sums.cuh"
#include "ops/cuda/partial_sums.cuh"

namespace arbalest {

using namespace cuda;

namespace {

using Kind = ConvolutionProblem::Kind;

constexpr int64_t kMostSummedChannels = 1024;

int64_t pixels_summed(const ConvolutionProblem& problem) {
  return problem.x[0] * problem.x[2] * problem.x[3];
}

bool takes_pixel_sums(const DeviceModel& device, const ConvolutionProblem& p) {
  if (!device.has_large_blocks() || p.kind != Kind::GradWeight || p.type != DataType::Bfloat16 ||
      p.output_type != DataType::Float32 || p.x.size() != 4) {
    return false;
  }
  const int64_t made = p.w[0], taken = p.w[1];
  const bool plain = p.w[2] == 1 && p.w[3] == 1 && taken == p.x[1] && all_are(p.stride, 1) && all_are(p.pad_begin, 0) &&
                     all_are(p.pad_end, 0);
  const bool fits = made % 2 == 0 && taken % 2 == 0 && std::max(made, taken) <= kMostSummedChannels;
  const int64_t pixels = pixels_summed(p);
  return plain && fits && pixels > 0 && (pixels <= kFewestPixels || pixels >= 8 * std::max(made, taken));
}

int64_t pixel_sums_workspace(const ConvolutionProblem& problem, int multiprocessors) {
  return with_pixel_tile(problem.w[0], problem.w[1], [&](auto tile, auto) {
    const int shares =
        pixel_shares<decltype(tile)>(pixels_summed(problem), problem.w[0], problem.w[1], multiprocessors).shares;
    return shares == 1 ? 0 : shares * problem.w[0] * problem.w[1] * int64_t(sizeof(float));
  });
}

void run_pixel_sums(const ConvolutionProblem& problem, const ConvolutionCall& call) {
  with_pixel_tile(problem.w[0], problem.w[1], [&](auto tile, auto word) {
    using Tile = decltype(tile);
    const PixelShares s = pixel_shares<Tile>(pixels_summed(problem), problem.w[0], problem.w[1], call.multiprocessors);
    const auto kernel = pixel_sums_kernel<Tile::kRows, Tile::kColumns, decltype(word)::value>;
    allow_shared(kernel, Tile::kSharedBytes);
    auto* const result = static_cast<float*>(call.result);
    float* const partials = s.shares == 1 ? result : static_cast<float*>(call.workspace);
    launch_dependent(kernel, pixel_grid<Tile>(s), Tile::kThreadsOf, size_t(Tile::kSharedBytes), call.stream, s,
                     static_cast<const __nv_bfloat16*>(call.a), static_cast<const __nv_bfloat16*>(call.b), partials);
    check_launch("filter gradient of a pointwise convolution");
    if (s.shares > 1) sum_partials(call.stream, s.shares, s.made * s.taken, partials, result);
  });
}

}  // namespace

constexpr ConvolutionEngine kPixelSumsEngine = {
    .name = "pixel sums",
    .revision = "pixel sums 1",
    .accepts = takes_pixel_sums,
    .is_faster = [](const DeviceModel&, const ConvolutionProblem&) { return false; },
    .workspace = pixel_sums_workspace,
    .run = run_pixel_sums};

}  // namespace arbalest
