// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of arbalest.SoftmaxCrossEntropy and its gradient: a warp a row.

#include <array>

#include "ops/definition.h"
#include "ops/loss/operands.h"
#include "ops/loss/row_mean.cuh"
#include "ops/math/row_elements.cuh"

namespace arbalest {

using namespace cuda;

namespace {

// A row's greatest logit and log Σ exp(logit − greatest), in every lane.
struct LogSum {
  float greatest, log_of_sum;

  template <typename T>
  __device__ LogSum(const T* row, int classes, int lane) {
    if (classes >= kLongRow) {  // read once
      RunningExponentials own;
      for_row<32>(row, classes, lane, [&](int, const auto& pack) { own.add(pack); });
      greatest = warp_max(own.largest);
      log_of_sum = logf(warp_sum(own.sum_less(greatest)));
      return;
    }
    greatest = -INFINITY;
    for (int k = lane; k < classes; k += 32) greatest = fmaxf(greatest, widen(row[k]));
    greatest = warp_max(greatest);
    float sum = 0;
    for (int k = lane; k < classes; k += 32) sum += expf(widen(row[k]) - greatest);
    log_of_sum = logf(warp_sum(sum));
  }
};

// Labels that are classes, int32 (rows), with the weights of classes (see softmax_cross_entropy.cpp). `weights` (K) may
// be null: all are 1.
struct Classes {
  const int32_t* label;
  const float* weights;
  int classes;
  float kept, spread;  // 1 − s, s / K
  IgnoredLabel ignored;

  __device__ bool takes_part(int64_t row) const { return !ignored.holds(label[row]); }
  __device__ bool is_sound(int64_t row) const { return label[row] >= 0 && label[row] < classes; }
  // Weight of a row, 0 if its label is ignored. An invalid label counts with weight 1, because it makes the loss NaN.
  __device__ float weight(int64_t row) const {
    if (!takes_part(row)) return 0.0f;
    return weights != nullptr && is_sound(row) ? weights[label[row]] : 1.0f;
  }
  // w_k t_k
  __device__ float target(int64_t row, int k) const {
    return (weights != nullptr ? weights[k] : 1.0f) * ((k == label[row] ? kept : 0.0f) + spread);
  }
  // Σ w_k t_k, in every lane.
  __device__ float total(int64_t row, int lane) const {
    if (weights == nullptr) return 1.0f;
    float sum = 0;
    if (spread > 0) {
      for (int k = lane; k < classes; k += 32) sum += weights[k];
    }
    return kept * weights[label[row]] + spread * warp_sum(sum);
  }
  // Σ w_k t_k (log Σ exp − x_k), in every lane.
  template <typename T>
  __device__ float loss(const T* x, const LogSum& sum, int64_t row, int lane) const {
    const int own = label[row];
    const float weight = weights != nullptr ? weights[own] : 1.0f;
    const float share = kept * weight;  // if it is 0 the class counts for nothing, even if its logit is −∞
    const float loss = share != 0 ? share * (sum.log_of_sum - (widen(x[own]) - sum.greatest)) : 0.0f;
    if (!(spread > 0)) return loss;
    float others = 0;
    for (int k = lane; k < classes; k += 32) {
      const float weight_of_k = weights != nullptr ? weights[k] : 1.0f;
      if (weight_of_k != 0) others += weight_of_k * (sum.log_of_sum - (widen(x[k]) - sum.greatest));
    }
    return loss + spread * warp_sum(others);
  }
};

// A target of each class: float (rows, K).
struct Targets {
  const float *label, *weights;
  int classes;
  float kept, spread;
  IgnoredLabel ignored;  // none

