// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of ArgMax and ArgMin: a warp an output, or a thread if neighbouring outputs read neighbours.

#include "ops/cuda/cuda_math.cuh"
#include "ops/reduce/reduce.h"
#include "ops/reduce/sum_axes.h"

namespace arbalest {

using namespace cuda;

namespace {

template <typename T>
__device__ inline auto value_of(T x) {
  if constexpr (std::is_integral_v<T>) {
    return x;
  } else {
    return widen(x);
  }
}

struct Selection {
  bool greatest, last;

  // Whether b at index j is taken rather than a at index i. A NaN is beyond every number.
  template <typename A>
  __device__ bool replaces(A b, int64_t j, A a, int64_t i) const {
    if ((greatest ? b > a : b < a) || (b != b && a == a)) return true;
    const bool equal = a == b || (a != a && b != b);
    return equal && (last ? j > i : j < i);
  }
};

// G threads an output, 1 or 32.
template <int G, typename T>
__global__ void __launch_bounds__(kThreads) arg_kernel(SumAxes axes, Selection selection, const T* x, int64_t* y) {
  const int64_t outputs = axes.kept.count * axes.inner;
  const int lane = int(threadIdx.x) % G;
  for (int64_t i = thread_index() / G; i < outputs; i += thread_count() / G) {
    const int64_t kept = i / axes.inner, inner = i % axes.inner;
    const T* from = x + axes.kept.offset(kept, 0) + inner;
    int64_t best = min(int64_t(lane), axes.reduced.count - 1);
    auto greatest = value_of(from[axes.reduced.offset(best, 0)]);
    for (int64_t r = lane + G; r < axes.reduced.count; r += G) {
      const auto value = value_of(from[axes.reduced.offset(r, 0)]);
      if (selection.replaces(value, r, greatest, best)) greatest = value, best = r;
    }
    if constexpr (G > 1) {
#pragma unroll
      for (int offset = 16; offset > 0; offset /= 2) {
        const auto value = decltype(greatest)(__shfl_down_sync(0xffffffffu, greatest, offset));
        const int64_t at = __shfl_down_sync(0xffffffffu, best, offset);
        if (selection.replaces(value, at, greatest, best)) greatest = value, best = at;
      }
    }
    if (lane == 0) y[axes.kept.offset(kept, 1) + inner * axes.inner_stride] = best;
  }
}

template <typename T>
std::unique_ptr<Kernel> make_arg(const SumAxes& axes, Selection selection, int multiprocessors) {
  return make_kernel([=](const KernelContext& c) {
    const int64_t outputs = axes.kept.count * axes.inner;
    if (outputs == 0) return;
    if (axes.inner >= 8) {
      arg_kernel<1><<<blocks_for(outputs, multiprocessors), kThreads, 0, stream_of(c)>>>(
          axes, selection, input<T>(c, 0), output<int64_t>(c, 0));
    } else {
      arg_kernel<32><<<blocks_for(outputs * 32, multiprocessors), kThreads, 0, stream_of(c)>>>(
          axes, selection, input<T>(c, 0), output<int64_t>(c, 0));
    }
    check_launch("index of an extreme");
  });
}

std::unique_ptr<Kernel> arg_cuda(const KernelRequest& request, bool greatest) {
  const TensorType &x = request.inputs[0], &y = request.outputs[0];
  std::vector<bool> reduced(x.shape.size(), false);
  reduced[normalized_axis(int_attribute(request.node, "axis"), reduced.size())] = true;
  const SumAxes axes(reducing_walk({reduced, flag_attribute(request.node, "keepdims")}, x, y));
  const Selection selection{greatest, flag_attribute(request.node, "select_last_index")};
  const int multiprocessors = multiprocessors_of(request);
  switch (x.dtype) {
    case DataType::Int32: return make_arg<int32_t>(axes, selection, multiprocessors);
    case DataType::Int64: return make_arg<int64_t>(axes, selection, multiprocessors);
    case DataType::Bool:
    case DataType::Uint8: return make_arg<uint8_t>(axes, selection, multiprocessors);
    default:
      return with_type(request, x.dtype,
                       [&](auto element) { return make_arg<decltype(element)>(axes, selection, multiprocessors); });
  }
}

}  // namespace

void register_reduce_arg_max_cuda(OpRegistry& registry) {
  registry.find("ArgMax")->cuda = [](const KernelRequest& request) { return arg_cuda(request, true); };
  registry.find("ArgMin")->cuda = [](const KernelRequest& request) { return arg_cuda(request, false); };
}

}  // namespace arbalest
