// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of Cast and arbalest.CastToNearest. Casts between floating types are generated (ops/regions).

#include "ops/cuda/elements.cuh"
#include "ops/math/convert.h"

namespace arbalest {

using namespace cuda;

namespace {

template <typename To, typename From>
__device__ To whole_number(From x, bool nearest) {
  return nearest ? nearest_number<To>(x) : convert_number<To>(x);
}

// One kernel for all types that X may become, so that few are compiled.
template <typename From>
__global__ void __launch_bounds__(kThreads)
    cast_kernel(int64_t count, DataType to, bool nearest, const From* x, void* y) {
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    const auto value = number(x[i]);
    switch (to) {
      case DataType::Float32: static_cast<float*>(y)[i] = convert_number<float>(value); break;
      case DataType::Bfloat16:
        static_cast<__nv_bfloat16*>(y)[i] = narrow<__nv_bfloat16>(convert_number<float>(value));
        break;
      case DataType::Bool: static_cast<bool*>(y)[i] = convert_number<bool>(value); break;
      case DataType::Uint8: static_cast<uint8_t*>(y)[i] = whole_number<uint8_t>(value, nearest); break;
      case DataType::Int32: static_cast<int32_t*>(y)[i] = whole_number<int32_t>(value, nearest); break;
      case DataType::Int64: static_cast<int64_t*>(y)[i] = whole_number<int64_t>(value, nearest); break;
      default: break;
    }
  }
}

template <bool nearest>
std::unique_ptr<Kernel> make_cast(const KernelRequest& request) {
  const DataType to = request.outputs[0].dtype;
  if (to == DataType::Float64) fail_type(request, to, "float, bfloat16, bool, uint8, int32 and int64");
  const int64_t count = request.outputs[0].elements();
  const int multiprocessors = multiprocessors_of(request);
  return with_element(request, request.inputs[0].dtype, [=](auto element) {
    using From = decltype(element);
    return make_kernel([=](const KernelContext& c) {
      if (count == 0) return;
      cast_kernel<<<blocks_for(count, multiprocessors), kThreads, 0, stream_of(c)>>>(count, to, nearest,
                                                                                     input<From>(c, 0), c.outputs[0]);
      check_launch("cast");
    });
  });
}

}  // namespace

void register_math_cast_cuda(OpRegistry& registry) {
  registry.find("Cast")->cuda = make_cast<false>;
  registry.find("arbalest.CastToNearest")->cuda = make_cast<true>;
}

}  // namespace arbalest