  __device__ bool takes_part(int64_t) const { return true; }
  __device__ bool is_sound(int64_t) const { return true; }
  __device__ float weight(int64_t) const { return 1.0f; }
  __device__ float target(int64_t row, int k) const {
    return (weights != nullptr ? weights[k] : 1.0f) * (kept * label[row * classes + k] + spread);
  }
  __device__ float total(int64_t row, int lane) const {
    float sum = 0;
    for (int k = lane; k < classes; k += 32) sum += target(row, k);
    return warp_sum(sum);
  }
  // A target of 0 adds nothing, even if the logit is −∞.
  template <typename T>
  __device__ float loss(const T* x, const LogSum& sum, int64_t row, int lane) const {
    float loss = 0;
    for (int k = lane; k < classes; k += 32) {
      const float of_k = target(row, k);
      if (of_k != 0) loss += of_k * (sum.log_of_sum - (widen(x[k]) - sum.greatest));
    }
    return warp_sum(loss);
  }
};

// 1 if the label's logit is the greatest of the row and the first of equals, as Accuracy counts the top class; else 0.
template <typename T>
__device__ float is_foremost(const T* x, int own, int classes, int lane, float greatest) {
  const float value = widen(x[own]);
  if (value < greatest) return 0.0f;
  bool ahead = value != value;
  for_row<32>(x, classes, lane, [&]<int W>(int first, const Pack<T, W>& pack) {
#pragma unroll
    for (int w = 0; w < W; ++w) {
      const int k = first + w;
      const float other = widen(pack.element[w]);
      ahead = ahead || (k < own ? !(other < value) : k > own && !(other <= value));
    }
  });
  return __any_sync(0xffffffffu, ahead) ? 0.0f : 1.0f;
}

// A row whose label is out of range gives NaN, and one whose label is ignored nothing.
template <typename T, typename Of>
struct RowLoss {
  using Result = Weighted;
  const T* logits;  // (rows, K)
  Of of;
  bool counts;  // whether the label is foremost

