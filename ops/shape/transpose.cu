// SPDX-License-Identifier: Apache-2.0

// CUDA kernel of Transpose.

#include "ops/math/strided.cuh"
#include "ops/shape/order/transposition.cuh"
#include "ops/shape/transpose.h"

namespace arbalest {

using namespace cuda;

namespace {

// Elements that are not computed with, as words of their size.
template <typename Word>
__global__ void __launch_bounds__(kThreads)
    move_kernel(int64_t count, Strided walk, bool small, const Word* x, Word* y) {
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    int64_t offset[1];
    find_offsets<1>(walk, small, i, offset);
    y[i] = x[offset[0]];
  }
}

template <typename Word>
std::unique_ptr<Kernel> move_words(const KernelRequest& request) {
  const Strided walk = transposing_walk(request);
  const int64_t count = request.outputs[0].elements();
  const int multiprocessors = cuda_context(request).multiprocessors;
  return make_kernel([=](const KernelContext& c) {
    if (count == 0) return;
    move_kernel<<<blocks_for(count, multiprocessors), kThreads, 0, stream_of(c)>>>(
        count, walk, count < (int64_t{1} << 31), input<Word>(c, 0), output<Word>(c, 0));
    check_launch("transpose");
  });
}

std::unique_ptr<Kernel> move_packs(const KernelRequest& request) {
  const Strided walk = transposing_walk(request);
  const int64_t count = request.outputs[0].elements();
  const int multiprocessors = cuda_context(request).multiprocessors;
  return with_type(request, request.inputs[0].dtype, [=](auto element) {
    using T = decltype(element);
    return make_kernel([=](const KernelContext& c) {
      launch_strided("transpose", stream_of(c), multiprocessors, count, walk, Same{}, output<T>(c, 0), input<T>(c, 0));
    });
  });
}

}  // namespace

void register_shape_transpose_cuda(OpRegistry& registry) {
  registry.find("Transpose")->cuda = [](const KernelRequest& request) {
    constexpr int64_t kLeast = 16;  // of both axes, so that a tile is worth it
    const DataType type = request.inputs[0].dtype;
    const auto matrices = Transposition::of(transposing_walk(request));
    if (matrices &&
        (std::min(matrices->rows, matrices->columns) >= kLeast || PlaneTiles::of(*matrices, int64_t(size_of(type))))) {
      return make_transposition(*matrices, type, cuda_context(request).multiprocessors);
    }
    if (type == DataType::Float32 || type == DataType::Bfloat16) return move_packs(request);
    return with_word(type, [&](auto word) { return move_words<decltype(word)>(request); });
  };
  registry.find("arbalest.TransposeInPlace")->cuda = registry.get("Reshape").cuda;
}

}  // namespace arbalest
