// SPDX-License-Identifier: Apache-2.0
#include "ops/conv/hopper/conv_pointwise.h"

#include "ops/conv/hopper/conv_pointwise.cuh"
#include "ops/cuda/tensor_map.h"

namespace arbalest {

using namespace cuda;

namespace {

using Kind = ConvolutionProblem::Kind;

template <int kColumns>
dim3 grid_of(const Shape& image, int64_t chunk_pixels) {
  return dim3(unsigned((image[1] + kColumns - 1) / kColumns), unsigned(pixel_chunks(image, chunk_pixels).chunks));
}

template <int kColumns, bool kTransposed, typename Epilogue>
void launch_pointwise_form(const ConvolutionProblem& problem, int64_t chunk_pixels, const ConvolutionCall& call,
                           const Epilogue& epilogue) {
  const Shape& image = problem.output_shape();
  const int64_t pixels = image[0] * image[2] * image[3], inner = kTransposed ? problem.y[1] : problem.x[1];
  const PointwiseTiling tiling = pointwise_tiling<kColumns>(pixels, image[1], inner, chunk_pixels);
  const auto kernel = pointwise_kernel<kColumns, kTransposed, Epilogue>;
  allow_shared(kernel, kTileShared);
  launch_dependent(kernel, grid_of<kColumns>(image, chunk_pixels), kTileThreads, kTileShared, call.stream,
                   tensor_map(call.a, pixels, inner, inner, kTilePixels),
                   tensor_map(call.b, problem.w[0], problem.w[1], problem.w[1], kTransposed ? kInner : kColumns),
                   tiling, static_cast<__nv_bfloat16*>(call.result), epilogue);
  check_launch("pointwise convolution");
}

template <bool kTransposed, typename Epilogue>
void launch_pointwise(const ConvolutionProblem& problem, int64_t chunk_pixels, const ConvolutionCall& call,
                      const Epilogue& epilogue) {
  const auto form = pointwise_slice_channels(problem.output_shape()) == 64
                        ? launch_pointwise_form<64, kTransposed, Epilogue>
                        : launch_pointwise_form<128, kTransposed, Epilogue>;
  form(problem, chunk_pixels, call, epilogue);
}

}  // namespace

bool is_pointwise(const ConvolutionProblem& p) {
  return (p.kind == Kind::Forward || p.kind == Kind::GradInput) && p.type == DataType::Bfloat16 &&
         p.output_type == DataType::Bfloat16 && p.x.size() == 4 && p.w == Shape{p.y[1], p.x[1], 1, 1} &&
         all_are(p.stride, 1) && all_are(p.pad_begin, 0) && all_are(p.pad_end, 0) && p.x[1] % 8 == 0 &&
         p.y[1] % 8 == 0 && element_count(p.x) > 0 && element_count(p.w) > 0 &&
         p.x[0] * p.x[2] * p.x[3] <= INT32_MAX - kTilePixels;
}

namespace {

bool takes_pointwise_statistics(const DeviceModel& device, const ConvolutionProblem& problem, int64_t chunk_pixels) {
  return has_hopper_kernels(device) && is_pointwise(problem) && chunk_pixels > 0 &&
         chunk_pixels % kPointwiseTilePixels == 0;
}

bool is_faster_pointwise(const DeviceModel&, const ConvolutionProblem& problem) {
  constexpr int64_t kFewInner = 256;
  return (problem.kind == Kind::Forward ? problem.x : problem.y)[1] <= kFewInner;
}

void run_pointwise_statistics(const ConvolutionProblem& problem, int64_t chunk_pixels, const ConvolutionCall& call,
                              void* partials) {
  const TileStatistics epilogue{static_cast<Partial*>(partials)};
  if (problem.kind == Kind::GradInput) {
    launch_pointwise<true>(problem, chunk_pixels, call, epilogue);
  } else {
    launch_pointwise<false>(problem, chunk_pixels, call, epilogue);
  }
}

void run_pointwise_gradient_sums(const ConvolutionProblem& problem, int64_t chunk_pixels, const ConvolutionCall& call,
                                 const GradientOf<__nv_bfloat16>& from, Mask mask, bool two, void* partials) {
  with_mask(mask, two, [&](auto kind, auto sum) {
    launch_pointwise<true>(problem, chunk_pixels, call,
                           TileGradientSums<kind.value, sum.value>{from, static_cast<Partial*>(partials)});
  });
}

void run_pointwise_pair_gradient_sums(const ConvolutionProblem& problem, int64_t chunk_pixels,
                                      const ConvolutionCall& call, const PairGradientOf<__nv_bfloat16>& from,
                                      void* partials, void* partials2) {
  launch_pointwise<true>(problem, chunk_pixels, call,
                         TilePairGradientSums{from, static_cast<Partial*>(partials), static_cast<Partial*>(partials2)});
}

}  // namespace

constexpr StatisticsEngine kPointwiseStatistics = {.name = "pointwise",
                                                   .revision = "pointwise 3 ",
                                                   .accepts = takes_pointwise_statistics,
                                                   .is_faster = is_faster_pointwise,
                                                   .statistics = run_pointwise_statistics,
                                                   .gradient_sums = run_pointwise_gradient_sums,
                                                   .pair_gradient_sums = run_pointwise_pair_gradient_sums};

}  // namespace arbalest
