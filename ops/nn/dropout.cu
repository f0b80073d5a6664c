// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of Dropout and its gradient.

#include "ops/nn/dropout.h"

#include "ops/cuda/cuda_math.cuh"

namespace arbalest {

using namespace cuda;

namespace {

// A thread draws for four neighbours. `mask` may be nullptr.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    dropout_kernel(Dropping dropping, const StepScalars* scalars, const T* x, T* y, bool* mask) {
  const int64_t draws = dropping.draws();
  for (int64_t draw = thread_index(); draw < draws; draw += thread_count()) {
    const Random4 words = dropping.draw_of(*scalars, draw);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t at = 4 * draw + i;
      if (at >= dropping.count) break;
      const bool keep = dropping.keeps(words, i);
      y[at] = keep ? narrow<T>(widen(x[at]) * dropping.scale) : narrow<T>(0.0f);
      if (mask) mask[at] = keep;
    }
  }
}

// Nothing is dropped.
template <typename T>
__global__ void __launch_bounds__(kThreads) keep_kernel(int64_t count, const T* x, T* y, bool* mask) {
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    y[i] = x[i];
    mask[i] = true;
  }
}

std::unique_ptr<Kernel> make_dropout(const KernelRequest& request, const Dropping& dropping) {
  using Out = DropoutOutput;
  const int multiprocessors = multiprocessors_of(request);
  const bool mask = request.has_output(Out::Mask);
  return with_type(request, request.inputs[0].dtype, [=](auto element) {
    using T = decltype(element);
    return make_kernel([=](const KernelContext& c) {
      if (dropping.count == 0) return;
      dropout_kernel<<<blocks_for(dropping.draws(), multiprocessors), kThreads, 0, stream_of(c)>>>(
          dropping, c.scalars, input<T>(c, 0), output<T>(c, Out::Y), mask ? output<bool>(c, Out::Mask) : nullptr);
      check_launch("dropout");
    });
  });
}

std::unique_ptr<Kernel> make_inference(const KernelRequest& request) {
  using Out = DropoutOutput;
  const int64_t count = request.outputs[Out::Y].elements();
  const int multiprocessors = multiprocessors_of(request);
  return with_type(request, request.inputs[0].dtype, [=](auto element) {
    using T = decltype(element);
    return make_kernel([=](const KernelContext& c) {
      if (count == 0) return;
      keep_kernel<<<blocks_for(count, multiprocessors), kThreads, 0, stream_of(c)>>>(
          count, input<T>(c, 0), output<T>(c, Out::Y), output<bool>(c, Out::Mask));
      check_launch("dropout's mask");
    });
  });
}

}  // namespace

void register_nn_dropout_cuda(OpRegistry& registry) {
  registry.find("Dropout")->cuda = [](const KernelRequest& request) {
    const Node& node = request.node;
    if (int_attribute(node, "training_mode") == 0) return make_inference(request);
    return make_dropout(request, Dropping(node, node.name, request.outputs[0].elements()));
  };
  registry.find("arbalest.DropoutGrad")->cuda = [](const KernelRequest& request) {
    const Node& node = request.node;
    return make_dropout(request, Dropping(node, string_attribute(node, "node"), request.outputs[0].elements()));
  };
}

}  // namespace arbalest
