#include "ops/conv/conv_thin.h"

#include <climits>

#include "ops/conv/conv_thin.cuh"
#include "ops/cuda/convolution_choices.h"
#include "ops/cuda/convolution_timer.h"

namespace arbalest {

using namespace cuda;

namespace {

using Kind = ConvolutionProblem::Kind;

// Tiles of at most so many pixels, shared out to at most so many blocks.
ThinTiling make_tiling(const ConvolutionProblem& problem, int most_pixels, int most_blocks) {
  ThinTiling t;
  t.height = int(problem.x[2]);
  t.width = int(problem.x[3]);
  t.rows = std::clamp(most_pixels / t.width, 1, t.height);
  t.tiles_per_image = (t.height + t.rows - 1) / t.rows;
  t.tiles = int(problem.x[0]) * t.tiles_per_image;
  t.tiles_per_block = std::max(1, (t.tiles + most_blocks - 1) / most_blocks);
  t.blocks = (t.tiles + t.tiles_per_block - 1) / t.tiles_per_block;
  return t;
}

// More shared memory than kernels may have unasked. False: more than the device has.
template <typename Kernel>
bool allow_shared(Kernel kernel, int bytes) {
  const auto status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status == cudaSuccess) return true;
  cudaGetLastError();
  return false;
}

// A kernel for images and their gradients: see thin_convolution_kernel().
template <int C, int Out, int M, int Along, int Across>
struct ImageForm {
  template <bool Transposed>
  bool run(const ConvolutionProblem& problem, int multiprocessors, cudaStream_t stream, const __nv_bfloat16* x,
           const __nv_bfloat16* w, __nv_bfloat16* y) const {
    const ThinTiling tiling = make_tiling(problem, 16 * M * Along, 2 * multiprocessors * Out / C);
    const auto kernel = thin_convolution_kernel<C, Out, M, Along, Across, Transposed, ThinPlain>;
    const int shared = thin_shared_bytes<C, Out, Transposed>(tiling);
    if (!allow_shared(kernel, shared)) return false;
    kernel<<<dim3(unsigned(tiling.blocks), C / Out), 32 * Along * Across, size_t(shared), stream>>>(tiling, x, w, y,
                                                                                                    ThinPlain{});
    check_launch("thin convolution");
    return true;
  }
};

// function(form): the one that was the fastest for so many pixels on an H200.
template <typename Function>
bool with_image_form(const ConvolutionProblem& problem, int multiprocessors, Function function) {
  const int64_t pixels = problem.x[0] * problem.x[2] * problem.x[3];
  const bool few = pixels <= int64_t{256} * multiprocessors;
  switch (problem.x[1]) {
    case 16: return function(ImageForm<16, 16, 2, 8, 1>{});
    case 32: return few ? function(ImageForm<32, 32, 1, 8, 1>{}) : function(ImageForm<32, 32, 2, 8, 1>{});
    default: return few ? function(ImageForm<64, 32, 1, 4, 2>{}) : function(ImageForm<64, 64, 1, 4, 2>{});
  }
}

template <int C>
ThinTiling gradient_tiling(const ConvolutionProblem& problem, int multiprocessors) {
  const int most_pixels = C == 64 ? 64 : 256;
  const ThinTiling tiles = make_tiling(problem, most_pixels, INT_MAX);
  // Every block adds partial sums, which are read again.
  const int blocks = C == 64 ? std::max(1, std::min(tiles.tiles, multiprocessors) / 2)
                             : multiprocessors * (C == 16 && tiles.tiles > 8 * multiprocessors ? 2 : 1);
  return make_tiling(problem, most_pixels, blocks);
}

// function(std::integral_constant<int, channels>)
template <typename Function>
auto with_channels(const ConvolutionProblem& problem, Function function) {
  switch (problem.x[1]) {
    case 16: return function(std::integral_constant<int, 16>{});
    case 32: return function(std::integral_constant<int, 32>{});
    default: return function(std::integral_constant<int, 64>{});
  }
}

bool run_gradient(const ConvolutionProblem& problem, int multiprocessors, cudaStream_t stream, const __nv_bfloat16* x,
                  const __nv_bfloat16* dy, float* dw, float* partials) {
  return with_channels(problem, [&](auto channels) {
    constexpr int C = decltype(channels)::value;
    using Form = ThinGradient<C>;
    const ThinTiling tiling = gradient_tiling<C>(problem, multiprocessors);
    const int shared = Form::shared_bytes(tiling);
    if (!allow_shared(thin_gradient_kernel<C>, shared)) return false;
    thin_gradient_kernel<C>
        <<<dim3(unsigned(tiling.blocks), Form::kBlocksY), kThreads, size_t(shared), stream>>>(tiling, x, dy, partials);
    check_launch("thin convolution's gradient");
    constexpr int kCount = 9 * C * C;
    thin_sum_kernel<<<(kCount * 2 + kThreads - 1) / kThreads, kThreads, 0, stream>>>(tiling.blocks, kCount, partials,
                                                                                     dw);
    check_launch("thin convolution's gradient: sums");
    return true;
  });
}

// False: the device has too little shared memory.
bool run(const ConvolutionProblem& problem, int multiprocessors, cudaStream_t stream, const void* a, const void* b,
         void* result, void* workspace) {
  const auto *first = static_cast<const __nv_bfloat16*>(a), *second = static_cast<const __nv_bfloat16*>(b);
  if (problem.kind == Kind::GradWeight) {
    return run_gradient(problem, multiprocessors, stream, first, second, static_cast<float*>(result),
                        static_cast<float*>(workspace));
  }
  return with_image_form(problem, multiprocessors, [&](auto form) {
    auto* image = static_cast<__nv_bfloat16*>(result);
    if (problem.kind == Kind::GradInput) {
      return form.template run<true>(problem, multiprocessors, stream, first, second, image);
    }
    return form.template run<false>(problem, multiprocessors, stream, first, second, image);
  });
}

}  // namespace

