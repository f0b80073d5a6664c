// SPDX-License-Identifier: Apache-2.0

// CUDA kernel of TopK: a thread an element, which counts those that come before it. That takes length² comparisons a
// vector, each thread giving up as soon as K are before its own: meant for classes and candidates, not for millions.

#include "ops/indexing/top_k.h"

#include "ops/cuda/elements.cuh"
#include "ops/math/strided.h"

namespace arbalest {

using namespace cuda;

namespace {

// Either output may be null.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    top_k_kernel(AxisVectors from, AxisVectors to, TopKOrder order, const T* x, T* values, int64_t* indices) {
  for (int64_t i = thread_index(); i < from.count * from.length; i += thread_count()) {
    const int64_t inner = i % from.step, index = i / from.step % from.length;
    const int64_t vector = i / from.step / from.length * from.step + inner;
    const T* first = x + from.first(vector);
    const auto own = number(x[i]);
    int64_t rank = 0;
    for (int64_t j = 0; j < from.length && rank < to.length; ++j) {
      if (order.before(number(first[j * from.step]), j, own, index)) ++rank;
    }
    if (rank >= to.length) continue;
    const int64_t at = to.first(vector) + rank * to.step;
    if (values) values[at] = x[i];
    if (indices) indices[at] = index;
  }
}

std::unique_ptr<Kernel> top_k_cuda(const KernelRequest& request) {
  using Out = TopKOutput;
  const TensorType& x = request.inputs[0];
  const int64_t axis = int_attribute(request.node, "axis");
  const bool has_values = request.has_output(Out::Values), has_indices = request.has_output(Out::Indices);
  const AxisVectors from(x, axis), to(request.outputs[has_values ? 0 : 1], axis);
  const TopKOrder order{int_attribute(request.node, "largest") != 0};
  const int multiprocessors = multiprocessors_of(request);
  const auto make = [&](auto element) {
    using T = decltype(element);
    return make_kernel([=](const KernelContext& c) {
      if (to.count * to.length == 0) return;
      top_k_kernel<<<blocks_for(from.count * from.length, multiprocessors), kThreads, 0, stream_of(c)>>>(
          from, to, order, input<T>(c, 0), has_values ? output<T>(c, Out::Values) : nullptr,
          has_indices ? output<int64_t>(c, Out::Indices) : nullptr);
      check_launch("top k");
    });
  };
  switch (x.dtype) {
    case DataType::Float32: return make(float{});
    case DataType::Bfloat16: return make(__nv_bfloat16{});
    case DataType::Uint8: return make(uint8_t{});
    case DataType::Int32: return make(int32_t{});
    case DataType::Int64: return make(int64_t{});
    default: fail_type(request, x.dtype, "float, bfloat16, uint8, int32 and int64");
  }
}

}  // namespace

void register_indexing_top_k_cuda(OpRegistry& registry) {
  registry.find("TopK")->cuda = top_k_cuda;
}

}  // namespace arbalest
