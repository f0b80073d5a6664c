// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of Gather and its gradient. An index that is out of range gives ones in every bit, a NaN, and no
// gradient.

#include "ops/indexing/gather.h"

#include "ops/cuda/cuda_math.cuh"

namespace arbalest {

using namespace cuda;

namespace {

// The place along the axis; -1: out of range.
template <typename Index>
__device__ inline int64_t place_of(Index index, int64_t extent) {
  const int64_t place = index < 0 ? int64_t(index) + extent : int64_t(index);
  return place >= 0 && place < extent ? place : -1;
}

// `inner` is in words.
template <typename Word, typename Index>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(Gathering g, const Word* data, const Index* indices, Word* y) {
  for (int64_t i = thread_index(); i < g.outer * g.count * g.inner; i += thread_count()) {
    const int64_t slice = i / g.inner, k = i % g.inner;
    const int64_t place = place_of(indices[slice % g.count], g.extent);
    Word word;
    memset(&word, 0xff, sizeof(word));
    if (place >= 0) word = data[(slice / g.count * g.extent + place) * g.inner + k];
    y[i] = word;
  }
}

template <typename T, typename Index>
__global__ void __launch_bounds__(kThreads)
    scatter_add_kernel(Gathering g, int64_t left_out, const T* dy, const Index* indices, float* dx) {
  for (int64_t i = thread_index(); i < g.outer * g.count * g.inner; i += thread_count()) {
    const int64_t slice = i / g.inner, k = i % g.inner;
    const int64_t place = place_of(indices[slice % g.count], g.extent);
    if (place >= 0 && place != left_out)
      atomicAdd(dx + (slice / g.count * g.extent + place) * g.inner + k, widen(dy[i]));
  }
}

// Adds in a fixed order: a thread has an element of all slices to itself.
template <typename T, typename Index>
__global__ void __launch_bounds__(kThreads)
    ordered_add_kernel(Gathering g, int64_t left_out, const T* dy, const Index* indices, float* dx) {
  for (int64_t i = thread_index(); i < g.outer * g.inner; i += thread_count()) {
    const int64_t outer = i / g.inner, k = i % g.inner;
    for (int64_t j = 0; j < g.count; ++j) {
      const int64_t place = place_of(indices[j], g.extent);
      if (place >= 0 && place != left_out)
        dx[(outer * g.extent + place) * g.inner + k] += widen(dy[(outer * g.count + j) * g.inner + k]);
    }
  }
}

template <typename Function>
std::unique_ptr<Kernel> with_index(const KernelRequest& request, Function function) {
  return request.inputs[IndexedInput::Indices].dtype == DataType::Int32 ? function(int32_t{}) : function(int64_t{});
}

template <typename Word, typename Index>
void gather(const KernelContext& c, Gathering g, int64_t bytes, int multiprocessors) {
  g.inner = bytes / int64_t(sizeof(Word));
  gather_kernel<<<blocks_for(g.outer * g.count * g.inner, multiprocessors), kThreads, 0, stream_of(c)>>>(
      g, input<Word>(c, IndexedInput::Data), input<Index>(c, IndexedInput::Indices), output<Word>(c, 0));
  check_launch("gather");
}

std::unique_ptr<Kernel> gather_cuda(const KernelRequest& request) {
  using In = IndexedInput;
  const TensorType& data = request.inputs[In::Data];
  const Gathering g(data, request.inputs[In::Indices],
                    normalized_axis(int_attribute(request.node, "axis"), data.shape.size()));
  const int64_t element = int64_t(size_of(data.dtype)), bytes = g.inner * element;  // of a slice
  const int multiprocessors = multiprocessors_of(request);
  return with_index(request, [=](auto index) {
    using Index = decltype(index);
    return make_kernel([=](const KernelContext& c) {
      if (g.outer * g.count * g.inner == 0) return;
      const bool wide = bytes % 16 == 0 && aligned(c.inputs[In::Data]) && aligned(c.outputs[0]);
      switch (wide ? 16 : element) {
        case 1: return gather<uint8_t, Index>(c, g, bytes, multiprocessors);
        case 2: return gather<uint16_t, Index>(c, g, bytes, multiprocessors);
        case 4: return gather<uint32_t, Index>(c, g, bytes, multiprocessors);
        case 8: return gather<uint64_t, Index>(c, g, bytes, multiprocessors);
        default: return gather<uint4, Index>(c, g, bytes, multiprocessors);
      }
    });
  });
}

std::unique_ptr<Kernel> gather_gradient(const KernelRequest& request) {
  const TensorType& dx = request.outputs[0];
  const Gathering g(dx, request.inputs[IndexedInput::Indices],
                    normalized_axis(int_attribute(request.node, "axis"), dx.shape.size()));
  const std::vector<int64_t> padding = ints_attribute(request.node, "padding_index");
  const int64_t bytes = dx.bytes(), left_out = padding.empty() ? -1 : padding[0];
  const bool ordered = request.deterministic;
  const int multiprocessors = multiprocessors_of(request);
  return with_type(request, request.inputs[0].dtype, [&](auto element) {
    using T = decltype(element);
    return with_index(request, [=](auto index) {
      using Index = decltype(index);
      return make_kernel([=](const KernelContext& c) {
        if (bytes == 0) return;
        CUDA_CHECK(cudaMemsetAsync(c.outputs[0], 0, size_t(bytes), stream_of(c)));
        if (g.outer * g.count * g.inner == 0) return;
        if (ordered) {
          ordered_add_kernel<<<blocks_for(g.outer * g.inner, multiprocessors), kThreads, 0, stream_of(c)>>>(
              g, left_out, input<T>(c, IndexedInput::Data), input<Index>(c, IndexedInput::Indices),
              output<float>(c, 0));
        } else {
          scatter_add_kernel<<<blocks_for(g.outer * g.count * g.inner, multiprocessors), kThreads, 0, stream_of(c)>>>(
              g, left_out, input<T>(c, IndexedInput::Data), input<Index>(c, IndexedInput::Indices),
              output<float>(c, 0));
        }
        check_launch("gradient of gather");
      });
    });
  });
}

}  // namespace

void register_indexing_gather_cuda(OpRegistry& registry) {
  registry.find("Gather")->cuda = gather_cuda;
  registry.find("arbalest.GatherGrad")->cuda = gather_gradient;
}

}  // namespace arbalest
