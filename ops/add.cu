// CUDA kernel of Add.

#include "ops/cuda_math.cuh"

namespace arbalest {

using namespace cuda;

namespace {

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};

}  // namespace

void register_add_cuda(OpRegistry& registry) {
  registry.find("Add")->cuda = [](const KernelRequest& request) {
    const int64_t count = request.outputs[0].elements();
    const int multiprocessors = cuda_context(request).multiprocessors;
    return with_type(request, request.inputs[0].dtype, [=](auto element) {
      using T = decltype(element);
      return make_kernel([=](const KernelContext& c) {
        launch_elementwise("add", stream_of(c), multiprocessors, count, Sum{}, output<T>(c, 0), input<T>(c, 0),
                           input<T>(c, 1));
      });
    });
  };
}

}  // namespace arbalest
