#include "ops/conv/conv_pointwise.h"

#include "ops/conv/conv_pointwise.cuh"
#include "ops/cuda/convolution_choices.h"
#include "ops/cuda/convolution_timer.h"
#include "ops/cuda/tensor_map.h"

namespace arbalest {

using namespace cuda;

namespace {

using Kind = ConvolutionProblem::Kind;

// To be changed with how fast the kernel is: what was timed before, and kept, is timed again then.
constexpr const char* kRevision = "1";

template <int kColumns>
dim3 grid_of(const Shape& image, int64_t chunk_pixels) {
  return dim3(unsigned((image[1] + kColumns - 1) / kColumns), unsigned(pixel_chunks(image, chunk_pixels).chunks));
}

template <int kColumns, bool kTransposed, typename Epilogue>
void launch_form(const ConvolutionProblem& problem, int64_t chunk_pixels, cudaStream_t stream, const void* a,
                 const void* filter, void* result, const Epilogue& epilogue) {
  const Shape& image = problem.output_shape();
  const int64_t pixels = image[0] * image[2] * image[3], inner = kTransposed ? problem.y[1] : problem.x[1];
  const PointwiseTiling tiling = pointwise_tiling<kColumns>(pixels, image[1], inner, chunk_pixels);
  const auto kernel = pointwise_kernel<kColumns, kTransposed, Epilogue>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kTileShared));
  kernel<<<grid_of<kColumns>(image, chunk_pixels), kTileThreads, kTileShared, stream>>>(
      tensor_map(a, pixels, inner, inner, kTilePixels),
      tensor_map(filter, problem.w[0], problem.w[1], problem.w[1], kTransposed ? kInner : kColumns), tiling,
      static_cast<__nv_bfloat16*>(result), epilogue);
  check_launch("pointwise convolution");
}

template <bool kTransposed, typename Epilogue>
void launch(const ConvolutionProblem& problem, int64_t chunk_pixels, cudaStream_t stream, const void* a,
            const void* filter, void* result, const Epilogue& epilogue) {
  const auto form = pointwise_slice_channels(problem.output_shape()) == 64 ? launch_form<64, kTransposed, Epilogue>
                                                                           : launch_form<128, kTransposed, Epilogue>;
  form(problem, chunk_pixels, stream, a, filter, result, epilogue);
}

}  // namespace

bool is_pointwise(const ConvolutionProblem& p) {
  const auto all = [](const std::vector<int64_t>& values, int64_t value) {
    return std::all_of(values.begin(), values.end(), [&](int64_t v) { return v == value; });
  };
  return (p.kind == Kind::Forward || p.kind == Kind::GradInput) && p.type == DataType::Bfloat16 &&
         p.output_type == DataType::Bfloat16 && p.x.size() == 4 && p.w == Shape{p.y[1], p.x[1], 1, 1} &&
         all(p.stride, 1) && all(p.pad_begin, 0) && all(p.pad_end, 0) && p.x[1] % 8 == 0 && p.y[1] % 8 == 0 &&
         element_count(p.x) > 0 && element_count(p.w) > 0 && p.x[0] * p.x[2] * p.x[3] <= INT32_MAX - kTilePixels;
}

bool can_run_pointwise(const CudaContext& context) {
#ifdef ARBALEST_SM90A
  int major = 0, minor = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, context.device));
  CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, context.device));
  return major == 9 && minor == 0;
#else
  static_cast<void>(context);
  return false;
#endif
}

double pointwise_microseconds(CudaContext& context, const ConvolutionProblem& problem, int64_t chunk_pixels) {
  const auto choose = [&]() -> ConvolutionChoice {
    if (!can_run_pointwise(context)) return {};
    const ConvolutionTimer::Call call = [&](const ConvolutionOperands& with, cudaStream_t stream) {
      run_pointwise_statistics(problem, chunk_pixels, stream, with.a.data(), with.b.data(), with.result.data(),
                               with.workspace.data());
    };
    const Shape& image = problem.output_shape();
    const int64_t chunks = pixel_chunks(image, chunk_pixels).chunks;
    ConvolutionTimer timer(context, problem, chunks * image[1] * int64_t(sizeof(Partial)));
    return {0, "pointwise", timer.time(call, 0)};
  };
  const std::string key = context.device_name + " pointwise " + kRevision + " " + std::to_string(chunk_pixels) + " ";
  return ConvolutionChoices::of_process()
      .find(
          key + problem.key(), [](const ConvolutionChoice&) { return true; }, choose)
      .microseconds;
}

void run_pointwise_statistics(const ConvolutionProblem& problem, int64_t chunk_pixels, cudaStream_t stream,
                              const void* a, const void* filter, void* result, void* partials) {
  const TileStatistics epilogue{static_cast<Partial*>(partials)};
  if (problem.kind == Kind::GradInput) {
    launch<true>(problem, chunk_pixels, stream, a, filter, result, epilogue);
  } else {
    launch<false>(problem, chunk_pixels, stream, a, filter, result, epilogue);
  }
}

void run_pointwise_gradient_sums(const ConvolutionProblem& problem, int64_t chunk_pixels, cudaStream_t stream,
                                 const void* dy, const void* filter, const GradientOf<__nv_bfloat16>& from, Mask mask,
                                 bool two, void* g, void* partials) {
  with_mask(mask, two, [&](auto kind, auto sum) {
    launch<true>(problem, chunk_pixels, stream, dy, filter, g,
                 TileGradientSums<kind.value, sum.value>{from, static_cast<Partial*>(partials)});
  });
}

}  // namespace arbalest
