// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CUDA kernel of every optimiser: its rule (rule.h) with averaging, restarts, clipping and parameter groups, in one
// pass over the flat arenas of a replica. If rates depend on norms of parameters, a kernel before it computes these. A
// rule that needs whole matrices has a class `Directions`, which moves the slots and makes directions for the pass:
//
//   explicit Directions(const KernelRequest& request);
//   int64_t workspace_bytes() const;
//   UpdateArrays<Slots> run(UpdateArrays<Slots> arrays, const KernelContext& context) const;  // for the pass

#include "ops/cuda/cuda_math.cuh"
#include "ops/cuda/sums.cuh"
#include "ops/optim/rule.h"
#include "ops/optim/update.h"

namespace arbalest::cuda {

template <typename Rule>
concept MakesDirections = requires {
  typename Rule::Directions;
};

// (P) each; null if left out. Outputs may be the memory of their inputs (Op::aliases).
template <int Slots>
struct UpdateArrays {
  const float *gradients, *weights, *slots[Slots], *average, *averaged;
  const float* clip;       // (1)
  const int32_t* tensors;  // (T, 2)
  float *new_weights, *new_slots[Slots];
  __nv_bfloat16* lowered;
  float* restarted;

  bool all_aligned() const {
    bool all = aligned(gradients) && aligned(weights) && aligned(average) && aligned(averaged) &&
               aligned(new_weights) && aligned(lowered) && aligned(restarted);
    for (int k = 0; k < Slots; ++k) all = all && aligned(slots[k]) && aligned(new_slots[k]);
    return all;
  }
};

// Decay and rate of an element: the same for all, or by the group of its block of 64.
struct OneGroup {
  float weight_decay;
  __device__ float decay(int64_t) const { return weight_decay; }
  __device__ float rate(float rate, int64_t) const { return rate; }
};
struct ParameterGroups {
  float decays[kMostGroups], rate_factors[kMostGroups];
  const uint8_t* of_block;  // (P / 64, rounded up)
  __device__ float decay(int64_t at) const { return decays[of_block[at / kParameterAlignment]]; }
  __device__ float rate(float rate, int64_t at) const {
    return rate * rate_factors[of_block[at / kParameterAlignment]];
  }
};

template <int W, int Slots>
__device__ void store_weights(const UpdateArrays<Slots>& a, int64_t at, const Pack<float, W>& w) {
  store(a.new_weights + at, w);
  if (a.lowered == nullptr) return;
  Pack<__nv_bfloat16, W> low;
#pragma unroll
  for (int k = 0; k < W; ++k) low.element[k] = narrow<__nv_bfloat16>(w.element[k]);
  store(a.lowered + at, low);
}

// Numbers that an update uses for all elements. For a rule with a rate by parameter, `trust` holds in its x the factor
// of the rate of each block of 64 elements.
struct UpdateNumbers {
  float rate, clip, correction;
  const double2* trust;
};

// Updates W elements of one group. Averaging: subtracts correction · (w − average) for w before the update. Without a
// correction `average` is not read, since it may be being written.
template <int W, bool Averaging, typename Rule, typename Groups>
__device__ void update_pack(const Rule& rule, const Groups& groups, const UpdateArrays<Rule::kSlots>& a,
                            const UpdateNumbers& by, int64_t at) {
  constexpr int kSlots = Rule::kSlots;
  const Pack<float, W> gradient = load<W>(a.gradients + at);
  Pack<float, W> w = load<W>(a.weights + at), slots[kSlots];
#pragma unroll
  for (int s = 0; s < kSlots; ++s) slots[s] = load<W>(a.slots[s] + at);
  Pack<float, W> average = w;
  if (Averaging && by.correction != 0.0f) average = load<W>(a.average + at);
  const float decay = groups.decay(at);
  float rate = groups.rate(by.rate, at);
  if constexpr (PerTensor<Rule>) rate *= float(by.trust[at / kParameterAlignment].x);
#pragma unroll
  for (int k = 0; k < W; ++k) {
    const float pull = Averaging ? by.correction * (w.element[k] - average.element[k]) : 0.0f;
    float kept[kSlots];
#pragma unroll
    for (int s = 0; s < kSlots; ++s) kept[s] = slots[s].element[k];
    // Rounded by itself: a factor of 1 changes no bit.
    rule(rate, decay, __fmul_rn(by.clip, gradient.element[k]), w.element[k], kept);
#pragma unroll
    for (int s = 0; s < kSlots; ++s) slots[s].element[k] = kept[s];
    if (Averaging) w.element[k] -= pull;
  }
  store_weights<W>(a, at, w);
#pragma unroll
  for (int s = 0; s < kSlots; ++s) store(a.new_slots[s] + at, slots[s]);
}

// An update that is skipped: only averaging is left of it.
template <int W, int Slots>
__device__ void skip_pack(const UpdateArrays<Slots>& a, float correction, int64_t at) {
  Pack<float, W> w = load<W>(a.weights + at);
  const Pack<float, W> average = load<W>(a.average + at);
#pragma unroll
  for (int k = 0; k < W; ++k) w.element[k] -= correction * (w.element[k] - average.element[k]);
  store_weights<W>(a, at, w);
}

// The learner starts again from the average, and the average from what it has become.
template <int W, int Slots>
__device__ void restart_pack(const UpdateArrays<Slots>& a, int64_t at) {
  const Pack<float, W> averaged = load<W>(a.averaged + at);
  store_weights<W>(a, at, averaged);
#pragma unroll
  for (int s = 0; s < Slots; ++s) store(a.new_slots[s] + at, Pack<float, W>{});
  if (a.restarted != nullptr) store(a.restarted + at, averaged);
}

template <int W, bool Averaging, typename Rule, typename Groups>
__global__ void __launch_bounds__(kThreads)
    update_kernel(int64_t count, Rule rule, Groups groups, const StepScalars* scalars, UpdateArrays<Rule::kSlots> a,
                  const double2* trust) {
  if (scalars->update == 0) return;
  const int64_t packs = count / W, rest = packs * W + thread_index();
  if (Averaging && scalars->restart != 0 && a.averaged != nullptr) {
    for (int64_t i = thread_index(); i < packs; i += thread_count()) restart_pack<W>(a, i * W);
    if (rest < count) restart_pack<1>(a, rest);
    return;
  }
  UpdateNumbers by{scalars->learning_rate, a.clip != nullptr ? *a.clip : 1.0f,
                   Averaging && a.average != nullptr ? scalars->correction : 0.0f, trust};
  if (by.clip < 0.0f) {
    if constexpr (Averaging) {
      if (by.correction == 0.0f) return;
      for (int64_t i = thread_index(); i < packs; i += thread_count()) skip_pack<W>(a, by.correction, i * W);
      if (rest < count) skip_pack<1>(a, by.correction, rest);
    }
    return;
  }
  if constexpr (MakesDirections<Rule>) by.clip = 1.0f;  // directions are made of clipped gradients
  const Rule now = rule.at(scalars->updates);
  for (int64_t i = thread_index(); i < packs; i += thread_count()) {
    update_pack<W, Averaging>(now, groups, a, by, i * W);
  }
  if (rest < count) update_pack<1, Averaging>(now, groups, a, by, rest);
}

// sums: (P / 64, rounded up) of Σ w² and Σ direction² of each block of 64 elements; a warp a block.
template <typename Rule, typename Groups>
__global__ void __launch_bounds__(kThreads)
    squares_kernel(int64_t count, Rule rule, Groups groups, const StepScalars* scalars, UpdateArrays<Rule::kSlots> a,
                   double2* sums) {
  if (scalars->update == 0 || (scalars->restart != 0 && a.averaged != nullptr)) return;
  const int lane = int(threadIdx.x) % 32;
  const float clip = a.clip != nullptr ? *a.clip : 1.0f;
  const Rule now = rule.at(scalars->updates);
  const int64_t blocks = (count + kParameterAlignment - 1) / kParameterAlignment;
  for (int64_t block = thread_index() / 32; block < blocks; block += thread_count() / 32) {
    const int64_t begin = block * kParameterAlignment, end = min(count, begin + kParameterAlignment);
    const float decay = groups.decay(begin);
    double weights = 0, directions = 0;
    for (int64_t i = begin + lane; i < end; i += 32) {
      float slots[Rule::kSlots];
#pragma unroll
      for (int s = 0; s < Rule::kSlots; ++s) slots[s] = a.slots[s][i];
      const float w = a.weights[i], u = now.direction(decay, __fmul_rn(clip, a.gradients[i]), w, slots);
      weights += double(w) * double(w);
      directions += double(u) * double(u);
    }
    weights = warp_sum(weights);
    directions = warp_sum(directions);
    if (lane == 0) sums[block] = {weights, directions};
  }
}

// A block a parameter: the squares of its blocks of 64 become, in x, what their rate is multiplied by.
template <typename Rule>
__global__ void __launch_bounds__(kThreads)
    trust_kernel(int64_t parameters, int64_t blocks, Rule rule, const StepScalars* scalars, const int32_t* tensors,
                 double2* sums) {
  if (scalars->update == 0) return;
  for (int64_t k = blockIdx.x; k < parameters; k += gridDim.x) {
    const int64_t begin = tensors[2 * k], end = k + 1 < parameters ? tensors[2 * (k + 1)] : blocks;
    double weights = 0, directions = 0;
    for (int64_t block = begin + threadIdx.x; block < end; block += kThreads) {
      weights += sums[block].x;
      directions += sums[block].y;
    }
    weights = block_sum(weights);
    directions = block_sum(directions);
    const double ratio = tensors[2 * k + 1] != 0 ? 1.0 : trust_ratio(double(rule.trust), weights, directions);
    for (int64_t block = begin + threadIdx.x; block < end; block += kThreads) sums[block].x = ratio;
  }
}

template <typename Rule, typename Groups>
void launch_trust(int64_t count, int64_t parameters, int multiprocessors, const Rule& rule, const Groups& groups,
                  const UpdateArrays<Rule::kSlots>& a, const KernelContext& c) {
  auto* sums = static_cast<double2*>(c.workspace);
  const int64_t blocks = (count + kParameterAlignment - 1) / kParameterAlignment;
  squares_kernel<<<blocks_for(blocks * 32, multiprocessors), kThreads, 0, stream_of(c)>>>(count, rule, groups,
                                                                                          c.scalars, a, sums);
  check_launch("squares of parameters");
  trust_kernel<<<unsigned(std::min<int64_t>(parameters, 4096)), kThreads, 0, stream_of(c)>>>(
      parameters, blocks, rule, c.scalars, a.tensors, sums);
  check_launch("rates of parameters");
}

template <int W, bool Averaging, typename Rule, typename Groups>
void launch_update(int64_t count, int multiprocessors, const Rule& rule, const Groups& groups,
                   const UpdateArrays<Rule::kSlots>& a, const KernelContext& c) {
  const unsigned blocks = blocks_for((count + W - 1) / W, multiprocessors);
  const auto* trust = PerTensor<Rule> ? static_cast<const double2*>(c.workspace) : nullptr;
  update_kernel<W, Averaging><<<blocks, kThreads, 0, stream_of(c)>>>(count, rule, groups, c.scalars, a, trust);
  check_launch("update");
}

// The arrays of an instance.
template <int Slots>
class UpdateBinding {
 public:
  explicit UpdateBinding(const KernelRequest& request)
      : place_(*request.node.op->optimizer),
        per_tensor_(request.node.op->optimizer->per_tensor),
        average_(request.has_input(place_.average())),
        averaged_(request.has_input(place_.averaged())),
        clip_(request.has_input(place_.clip())),
        lowered_(request.has_output(place_.lowered())),
        restarted_(request.has_output(place_.restarted())) {}

