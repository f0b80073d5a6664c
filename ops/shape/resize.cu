// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of Resize, Upsample and their gradients: a thread an element of the result, which gathers its terms.

#include "ops/shape/resize.h"

#include "ops/cuda/cuda_math.cuh"
#include "ops/cuda/upload.h"

namespace arbalest {

using namespace cuda;

namespace {

// AxisTerms in device memory.
struct Lists {
  const int64_t *start = nullptr, *index = nullptr;  // start is null: element i is made of element i
  const float* weight = nullptr;
};

struct Walk {
  int rank;
  int64_t count;
  int64_t extent[Resampling::kMaxRank], stride[Resampling::kMaxRank];
  Lists terms[Resampling::kMaxRank];
  float outside;
};

template <typename T>
__global__ void __launch_bounds__(kThreads) resample_kernel(Walk walk, const T* x, T* y) {
  for (int64_t i = thread_index(); i < walk.count; i += thread_count()) {
    int64_t begin[Resampling::kMaxRank], number[Resampling::kMaxRank];
    int64_t place = i, base = 0, total = 1;
    for (int axis = walk.rank - 1; axis >= 0; --axis) {
      const int64_t at = place % walk.extent[axis];
      place /= walk.extent[axis];
      const Lists& terms = walk.terms[axis];
      if (!terms.start) {
        base += at * walk.stride[axis];
        continue;
      }
      begin[axis] = terms.start[at];
      number[axis] = terms.start[at + 1] - begin[axis];
      total *= number[axis];
    }
    float sum = total == 0 ? walk.outside : 0.0f;
    for (int64_t t = 0; t < total; ++t) {
      int64_t rest = t, offset = base;
      float weight = 1;
      for (int axis = walk.rank - 1; axis >= 0; --axis) {
        const Lists& terms = walk.terms[axis];
        if (!terms.start) continue;
        const int64_t term = begin[axis] + rest % number[axis];
        rest /= number[axis];
        offset += terms.index[term];
        weight *= terms.weight[term];
      }
      sum += weight * widen(x[offset]);
    }
    y[i] = narrow<T>(sum);
  }
}

template <typename T>
const T* kept(const std::vector<T>& list, std::vector<DeviceBuffer>& memory) {
  return static_cast<const T*>(memory.emplace_back(uploaded(list)).data());
}

Walk make_walk(const Resampling& r, std::vector<DeviceBuffer>& memory) {
  Walk walk{.rank = r.rank, .count = r.count, .extent = {}, .stride = {}, .terms = {}, .outside = float(r.outside)};
  for (int axis = 0; axis < r.rank; ++axis) {
    walk.extent[axis] = r.extent[axis];
    walk.stride[axis] = r.stride[axis];
    if (r.terms[axis] < 0) continue;
    const AxisTerms& list = r.lists[size_t(r.terms[axis])];
    const std::vector<float> weights(list.weight.begin(), list.weight.end());
    walk.terms[axis] = {kept(list.start, memory), kept(list.index, memory), kept(weights, memory)};
  }
  return walk;
}

std::unique_ptr<Kernel> resample(const KernelRequest& request, bool backward) {
  const TensorType &from = request.inputs[0], &to = request.outputs[0];
  const int multiprocessors = cuda_context(request).multiprocessors;
  const auto memory = std::make_shared<std::vector<DeviceBuffer>>();  // lives as long as the kernel
  const Walk walk = make_walk(Resampling(request.node, backward ? to : from, backward ? from : to, backward), *memory);
  return with_type(request, from.dtype, [=](auto element) {
    using T = decltype(element);
    return make_kernel([walk, memory, multiprocessors](const KernelContext& c) {
      if (walk.count == 0) return;
      resample_kernel<<<blocks_for(walk.count, multiprocessors), kThreads, 0, stream_of(c)>>>(walk, input<T>(c, 0),
                                                                                              output<T>(c, 0));
      check_launch("resize");
    });
  });
}

}  // namespace

void register_shape_resize_cuda(OpRegistry& registry) {
  for (const std::string name : {"Resize", "Upsample"}) {
    registry.find(name)->cuda = [](const KernelRequest& request) { return resample(request, false); };
    registry.find("arbalest." + name + "Grad")->cuda = [](const KernelRequest& request) {
      return resample(request, true);
    };
  }
}

}  // namespace arbalest
