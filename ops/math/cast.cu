// CUDA kernel of arbalest.Cast.

#include "ops/cuda/cuda_math.cuh"

namespace arbalest {

using namespace cuda;

void register_math_cast_cuda(OpRegistry& registry) {
  registry.find("arbalest.Cast")->cuda = [](const KernelRequest& request) {
    const int64_t count = request.outputs[0].elements();
    const int multiprocessors = cuda_context(request).multiprocessors;
    return with_type(request, request.inputs[0].dtype, [&](auto from) {
      return with_type(request, request.outputs[0].dtype, [=](auto to) {
        using From = decltype(from);
        using To = decltype(to);
        return make_kernel([=](const KernelContext& c) {
          launch_elementwise("cast", stream_of(c), multiprocessors, count, Same{}, output<To>(c, 0), input<From>(c, 0));
        });
      });
    });
  };
}

}  // namespace arbalest
