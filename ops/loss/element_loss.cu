// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of the losses of element_loss.cpp and their gradients. Blocks sum first, then one block sums their sums,
// in an order that depends on the number of elements and the device alone.

#include "ops/loss/element_rules.h"
#include "ops/loss/operands.h"
#include "ops/loss/row_mean.cuh"

namespace arbalest {

using namespace cuda;

namespace {

constexpr int64_t kOneBlock = 32768;  // elements that one block gets through in a few µs
constexpr int kSumThreads = 1024;

template <typename T>
__device__ float target_value(T target) {
  return float(target);
}
template <>
__device__ float target_value(uint8_t target) {  // -1 is missing in labels of any type
  return target == 255 ? -1.0f : float(target);
}

// The weight of element i's label. `weights` may be null: all are 1.
struct LabelWeights {
  const float* weights;  // (labels)
  ElementPlaces places;
  __device__ float operator()(int64_t i) const { return weights != nullptr ? weights[places.label(i)] : 1.0f; }
};

// Adds element i to the sums: its loss and 1, or only the 1 (ElementCount). Elements that take no part add nothing.
template <typename Rule, typename T, typename Target>
struct ElementLoss {
  const T* x;
  const Target* targets;
  LabelWeights weights;
  __device__ void operator()(int64_t i, float& value, float& weight) const {
    const float t = target_value(targets[weights.places.target(i)]);
    if (!Rule::takes_part(t)) return;
    value += Rule::loss(widen(x[i]), t, weights(i));
    weight += 1.0f;
  }
};
template <typename Rule, typename Target>
struct ElementCount {
  const Target* targets;  // in any order
  __device__ void operator()(int64_t i, float&, float& weight) const {
    if (Rule::takes_part(target_value(targets[i]))) weight += 1.0f;
  }
};

// Destinations of the sums: the mean, and the weight in units of `unit` elements; either may be null.
struct SumOutputs {
  float *mean, *weight;
  float unit = 1;
  __device__ void write(float value_sum, float weight_sum) const {
    if (mean != nullptr) *mean = weight_sum > 0 ? value_sum / weight_sum : 0.0f;
    if (weight != nullptr) *weight = weight_sum / unit;
  }
};

// partial: (blocks of the grid) of value and weight; with one block nothing is written there, but the sums are.
template <typename Element>
__global__ void __launch_bounds__(kSumThreads) sums_kernel(int64_t rows, int64_t per_row, const StepScalars* scalars,
                                                           Element element, float2* partial, SumOutputs to) {
  const int64_t count = valid_rows(scalars, rows) * per_row;
  float value = 0, weight = 0;
  for (int64_t i = thread_index(); i < count; i += thread_count()) element(i, value, weight);
  value = block_sum(value);
  weight = block_sum(weight);
  if (threadIdx.x != 0) return;
  if (gridDim.x == 1) {
    to.write(value, weight);
  } else {
    partial[blockIdx.x] = {value, weight};
  }
}

// One block.
__global__ void __launch_bounds__(kSumThreads) total_kernel(int blocks, const float2* partial, SumOutputs to) {
  float value = 0, weight = 0;
  for (int i = int(threadIdx.x); i < blocks; i += kSumThreads) {
    value += partial[i].x;
    weight += partial[i].y;
  }
  value = block_sum(value);
  weight = block_sum(weight);
  if (threadIdx.x == 0) to.write(value, weight);
}

// dx = the element's gradient · dloss / weight; 0 for what takes no part.
template <typename Rule, typename T, typename Target>
__global__ void __launch_bounds__(kThreads)
    gradient_kernel(int64_t rows, int64_t per_row, const StepScalars* scalars, const float* dloss, const float* weight,
                    const T* x, const Target* targets, LabelWeights weights, T* dx) {
  const int64_t count = valid_rows(scalars, rows) * per_row;
  const float scale = *weight > 0 ? *dloss / *weight : 0.0f;
  for (int64_t i = thread_index(); i < rows * per_row; i += thread_count()) {
    float gradient = 0;
    if (i < count) {
      const float t = target_value(targets[weights.places.target(i)]);
      if (Rule::takes_part(t)) gradient = Rule::gradient(widen(x[i]), t, weights(i)) * scale;
    }
    dx[i] = narrow<T>(gradient);
  }
}

// The predictions' extents, and how sums over them are launched.
class LossElements {
 public:
  LossElements(const KernelRequest& request, size_t predictions)
      : weighted_(request.has_input(predictions + 2)),
        weights_(predictions + 2),
        multiprocessors_(multiprocessors_of(request)),
        places_(request.inputs[predictions], request.inputs[predictions + LossInput::Target]) {}
  int64_t rows() const { return places_.rows; }
  int64_t per_row() const { return places_.per_row(); }
  LabelWeights weights(const KernelContext& c) const {
    return {weighted_ ? input<float>(c, weights_) : nullptr, places_};
  }
  unsigned blocks(int threads) const { return blocks_for(places_.count(), multiprocessors_, threads); }
  unsigned sum_blocks() const { return places_.count() <= kOneBlock ? 1 : blocks(kSumThreads); }
  int64_t workspace_bytes() const { return sum_blocks() == 1 ? 0 : int64_t(sum_blocks() * sizeof(float2)); }

