// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of Where and its gradient.

#include "ops/math/elementwise.h"
#include "ops/math/strided.cuh"
#include "ops/names.h"
#include "ops/words.h"

namespace arbalest {

using namespace cuda;

namespace {

// out[i] = condition ? x : y; x or y may be left out (nullptr) and is 0 then. Elements are moved as words of their
// size.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    where_kernel(int64_t count, Strided walk, bool small, const bool* condition, const T* x, const T* y, T* out) {
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    int64_t offset[3];
    find_offsets<3>(walk, small, i, offset);
    if (condition[offset[0]]) {
      out[i] = x ? x[offset[1]] : T(0);
    } else {
      out[i] = y ? y[offset[2]] : T(0);
    }
  }
}

// `x`, `y`: numbers of these inputs, −1 if left out. The walk goes through the output, the condition, X and Y.
template <typename T>
std::unique_ptr<Kernel> make_where(const KernelRequest& request, const Strided& walk, int x, int y) {
  const int64_t count = request.outputs[0].elements();
  const int multiprocessors = cuda_context(request).multiprocessors;
  return make_kernel([=](const KernelContext& c) {
    if (count == 0) return;
    where_kernel<<<blocks_for(count, multiprocessors), kThreads, 0, stream_of(c)>>>(
        count, walk, count < (int64_t{1} << 31), input<bool>(c, 0), x < 0 ? nullptr : input<T>(c, size_t(x)),
        y < 0 ? nullptr : input<T>(c, size_t(y)), output<T>(c, 0));
    check_launch("where");
  });
}

std::unique_ptr<Kernel> where_kernel_of(const KernelRequest& request, const std::vector<TensorType>& types, int x,
                                        int y) {
  const Strided walk(types);
  return with_word(request.outputs[0].dtype,
                   [&](auto word) { return make_where<decltype(word)>(request, walk, x, y); });
}

}  // namespace

void register_math_where_cuda(OpRegistry& registry) {
  registry.find("Where")->cuda = [](const KernelRequest& request) {
    return where_kernel_of(request, elementwise::walked_types(request), 1, 2);
  };
  registry.find("arbalest.WhereGrad")->cuda = [](const KernelRequest& request) {
    const bool branch = int_attribute(request.node, "branch") != 0;
    const TensorType& dy = request.inputs[WhereGradInput::dY];
    return where_kernel_of(request, {request.outputs[0], request.inputs[0], dy, dy}, branch ? 1 : -1, branch ? -1 : 1);
  };
}

}  // namespace arbalest
