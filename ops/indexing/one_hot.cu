// SPDX-License-Identifier: Apache-2.0

// CUDA kernel of OneHot.

#include "ops/indexing/one_hot.h"

#include "ops/cuda/elements.cuh"
#include "ops/math/convert.h"
#include "ops/words.h"

namespace arbalest {

using namespace cuda;

namespace {

// One kernel for all types of indices, so that few are compiled.
__device__ inline int64_t index_at(const void* indices, DataType type, int64_t i) {
  switch (type) {
    case DataType::Float32: return convert_number<int64_t>(static_cast<const float*>(indices)[i]);
    case DataType::Bfloat16: return convert_number<int64_t>(number(static_cast<const __nv_bfloat16*>(indices)[i]));
    case DataType::Uint8: return static_cast<const uint8_t*>(indices)[i];
    case DataType::Int32: return static_cast<const int32_t*>(indices)[i];
    default: return static_cast<const int64_t*>(indices)[i];
  }
}

template <typename Word>
__global__ void __launch_bounds__(kThreads)
    one_hot_kernel(OneHotExtents extents, DataType type, const void* indices, const Word* values, Word* y) {
  const Word off = values[0], on = values[1];
  for (int64_t i = thread_index(); i < extents.elements; i += thread_count()) {
    y[i] = extents.is_on(i, index_at(indices, type, extents.index_of(i))) ? on : off;
  }
}

template <typename Word>
std::unique_ptr<Kernel> make_one_hot(const KernelRequest& request) {
  using In = OneHotInput;
  return make_kernel([extents = OneHotExtents(request), type = request.inputs[In::Indices].dtype,
                      multiprocessors = multiprocessors_of(request)](const KernelContext& c) {
    if (extents.elements == 0) return;
    one_hot_kernel<<<blocks_for(extents.elements, multiprocessors), kThreads, 0, stream_of(c)>>>(
        extents, type, c.inputs[In::Indices], input<Word>(c, In::Values), output<Word>(c, 0));
    check_launch("one-hot");
  });
}

std::unique_ptr<Kernel> one_hot_cuda(const KernelRequest& request) {
  const DataType type = request.inputs[0].dtype;
  if (type == DataType::Float64) fail_type(request, type, "float, bfloat16, uint8, int32 and int64");
  return with_word(request.outputs[0].dtype, [&](auto word) { return make_one_hot<decltype(word)>(request); });
}

}  // namespace

void register_indexing_one_hot_cuda(OpRegistry& registry) {
  registry.find("OneHot")->cuda = one_hot_cuda;
}

}  // namespace arbalest
