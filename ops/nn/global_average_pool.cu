// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of GlobalAveragePool, channels-last.

#include "ops/reduce/reduce.cuh"

namespace arbalest {

using namespace cuda;

namespace {

std::unique_ptr<Kernel> average(const KernelRequest& request) {
  const SumAxes axes(Strided({request.inputs[0], request.outputs[0]}));
  const int multiprocessors = multiprocessors_of(request);
  return with_type(request, request.inputs[0].dtype, [&](auto element) {
    using T = decltype(element);
    const ReductionLaunch<reductions::ReduceMean, T> mean(axes, multiprocessors);
    return make_kernel([mean](const KernelContext& c) { mean.run(c, input<T>(c, 0), nullptr, output<T>(c, 0)); },
                       mean.workspace_bytes());
  });
}

}  // namespace

void register_nn_global_average_pool_cuda(OpRegistry& registry) {
  registry.find("GlobalAveragePool")->cuda = average;
}

}  // namespace arbalest
