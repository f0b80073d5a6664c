// SPDX-License-Identifier: Apache-2.0

// CUDA kernel of Transpose.

#include "ops/shape/copy.h"
#include "ops/shape/order/transposition.cuh"
#include "ops/shape/transpose.h"

namespace arbalest {

using namespace cuda;

void register_shape_transpose_cuda(OpRegistry& registry) {
  registry.find("Transpose")->cuda = [](const KernelRequest& request) {
    constexpr int64_t kLeast = 16;  // of both axes, so that a tile is worth it
    const DataType type = request.inputs[0].dtype;
    const Strided walk = transposing_walk(request);
    const auto matrices = Transposition::of(walk);
    if (matrices &&
        (std::min(matrices->rows, matrices->columns) >= kLeast || PlaneTiles::of(*matrices, int64_t(size_of(type))))) {
      return make_transposition(*matrices, type);
    }
    return copy_cuda(request, {.boxes = {BoxCopy(walk)}});
  };
  registry.find("arbalest.TransposeInPlace")->cuda = registry.get("Reshape").cuda;
}

}  // namespace arbalest
