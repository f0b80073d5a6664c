// CUDA kernels of Relu and its gradient.

#include "ops/cuda_math.cuh"

namespace arbalest {

using namespace cuda;

namespace {

// NaN stays NaN.
struct Relu {
  __device__ float operator()(float x) const { return x < 0 ? 0.0f : x; }
};

struct ReluGrad {
  __device__ float operator()(float dy, float y) const { return y > 0 ? dy : 0.0f; }
};

}  // namespace

void register_relu_cuda(OpRegistry& registry) {
  registry.find("Relu")->cuda = [](const KernelRequest& request) {
    const int64_t count = request.outputs[0].elements();
    const int multiprocessors = cuda_context(request).multiprocessors;
    return with_type(request, request.inputs[0].dtype, [=](auto element) {
      using T = decltype(element);
      return make_kernel([=](const KernelContext& c) {
        launch_elementwise("relu", stream_of(c), multiprocessors, count, Relu{}, output<T>(c, 0), input<T>(c, 0));
      });
    });
  };
  registry.find("arbalest.ReluGrad")->cuda = [](const KernelRequest& request) {
    const int64_t count = request.outputs[0].elements();
    const int multiprocessors = cuda_context(request).multiprocessors;
    return with_type(request, request.inputs[0].dtype, [=](auto element) {
      using T = decltype(element);
      return make_kernel([=](const KernelContext& c) {
        launch_elementwise("relu_grad", stream_of(c), multiprocessors, count, ReluGrad{}, output<T>(c, 0),
                           input<T>(c, 0), input<T>(c, 1));
      });
    });
  };
}

}  // namespace arbalest
