// SPDX-License-Identifier: Apache-2.0

// CUDA kernel of CumSum: a warp a vector, 32 elements at a time.

#include "ops/cuda/elements.cuh"
#include "ops/math/strided.h"

namespace arbalest {

using namespace cuda;

namespace {

// Floats are summed in float, integers without a sign, so that they wrap around.
template <typename T>
struct SumOf {
  using Type = float;
};
template <>
struct SumOf<int32_t> {
  using Type = uint32_t;
};
template <>
struct SumOf<int64_t> {
  using Type = uint64_t;
};

template <typename T>
__device__ inline T stored(typename SumOf<T>::Type sum) {
  if constexpr (std::is_integral_v<T>) {
    return T(sum);
  } else {
    return narrow<T>(sum);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    cum_sum_kernel(AxisVectors v, bool exclusive, bool reverse, const T* x, T* y) {
  using Sum = typename SumOf<T>::Type;
  const int lane = int(threadIdx.x) % 32;
  for (int64_t i = thread_index() / 32; i < v.count; i += thread_count() / 32) {
    Sum carry = 0;
    for (int64_t start = 0; start < v.length; start += 32) {
      const int64_t k = start + lane;
      const int64_t at = v.first(i) + (reverse ? v.length - 1 - k : k) * v.step;
      Sum sum = k < v.length ? Sum(number(x[at])) : Sum(0);
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const Sum before = __shfl_up_sync(0xffffffffu, sum, offset);
        if (lane >= offset) sum += before;
      }
      const Sum before = __shfl_up_sync(0xffffffffu, sum, 1);
      if (k < v.length) y[at] = stored<T>(carry + (!exclusive ? sum : lane > 0 ? before : Sum(0)));
      carry += __shfl_sync(0xffffffffu, sum, 31);
    }
  }
}

std::unique_ptr<Kernel> cum_sum_cuda(const KernelRequest& request) {
  const DataType type = request.inputs[0].dtype;
  const AxisVectors v(request.inputs[0], int_attribute(request.node, "axis"));
  const bool exclusive = int_attribute(request.node, "exclusive") != 0;
  const bool reverse = int_attribute(request.node, "reverse") != 0;
  const int multiprocessors = multiprocessors_of(request);
  const auto make = [=](auto element) {
    using T = decltype(element);
    return make_kernel([=](const KernelContext& c) {
      if (v.count == 0) return;
      cum_sum_kernel<<<blocks_for(v.count * 32, multiprocessors), kThreads, 0, stream_of(c)>>>(
          v, exclusive, reverse, input<T>(c, 0), output<T>(c, 0));
      check_launch("cumulative sum");
    });
  };
  switch (type) {
    case DataType::Float32: return make(float{});
    case DataType::Bfloat16: return make(__nv_bfloat16{});
    case DataType::Int32: return make(int32_t{});
    case DataType::Int64: return make(int64_t{});
    default: fail_type(request, type, "float, bfloat16, int32 and int64");
  }
}

}  // namespace

void register_reduce_cum_sum_cuda(OpRegistry& registry) {
  registry.find("CumSum")->cuda = cum_sum_cuda;
}

}  // namespace arbalest
