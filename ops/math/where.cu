// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of Where for whole numbers and truth values; those for floating types are generated (ops/regions).

#include "ops/math/elementwise.h"
#include "ops/math/strided.cuh"
#include "ops/names.h"
#include "ops/words.h"

namespace arbalest {

using namespace cuda;

namespace {

// out[i] = condition ? x : y. Elements are moved as words of their size.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    where_kernel(int64_t count, Strided walk, bool small, const bool* condition, const T* x, const T* y, T* out) {
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    int64_t offset[3];
    find_offsets<3>(walk, small, i, offset);
    out[i] = condition[offset[0]] ? x[offset[1]] : y[offset[2]];
  }
}

}  // namespace

void register_math_where_cuda(OpRegistry& registry) {
  using In = WhereInput;
  registry.find("Where")->cuda = [](const KernelRequest& request) {
    const Strided walk(elementwise::walked_types(request));
    const int64_t count = request.outputs[0].elements();
    const int multiprocessors = multiprocessors_of(request);
    return with_word(request.outputs[0].dtype, [=](auto word) {
      using T = decltype(word);
      return make_kernel([=](const KernelContext& c) {
        if (count == 0) return;
        where_kernel<<<blocks_for(count, multiprocessors), kThreads, 0, stream_of(c)>>>(
            count, walk, count < (int64_t{1} << 31), input<bool>(c, In::Condition), input<T>(c, In::X),
            input<T>(c, In::Y), output<T>(c, 0));
        check_launch("where");
      });
    });
  };
}

}  // namespace arbalest