bool is_thin(const ConvolutionProblem& p) {
  const auto all = [](const std::vector<int64_t>& values, int64_t value) {
    return std::all_of(values.begin(), values.end(), [&](int64_t v) { return v == value; });
  };
  const int64_t channels = p.x[1];
  const DataType made = p.kind == Kind::GradWeight ? DataType::Float32 : DataType::Bfloat16;
  return p.kind != Kind::ForwardBias && p.type == DataType::Bfloat16 && p.output_type == made && p.x.size() == 4 &&
         (channels == 16 || channels == 32 || channels == 64) && p.w == Shape{channels, channels, 3, 3} &&
         all(p.stride, 1) && all(p.dilation, 1) && all(p.pad_begin, 1) && all(p.pad_end, 1) && p.x[3] <= 64;
}

double thin_microseconds(CudaContext& context, const ConvolutionProblem& problem) {
  const auto choose = [&]() -> ConvolutionChoice {
    int major = 0;
    CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, context.device));
    if (major < 8) return {};
    const ConvolutionTimer::Call call = [&](const ConvolutionOperands& with, cudaStream_t stream) {
      const bool ran = run(problem, context.multiprocessors, stream, with.a.data(), with.b.data(), with.result.data(),
                           with.workspace.data());
      if (!ran) throw RunError("convolutions of few channels: too little shared memory");
    };
    ConvolutionTimer timer(context, problem, thin_workspace(problem, context.multiprocessors));
    return {0, "thin", timer.time(call, 0)};
  };
  return ConvolutionChoices::of_process()
      .find(
          context.device_name + " thin " + problem.key(), [](const ConvolutionChoice&) { return true; }, choose)
      .microseconds;
}

int64_t thin_workspace(const ConvolutionProblem& problem, int multiprocessors) {
  if (problem.kind != Kind::GradWeight) return 0;
  return with_channels(problem, [&](auto channels) {
    constexpr int C = decltype(channels)::value;
    return int64_t{gradient_tiling<C>(problem, multiprocessors).blocks} * 9 * C * C * int64_t(sizeof(float));
  });
}

void run_thin_convolution(const ConvolutionProblem& problem, int multiprocessors, cudaStream_t stream, const void* a,
                          const void* b, void* result, void* workspace) {
  if (!run(problem, multiprocessors, stream, a, b, result, workspace)) {
    throw RunError("convolutions of few channels: the device's shared memory is too small");
  }
}

}  // namespace arbalest