  template <typename Element>
  void sum(const KernelContext& c, void* workspace, const Element& element, SumOutputs to) const {
    auto* partial = static_cast<float2*>(workspace);
    const unsigned blocks = sum_blocks();
    sums_kernel<<<blocks, kSumThreads, 0, stream_of(c)>>>(rows(), per_row(), c.scalars, element, partial, to);
    check_launch("loss of elements");
    if (blocks == 1) return;
    total_kernel<<<1, kSumThreads, 0, stream_of(c)>>>(int(blocks), partial, to);
    check_launch("loss of elements, total");
  }

 private:
  bool weighted_;
  size_t weights_;
  int multiprocessors_;
  ElementPlaces places_;
};

template <typename Rule, typename T, typename Target>
std::unique_ptr<Kernel> loss_kernel(const KernelRequest& request) {
  using Out = LossOutput;
  const LossElements elements(request, 0);
  const bool weighs = request.has_output(Out::Weight);
  return make_kernel(
      [=](const KernelContext& c) {
        const ElementLoss<Rule, T, Target> element{input<T>(c, LossInput::X), input<Target>(c, LossInput::Target),
                                                   elements.weights(c)};
        elements.sum(c, c.workspace, element,
                     {output<float>(c, Out::Mean), weighs ? output<float>(c, Out::Weight) : nullptr,
                      float(std::max<int64_t>(1, elements.per_row()))});
      },
      elements.workspace_bytes());
}

template <typename Rule, typename T, typename Target>
std::unique_ptr<Kernel> elements_gradient(const KernelRequest& request) {
  using In = LossGradInput;
  constexpr int64_t kWeightBytes = 256;  // of the workspace; the sums follow
  const LossElements elements(request, 1);
  return make_kernel(
      [=](const KernelContext& c) {
        if (elements.rows() * elements.per_row() == 0) return;
        auto* weight = static_cast<float*>(c.workspace);
        elements.sum(c, static_cast<std::byte*>(c.workspace) + kWeightBytes,
                     ElementCount<Rule, Target>{input<Target>(c, In::Target)}, {nullptr, weight});
        gradient_kernel<Rule><<<elements.blocks(kThreads), kThreads, 0, stream_of(c)>>>(
            elements.rows(), elements.per_row(), c.scalars, input<float>(c, In::dLoss), weight, input<T>(c, In::X),
            input<Target>(c, In::Target), elements.weights(c), output<T>(c, 0));
        check_launch("gradient of a loss of elements");
      },
      kWeightBytes + elements.workspace_bytes());
}

// The kernels of a rule; targets in int32 and uint8 are for the one that has labels.
template <typename Rule, bool Labels>
void add_kernels(OpRegistry& registry, const std::string& name) {
  const auto with_target = [](const KernelRequest& request, size_t target, auto function) -> std::unique_ptr<Kernel> {
    const DataType type = request.inputs[target].dtype;
    if constexpr (Labels) {
      if (type == DataType::Int32) return function(int32_t{});
      if (type == DataType::Uint8) return function(uint8_t{});
    }
    if (type == DataType::Float32) return function(float{});
    fail_type(request, type, Labels ? "labels in float, int32 or uint8" : "targets in float");
  };
  registry.find(name)->cuda = [=](const KernelRequest& request) {
    return with_type(request, request.inputs[0].dtype, [&](auto element) {
      return with_target(request, LossInput::Target,
                         [&](auto target) { return loss_kernel<Rule, decltype(element), decltype(target)>(request); });
    });
  };
  registry.find(name + "Grad")->cuda = [=](const KernelRequest& request) {
    return with_type(request, request.inputs[LossGradInput::X].dtype, [&](auto element) {
      return with_target(request, LossGradInput::Target, [&](auto target) {
        return elements_gradient<Rule, decltype(element), decltype(target)>(request);
      });
    });
  };
}

}  // namespace

void register_loss_element_loss_cuda(OpRegistry& registry) {
  add_kernels<SigmoidRule<float>, true>(registry, "arbalest.SigmoidCrossEntropy");
  add_kernels<SquareRule<float>, false>(registry, "arbalest.MeanSquaredError");
  add_kernels<AbsoluteRule<float>, false>(registry, "arbalest.L1Loss");
}

}  // namespace arbalest
