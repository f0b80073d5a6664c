// SPDX-License-Identifier: Apache-2.0
#include "ops/conv/hopper/conv_pointwise.h"

#include "ops/conv/hopper/conv_pointwise.cuh"
#include "ops/cuda/convolution_timer.h"
#include "ops/cuda/tensor_map.h"

namespace arbalest {

using namespace cuda;

namespace {

using Kind = ConvolutionProblem::Kind;

// Its number is to be changed with how fast the kernel is: what was timed before, and kept, is timed again then.
const std::string kPointwiseTimed = "pointwise 3 ";

template <int kColumns>
dim3 grid_of(const Shape& image, int64_t chunk_pixels) {
  return dim3(unsigned((image[1] + kColumns - 1) / kColumns), unsigned(pixel_chunks(image, chunk_pixels).chunks));
}

template <int kColumns, bool kTransposed, typename Epilogue>
void launch_pointwise_form(const ConvolutionProblem& problem, int64_t chunk_pixels, cudaStream_t stream, const void* a,
                           const void* filter, void* result, const Epilogue& epilogue) {
  const Shape& image = problem.output_shape();
  const int64_t pixels = image[0] * image[2] * image[3], inner = kTransposed ? problem.y[1] : problem.x[1];
  const PointwiseTiling tiling = pointwise_tiling<kColumns>(pixels, image[1], inner, chunk_pixels);
  const auto kernel = pointwise_kernel<kColumns, kTransposed, Epilogue>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kTileShared));
  launch_dependent(kernel, grid_of<kColumns>(image, chunk_pixels), kTileThreads, kTileShared, stream,
                   tensor_map(a, pixels, inner, inner, kTilePixels),
                   tensor_map(filter, problem.w[0], problem.w[1], problem.w[1], kTransposed ? kInner : kColumns),
                   tiling, static_cast<__nv_bfloat16*>(result), epilogue);
  check_launch("pointwise convolution");
}

template <bool kTransposed, typename Epilogue>
void launch_pointwise(const ConvolutionProblem& problem, int64_t chunk_pixels, cudaStream_t stream, const void* a,
                      const void* filter, void* result, const Epilogue& epilogue) {
  const auto form = pointwise_slice_channels(problem.output_shape()) == 64
                        ? launch_pointwise_form<64, kTransposed, Epilogue>
                        : launch_pointwise_form<128, kTransposed, Epilogue>;
  form(problem, chunk_pixels, stream, a, filter, result, epilogue);
}

}  // namespace

bool is_pointwise(const ConvolutionProblem& p) {
  return (p.kind == Kind::Forward || p.kind == Kind::GradInput) && p.type == DataType::Bfloat16 &&
         p.output_type == DataType::Bfloat16 && p.x.size() == 4 && p.w == Shape{p.y[1], p.x[1], 1, 1} &&
         all_are(p.stride, 1) && all_are(p.pad_begin, 0) && all_are(p.pad_end, 0) && p.x[1] % 8 == 0 &&
         p.y[1] % 8 == 0 && element_count(p.x) > 0 && element_count(p.w) > 0 &&
         p.x[0] * p.x[2] * p.x[3] <= INT32_MAX - kTilePixels;
}

double pointwise_microseconds(CudaContext& context, const ConvolutionProblem& problem, int64_t chunk_pixels) {
  const auto call = [&](const ConvolutionOperands& with, cudaStream_t stream) {
    run_pointwise_statistics(problem, chunk_pixels, stream, with.a.data(), with.b.data(), with.result.data(),
                             with.workspace.data());
  };
  const Shape& image = problem.output_shape();
  const int64_t workspace = pixel_chunks(image, chunk_pixels).chunks * image[1] * int64_t(sizeof(Partial));
  return own_microseconds(context, kPointwiseTimed + std::to_string(chunk_pixels), problem, workspace, call);
}

void run_pointwise_statistics(const ConvolutionProblem& problem, int64_t chunk_pixels, cudaStream_t stream,
                              const void* a, const void* filter, void* result, void* partials) {
  const TileStatistics epilogue{static_cast<Partial*>(partials)};
  if (problem.kind == Kind::GradInput) {
    launch_pointwise<true>(problem, chunk_pixels, stream, a, filter, result, epilogue);
  } else {
    launch_pointwise<false>(problem, chunk_pixels, stream, a, filter, result, epilogue);
  }
}

void run_pointwise_gradient_sums(const ConvolutionProblem& problem, int64_t chunk_pixels, cudaStream_t stream,
                                 const void* dy, const void* filter, const GradientOf<__nv_bfloat16>& from, Mask mask,
                                 bool two, void* g, void* partials) {
  with_mask(mask, two, [&](auto kind, auto sum) {
    launch_pointwise<true>(problem, chunk_pixels, stream, dy, filter, g,
                           TileGradientSums<kind.value, sum.value>{from, static_cast<Partial*>(partials)});
  });
}

void run_pointwise_pair_gradient_sums(const ConvolutionProblem& problem, int64_t chunk_pixels, cudaStream_t stream,
                                      const void* dy, const void* filter, const PairGradientOf<__nv_bfloat16>& from,
                                      void* g, void* partials, void* partials2) {
  launch_pointwise<true>(problem, chunk_pixels, stream, dy, filter, g,
                         TilePairGradientSums{from, static_cast<Partial*>(partials), static_cast<Partial*>(partials2)});
}

}  // namespace arbalest
