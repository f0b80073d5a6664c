// Convolutions with partial statistics: in one kernel for few channels, else the convolution and a pass over its
// result.

#include "ops/conv/conv_direct.h"
#include "ops/conv/conv_thin.cuh"
#include "ops/conv/conv_thin.h"
#include "ops/conv/conv_thin_epilogue.cuh"

namespace arbalest {

using namespace cuda;

namespace {

using Kind = ConvolutionProblem::Kind;

// The reduction's layout for packs of `width` channels, with the chunks that both sides have agreed on.
Columns chunked(const Shape& image, int width) {
  const StatisticsChunks chunks = statistics_chunks(image);
  Columns columns = make_columns(image[0] * image[2] * image[3], image[1], width,
                                 {.slice_channels = kSliceChannels, .blocks = 1, .chunks = 1});
  columns.chunk_rows = chunks.chunk_rows;
  columns.chunks = chunks.chunks;
  return columns;
}

// function(W, columns): wide packs where the channels and every pointer allow.
template <typename T, typename Function>
void with_columns(const Shape& image, bool all_aligned, Function function) {
  constexpr int kWide = 16 / sizeof(T);
  if (all_aligned && image[1] % kWide == 0) {
    function(std::integral_constant<int, kWide>{}, chunked(image, kWide));
  } else {
    function(std::integral_constant<int, 1>{}, chunked(image, 1));
  }
}

std::unique_ptr<Kernel> statistics(const KernelRequest& request) {
  const Shape image = request.outputs[0].shape;
  const ConvolutionProblem problem =
      convolution_problem(request, Kind::Forward, request.inputs[0].shape, request.inputs[1].shape, image);
  if (is_thin(problem) && can_run_thin(cuda_context(request))) {
    return make_kernel([image](const KernelContext& c) {
      using T = __nv_bfloat16;
      require_alignment("convolution", {c.inputs[0], c.inputs[1], c.outputs[0]});
      launch_thin<false>(image, stream_of(c), input<T>(c, 0), input<T>(c, 1), output<T>(c, 0),
                         ThinStatistics{output<Partial>(c, 1)});
    });
  }
  const std::shared_ptr<Kernel> conv = conv_cuda(request);
  return with_type(request, request.outputs[0].dtype, [&](auto element) {
    using T = decltype(element);
    const auto run = [=](const KernelContext& c) {
      conv->run(c);
      const T* y = output<T>(c, 0);
      with_columns<T>(image, aligned(y), [&](auto width, const Columns& columns) {
        statistics_kernel<decltype(width)::value>
            <<<columns.grid(), kThreads, 0, stream_of(c)>>>(columns, y, output<Partial>(c, 1));
        check_launch("statistics of a convolution");
      });
    };
    return make_kernel(run, conv->workspace_bytes());
  });
}

std::unique_ptr<Kernel> gradient_sums(const KernelRequest& request) {
  const Shape image = request.outputs[0].shape;
  const ConvolutionProblem problem =
      convolution_problem(request, Kind::GradInput, image, request.inputs[1].shape, request.inputs[0].shape);
  const bool two = request.has_input(8);
  const Mask mask = request.has_input(3) ? Mask::Y : request.has_input(7) ? Mask::X : Mask::None;
  const bool thin = is_thin(problem) && can_run_thin(cuda_context(request));
  const std::shared_ptr<Kernel> conv = thin ? nullptr : conv_grad_input_cuda(request);
  return with_type(request, request.outputs[0].dtype, [&](auto element) {
    using T = decltype(element);
    const auto run = [=](const KernelContext& c) {
      T* g = output<T>(c, 0);
      auto* partials = output<Partial>(c, 1);
      const GradientOf<T> of{g,
                             two ? input<T>(c, 8) : nullptr,
                             input<T>(c, 2),
                             mask == Mask::Y ? input<T>(c, 3) : nullptr,
                             input<float>(c, 5),
                             input<float>(c, 6),
                             input<float>(c, 4),
                             mask == Mask::X ? input<float>(c, 7) : nullptr};
      const bool all_aligned = aligned(g) && aligned(of.x) && aligned(of.dy2) && aligned(of.y);
      if (!thin) conv->run(c);
      with_mask(mask, two, [&](auto kind, auto sum) {
        if constexpr (std::is_same_v<T, __nv_bfloat16>) {
          if (thin) {
            require_alignment("convolution", {c.inputs[0], c.inputs[1], g, of.x, of.dy2, of.y});
            launch_thin<true>(image, stream_of(c), input<T>(c, 0), input<T>(c, 1), g,
                              ThinGradientSums<kind.value, sum.value>{of, partials});
            return;
          }
        }
        with_columns<T>(image, all_aligned, [&](auto width, const Columns& columns) {
          gradient_sums_kernel<decltype(width)::value, kind.value, sum.value, true>
              <<<columns.grid(), kThreads, 0, stream_of(c)>>>(columns, of, g, partials);
          check_launch("gradient sums of a convolution");
        });
      });
    };
    return make_kernel(run, thin ? 0 : conv->workspace_bytes());
  });
}

}  // namespace

void register_conv_conv_statistics_cuda(OpRegistry& registry) {
  registry.find("arbalest.ConvStatistics")->cuda = statistics;
  registry.find("arbalest.ConvGradInputSums")->cuda = gradient_sums;
}

}  // namespace arbalest
