// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of LRN and its gradient: a thread an element. Neighbouring channels come from caches.

#include "ops/norm/lrn.h"

#include "ops/cuda/cuda_math.cuh"
#include "ops/names.h"

namespace arbalest {

using namespace cuda;

namespace {

template <typename T>
struct LrnElements {
  const T* first;
  __device__ float operator()(int64_t i) const { return widen(first[i]); }
};

template <typename T>
__global__ void __launch_bounds__(kThreads) lrn_kernel(int64_t count, ChannelWindows<float> windows, const T* x, T* y) {
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    y[i] = narrow<T>(windows.normalized(i, LrnElements<T>{x}));
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    term_kernel(int64_t count, ChannelWindows<float> windows, const T* dy, const T* x, float* terms) {
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    terms[i] = windows.term(i, LrnElements<T>{dy}, LrnElements<T>{x});
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    lrn_grad_kernel(int64_t count, ChannelWindows<float> windows, const T* dy, const T* x, const float* terms, T* dx) {
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    dx[i] = narrow<T>(windows.gradient(i, LrnElements<T>{dy}, LrnElements<T>{x}, LrnElements<float>{terms}));
  }
}

std::unique_ptr<Kernel> lrn_cuda(const KernelRequest& request) {
  const auto windows = channel_windows<float>(request);
  const int64_t count = request.outputs[0].elements();
  const int multiprocessors = multiprocessors_of(request);
  return with_type(request, request.inputs[0].dtype, [=](auto element) {
    using T = decltype(element);
    return make_kernel([=](const KernelContext& c) {
      if (count == 0) return;
      lrn_kernel<<<blocks_for(count, multiprocessors), kThreads, 0, stream_of(c)>>>(count, windows, input<T>(c, 0),
                                                                                    output<T>(c, 0));
      check_launch("local response normalisation");
    });
  });
}

std::unique_ptr<Kernel> lrn_gradient(const KernelRequest& request) {
  using In = GradByInput;
  const auto windows = channel_windows<float>(request);
  const int64_t count = request.outputs[0].elements();
  const int multiprocessors = multiprocessors_of(request);
  return with_type(request, request.inputs[In::dY].dtype, [=](auto element) {
    using T = decltype(element);
    const auto run = [=](const KernelContext& c) {
      if (count == 0) return;
      const unsigned blocks = blocks_for(count, multiprocessors);
      const T *dy = input<T>(c, In::dY), *x = input<T>(c, In::X);
      auto* terms = static_cast<float*>(c.workspace);
      term_kernel<<<blocks, kThreads, 0, stream_of(c)>>>(count, windows, dy, x, terms);
      lrn_grad_kernel<<<blocks, kThreads, 0, stream_of(c)>>>(count, windows, dy, x, terms, output<T>(c, 0));
      check_launch("gradient of local response normalisation");
    };
    return make_kernel(run, count * int64_t(sizeof(float)));
  });
}

}  // namespace

void register_norm_lrn_cuda(OpRegistry& registry) {
  registry.find("LRN")->cuda = lrn_cuda;
  registry.find("arbalest.LRNGrad")->cuda = lrn_gradient;
}

}  // namespace arbalest
