// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of RandomUniformLike and RandomNormalLike.

#include "ops/nn/random.h"

#include "ops/cuda/cuda_math.cuh"

namespace arbalest {

using namespace cuda;

namespace {

// A thread draws for four neighbours.
template <typename T>
__global__ void __launch_bounds__(kThreads) random_kernel(RandomNumbers numbers, const StepScalars* scalars, T* y) {
  const int64_t draws = numbers.draws();
  for (int64_t draw = thread_index(); draw < draws; draw += thread_count()) {
    const Random4 words = numbers.draw_of(*scalars, draw);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t at = 4 * draw + i;
      if (at < numbers.count) y[at] = narrow<T>(numbers.number(words, i));
    }
  }
}

std::unique_ptr<Kernel> make_random(const KernelRequest& request) {
  const Node& node = request.node;
  const std::string name = node.op->internal ? string_attribute(node, "node") : node.name;
  const RandomNumbers numbers(node, name, request.outputs[0].elements());
  const int multiprocessors = multiprocessors_of(request);
  return with_type(request, request.outputs[0].dtype, [=](auto element) {
    using T = decltype(element);
    return make_kernel([=](const KernelContext& c) {
      if (numbers.count == 0) return;
      random_kernel<<<blocks_for(numbers.draws(), multiprocessors), kThreads, 0, stream_of(c)>>>(numbers, c.scalars,
                                                                                                 output<T>(c, 0));
      check_launch("random numbers");
    });
  });
}

}  // namespace

void register_nn_random_cuda(OpRegistry& registry) {
  for (const char* name :
       {"RandomUniformLike", "arbalest.RandomUniformLikeAgain", "RandomNormalLike", "arbalest.RandomNormalLikeAgain"}) {
    registry.find(name)->cuda = make_random;
  }
}

}  // namespace arbalest
