// SPDX-License-Identifier: Apache-2.0

// CUDA kernel of arbalest.Tally.

#include "ops/cuda/cuda_math.cuh"

namespace arbalest {

using namespace cuda;

namespace {

constexpr int kMetrics = 120, kThreadsOfTally = 256;  // a thread a sum

struct Metrics {
  const float *value[kMetrics], *weight[kMetrics];  // weight: of the value at the same place; may be null
  const float* weight_sum[kMetrics];                // the weights again, by the place of their sums
  int count, weights;
};

// state: (1 + count + weights) doubles: Σ valid, then Σ metric · weight of each, where the weight is the valid samples
// or one of the metric's own; at last Σ weight of those. `after` may be the memory of `before`. A batch that weighs
// nothing, as one of padding only, counts nothing, whatever its metrics hold. A weight below 0 is as in tally.cpp. With
// a factor (1) of gradients a batch whose first metric is not finite counts nothing either. Two more doubles are the
// updates that were due, and those that were skipped.
__global__ void __launch_bounds__(kThreadsOfTally)
    tally_kernel(Metrics metrics, const float* factor, const StepScalars* scalars, const double* before,
                 double* after) {
  const int i = int(threadIdx.x), sums = metrics.count + metrics.weights;  // the last sum; Σ valid is sum 0
  if (i > sums + (factor != nullptr ? 2 : 0)) return;
  if (i > sums) {
    const bool counts = scalars->update != 0 && (i == sums + 1 || *factor < 0.0f);
    after[i] = before[i] + (counts ? 1.0 : 0.0);
    return;
  }
  const double valid = factor == nullptr || isfinite(*metrics.value[0]) ? scalars->valid : 0;
  const auto weight = [&](const float* own) { return own == nullptr || valid == 0 ? valid : double(*own); };
  double added = valid;
  if (i > metrics.count) {
    const double own = weight(metrics.weight_sum[i - metrics.count - 1]);
    added = own < 0 ? 0.0 : own;
  } else if (i > 0) {
    const double by = fabs(weight(metrics.weight[i - 1]));
    added = by > 0 ? by * double(*metrics.value[i - 1]) : 0.0;
  }
  after[i] = before[i] + added;
}

}  // namespace

void register_metrics_tally_cuda(OpRegistry& registry) {
  registry.find("arbalest.Tally")->cuda = [](const KernelRequest& request) {
    const bool skips = int_attribute(request.node, "skips") != 0;
    const std::vector<int64_t> weighed = ints_attribute(request.node, "weighed");
    const size_t count = request.inputs.size() - weighed.size() - (skips ? 2 : 1);
    if (count > kMetrics) {
      throw RunError("node '" + request.node.name + "' (arbalest.Tally): the CUDA kernel takes " +
                     std::to_string(kMetrics) + " metrics at most; found " + std::to_string(count));
    }
    for (size_t i = 1; i < request.inputs.size(); ++i) {
      require_float(request, i, "float metrics");
    }
    return make_kernel([count, skips, weighed](const KernelContext& c) {
      Metrics metrics = {};
      metrics.count = int(count);
      metrics.weights = int(weighed.size());
      for (size_t i = 0; i < count; ++i) metrics.value[i] = input<float>(c, i + 1);
      for (size_t w = 0; w < weighed.size(); ++w) {
        metrics.weight_sum[w] = metrics.weight[weighed[w]] = input<float>(c, 1 + count + w);
      }
      const float* factor = skips ? input<float>(c, 1 + count + weighed.size()) : nullptr;
      tally_kernel<<<1, kThreadsOfTally, 0, stream_of(c)>>>(metrics, factor, c.scalars, input<double>(c, 0),
                                                            output<double>(c, 0));
      check_launch("tally");
    });
  };
}

}  // namespace arbalest
