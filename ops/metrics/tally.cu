// CUDA kernel of arbalest.Tally.

#include "ops/cuda/cuda_math.cuh"

namespace arbalest {

using namespace cuda;

namespace {

constexpr int kMetrics = 32;

struct Metrics {
  const float* value[kMetrics];
};

// state: (count + 1) doubles: Σ valid, then Σ metric · valid of each. `after` may be the memory of `before`. A batch of
// padding only counts nothing, whatever its metrics hold. With a factor (1) of gradients a batch whose first metric is
// not finite counts nothing either, and two more doubles are the updates that were due, and those that were skipped.
__global__ void __launch_bounds__(64) tally_kernel(int count, Metrics metrics, const float* factor,
                                                   const StepScalars* scalars, const double* before, double* after) {
  const int i = int(threadIdx.x);
  if (i > count + (factor != nullptr ? 2 : 0)) return;
  if (i > count) {
    const bool counts = scalars->update != 0 && (i == count + 1 || *factor < 0.0f);
    after[i] = before[i] + (counts ? 1.0 : 0.0);
    return;
  }
  const double valid = factor == nullptr || isfinite(*metrics.value[0]) ? scalars->valid : 0;
  const double added = i == 0 ? valid : valid > 0 ? valid * double(*metrics.value[i - 1]) : 0.0;
  after[i] = before[i] + added;
}

}  // namespace

void register_metrics_tally_cuda(OpRegistry& registry) {
  registry.find("arbalest.Tally")->cuda = [](const KernelRequest& request) {
    const bool skips = int_attribute(request.node, "skips") != 0;
    const size_t count = request.inputs.size() - (skips ? 2 : 1);
    if (count > kMetrics) {
      throw RunError("node '" + request.node.name + "' (arbalest.Tally): the CUDA kernel takes " +
                     std::to_string(kMetrics) + " metrics at most; found " + std::to_string(count));
    }
    for (size_t i = 1; i < request.inputs.size(); ++i) {
      if (request.inputs[i].dtype != DataType::Float32) fail_type(request, request.inputs[i].dtype, "float metrics");
    }
    return make_kernel([count, skips](const KernelContext& c) {
      Metrics metrics = {};
      for (size_t i = 0; i < count; ++i) metrics.value[i] = input<float>(c, i + 1);
      const float* factor = skips ? input<float>(c, count + 1) : nullptr;
      tally_kernel<<<1, 64, 0, stream_of(c)>>>(int(count), metrics, factor, c.scalars, input<double>(c, 0),
                                               output<double>(c, 0));
      check_launch("tally");
    });
  };
}

}  // namespace arbalest
