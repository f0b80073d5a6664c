// CUDA kernels of arbalest.ChannelSum: (N,C) or (N,C,H,W), channels-last, to (C).

#include "ops/math/column_sum.cuh"

namespace arbalest {

using namespace cuda;

void register_math_channel_sum_cuda(OpRegistry& registry) {
  registry.find("arbalest.ChannelSum")->cuda = [](const KernelRequest& request) {
    const TensorType& x = request.inputs[0];
    const int multiprocessors = cuda_context(request).multiprocessors;
    const float scale = float(float_attribute(request.node, "scale"));
    const int64_t channels = x.shape[1], rows = channels == 0 ? 0 : x.elements() / channels;
    return with_type(request, x.dtype, [=](auto element) {
      return make_column_sum<decltype(element)>(rows, channels, scale, multiprocessors);
    });
  };
}

}  // namespace arbalest
