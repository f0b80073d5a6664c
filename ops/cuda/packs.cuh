// SPDX-License-Identifier: Apache-2.0
#pragma once
// Elements as kernels move them: in packs of up to 16 bytes, and as floats to compute with.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

namespace arbalest::cuda {

// Arithmetic is in float whatever the storage.
__device__ inline float widen(float x) {
  return x;
}
__device__ inline float widen(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
template <typename T>
__device__ inline T narrow(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    return __float2bfloat16_rn(x);
  }
}

// W elements, moved by accesses of up to 16 bytes.
template <typename T, int W>
struct alignas(W * sizeof(T) < 16 ? W * sizeof(T) : 16) Pack {
  T element[W];
};

template <int Bytes>
using Word = std::conditional_t<
    Bytes % 16 == 0, uint4,
    std::conditional_t<Bytes == 8, uint2,
                       std::conditional_t<Bytes == 4, uint32_t, std::conditional_t<Bytes == 2, uint16_t, uint8_t>>>>;

template <int W, typename T>
__device__ inline Pack<T, W> load(const T* from) {
  using Unit = Word<int(W * sizeof(T))>;
  Pack<T, W> pack;
#pragma unroll
  for (int i = 0; i < int(W * sizeof(T) / sizeof(Unit)); ++i) {
    reinterpret_cast<Unit*>(&pack)[i] = reinterpret_cast<const Unit*>(from)[i];
  }
  return pack;
}

template <int W, typename T>
__device__ inline void store(T* to, const Pack<T, W>& pack) {
  using Unit = Word<int(W * sizeof(T))>;
#pragma unroll
  for (int i = 0; i < int(W * sizeof(T) / sizeof(Unit)); ++i) {
    reinterpret_cast<Unit*>(to)[i] = reinterpret_cast<const Unit*>(&pack)[i];
  }
}

}  // namespace arbalest::cuda