  UpdateArrays<Slots> arrays(const KernelContext& c) const {
    UpdateArrays<Slots> a;
    a.gradients = input<float>(c, place_.kGradients);
    a.weights = input<float>(c, place_.kWeights);
    a.average = average_ ? input<float>(c, place_.average()) : nullptr;
    a.averaged = averaged_ ? input<float>(c, place_.averaged()) : nullptr;
    a.tensors = per_tensor_ ? input<int32_t>(c, place_.tensors()) : nullptr;
    a.clip = clip_ ? input<float>(c, place_.clip()) : nullptr;
    a.new_weights = output<float>(c, place_.kNewWeights);
    for (size_t k = 0; k < size_t(Slots); ++k) {
      a.slots[k] = input<float>(c, place_.kFirstSlot + k);
      a.new_slots[k] = output<float>(c, place_.kFirstNewSlot + k);
    }
    a.lowered = lowered_ ? output<__nv_bfloat16>(c, place_.lowered()) : nullptr;
    a.restarted = restarted_ ? output<float>(c, place_.restarted()) : nullptr;
    return a;
  }

 private:
  UpdateOperands place_;
  bool per_tensor_, average_, averaged_, clip_, lowered_, restarted_;
};

// `groups_of(context)`: the Groups of an instance.
template <bool Averaging, typename Rule, typename GroupsOf>
std::unique_ptr<Kernel> make_update(const KernelRequest& request, GroupsOf groups_of) {
  const int64_t count = request.inputs[UpdateOperands::kWeights].elements();
  const int multiprocessors = multiprocessors_of(request);
  const Rule rule = Rule::of(request.node);
  const UpdateBinding<Rule::kSlots> binding(request);
  int64_t parameters = 0, workspace = 0;
  if constexpr (PerTensor<Rule>) {
    parameters = request.inputs[UpdateOperands(*request.node.op->optimizer).tensors()].shape[0];
    workspace = (count + kParameterAlignment - 1) / kParameterAlignment * int64_t(sizeof(double2));
  }
  const auto directions = [&] {
    if constexpr (MakesDirections<Rule>) return std::make_shared<const typename Rule::Directions>(request);
    if constexpr (!MakesDirections<Rule>) return nullptr;
  }();
  if constexpr (MakesDirections<Rule>) workspace = directions->workspace_bytes();
  auto run = [=](const KernelContext& c) {
    if (count == 0) return;
    UpdateArrays<Rule::kSlots> a = binding.arrays(c);
    if constexpr (MakesDirections<Rule>) a = directions->run(a, c);
    if constexpr (PerTensor<Rule>) {
      launch_trust(count, parameters, multiprocessors, rule, groups_of(c), a, c);
    }
    a.all_aligned() ? launch_update<4, Averaging>(count, multiprocessors, rule, groups_of(c), a, c)
                    : launch_update<1, Averaging>(count, multiprocessors, rule, groups_of(c), a, c);
  };
  return make_kernel(run, workspace);
}

template <bool Averaging, typename Rule>
std::unique_ptr<Kernel> make_update(const KernelRequest& request) {
  const size_t groups_at = UpdateOperands(*request.node.op->optimizer).groups();
  if (!request.has_input(groups_at)) {
    const OneGroup group{float(float_attribute(request.node, "weight_decay"))};
    return make_update<Averaging, Rule>(request, [group](const KernelContext&) { return group; });
  }
  const GroupNumbers numbers(request.node);
  ParameterGroups groups = {};
  std::copy(numbers.decays.begin(), numbers.decays.end(), groups.decays);
  std::copy(numbers.rate_factors.begin(), numbers.rate_factors.end(), groups.rate_factors);
  return make_update<Averaging, Rule>(request, [groups, groups_at](const KernelContext& c) {
    ParameterGroups of_instance = groups;
    of_instance.of_block = input<uint8_t>(c, groups_at);
    return of_instance;
  });
}

// A kernel factory for the rule.
template <typename Rule>
std::unique_ptr<Kernel> update_cuda(const KernelRequest& request) {
  const UpdateOperands place(*request.node.op->optimizer);
  require_float(request, UpdateOperands::kWeights, "float weights");
  const bool averaging = request.has_input(place.average()) || request.has_input(place.averaged());
  return averaging ? make_update<true, Rule>(request) : make_update<false, Rule>(request);
}

}  // namespace arbalest::cuda
