// SPDX-License-Identifier: Apache-2.0
#include "ops/conv/few/conv_thin.h"

#include "ops/conv/few/conv_thin_epilogue.cuh"
#include "ops/conv/few/conv_thin_filter_gradient.cuh"
#include "ops/cuda/partial_sums.cuh"

namespace arbalest {

using namespace cuda;

namespace {

using Kind = ConvolutionProblem::Kind;

// Channels of X and of dY that a block takes, and how pixels are shared out: what was the fastest on an H200.
template <int C, int From, int To, int kMostPixels>
struct FilterGradientForm {
  static constexpr int kChannels = C;
  using Kernel = ThinFilterGradient<C, From, To>;

  ThinTiling tiling;

  FilterGradientForm(const Shape& image, int most_blocks, int least_tiles_per_block) {
    tiling.height = int(image[2]);
    tiling.width = int(image[3]);
    tiling.rows = std::clamp(kMostPixels / tiling.width, 1, tiling.height);
    while (tiling.height % tiling.rows != 0) --tiling.rows;
    tiling.tiles_per_image = tiling.height / tiling.rows;
    tiling.tiles = int(image[0]) * tiling.tiles_per_image;
    tiling.tiles_per_block = std::max(least_tiles_per_block, (tiling.tiles + most_blocks - 1) / most_blocks);
    tiling.blocks = (tiling.tiles + tiling.tiles_per_block - 1) / tiling.tiles_per_block;
  }

  void run(cudaStream_t stream, const __nv_bfloat16* x, const __nv_bfloat16* dy, float* dw, float* partials) const {
    const auto kernel = thin_filter_gradient_kernel<C, From, To>;
    const int shared = Kernel::shared_bytes(tiling);
    allow_shared(kernel, shared);
    launch_dependent(kernel, dim3(unsigned(tiling.blocks), Kernel::kBlocksY), kThreads, size_t(shared), stream, tiling,
                     x, dy, partials);
    check_launch("gradient of a convolution of few channels");
    constexpr int kCount = 9 * C * C;
    sum_partials(stream, tiling.blocks, kCount, partials, dw);
  }
};

// function(form). Each block adds partial sums, which are read again.
template <typename Function>
auto with_filter_gradient_form(const Shape& image, int multiprocessors, Function function) {
  switch (image[1]) {
    case 16:
      return function(FilterGradientForm<16, 16, 16, 256>(image, multiprocessors * (has_few_pixels(image) ? 1 : 2), 2));
    case 32: return function(FilterGradientForm<32, 32, 16, 256>(image, multiprocessors, 1));
    default:
      return has_few_pixels(image)
                 ? function(FilterGradientForm<64, 32, 16, 64>(image, std::max(1, multiprocessors / 4), 4))
                 : function(FilterGradientForm<64, 32, 32, 64>(image, std::max(1, multiprocessors / 2), 1));
  }
}

bool takes_thin(const DeviceModel& device, const ConvolutionProblem& p) {
  const int64_t channels = p.x[1];
  const DataType made = p.kind == Kind::GradWeight ? DataType::Float32 : DataType::Bfloat16;
  return device.has_large_blocks() && p.kind != Kind::ForwardBias && p.type == DataType::Bfloat16 &&
         p.output_type == made && p.x.size() == 4 && (channels == 16 || channels == 32 || channels == 64) &&
         p.w == Shape{channels, channels, 3, 3} && all_are(p.stride, 1) && all_are(p.dilation, 1) &&
         all_are(p.pad_begin, 1) && all_are(p.pad_end, 1) && p.x[3] <= kWidestThin;
}

bool is_faster_thin(const DeviceModel&, const ConvolutionProblem& problem) {
  return problem.x[1] <= 32;
}

int64_t thin_workspace(const ConvolutionProblem& problem, int multiprocessors) {
  if (problem.kind != Kind::GradWeight) return 0;
  return with_filter_gradient_form(problem.x, multiprocessors, [](const auto& form) {
    return form.tiling.blocks * 9 * int64_t{form.kChannels} * form.kChannels * int64_t(sizeof(float));
  });
}

// Whether chunks are as fuse_statistics makes them for this file's kernels. Others that are whole tiles by chance are
// those of conv_halo.h.
bool has_whole_tiles(const Shape& image, int64_t chunk_pixels) {
  const int64_t tile = int64_t{statistics_chunks(image).tile_rows} * image[3];
  return chunk_pixels == 0 ||
         (chunk_pixels % tile == 0 && fills_tiles(image) && (image[1] < 64 || has_few_pixels(image)));
}

// The convolution, or, transposed, the gradient of images, of the call's operands.
template <bool Transposed, typename Epilogue>
void call_thin(const ConvolutionProblem& problem, int64_t chunk_pixels, const ConvolutionCall& call,
               const Epilogue& epilogue) {
  launch_thin<Transposed>(problem.x, chunk_pixels, call.stream, static_cast<const __nv_bfloat16*>(call.a),
                          static_cast<const __nv_bfloat16*>(call.b), static_cast<__nv_bfloat16*>(call.result),
                          epilogue);
}

void run_thin(const ConvolutionProblem& problem, const ConvolutionCall& call) {
  switch (problem.kind) {
    case Kind::GradWeight:
      return with_filter_gradient_form(problem.x, call.multiprocessors, [&](const auto& form) {
        form.run(call.stream, static_cast<const __nv_bfloat16*>(call.a), static_cast<const __nv_bfloat16*>(call.b),
                 static_cast<float*>(call.result), static_cast<float*>(call.workspace));
      });
    case Kind::GradInput: return call_thin<true>(problem, 0, call, ThinPlain{});
    default: return call_thin<false>(problem, 0, call, ThinPlain{});
  }
}

void run_thin_statistics(const ConvolutionProblem& problem, int64_t chunk_pixels, const ConvolutionCall& call,
                         void* partials) {
  call_thin<false>(problem, chunk_pixels, call, ThinStatistics{static_cast<Partial*>(partials)});
}

void run_thin_gradient_sums(const ConvolutionProblem& problem, int64_t chunk_pixels, const ConvolutionCall& call,
                            const GradientOf<__nv_bfloat16>& from, Mask mask, bool two, void* partials) {
  with_mask(mask, two, [&](auto kind, auto sum) {
    call_thin<true>(problem, chunk_pixels, call,
                    ThinGradientSums<kind.value, sum.value>{from, static_cast<Partial*>(partials)});
  });
}

}  // namespace

constexpr ConvolutionEngine kThinEngine = {.name = "thin",
                                           .revision = "thin 2",
                                           .accepts = takes_thin,
                                           .is_faster = is_faster_thin,
                                           .workspace = thin_workspace,
                                           .run = run_thin};

constexpr StatisticsEngine kThinStatistics = {
    .name = "thin",
    .accepts =
        [](const DeviceModel& device, const ConvolutionProblem& problem, int64_t chunk_pixels) {
          return takes_thin(device, problem) && has_whole_tiles(problem.x, chunk_pixels);
        },
    .statistics = run_thin_statistics,
    .gradient_sums = run_thin_gradient_sums};

}  // namespace arbalest
