// SPDX-License-Identifier: Apache-2.0

// Convolutions with partial statistics. One kernel does both for few channels, for the stem, or if the convolution is
// pointwise or of 3 × 3 and that is faster. Otherwise a pass over the result follows the convolution.

#include "ops/conv/conv_fold.h"
#include "ops/conv/conv_kernel.h"
#include "ops/conv/conv_solution.h"
#include "ops/conv/conv_thin.cuh"
#include "ops/conv/conv_thin.h"
#include "ops/conv/conv_thin_epilogue.cuh"
#include "ops/conv/hopper/conv_folded.h"
#include "ops/conv/hopper/conv_halo.h"
#include "ops/conv/hopper/conv_pointwise.h"
#include "ops/cuda/tensor_map.h"
#include "ops/norm/batch_norm_pair.cuh"
#include "ops/norm/batch_norms.h"

namespace arbalest {

using namespace cuda;

namespace {

using Kind = ConvolutionProblem::Kind;

// The reduction's layout for packs of `width` channels, with the chunks that both sides have agreed on.
Columns chunked(const Shape& image, int64_t chunk_pixels, int width) {
  const PixelChunks chunks = pixel_chunks(image, chunk_pixels);
  Columns columns = make_columns(image[0] * image[2] * image[3], image[1], width,
                                 {.slice_channels = kSliceChannels, .blocks = 1, .chunks = 1});
  columns.chunk_rows = chunks.pixels;
  columns.chunks = int(chunks.chunks);
  return columns;
}

// function(W, columns): wide packs if the channels and every pointer allow.
template <typename T, typename Function>
void with_columns(const Shape& image, int64_t chunk_pixels, bool all_aligned, Function function) {
  constexpr int kWide = 16 / sizeof(T);
  if (all_aligned && image[1] % kWide == 0) {
    function(std::integral_constant<int, kWide>{}, chunked(image, chunk_pixels, kWide));
  } else {
    function(std::integral_constant<int, 1>{}, chunked(image, chunk_pixels, 1));
  }
}

// A kernel whose engine `profile` names.
template <typename Function>
std::unique_ptr<Kernel> make_fused_kernel(std::string engine, Function function, int64_t workspace_bytes = 0) {
  class FusedKernel final : public Kernel {
   public:
    FusedKernel(std::string engine, Function f, int64_t bytes)
        : engine_(std::move(engine)), function_(std::move(f)), bytes_(bytes) {}
    std::string engine() const override { return engine_; }
    int64_t workspace_bytes() const override { return bytes_; }
    void run(const KernelContext& context) const override { function_(context); }

   private:
    std::string engine_;
    Function function_;
    int64_t bytes_;
  };
  return std::make_unique<FusedKernel>(std::move(engine), std::move(function), workspace_bytes);
}

// The convolution of an image folded by the stride, which was faster than cuDNN's wherever it was timed; null if it
// is none.
std::unique_ptr<Kernel> folded_statistics(const KernelRequest& request, const ConvolutionProblem& asked,
                                          int64_t chunk_pixels) {
  if (asked.stride[0] < 2 || chunk_pixels == 0 || chunk_pixels % row_tile_pixels(asked.y.back()) != 0) return nullptr;
  if (!has_hopper_kernels(cuda_context(request).model)) return nullptr;
  ConvolutionProblem problem = asked;
  Folding folding;
  const int64_t channels = folded_row(asked.x[1], asked.w.back(), asked.stride[0], asked.pad_begin[0]).channels;
  if (!fold(problem, int(asked.stride[0]), channels, folding) || !is_folded_row(problem)) return nullptr;
  const auto bytes_of = [](const Shape& shape) { return (element_count(shape) * 2 + 255) / 256 * 256; };
  const int64_t images = bytes_of(problem.x), workspace = images + bytes_of(problem.w);
  const int processors = cuda_context(request).multiprocessors;
  const auto run = [=](const KernelContext& c) {
    require_alignment("convolution", {c.inputs[0], c.inputs[1], c.outputs[0]});
    auto* const filter = static_cast<char*>(c.workspace) + images;
    fold_image(stream_of(c), processors, folding, problem.type, c.inputs[0], c.workspace);
    fold_filter(stream_of(c), processors, folding, problem.type, c.inputs[1], filter);
    run_folded_statistics(problem, chunk_pixels, stream_of(c), c.workspace, filter, c.outputs[0], c.outputs[1]);
  };
  const std::string name =
      "folded by " + std::to_string(folding.fold) + ", " + std::to_string(folding.wide) + " channels, statistics";
  return make_fused_kernel(name, run, workspace);
}

// A kernel of ours that may be the best for a problem and its chunks.
struct OwnKernel {
  const char* name = nullptr;  // null: there is none
  double (*microseconds)(CudaContext&, const ConvolutionProblem&, int64_t chunk_pixels);
  decltype(&run_halo_statistics) run_statistics;
  decltype(&run_halo_gradient_sums) run_gradient_sums;
  // It was faster than cuDNN wherever it was timed: what a choice that is to be the same each time rests on.
  bool fast = false;
};

OwnKernel own_kernel(CudaContext& context, const ConvolutionProblem& problem, int64_t chunk_pixels) {
  constexpr int64_t kFewInner = 256;
  const Shape& image = problem.output_shape();
  if (chunk_pixels == 0 || !has_hopper_kernels(context.model)) return {};
  if (is_pointwise(problem) && chunk_pixels % kPointwiseTilePixels == 0) {
    const bool few = (problem.kind == Kind::Forward ? problem.x : problem.y)[1] <= kFewInner;
    return {"pointwise", pointwise_microseconds, run_pointwise_statistics, run_pointwise_gradient_sums, few};
  }
  if (is_halo(problem) && chunk_pixels % (2 * halo_tile(image).pixels()) == 0) {
    return {"3 x 3", halo_microseconds, run_halo_statistics, run_halo_gradient_sums, is_fast_halo(problem)};
  }
  return {};
}

// The kernel of ours that solves the problem and also reads `more` bytes, if it beats cuDNN's convolution and a pass
// that moves `pass` bytes.
OwnKernel best_own_kernel(CudaContext& context, const ConvolutionProblem& problem, int64_t chunk_pixels, int64_t more,
                          int64_t pass) {
  const OwnKernel own = own_kernel(context, problem, chunk_pixels);
  if (own.name == nullptr) return {};
  if (problem.deterministic) return own.fast ? own : OwnKernel{};
  const double fused = own.microseconds(context, problem, chunk_pixels);
  if (fused == 0) return {};
  double plain = known_convolution_microseconds(context, problem);
  if (plain == 0) {
    const auto plan = find_convolution_plan(context, problem);
    if (plan == nullptr) return own;
    plain = plan->microseconds();
  }
  const double reading = pass_microseconds(more) - pass_microseconds(0);
  return fused + reading < plain + pass_microseconds(pass) ? own : OwnKernel{};
}

std::unique_ptr<Kernel> statistics(const KernelRequest& request) {
  const Shape image = request.outputs[0].shape;
  const int64_t chunk_pixels = int_attribute(request.node, "chunk_pixels");
  const ConvolutionProblem problem =
      convolution_problem(request, Kind::Forward, request.inputs[0].shape, request.inputs[1].shape, image);
  if (chunk_pixels == 0 && is_thin(problem) && can_run_thin(cuda_context(request))) {
    return make_fused_kernel("thin, statistics", [image](const KernelContext& c) {
      using T = __nv_bfloat16;
      require_alignment("convolution", {c.inputs[0], c.inputs[1], c.outputs[0]});
      launch_thin<false>(image, stream_of(c), input<T>(c, 0), input<T>(c, 1), output<T>(c, 0),
                         ThinStatistics{output<Partial>(c, 1)});
    });
  }
  const OwnKernel own = best_own_kernel(cuda_context(request), problem, chunk_pixels, 0, request.outputs[0].bytes());
  if (own.name != nullptr) {
    return make_fused_kernel(std::string(own.name) + ", statistics", [=](const KernelContext& c) {
      require_alignment("convolution", {c.inputs[0], c.inputs[1], c.outputs[0]});
      own.run_statistics(problem, chunk_pixels, stream_of(c), c.inputs[0], c.inputs[1], c.outputs[0], c.outputs[1]);
    });
  }
  if (auto folded = folded_statistics(request, problem, chunk_pixels)) return folded;
  const std::shared_ptr<Kernel> conv = conv_cuda(request);
  return with_type(request, request.outputs[0].dtype, [&](auto element) {
    using T = decltype(element);
    const auto run = [=](const KernelContext& c) {
      conv->run(c);
      const T* y = output<T>(c, 0);
      with_columns<T>(image, chunk_pixels, aligned(y), [&](auto width, const Columns& columns) {
        launch_dependent(statistics_kernel<decltype(width)::value, T>, columns.grid(), kThreads, 0, stream_of(c),
                         columns, y, output<Partial>(c, 1));
        check_launch("statistics of a convolution");
      });
    };
    return make_kernel(run, conv->workspace_bytes());
  });
}

// The operands of a gradient's sums; those of an operator whose node has them.
template <typename T>
GradientOf<T> gradient_of(const KernelContext& c, Mask mask, bool two) {
  return {output<T>(c, 0),    two ? input<T>(c, 8) : nullptr,
          input<T>(c, 2),     mask == Mask::Y ? input<T>(c, 3) : nullptr,
          input<float>(c, 5), input<float>(c, 6),
          input<float>(c, 4), mask == Mask::X ? input<float>(c, 7) : nullptr};
}

template <typename T>
PairGradientOf<T> pair_gradient_of(const KernelContext& c) {
  return {output<T>(c, 0),
          input<T>(c, 8),
          input<T>(c, 3),
          input<T>(c, 2),
          input<T>(c, ConvSumsInput::X2),
          input<float>(c, 5),
          input<float>(c, ConvSumsInput::SavedMean2)};
}

// Makes a convolution's input gradient with the sums for two batch norms. If the convolution is pointwise and a kernel
// of ours is faster, that does it; else the convolution and a pass over its result.
std::unique_ptr<Kernel> pair_gradient_sums(const KernelRequest& request, const ConvolutionProblem& problem,
                                           int64_t chunk_pixels) {
  const int64_t bytes = request.outputs[0].bytes();
  const bool own = is_pointwise(problem) &&
                   best_own_kernel(cuda_context(request), problem, chunk_pixels, 4 * bytes, 6 * bytes).name != nullptr;
  if (own) {
    return make_fused_kernel("pointwise, gradient sums of a pair", [=](const KernelContext& c) {
      const auto of = pair_gradient_of<__nv_bfloat16>(c);
      require_alignment("convolution", {c.inputs[0], c.inputs[1], c.outputs[0], of.x, of.x2, of.dy2, of.y});
      run_pointwise_pair_gradient_sums(problem, chunk_pixels, stream_of(c), c.inputs[0], c.inputs[1], of, c.outputs[0],
                                       c.outputs[1], c.outputs[2]);
    });
  }
  const std::shared_ptr<Kernel> conv = conv_grad_input_cuda(request);
  return with_type(request, request.outputs[0].dtype, [&](auto element) {
    using T = decltype(element);
    const auto run = [=, image = request.outputs[0].shape](const KernelContext& c) {
      conv->run(c);
      T* g = output<T>(c, 0);
      const PairGradientOf<T> of = pair_gradient_of<T>(c);
      const bool all_aligned = aligned(g) && aligned(of.x) && aligned(of.x2) && aligned(of.dy2) && aligned(of.y);
      with_columns<T>(image, chunk_pixels, all_aligned, [&](auto width, const Columns& columns) {
        launch_dependent(pair_gradient_sums_kernel<decltype(width)::value, true, T>, columns.grid(), kThreads, 0,
                         stream_of(c), columns, of, g, output<Partial>(c, 1), output<Partial>(c, 2));
        check_launch("gradient sums of a convolution, of a pair");
      });
    };
    return make_kernel(run, conv->workspace_bytes());
  });
}

std::unique_ptr<Kernel> gradient_sums(const KernelRequest& request) {
  const Shape image = request.outputs[0].shape;
  const int64_t chunk_pixels = int_attribute(request.node, "chunk_pixels"), bytes = request.outputs[0].bytes();
  const ConvolutionProblem problem =
      convolution_problem(request, Kind::GradInput, image, request.inputs[1].shape, request.inputs[0].shape);
  if (request.has_input(ConvSumsInput::X2)) return pair_gradient_sums(request, problem, chunk_pixels);
  const bool two = request.has_input(8);
  const Mask mask = request.has_input(3) ? Mask::Y : request.has_input(7) ? Mask::X : Mask::None;
  if (chunk_pixels == 0 && is_thin(problem) && can_run_thin(cuda_context(request))) {
    return make_fused_kernel("thin, gradient sums", [=](const KernelContext& c) {
      using T = __nv_bfloat16;
      const GradientOf<T> of = gradient_of<T>(c, mask, two);
      require_alignment("convolution", {c.inputs[0], c.inputs[1], c.outputs[0], of.x, of.dy2, of.y});
      with_mask(mask, two, [&](auto kind, auto sum) {
        launch_thin<true>(image, stream_of(c), input<T>(c, 0), input<T>(c, 1), output<T>(c, 0),
                          ThinGradientSums<kind.value, sum.value>{of, output<Partial>(c, 1)});
      });
    });
  }
  const int64_t more = bytes * (1 + (mask == Mask::Y) + two);
  const bool stays = mask != Mask::Y && !two;  // the pass does not write g again
  const OwnKernel own =
      best_own_kernel(cuda_context(request), problem, chunk_pixels, more, more + (stays ? 1 : 2) * bytes);
  if (own.name != nullptr) {
    return make_fused_kernel(std::string(own.name) + ", gradient sums", [=](const KernelContext& c) {
      const GradientOf<__nv_bfloat16> of = gradient_of<__nv_bfloat16>(c, mask, two);
      require_alignment("convolution", {c.inputs[0], c.inputs[1], c.outputs[0], of.x, of.dy2, of.y});
      own.run_gradient_sums(problem, chunk_pixels, stream_of(c), c.inputs[0], c.inputs[1], of, mask, two, c.outputs[0],
                            c.outputs[1]);
    });
  }
  const std::shared_ptr<Kernel> conv = conv_grad_input_cuda(request);
  return with_type(request, request.outputs[0].dtype, [&](auto element) {
    using T = decltype(element);
    const auto run = [=](const KernelContext& c) {
      conv->run(c);
      T* g = output<T>(c, 0);
      const GradientOf<T> of = gradient_of<T>(c, mask, two);
      const bool all_aligned = aligned(g) && aligned(of.x) && aligned(of.dy2) && aligned(of.y);
      with_mask(mask, two, [&](auto kind, auto sum) {
        with_columns<T>(image, chunk_pixels, all_aligned, [&](auto width, const Columns& columns) {
          constexpr bool kStays = kind.value != Mask::Y && !sum.value;  // g is not stored again
          launch_dependent(gradient_sums_kernel<decltype(width)::value, kind.value, sum.value, !kStays, T>,
                           columns.grid(), kThreads, 0, stream_of(c), columns, of, g, output<Partial>(c, 1));
          check_launch("gradient sums of a convolution");
        });
      });
    };
    return make_kernel(run, conv->workspace_bytes());
  });
}

}  // namespace

void register_conv_conv_statistics_cuda(OpRegistry& registry) {
  registry.find("arbalest.ConvStatistics")->cuda = statistics;
  registry.find("arbalest.ConvGradInputSums")->cuda = gradient_sums;
}

}  // namespace arbalest
