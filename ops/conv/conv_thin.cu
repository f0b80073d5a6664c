// SPDX-License-Identifier: Apache-2.0
#include "ops/conv/conv_thin.h"

#include "ops/conv/conv_thin_epilogue.cuh"
#include "ops/conv/conv_thin_filter_gradient.cuh"
#include "ops/cuda/convolution_timer.h"
#include "ops/cuda/partial_sums.cuh"

namespace arbalest {

using namespace cuda;

namespace {

using Kind = ConvolutionProblem::Kind;

// Its number is to be changed with how fast the kernel is: what was timed before, and kept, is timed again then.
constexpr const char* kThinTimed = "thin 2";

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
    if (!allow_shared(kernel, shared)) {
      throw RunError("gradients of convolutions of few channels: too little shared memory");
    }
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

}  // namespace

bool is_thin(const ConvolutionProblem& p) {
  const int64_t channels = p.x[1];
  const DataType made = p.kind == Kind::GradWeight ? DataType::Float32 : DataType::Bfloat16;
  return p.kind != Kind::ForwardBias && p.type == DataType::Bfloat16 && p.output_type == made && p.x.size() == 4 &&
         (channels == 16 || channels == 32 || channels == 64) && p.w == Shape{channels, channels, 3, 3} &&
         all_are(p.stride, 1) && all_are(p.dilation, 1) && all_are(p.pad_begin, 1) && all_are(p.pad_end, 1) &&
         p.x[3] <= kWidestThin;
}

bool can_run_thin(const CudaContext& context) {
  constexpr int kSharedBytes = 150 << 10;  // more than any of them needs
  int major = 0, shared = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, context.device));
  CUDA_CHECK(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, context.device));
  return major >= 8 && shared >= kSharedBytes;
}

double thin_microseconds(CudaContext& context, const ConvolutionProblem& problem) {
  const auto call = [&](const ConvolutionOperands& with, cudaStream_t stream) {
    run_thin_convolution(problem, context.multiprocessors, stream, with.a.data(), with.b.data(), with.result.data(),
                         with.workspace.data());
  };
  return own_microseconds(context, kThinTimed, problem, thin_workspace(problem, context.multiprocessors), call);
}

int64_t thin_workspace(const ConvolutionProblem& problem, int multiprocessors) {
  if (problem.kind != Kind::GradWeight) return 0;
  return with_filter_gradient_form(problem.x, multiprocessors, [](const auto& form) {
    return form.tiling.blocks * 9 * int64_t{form.kChannels} * form.kChannels * int64_t(sizeof(float));
  });
}

void run_thin_convolution(const ConvolutionProblem& problem, int multiprocessors, cudaStream_t stream, const void* a,
                          const void* b, void* result, void* workspace) {
  const auto *first = static_cast<const __nv_bfloat16*>(a), *second = static_cast<const __nv_bfloat16*>(b);
  auto* image = static_cast<__nv_bfloat16*>(result);
  switch (problem.kind) {
    case Kind::GradWeight:
      return with_filter_gradient_form(problem.x, multiprocessors, [&](const auto& form) {
        form.run(stream, first, second, static_cast<float*>(result), static_cast<float*>(workspace));
      });
    case Kind::GradInput: return launch_thin<true>(problem.x, stream, first, second, image, ThinPlain{});
    default: return launch_thin<false>(problem.x, stream, first, second, image, ThinPlain{});
  }
}

}  // namespace arbalest
