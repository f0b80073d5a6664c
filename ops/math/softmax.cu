// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of Softmax, LogSoftmax and their gradients: a warp a vector, or a block if vectors are long and few.
// Vectors whose elements lie apart, with other vectors between, are taken side by side.

#include "ops/cuda/group_sum.cuh"
#include "ops/math/strided.h"

namespace arbalest {

using namespace cuda;

namespace {

template <int G>
__device__ inline float group_max(float x) {
  x = warp_max(x);
  if constexpr (G > 32) {
    __shared__ float largest[G / 32];
    __syncthreads();  // an earlier call's readers are done
    if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = x;
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < G / 32; ++warp) x = fmaxf(x, largest[warp]);
  }
  return x;
}

// f(first element, this thread's place in the group) for each vector; all threads of a group call it together.
template <int G, typename Function>
__device__ inline void for_each_vector(const AxisVectors& v, Function f) {
  for (int64_t i = thread_index() / G; i < v.count; i += thread_count() / G) {
    f(v.first(i), int(threadIdx.x) % G);
  }
}

template <bool kLogarithm, int G, typename T>
__global__ void __launch_bounds__(kThreads) softmax_kernel(AxisVectors v, const T* x, T* y) {
  for_each_vector<G>(v, [&](int64_t first, int lane) {
    float largest = -INFINITY, sum = 0;
    for (int64_t k = lane; k < v.length; k += G) largest = fmaxf(largest, widen(x[first + k * v.step]));
    largest = group_max<G>(largest);
    for (int64_t k = lane; k < v.length; k += G) sum += expf(widen(x[first + k * v.step]) - largest);
    sum = group_sum<G>(sum);
    for (int64_t k = lane; k < v.length; k += G) {
      const float shifted = widen(x[first + k * v.step]) - largest;
      y[first + k * v.step] = narrow<T>(kLogarithm ? shifted - logf(sum) : expf(shifted) / sum);
    }
  });
}

template <bool kLogarithm, int G, typename T>
__global__ void __launch_bounds__(kThreads) softmax_grad_kernel(AxisVectors v, const T* dy, const T* y, T* dx) {
  for_each_vector<G>(v, [&](int64_t first, int lane) {
    float dot = 0;
    for (int64_t k = lane; k < v.length; k += G) {
      const int64_t i = first + k * v.step;
      dot += kLogarithm ? widen(dy[i]) : widen(dy[i]) * widen(y[i]);
    }
    dot = group_sum<G>(dot);
    for (int64_t k = lane; k < v.length; k += G) {
      const int64_t i = first + k * v.step;
      dx[i] = narrow<T>(kLogarithm ? widen(dy[i]) - expf(widen(y[i])) * dot : widen(y[i]) * (widen(dy[i]) - dot));
    }
  });
}

// How a block's threads share neighbouring vectors: `across` of them, and as many rows of their elements as threads are
// left.
struct Neighbours {
  int across = 32;
  int64_t tiles = 0;  // of neighbours, in all

  explicit Neighbours(const AxisVectors& v) {
    while (across > 1 && across / 2 >= v.step) across /= 2;
    while (across < kThreads && across < v.step && kThreads / across > v.length / 4) across *= 2;
    tiles = v.length == 0 ? 0 : v.count / v.step * ((v.step + across - 1) / across);
  }
};

// f(first element, whether there is one, this thread's column and row, rows) for each tile of neighbouring vectors.
template <typename Function>
__device__ inline void for_each_tile(const AxisVectors& v, const Neighbours& n, Function f) {
  const int column = int(threadIdx.x) % n.across, row = int(threadIdx.x) / n.across, rows = kThreads / n.across;
  const int64_t across = (v.step + n.across - 1) / n.across;
  for (int64_t tile = blockIdx.x; tile < n.tiles; tile += gridDim.x) {
    const int64_t inner = tile % across * n.across + column;
    f(tile / across * v.step * v.length + inner, inner < v.step, column, row, rows);
    __syncthreads();  // before shared memory is written again
  }
}

template <bool kLogarithm, typename T>
__global__ void __launch_bounds__(kThreads) softmax_columns_kernel(AxisVectors v, Neighbours n, const T* x, T* y) {
  __shared__ float greatest[kThreads], sums[kThreads];
  wait_for_dependencies();
  for_each_tile(v, n, [&](int64_t first, bool is_vector, int column, int row, int rows) {
    float largest = -INFINITY, sum = 0;
    for (int64_t k = row; is_vector && k < v.length; k += rows) {
      const float value = widen(x[first + k * v.step]);
      if (value > largest) {
        sum = sum * expf(largest - value) + 1;
        largest = value;
      } else if (value != -INFINITY) {
        sum += expf(value - largest);
      }
    }
    greatest[threadIdx.x] = largest;
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int other = 0; other < rows; ++other) largest = fmaxf(largest, greatest[other * n.across + column]);
    sum = 0;
    for (int other = 0; other < rows; ++other) {
      const int at = other * n.across + column;
      if (sums[at] != 0) sum += sums[at] * expf(greatest[at] - largest);
    }
    for (int64_t k = row; is_vector && k < v.length; k += rows) {
      const float shifted = widen(x[first + k * v.step]) - largest;
      y[first + k * v.step] = narrow<T>(kLogarithm ? shifted - logf(sum) : expf(shifted) / sum);
    }
  });
}

