// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/tensor_map.h"

#include <cuda_runtime.h>

#include <array>
#include <string>

#include "ops/cuda/cuda_context.h"

namespace arbalest {
namespace {

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                 const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                 CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// The function, found in the driver, which is not linked with.
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

// Encodes a map of a bfloat16 array with kAxes axes, innermost first. Pitches are of all axes but the first, in
// elements.
template <size_t kAxes>
CUtensorMap encode(const void* array, const std::array<int64_t, kAxes>& extents,
                   const std::array<int64_t, kAxes - 1>& pitches, const std::array<int64_t, kAxes>& box) {
  std::array<cuuint64_t, kAxes> all, bytes = {};
  std::array<cuuint32_t, kAxes> boxes, steps;
  std::string text;
  for (size_t axis = 0; axis < kAxes; ++axis) {
    all[axis] = cuuint64_t(extents[axis]);
    boxes[axis] = cuuint32_t(box[axis]);
    steps[axis] = 1;
    if (axis > 0) bytes[axis - 1] = cuuint64_t(pitches[axis - 1]) * 2;
    text += (axis > 0 ? " x " : "") + std::to_string(extents[axis]);
  }
  CUtensorMap map;
  const CUresult status =
      encode_tiled()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, cuuint32_t(kAxes), const_cast<void*>(array), all.data(),
                     bytes.data(), boxes.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
                     CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw RunError("cuTensorMapEncodeTiled of " + text + " elements: error " + std::to_string(int(status)));
  }
  return map;
}

}  // namespace

CUtensorMap tensor_map(const void* matrix, int64_t rows, int64_t columns, int64_t row_pitch, int64_t box_rows) {
  return encode<2>(matrix, {columns, rows}, {row_pitch}, {kTensorMapColumns, box_rows});
}

CUtensorMap tensor_map(const void* images, const Shape& shape, int64_t box_images, int64_t box_rows,
                       int64_t box_columns) {
  const int64_t channels = shape[1], row = shape[3] * channels;
  return encode<4>(images, {channels, shape[3], shape[2], shape[0]}, {channels, row, shape[2] * row},
                   {kTensorMapColumns, box_columns, box_rows, box_images});
}

bool has_hopper_kernels(const DeviceModel& device) {
#ifdef ARBALEST_SM90A
  return device.is_hopper();
#else
  static_cast<void>(device);
  return false;
#endif
}

}  // namespace arbalest
