#include "ops/conv/conv_pointwise.h"

#include "ops/conv/conv_pointwise.cuh"
#include "ops/cuda/convolution_choices.h"
#include "ops/cuda/convolution_timer.h"

namespace arbalest {

using namespace cuda;

namespace {

using Kind = ConvolutionProblem::Kind;

// To be changed with how fast the kernel is: what was timed before, and kept, is timed again then.
constexpr const char* kRevision = "1";

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                 const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                 CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// From the driver, which is not linked with.
EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = {};
    CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result));
    if (result != cudaDriverEntryPointSuccess || found == nullptr) {
      throw RunError("pointwise convolutions: the driver has no cuTensorMapEncodeTiled");
    }
    return reinterpret_cast<EncodeTiled>(found);
  }();
  return function;
}

// How boxes of `box_rows` × 64 of a matrix of bfloat16 are fetched; zeros where these go beyond it. Rows begin
// `row_pitch` elements apart.
CUtensorMap map_of(const void* matrix, int64_t rows, int64_t columns, int64_t row_pitch, int64_t box_rows) {
  CUtensorMap map;
  const cuuint64_t extents[] = {cuuint64_t(columns), cuuint64_t(rows)}, pitch[] = {cuuint64_t(row_pitch) * 2};
  const cuuint32_t box[] = {kInner, cuuint32_t(box_rows)}, steps[] = {1, 1};
  const CUresult status = encode_tiled()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(matrix), extents,
                                         pitch, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                         CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw RunError("pointwise convolutions: cuTensorMapEncodeTiled: error " + std::to_string(int(status)));
  }
  return map;
}

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
  const auto kernel = pointwise_kernel<kColumns, kTransposed, false, Epilogue>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kPointwiseShared));
  kernel<<<grid_of<kColumns>(image, chunk_pixels), kPointwiseThreads, kPointwiseShared, stream>>>(
      map_of(a, pixels, inner, inner, kTilePixels),
      map_of(filter, problem.w[0], problem.w[1], problem.w[1], kTransposed ? kInner : kColumns), tiling,
      static_cast<__nv_bfloat16*>(result), epilogue);
  check_launch("pointwise convolution");
}

template <int kColumns>
void launch_folded(const ConvolutionProblem& problem, int64_t chunk_pixels, cudaStream_t stream, const void* images,
                   const void* filter, void* result, void* partials) {
  const Shape &x = problem.x, &y = problem.y;
  const int64_t row_elements = x[1] * problem.w[3], elements = row_elements * problem.w[2];
  PointwiseTiling tiling = pointwise_tiling<kColumns>(y[0] * y[2] * y[3], y[1], elements, chunk_pixels);
  tiling.tile_pixels = int(row_tile_pixels(y[3]));
  tiling.tiles_per_chunk = int(chunk_pixels / tiling.tile_pixels);
  tiling.folded = {int(y[3] / tiling.tile_pixels), int(y[2]), int(x[2]), int(x[3])};
  const auto kernel = pointwise_kernel<kColumns, false, true, PointwiseStatistics>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kPointwiseShared));
  kernel<<<grid_of<kColumns>(y, chunk_pixels), kPointwiseThreads, kPointwiseShared, stream>>>(
      map_of(images, x[0] * x[2] * x[3] - (problem.w[3] - 1), row_elements, x[1], tiling.tile_pixels),
      map_of(filter, problem.w[0], elements, elements, kColumns), tiling, static_cast<__nv_bfloat16*>(result),
      PointwiseStatistics{static_cast<Partial*>(partials)});
  check_launch("folded convolution");
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

bool is_folded_pointwise(const ConvolutionProblem& p) {
  const auto all = [](const std::vector<int64_t>& values, int64_t value) {
    return std::all_of(values.begin(), values.end(), [&](int64_t v) { return v == value; });
  };
  return p.kind == Kind::Forward && p.type == DataType::Bfloat16 && p.output_type == DataType::Bfloat16 &&
         p.x.size() == 4 && all(p.stride, 1) && all(p.dilation, 1) && all(p.pad_begin, 0) && all(p.pad_end, 0) &&
         p.x[1] % 8 == 0 && p.x[1] * p.w[3] == kFoldedRowElements && p.w[1] == p.x[1] && p.y[1] % 8 == 0 &&
         element_count(p.y) > 0 && 2 * row_tile_pixels(p.y[3]) >= kPointwiseTilePixels &&
         p.x[0] * p.x[2] * p.x[3] <= INT32_MAX - kTilePixels;
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
  const PointwiseStatistics epilogue{static_cast<Partial*>(partials)};
  if (problem.kind == Kind::GradInput) {
    launch<true>(problem, chunk_pixels, stream, a, filter, result, epilogue);
  } else {
    launch<false>(problem, chunk_pixels, stream, a, filter, result, epilogue);
  }
}

void run_folded_statistics(const ConvolutionProblem& problem, int64_t chunk_pixels, cudaStream_t stream,
                           const void* images, const void* filter, void* result, void* partials) {
  const auto form = pointwise_slice_channels(problem.y) == 64 ? launch_folded<64> : launch_folded<128>;
  form(problem, chunk_pixels, stream, images, filter, result, partials);
}

void run_pointwise_gradient_sums(const ConvolutionProblem& problem, int64_t chunk_pixels, cudaStream_t stream,
                                 const void* dy, const void* filter, const GradientOf<__nv_bfloat16>& from, Mask mask,
                                 bool two, void* g, void* partials) {
  with_mask(mask, two, [&](auto kind, auto sum) {
    launch<true>(problem, chunk_pixels, stream, dy, filter, g,
                 PointwiseGradientSums<kind.value, sum.value>{from, static_cast<Partial*>(partials)});
  });
}

}  // namespace arbalest
