// SPDX-License-Identifier: Apache-2.0
#include "ops/conv/hopper/conv_halo.h"

#include "ops/conv/hopper/conv_halo.cuh"
#include "ops/cuda/tensor_map.h"

namespace arbalest {

using namespace cuda;

namespace {

using Kind = ConvolutionProblem::Kind;

constexpr int kAllParts = kHaloInner / 16;

dim3 grid_of(const Shape& image, int columns, int64_t chunk_pixels) {
  return dim3(unsigned((image[1] + columns - 1) / columns), unsigned(pixel_chunks(image, chunk_pixels).chunks));
}

template <int kColumns, int kHalves, bool kTransposed, int kParts, typename Epilogue>
void launch_halo_form(const ConvolutionProblem& problem, int64_t chunk_pixels, const ConvolutionCall& call,
                      const Epilogue& epilogue) {
  const Shape& image = problem.output_shape();
  const int64_t inner = kTransposed ? problem.y[1] : problem.x[1], width = kTaps * problem.w[1];
  const HaloTile tile = halo_tile(image, call.multiprocessors);
  const HaloTiling tiling = halo_tiling<kColumns>(image, tile, inner, chunk_pixels);
  const auto kernel = halo_kernel<kColumns, kHalves, kTransposed, kParts, Epilogue>;
  allow_shared(kernel, kHaloShared);
  launch_dependent(
      kernel, grid_of(image, kColumns, chunk_pixels), kHaloThreads, kHaloShared, call.stream,
      tensor_map(call.a, {image[0], inner, image[2], image[3]}, tiling.tile_images, tiling.box_rows, tiling.pitch),
      tensor_map(call.b, problem.w[0], width, width, kTransposed ? kHaloInner : kColumns), tiling, int(inner),
      static_cast<__nv_bfloat16*>(call.result), epilogue);
  check_launch("convolution of 3 x 3");
}

template <bool kTransposed, typename Epilogue>
void launch_halo(const ConvolutionProblem& problem, int64_t chunk_pixels, const ConvolutionCall& call,
                 const Epilogue& epilogue) {
  const Shape& image = problem.output_shape();
  const bool narrow = pointwise_slice_channels(image) == 64, half = halo_tile(image, call.multiprocessors).places == 64;
  if constexpr (!kTransposed) {
    if (narrow && problem.x[1] <= 16) {  // colours
      const auto few = half ? launch_halo_form<64, 1, false, 1, Epilogue> : launch_halo_form<64, 2, false, 1, Epilogue>;
      return few(problem, chunk_pixels, call, epilogue);
    }
  }
  const auto form = narrow ? (half ? launch_halo_form<64, 1, kTransposed, kAllParts, Epilogue>
                                   : launch_halo_form<64, 2, kTransposed, kAllParts, Epilogue>)
                           : (half ? launch_halo_form<128, 1, kTransposed, kAllParts, Epilogue>
                                   : launch_halo_form<128, 2, kTransposed, kAllParts, Epilogue>);
  form(problem, chunk_pixels, call, epilogue);
}

}  // namespace

bool is_halo(const ConvolutionProblem& p) {
  return p.kind != Kind::GradWeight && p.type == DataType::Bfloat16 && p.output_type == DataType::Bfloat16 &&
         p.x.size() == 4 && p.w == Shape{p.y[1], p.x[1], 3, 3} && all_are(p.stride, 1) && all_are(p.dilation, 1) &&
         all_are(p.pad_begin, 1) && all_are(p.pad_end, 1) && p.x[1] % 8 == 0 && p.y[1] % 8 == 0 &&
         element_count(p.x) > 0 && element_count(p.w) > 0 && p.x[0] * p.x[2] * p.x[3] <= INT32_MAX &&
         fullest_halo_tile(p.x, kMostPlaces).pixels() > 0;
}

namespace {

bool takes_halo(const DeviceModel& device, const ConvolutionProblem& problem) {
  return has_hopper_kernels(device) && is_halo(problem) &&
         fills_halo_tiles(problem.output_shape(), device.multiprocessors);
}

// Tiles are full and keep most of a device's processors busy.
bool is_faster_halo(const DeviceModel& device, const ConvolutionProblem& problem) {
  const Shape& image = problem.output_shape();
  const dim3 grid =
      grid_of(image, int(pointwise_slice_channels(image)), halo_chunk_pixels(image, device.multiprocessors));
  return fills_halo_tiles(image, device.multiprocessors) &&
         std::min(problem.x[1], problem.y[1]) >= kFewestHaloChannels &&
         int64_t{grid.x} * grid.y * 3 >= int64_t{device.multiprocessors} * 2;
}

void run_halo(const ConvolutionProblem& problem, const ConvolutionCall& call) {
  const int64_t chunk_pixels = halo_chunk_pixels(problem.output_shape(), call.multiprocessors);
  if (problem.kind == Kind::GradInput) {
    launch_halo<true>(problem, chunk_pixels, call, TileResult<false>{nullptr});
  } else if (problem.relu) {
    launch_halo<false>(problem, chunk_pixels, call, TileResult<true>{call.bias});
  } else {
    launch_halo<false>(problem, chunk_pixels, call, TileResult<false>{call.bias});
  }
}

bool takes_halo_statistics(const DeviceModel& device, const ConvolutionProblem& problem, int64_t chunk_pixels) {
  return has_hopper_kernels(device) && is_halo(problem) && chunk_pixels > 0 &&
         chunk_pixels % (2 * halo_tile(problem.output_shape(), device.multiprocessors).pixels()) == 0;
}

void run_halo_statistics(const ConvolutionProblem& problem, int64_t chunk_pixels, const ConvolutionCall& call,
                         void* partials) {
  const TileStatistics epilogue{static_cast<Partial*>(partials)};
  if (problem.kind == Kind::GradInput) {
    launch_halo<true>(problem, chunk_pixels, call, epilogue);
  } else {
    launch_halo<false>(problem, chunk_pixels, call, epilogue);
  }
}

void run_halo_gradient_sums(const ConvolutionProblem& problem, int64_t chunk_pixels, const ConvolutionCall& call,
                            const GradientOf<__nv_bfloat16>& from, Mask mask, bool two, void* partials) {
  with_mask(mask, two, [&](auto kind, auto sum) {
    launch_halo<true>(problem, chunk_pixels, call,
                      TileGradientSums<kind.value, sum.value>{from, static_cast<Partial*>(partials)});
  });
}

}  // namespace

constexpr ConvolutionEngine kHaloEngine = {.name = "3 x 3",
                                           .revision = "halo 3 ",
                                           .adds = ConvolutionEngine::Adds::BiasAndRelu,
                                           .accepts = takes_halo,
                                           .is_faster = is_faster_halo,
                                           .run = run_halo};

constexpr StatisticsEngine kHaloStatistics = {.name = "3 x 3",
                                              .revision = "halo 3 ",
                                              .accepts = takes_halo_statistics,
                                              .is_faster = is_faster_halo,
                                              .statistics = run_halo_statistics,
                                              .gradient_sums = run_halo_gradient_sums};

}  // namespace arbalest
