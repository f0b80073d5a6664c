// CUDA kernel of Transpose.

#include "ops/math/strided.cuh"
#include "ops/shape/transpose.h"

namespace arbalest {

using namespace cuda;

void register_shape_transpose_cuda(OpRegistry& registry) {
  registry.find("Transpose")->cuda = [](const KernelRequest& request) {
    const Strided walk = transposing_walk(request);
    const int64_t count = request.outputs[0].elements();
    const int multiprocessors = cuda_context(request).multiprocessors;
    return with_type(request, request.inputs[0].dtype, [=](auto element) {
      using T = decltype(element);
      return make_kernel([=](const KernelContext& c) {
        launch_strided("transpose", stream_of(c), multiprocessors, count, walk, Same{}, output<T>(c, 0),
                       input<T>(c, 0));
      });
    });
  };
  registry.find("arbalest.TransposeInPlace")->cuda = registry.get("Reshape").cuda;
}

}  // namespace arbalest
