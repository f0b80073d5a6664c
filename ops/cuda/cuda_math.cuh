// SPDX-License-Identifier: Apache-2.0
#pragma once
// Helpers that our CUDA kernels share: launches, elementwise kernels, warp sums.

#include <cuda_bf16.h>

#include <algorithm>
#include <array>
#include <string>
#include <type_traits>

#include "graph/graph.h"
#include "graph/op.h"
#include "ops/cuda/cuda_context.h"
#include "ops/cuda/dependent_launch.cuh"
#include "ops/cuda/packs.cuh"

namespace arbalest::cuda {

inline constexpr int kThreads = 256;  // of a block, in every kernel that does not say otherwise

// function(T{}) with the type that elements are stored in.
template <typename Function>
void with_stored(DataType type, Function function) {
  type == DataType::Float32 ? function(float{}) : function(__nv_bfloat16{});
}

inline bool aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

// Sums over a warp in a fixed order; every lane gets the result.
__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}
__device__ inline float warp_max(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
  return x;
}

// Sums over a block of up to 1024 threads (a multiple of 32) in a fixed order; every thread gets the result.
__device__ inline float block_sum(float x) {
  __shared__ float sums[32];
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, warps = int(blockDim.x) / 32;
  x = warp_sum(x);
  __syncthreads();  // an earlier call's readers are done
  if (lane == 0) sums[warp] = x;
  __syncthreads();
  return warp_sum(lane < warps ? sums[lane] : 0.0f);
}

// Blocks for `items` of one thread each: no more than fill the device a few times over; kernels stride over the rest.
inline unsigned blocks_for(int64_t items, int multiprocessors, int threads = kThreads) {
  const int64_t needed = (items + threads - 1) / threads;
  return unsigned(std::clamp<int64_t>(needed, 1, int64_t(multiprocessors) * (4096 / threads)));
}

// Lets a kernel take more shared memory than by default. Throws RunError if the device has less.
template <typename Kernel>
void allow_shared(Kernel kernel, int bytes) {
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

// Shared memory of as many bytes as the launch says, at an address that 16 divides.
__device__ inline unsigned char* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char shared_of_launch[];
  return shared_of_launch;
}

__device__ inline int64_t thread_index() {
  return int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline int64_t thread_count() {
  return int64_t(gridDim.x) * blockDim.x;
}

template <typename T>
const T* input(const KernelContext& context, size_t i) {
  return static_cast<const T*>(context.inputs[i]);
}
// Calls the function with the first `kCount` inputs, all of one type.
template <typename T, size_t kCount, typename Function>
void with_inputs(const KernelContext& context, const Function& function) {
  [&]<size_t... i>(std::index_sequence<i...>) {
    function(input<T>(context, i)...);
  }
  (std::make_index_sequence<kCount>{});
}
template <typename T>
T* output(const KernelContext& context, size_t i) {
  return static_cast<T*>(context.outputs[i]);
}
inline cudaStream_t stream_of(const KernelContext& context) {
  return static_cast<cudaStream_t>(context.stream);
}

[[noreturn]] inline void fail_type(const KernelRequest& request, DataType found, std::string_view expected) {
  throw RunError("node '" + request.node.name + "' (" + request.node.op->qualified_name() + "): CUDA kernels take " +
                 std::string(expected) + "; found " + std::string(name_of(found)));
}
inline void require_float(const KernelRequest& request, size_t input, std::string_view expected) {
  if (request.inputs[input].dtype != DataType::Float32) fail_type(request, request.inputs[input].dtype, expected);
}

// function(T{}) with T the element type of `type`.
template <typename Function>
std::unique_ptr<Kernel> with_type(const KernelRequest& request, DataType type, Function function) {
  switch (type) {
    case DataType::Float32: return function(float{});
    case DataType::Bfloat16: return function(__nv_bfloat16{});
    default: fail_type(request, type, "float and bfloat16");
  }
}

// The identity, for copies: casts, other orders.
struct Same {
  __device__ float operator()(float x) const { return x; }
};

// out[i] = function(in[i]...), in float; `in` and `out` may be the same memory.
template <int W, typename Function, typename Out, typename... In>
__global__ void __launch_bounds__(kThreads)
    elementwise_kernel(int64_t count, Function function, Out* out, const In*... in) {
  wait_for_dependencies();
  const int64_t packs = count / W;
  for (int64_t i = thread_index(); i < packs; i += thread_count()) {
    const auto apply = [&](const Pack<In, W>&... pack) {
      Pack<Out, W> result;
#pragma unroll
      for (int w = 0; w < W; ++w) result.element[w] = narrow<Out>(function(widen(pack.element[w])...));
      store(out + i * W, result);
    };
    apply(load<W>(in + i * W)...);
  }
  const int64_t rest = packs * W + thread_index();
  if (rest < count) out[rest] = narrow<Out>(function(widen(in[rest])...));
}

template <typename Function, typename Out, typename... In>
void launch_elementwise(const char* name, cudaStream_t stream, int multiprocessors, int64_t count, Function function,
                        Out* out, const In*... in) {
  if (count == 0) return;
  constexpr int W = int(16 / std::min({sizeof(Out), sizeof(In)...}));
  if (aligned(out) && (aligned(in) && ...)) {
    launch_dependent(elementwise_kernel<W, Function, Out, In...>, blocks_for((count + W - 1) / W, multiprocessors),
                     kThreads, 0, stream, count, function, out, in...);
  } else {
    launch_dependent(elementwise_kernel<1, Function, Out, In...>, blocks_for(count, multiprocessors), kThreads, 0,
                     stream, count, function, out, in...);
  }
  check_launch(name);
}

}  // namespace arbalest::cuda
