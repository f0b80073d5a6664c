// SPDX-License-Identifier: Apache-2.0

// CUDA kernel of Trilu.

#include "ops/shape/trilu.h"

#include "ops/cuda/cuda_math.cuh"
#include "ops/words.h"

namespace arbalest {

using namespace cuda;

namespace {

template <typename Word>
__global__ void __launch_bounds__(kThreads) trilu_kernel(Triangle t, const Word* x, Word* y) {
  for (int64_t i = thread_index(); i < t.elements(); i += thread_count()) {
    y[i] = t.keeps(i / t.columns % t.rows, i % t.columns) ? x[i] : Word(0);
  }
}

template <typename Word>
std::unique_ptr<Kernel> make_trilu(const KernelRequest& request) {
  return make_kernel(
      [t = Triangle(request), multiprocessors = multiprocessors_of(request)](const KernelContext& c) {
        if (t.elements() == 0) return;
        trilu_kernel<<<blocks_for(t.elements(), multiprocessors), kThreads, 0, stream_of(c)>>>(t, input<Word>(c, 0),
                                                                                               output<Word>(c, 0));
        check_launch("triangle");
      });
}

}  // namespace

void register_shape_trilu_cuda(OpRegistry& registry) {
  registry.find("Trilu")->cuda = [](const KernelRequest& request) {
    return with_word(request.inputs[0].dtype, [&](auto word) { return make_trilu<decltype(word)>(request); });
  };
}

}  // namespace arbalest
