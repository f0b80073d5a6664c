// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of arbalest.GroupMoments and arbalest.GroupMean: a warp a group.

#include "ops/norm/group_norm.h"

#include "ops/cuda/cuda_math.cuh"
#include "ops/cuda/dependent_launch.cuh"
#include "ops/names.h"

namespace arbalest {

using namespace cuda;

namespace {

struct GroupsByWarp : ChannelGroups {
  using ChannelGroups::ChannelGroups;

  // f(first channel) for each group, by a warp.
  template <typename Function>
  __device__ void each(Function f) const {
    for (int64_t group = thread_index() / 32; group < count; group += thread_count() / 32) f(group * channels);
  }
  __device__ float mean(const float* first) const {
    float sum = 0;
    for (int i = int(threadIdx.x) % 32; i < channels; i += 32) sum += first[i];
    return warp_sum(sum) / float(channels);
  }
  __device__ void fill(float* first, float number) const {
    for (int i = int(threadIdx.x) % 32; i < channels; i += 32) first[i] = number;
  }
};

// `b` may be null.
__global__ void __launch_bounds__(kThreads)
    group_mean_kernel(GroupsByWarp groups, const float* a, const float* b, float* mean_a, float* mean_b) {
  wait_for_dependencies();
  groups.each([&](int64_t at) {
    groups.fill(mean_a + at, groups.mean(a + at));
    if (b != nullptr) groups.fill(mean_b + at, groups.mean(b + at));
  });
}

// `means` and `mean` may be null.
__global__ void __launch_bounds__(kThreads)
    group_moments_kernel(GroupsByWarp groups, float epsilon, const float* squares, const float* means, float* inv_std,
                         float* mean) {
  wait_for_dependencies();
  groups.each([&](int64_t at) {
    const float own = means != nullptr ? groups.mean(means + at) : 0.0f;
    const float variance = fmaxf(0.0f, fmaf(-own, own, groups.mean(squares + at)));
    groups.fill(inv_std + at, 1.0f / sqrtf(variance + epsilon));
    if (mean != nullptr) groups.fill(mean + at, own);
  });
}

std::unique_ptr<Kernel> group_mean(const KernelRequest& request) {
  require_float(request, 0, "a float A");
  using Operand = GroupMeanOperand;
  const GroupsByWarp groups(request);
  const bool two = request.has_input(Operand::B) && request.has_output(Operand::B);
  return make_kernel([=, processors = multiprocessors_of(request)](const KernelContext& c) {
    if (groups.count == 0) return;
    launch_dependent(group_mean_kernel, blocks_for(groups.count * 32, processors), kThreads, 0, stream_of(c), groups,
                     input<float>(c, Operand::A), two ? input<float>(c, Operand::B) : nullptr,
                     output<float>(c, Operand::A), two ? output<float>(c, Operand::B) : nullptr);
    check_launch("means of groups");
  });
}

std::unique_ptr<Kernel> group_moments(const KernelRequest& request) {
  using In = GroupMomentsInput;
  using Out = GroupMomentsOutput;
  require_float(request, In::Squares, "float squares");
  const GroupsByWarp groups(request);
  const float epsilon = float(float_attribute(request.node, "epsilon"));
  const bool has_means = request.has_input(In::Means), has_mean = request.has_output(Out::Mean);
  return make_kernel([=, processors = multiprocessors_of(request)](const KernelContext& c) {
    if (groups.count == 0) return;
    launch_dependent(group_moments_kernel, blocks_for(groups.count * 32, processors), kThreads, 0, stream_of(c), groups,
                     epsilon, input<float>(c, In::Squares), has_means ? input<float>(c, In::Means) : nullptr,
                     output<float>(c, Out::InvStd), has_mean ? output<float>(c, Out::Mean) : nullptr);
    check_launch("moments of groups");
  });
}

}  // namespace

void register_norm_group_norm_cuda(OpRegistry& registry) {
  registry.find(kGroupMean)->cuda = group_mean;
  registry.find(kGroupMoments)->cuda = group_moments;
}

}  // namespace arbalest