  __device__ Weighted operator()(int64_t row, int lane) const {
    if (!of.takes_part(row)) return {};
    if (!of.is_sound(row)) return {NAN, 1.0f, NAN, 1.0f};
    const T* x = logits + row * of.classes;
    const LogSum sum(x, of.classes, lane);
    Weighted result{of.loss(x, sum, row, lane), of.weight(row), 0.0f, 1.0f};
    if constexpr (std::is_same_v<Of, Classes>) {
      if (counts) result.second = is_foremost(x, of.label[row], of.classes, lane, sum.greatest);
    }
    return result;
  }
};

// Sums of the weights of rows, one for each of kThreads blocks.
template <typename Of>
__global__ void __launch_bounds__(kThreads)
    weights_kernel(ScoreRows rows, Of of, const StepScalars* scalars, float* sums) {
  wait_for_dependencies();
  const int64_t valid = rows.valid(scalars->valid);
  float weight = 0;
  for (int64_t row = thread_index(); row < valid; row += thread_count()) weight += of.weight(row);
  weight = block_sum(weight);
  if (threadIdx.x == 0) sums[blockIdx.x] = weight;
}

// dlogits = (softmax · Σ target − target) · dloss / Σ weight; rows past the valid ones and ignored ones get 0, those
// with a label out of range NaN. `sums`: of weights_kernel; null: every block adds up the weights.
template <typename T, typename Of>
__global__ void __launch_bounds__(kThreads)
    softmax_gradient_kernel(ScoreRows rows, Of of, const StepScalars* scalars, const float* sums, const float* dloss,
                            const T* logits, T* dlogits) {
  const int lane = int(threadIdx.x) % 32;
  wait_for_dependencies();
  const int64_t valid = rows.valid(scalars->valid);
  float weight = float(valid);
  if (sums != nullptr) {
    weight = block_sum(sums[threadIdx.x]);
  } else if (std::is_same_v<Of, Classes> && (of.weights != nullptr || of.ignored.any)) {
    weight = 0;
    for (int64_t row = threadIdx.x; row < valid; row += kThreads) weight += of.weight(row);
    weight = block_sum(weight);
  }
  const float scale = *dloss / (weight > 0 ? weight : fmaxf(1.0f, float(valid)));
  for (int64_t row = thread_index() / 32; row < rows.rows; row += thread_count() / 32) {
    const T* x = logits + row * of.classes;
    T* dx = dlogits + row * of.classes;
    const bool idle = row >= valid || !of.takes_part(row);
    if (idle || !of.is_sound(row)) {
      const T fill = narrow<T>(idle ? 0.0f : NAN);
      for (int k = lane; k < of.classes; k += 32) dx[k] = fill;
      continue;
    }
    const LogSum sum(x, of.classes, lane);
    const float total = of.total(row, lane);
    const auto write = [&]<int W>(int k, const Pack<T, W>& pack) {
      Pack<T, W> gradient;
#pragma unroll
      for (int w = 0; w < W; ++w) {
        const float softmax = expf(widen(pack.element[w]) - sum.greatest - sum.log_of_sum);
        gradient.element[w] = narrow<T>((softmax * total - of.target(row, k + w)) * scale);
      }
      store(dx + k, gradient);
    };
    for_row<32>(x, of.classes, lane, write, dx);
  }
}

// Calls function(of_instance), where of_instance(context) makes the Classes or Targets of an instance. The label is
// input `label`; the weights, if there are any, are the input after it.
template <typename Function>
std::unique_ptr<Kernel> with_labels(const KernelRequest& request, size_t label, Function function) {
  const int classes = int(request.inputs[label - 1].shape.back());
  const float smoothing = float(float_attribute(request.node, "label_smoothing"));
  const bool weighted = request.has_input(label + 1);
  const IgnoredLabel ignored = ignored_label(request.node);
  const auto bind = [=]<typename Of, typename Label>(Of, Label) {
    return [=](const KernelContext& c) {
      return Of{input<Label>(c, label),
                weighted ? input<float>(c, label + 1) : nullptr,
                classes,
                1.0f - smoothing,
                smoothing / float(classes),
                ignored};
    };
  };
  if (request.inputs[label].dtype == DataType::Int32) return function(bind(Classes{}, int32_t{}));
  if (request.inputs[label].dtype == DataType::Float32) return function(bind(Targets{}, float{}));
  fail_type(request, request.inputs[label].dtype, "labels in int32 or float");
}

std::unique_ptr<Kernel> loss(const KernelRequest& request) {
  const ScoreRows rows(request.inputs[0]);
  const int multiprocessors = cuda_context(request).multiprocessors;
  std::array<bool, 4> wanted{};
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = request.has_output(i);
  return with_type(request, request.inputs[0].dtype, [&](auto element) {
    using T = decltype(element);
    return with_labels(request, LossInput::Target, [=](auto of) {
      return make_kernel(
          [=](const KernelContext& c) {
            const RowLoss<T, decltype(of(c))> row{input<T>(c, 0), of(c), wanted[CrossEntropyOutput::Accuracy]};
            const auto to = [&](size_t i) { return wanted[i] ? output<float>(c, i) : nullptr; };
            launch_row_mean("softmax_cross_entropy", c, multiprocessors, rows, row, {to(0), to(1), to(2), to(3)});
          },
          row_mean_workspace<Weighted>(rows));
    });
  });
}

std::unique_ptr<Kernel> entropy_gradient(const KernelRequest& request) {
  using In = LossGradInput;
  const ScoreRows rows(request.inputs[In::X]);
  const int multiprocessors = cuda_context(request).multiprocessors;
  // Few rows are added up by every block in less time than one more kernel takes.
  constexpr int64_t kFewRows = 8192;
  const bool differ = request.inputs[In::Target].dtype == DataType::Int32 &&
                      (request.has_input(In::Target + 1) || ignored_label(request.node).any);
  const bool apart = differ && rows.rows > kFewRows;
  return with_type(request, request.inputs[In::X].dtype, [&](auto element) {
    using T = decltype(element);
    return with_labels(request, In::Target, [=](auto of) {
      return make_kernel(
          [=](const KernelContext& c) {
            using Of = decltype(of(c));
            if (rows.rows == 0) return;
            float* sums = apart ? static_cast<float*>(c.workspace) : nullptr;
            if (apart) {
              launch_dependent(weights_kernel<Of>, kThreads, kThreads, 0, stream_of(c), rows, of(c), c.scalars, sums);
              check_launch("softmax_cross_entropy weights");
            }
            launch_dependent(softmax_gradient_kernel<T, Of>, blocks_for(rows.rows * 32, multiprocessors), kThreads, 0,
                             stream_of(c), rows, of(c), c.scalars, sums, input<float>(c, In::dLoss), input<T>(c, In::X),
                             output<T>(c, 0));
            check_launch("softmax_cross_entropy gradient");
          },
          apart ? kThreads * int64_t(sizeof(float)) : 0);
    });
  });
}

}  // namespace

void register_loss_softmax_cross_entropy_cuda(OpRegistry& registry) {
  registry.find("arbalest.SoftmaxCrossEntropy")->cuda = loss;
  registry.find("arbalest.SoftmaxCrossEntropyGrad")->cuda = entropy_gradient;
}

}  // namespace arbalest
