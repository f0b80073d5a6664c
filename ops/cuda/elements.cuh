// SPDX-License-Identifier: Apache-2.0
#pragma once
// Kernels that take elements of any type that device memory may hold.

#include "ops/cuda/cuda_math.cuh"

namespace arbalest::cuda {

// A value in the type of arithmetic: bfloat16 is for storage only.
template <typename T>
__device__ inline T number(T x) {
  return x;
}
__device__ inline float number(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

// function(T{}) with T the element type of `type`: float, bfloat16, bool or an integer.
template <typename Function>
std::unique_ptr<Kernel> with_element(const KernelRequest& request, DataType type, Function function) {
  switch (type) {
    case DataType::Float32: return function(float{});
    case DataType::Bfloat16: return function(__nv_bfloat16{});
    case DataType::Bool: return function(bool{});
    case DataType::Uint8: return function(uint8_t{});
    case DataType::Int32: return function(int32_t{});
    case DataType::Int64: return function(int64_t{});
    default: fail_type(request, type, "float, bfloat16, bool, uint8, int32 and int64");
  }
}

}  // namespace arbalest::cuda
