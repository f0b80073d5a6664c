// SPDX-License-Identifier: Apache-2.0

// Convolutions with partial statistics. One kernel does both for few channels, for the stem, or if the convolution is
// pointwise or of 3 × 3 and that is faster. Otherwise a pass over the result follows the convolution.

#include "ops/conv/conv_fold.h"
#include "ops/conv/conv_kernel.h"
#include "ops/conv/few/conv_thin.h"
#include "ops/conv/hopper/conv_halo.h"
#include "ops/conv/hopper/conv_pointwise.h"
#include "ops/cuda/convolution_engine.h"
#include "ops/cuda/convolution_timer.h"
#include "ops/names.h"
#include "ops/norm/batch_norm_operands.cuh"
#include "ops/norm/batch_norm_pair.cuh"
#include "ops/norm/batch_norms.h"
#include "ops/norm/statistics_chunks.h"

namespace arbalest {

using namespace cuda;

namespace {

using Kind = ConvolutionProblem::Kind;

// No two accept the same problem with the same chunks.
constexpr const StatisticsEngine* kStatisticsEngines[] = {&kThinStatistics, &kPointwiseStatistics, &kHaloStatistics,
                                                          &kFoldedStatistics};

// The reduction's layout for packs of `width` channels, with the chunks that both sides have agreed on.
Columns chunked(const Shape& image, int64_t chunk_pixels, int width) {
  const PixelChunks chunks = pixel_chunks(image, chunk_pixels);
  Columns columns = make_columns(image[0] * image[2] * image[3], image[1], width,
                                 {.slice_columns = kSliceColumns, .blocks = 1, .chunks = 1});
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

// µs with statistics: see own_microseconds().
double microseconds_of(CudaContext& context, const StatisticsEngine& engine, const ConvolutionProblem& problem,
                       int64_t chunk_pixels) {
  const Shape& image = problem.output_shape();
  const int64_t partials = pixel_chunks(image, chunk_pixels).chunks * image[1] * int64_t(sizeof(Partial));
  const auto run = [&](ConvolutionCall call) {
    call.multiprocessors = context.multiprocessors;  // which chunk_pixels was made for
    engine.statistics(problem, chunk_pixels, call, call.workspace);
  };
  return own_microseconds(context, engine.revision + std::to_string(chunk_pixels), problem, partials, run);
}

// The kernel of ours that has `form` and solves the problem, unless cuDNN's convolution and a pass that moves `pass`
// bytes are faster; null if there is none. Ours also reads `more` bytes.
template <typename Form>
const StatisticsEngine* best_engine(CudaContext& context, Form StatisticsEngine::*form,
                                    const ConvolutionProblem& problem, int64_t chunk_pixels, int64_t more,
                                    int64_t pass) {
  const StatisticsEngine* const own = [&]() -> const StatisticsEngine* {
    for (const StatisticsEngine* each : kStatisticsEngines) {
      if (each->*form != nullptr && each->accepts(context.model, problem, chunk_pixels)) return each;
    }
    return nullptr;
  }();
  if (own == nullptr || own->revision == nullptr) return own;
  if (problem.deterministic) return own->is_faster(context.model, problem) ? own : nullptr;
  const double fused = microseconds_of(context, *own, problem, chunk_pixels);
  if (fused == 0) return nullptr;
  double plain = known_convolution_microseconds(context, problem);
  if (plain == 0) {
    const auto plan = find_convolution_plan(context, problem);
    if (plan == nullptr) return own;
    plain = plan->microseconds();
  }
  const double reading = context.model.pass_microseconds(more) - context.model.pass_microseconds(0);
  return fused + reading < plain + context.model.pass_microseconds(pass) ? own : nullptr;
}

ConvolutionCall call_of(const KernelContext& c, int multiprocessors) {
  using In = BinaryInput;
  require_alignment("convolution", {c.inputs[In::A], c.inputs[In::B], c.outputs[0]});
  return {.stream = stream_of(c),
          .multiprocessors = multiprocessors,
          .a = c.inputs[In::A],
          .b = c.inputs[In::B],
          .result = c.outputs[0],
          .workspace = c.workspace};
}

std::unique_ptr<Kernel> statistics(const KernelRequest& request) {
  using Out = ConvStatisticsOutput;
  const Shape image = request.outputs[Out::Y].shape;
  const int64_t chunk_pixels = int_attribute(request.node, "chunk_pixels");
  const ConvolutionProblem problem = convolution_problem(request, Kind::Forward, request.inputs[ConvInput::X].shape,
                                                         request.inputs[ConvInput::W].shape, image);
  CudaContext& context = cuda_context(request);
  const int processors = context.multiprocessors;
  if (const StatisticsEngine* own = best_engine(context, &StatisticsEngine::statistics, problem, chunk_pixels, 0,
                                                request.outputs[Out::Y].bytes())) {
    const auto run = [=](const KernelContext& c) {
      own->statistics(problem, chunk_pixels, call_of(c, processors), c.outputs[Out::Partials]);
    };
    return make_fused_kernel(std::string(own->name) + ", statistics", run,
                             own->workspace == nullptr ? 0 : own->workspace(problem));
  }
  const std::shared_ptr<Kernel> conv = conv_cuda(request);
  return with_type(request, request.outputs[Out::Y].dtype, [&](auto element) {
    using T = decltype(element);
    const auto run = [=](const KernelContext& c) {
      conv->run(c);
      const T* y = output<T>(c, Out::Y);
      with_columns<T>(image, chunk_pixels, aligned(y), [&](auto width, const Columns& columns) {
        launch_dependent(statistics_kernel<decltype(width)::value, T>, columns.grid(), kThreads, 0, stream_of(c),
                         columns, y, output<Partial>(c, Out::Partials));
        check_launch("statistics of a convolution");
      });
    };
    return make_kernel(run, conv->workspace_bytes());
  });
}

// The operands of the sums for a gradient that the node makes.
template <typename T>
GradientOf<T> sums_of(const KernelContext& c, Mask mask, bool two) {
  return gradient_of<ConvSumsInput>(c, output<T>(c, ConvSumsOutput::dX), mask, two);
}

template <typename T>
PairGradientOf<T> pair_gradient_of(const KernelContext& c) {
  using In = ConvSumsInput;
  return {output<T>(c, ConvSumsOutput::dX),
          input<T>(c, In::Second),
          input<T>(c, In::Y),
          input<T>(c, In::X),
          input<T>(c, ConvSumsInput::X2),
          input<float>(c, In::SavedMean),
          input<float>(c, ConvSumsInput::SavedMean2)};
}

// Makes a convolution's input gradient with the sums for two batch norms. If a kernel of ours is faster, that does it;
// else the convolution and a pass over its result.
std::unique_ptr<Kernel> pair_gradient_sums(const KernelRequest& request, const ConvolutionProblem& problem,
                                           int64_t chunk_pixels) {
  using Out = ConvSumsOutput;
  const int64_t bytes = request.outputs[Out::dX].bytes();
  CudaContext& context = cuda_context(request);
  if (const StatisticsEngine* own =
          best_engine(context, &StatisticsEngine::pair_gradient_sums, problem, chunk_pixels, 4 * bytes, 6 * bytes)) {
    const int processors = context.multiprocessors;
    return make_fused_kernel(std::string(own->name) + ", gradient sums of a pair", [=](const KernelContext& c) {
      const auto of = pair_gradient_of<__nv_bfloat16>(c);
      require_alignment("convolution", {of.x, of.x2, of.dy2, of.y});
      own->pair_gradient_sums(problem, chunk_pixels, call_of(c, processors), of, c.outputs[Out::Partials],
                              c.outputs[Out::Partials2]);
    });
  }
  const std::shared_ptr<Kernel> conv = conv_grad_input_cuda(request);
  return with_type(request, request.outputs[Out::dX].dtype, [&](auto element) {
    using T = decltype(element);
    const auto run = [=, image = request.outputs[Out::dX].shape](const KernelContext& c) {
      conv->run(c);
      T* g = output<T>(c, Out::dX);
      const PairGradientOf<T> of = pair_gradient_of<T>(c);
      const bool all_aligned = aligned(g) && aligned(of.x) && aligned(of.x2) && aligned(of.dy2) && aligned(of.y);
      with_columns<T>(image, chunk_pixels, all_aligned, [&](auto width, const Columns& columns) {
        launch_dependent(pair_gradient_sums_kernel<decltype(width)::value, true, T>, columns.grid(), kThreads, 0,
                         stream_of(c), columns, of, g, output<Partial>(c, Out::Partials),
                         output<Partial>(c, Out::Partials2));
        check_launch("gradient sums of a convolution, of a pair");
      });
    };
    return make_kernel(run, conv->workspace_bytes());
  });
}

std::unique_ptr<Kernel> gradient_sums(const KernelRequest& request) {
  using In = ConvSumsInput;
  using Out = ConvSumsOutput;
  const Shape image = request.outputs[Out::dX].shape;
  const int64_t chunk_pixels = int_attribute(request.node, "chunk_pixels"), bytes = request.outputs[Out::dX].bytes();
  const ConvolutionProblem problem =
      convolution_problem(request, Kind::GradInput, image, request.inputs[In::W].shape, request.inputs[In::dY].shape);
  if (request.has_input(ConvSumsInput::X2)) return pair_gradient_sums(request, problem, chunk_pixels);
  const bool two = request.has_input(In::Second);
  const Mask mask = request.has_input(In::Y) ? Mask::Y : request.has_input(In::Bias) ? Mask::X : Mask::None;
  const int64_t more = bytes * (1 + (mask == Mask::Y) + two);
  const bool stays = mask != Mask::Y && !two;  // the pass does not write g again
  CudaContext& context = cuda_context(request);
  if (const StatisticsEngine* own = best_engine(context, &StatisticsEngine::gradient_sums, problem, chunk_pixels, more,
                                                more + (stays ? 1 : 2) * bytes)) {
    const int processors = context.multiprocessors;
    return make_fused_kernel(std::string(own->name) + ", gradient sums", [=](const KernelContext& c) {
      const GradientOf<__nv_bfloat16> of = sums_of<__nv_bfloat16>(c, mask, two);
      require_alignment("convolution", {of.x, of.dy2, of.y});
      own->gradient_sums(problem, chunk_pixels, call_of(c, processors), of, mask, two, c.outputs[Out::Partials]);
    });
  }
  const std::shared_ptr<Kernel> conv = conv_grad_input_cuda(request);
  return with_type(request, request.outputs[Out::dX].dtype, [&](auto element) {
    using T = decltype(element);
    const auto run = [=](const KernelContext& c) {
      conv->run(c);
      T* g = output<T>(c, Out::dX);
      const GradientOf<T> of = sums_of<T>(c, mask, two);
      const bool all_aligned = aligned(g) && aligned(of.x) && aligned(of.dy2) && aligned(of.y);
      with_mask(mask, two, [&](auto kind, auto sum) {
        with_columns<T>(image, chunk_pixels, all_aligned, [&](auto width, const Columns& columns) {
          constexpr bool kStays = kind.value != Mask::Y && !sum.value;  // g is not stored again
          launch_dependent(gradient_sums_kernel<decltype(width)::value, kind.value, sum.value, !kStays, T>,
                           columns.grid(), kThreads, 0, stream_of(c), columns, of, g,
                           output<Partial>(c, Out::Partials));
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
