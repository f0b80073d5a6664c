#include "ops/cuda/tensor_map.h"

#include <cuda_runtime.h>

#include <string>

#include "ops/cuda/cuda_context.h"

namespace arbalest {
namespace {

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                 const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                 CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// From the driver, which is not linked with.
EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    constexpr unsigned kSince = 12000;
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = {};
    CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, kSince, cudaEnableDefault, &result));
    if (result != cudaDriverEntryPointSuccess || found == nullptr) {
      throw RunError("the driver has no cuTensorMapEncodeTiled; expected one for CUDA 12 or later");
    }
    return reinterpret_cast<EncodeTiled>(found);
  }();
  return function;
}

}  // namespace

CUtensorMap tensor_map(const void* matrix, int64_t rows, int64_t columns, int64_t row_pitch, int64_t box_rows) {
  CUtensorMap map;
  const cuuint64_t extents[] = {cuuint64_t(columns), cuuint64_t(rows)}, pitch[] = {cuuint64_t(row_pitch) * 2};
  const cuuint32_t box[] = {kTensorMapColumns, cuuint32_t(box_rows)}, steps[] = {1, 1};
  const CUresult status = encode_tiled()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(matrix), extents,
                                         pitch, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                         CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    const auto text = [](int64_t number) { return std::to_string(number); };
    throw RunError("cuTensorMapEncodeTiled of " + text(rows) + " rows of " + text(columns) + " elements, " +
                   text(row_pitch) + " apart: error " + text(int(status)));
  }
  return map;
}

bool has_hopper_kernels(const CudaContext& context) {
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

}  // namespace arbalest