template <bool kLogarithm, typename T>
__global__ void __launch_bounds__(kThreads)
    softmax_grad_columns_kernel(AxisVectors v, Neighbours n, const T* dy, const T* y, T* dx) {
  __shared__ float dots[kThreads];
  wait_for_dependencies();
  for_each_tile(v, n, [&](int64_t first, bool is_vector, int column, int row, int rows) {
    float dot = 0;
    for (int64_t k = row; is_vector && k < v.length; k += rows) {
      const int64_t i = first + k * v.step;
      dot += kLogarithm ? widen(dy[i]) : widen(dy[i]) * widen(y[i]);
    }
    dots[threadIdx.x] = dot;
    __syncthreads();
    dot = 0;
    for (int other = 0; other < rows; ++other) dot += dots[other * n.across + column];
    for (int64_t k = row; is_vector && k < v.length; k += rows) {
      const int64_t i = first + k * v.step;
      dx[i] = narrow<T>(kLogarithm ? widen(dy[i]) - expf(widen(y[i])) * dot : widen(y[i]) * (widen(dy[i]) - dot));
    }
  });
}

// launch(integral constant of the group's threads, blocks)
template <typename Launch>
void with_group(const AxisVectors& v, int multiprocessors, const Launch& launch) {
  if (v.count == 0 || v.length == 0) return;
  if (v.length > 1024 && v.count < int64_t(multiprocessors) * 16) {
    launch(std::integral_constant<int, kThreads>(), unsigned(v.count));
  } else {
    launch(std::integral_constant<int, 32>(), blocks_for(v.count * 32, multiprocessors));
  }
  check_launch("softmax");
}

// launch(context, vectors, an element, group, blocks): one for the operator, one for its gradient. `columns`: the same
// with neighbours in place of the group.
template <typename Launch, typename Columns>
KernelFactory softmax_factory(const Launch& launch, const Columns& columns) {
  return [launch, columns](const KernelRequest& request) {
    const AxisVectors v(request.inputs[0], int_attribute(request.node, "axis"));
    const int multiprocessors = cuda_context(request).multiprocessors;
    // Few neighbours of long vectors would leave most of a GPU idle.
    const Neighbours n(v);
    const bool side_by_side = v.step > 1 && (n.tiles >= multiprocessors / 2 || v.length <= 1024);
    const auto tile_blocks = unsigned(std::min<int64_t>(n.tiles, int64_t(multiprocessors) * 16));
    return with_type(request, request.inputs[0].dtype, [=](auto element) {
      return make_kernel([=](const KernelContext& c) {
        if (side_by_side) {
          if (n.tiles > 0) columns(c, v, element, n, tile_blocks);
          return check_launch("softmax");
        }
        with_group(v, multiprocessors, [&](auto group, unsigned blocks) { launch(c, v, element, group, blocks); });
      });
    });
  };
}

template <bool kLogarithm>
void set_softmax(OpRegistry& registry, const std::string& name) {
  registry.find(name)->cuda = softmax_factory(
      [](const KernelContext& c, const AxisVectors& v, auto element, auto group, unsigned blocks) {
        using T = decltype(element);
        softmax_kernel<kLogarithm, decltype(group)::value>
            <<<blocks, kThreads, 0, stream_of(c)>>>(v, input<T>(c, 0), output<T>(c, 0));
      },
      [](const KernelContext& c, const AxisVectors& v, auto element, const Neighbours& n, unsigned blocks) {
        using T = decltype(element);
        launch_dependent(softmax_columns_kernel<kLogarithm, T>, blocks, kThreads, 0, stream_of(c), v, n, input<T>(c, 0),
                         output<T>(c, 0));
      });
  registry.find("arbalest." + name + "Grad")->cuda = softmax_factory(
      [](const KernelContext& c, const AxisVectors& v, auto element, auto group, unsigned blocks) {
        using T = decltype(element);
        softmax_grad_kernel<kLogarithm, decltype(group)::value>
            <<<blocks, kThreads, 0, stream_of(c)>>>(v, input<T>(c, 0), input<T>(c, 1), output<T>(c, 0));
      },
      [](const KernelContext& c, const AxisVectors& v, auto element, const Neighbours& n, unsigned blocks) {
        using T = decltype(element);
        launch_dependent(softmax_grad_columns_kernel<kLogarithm, T>, blocks, kThreads, 0, stream_of(c), v, n,
                         input<T>(c, 0), input<T>(c, 1), output<T>(c, 0));
      });
}

}  // namespace

void register_math_softmax_cuda(OpRegistry& registry) {
  set_softmax<false>(registry, "Softmax");
  set_softmax<true>(registry, "LogSoftmax");
}

}  // namespace arbalest
