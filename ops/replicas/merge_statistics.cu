// SPDX-License-Identifier: Apache-2.0

// CUDA kernel of arbalest.MergeStatistics.

#include "ops/cuda/cuda_math.cuh"
#include "ops/replicas/combine.h"

namespace arbalest {

using namespace cuda;

namespace {

template <typename In>
struct Statistics {
  int count;        // arrays
  double replicas;  // that the finished statistics are of; 0: sums are wanted
  const In* array[kMaxReplicaArrays];
};

// (2H) each: a thread takes one of H channels. Floats are statistics, of which it makes sums; doubles are sums already.
template <typename In, typename Out>
__global__ void __launch_bounds__(kThreads)
    merge_kernel(int64_t channels, const __grid_constant__ Statistics<In> statistics, Out* merged) {
  for (int64_t channel = thread_index(); channel < channels; channel += thread_count()) {
    double mean = 0, square = 0;
#pragma unroll 4
    for (int i = 0; i < statistics.count; ++i) {
      const double m = statistics.array[i][channel], second = statistics.array[i][channels + channel];
      mean += m;
      square += std::is_same_v<In, float> ? second + m * m : second;
    }
    if (statistics.replicas > 0) {
      mean /= statistics.replicas;
      square = square / statistics.replicas - mean * mean;
      square = square < 0 ? 0 : square;
    }
    merged[channel] = Out(mean);
    merged[channels + channel] = Out(square);
  }
}

template <typename In, typename Out>
std::unique_ptr<Kernel> make_merge(const KernelRequest& request) {
  const int64_t channels = request.inputs[0].elements() / 2;
  const int multiprocessors = cuda_context(request).multiprocessors;
  const auto arrays = int(request.inputs.size());
  const auto replicas = double(int_attribute(request.node, "replicas"));
  return make_kernel([=](const KernelContext& context) {
    if (channels == 0) return;
    Statistics<In> statistics = {arrays, replicas, {}};
    for (int i = 0; i < arrays; ++i) statistics.array[i] = input<In>(context, size_t(i));
    merge_kernel<<<blocks_for(channels, multiprocessors), kThreads, 0, stream_of(context)>>>(channels, statistics,
                                                                                             output<Out>(context, 0));
    check_launch("merge_statistics");
  });
}

}  // namespace

void register_replicas_merge_statistics_cuda(OpRegistry& registry) {
  registry.find("arbalest.MergeStatistics")->cuda = [](const KernelRequest& request) {
    const bool gather = int_attribute(request.node, "gather") != 0;
    const bool finish = int_attribute(request.node, "replicas") != 0;
    const DataType found = request.inputs[0].dtype;
    if (!gather) return make_merge<double, float>(request);
    if (found != DataType::Float32) fail_type(request, found, "float statistics");
    return finish ? make_merge<float, float>(request) : make_merge<float, double>(request);
  };
}

}  // namespace arbalest
