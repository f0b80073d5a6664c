// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of arbalest.SoftmaxCrossEntropy and its gradient: a warp a row, or a thread a row of few classes.

#include <array>

#include "ops/cuda/sums.cuh"
#include "ops/definition.h"
#include "ops/loss/operands.h"
#include "ops/loss/row_mean.cuh"
#include "ops/math/row_elements.cuh"

namespace arbalest {

using namespace cuda;

namespace {

// f(k) for this thread's classes of a row. G: the threads that share it, a warp or one, which begins at class `lane`.
template <int G, typename Function>
__device__ inline void for_classes(int classes, int lane, Function f) {
  if constexpr (G == 1) {
    for (int i = 0, k = lane; i < classes; ++i, k = k + 1 == classes ? 0 : k + 1) f(k);
  } else {
    for (int k = lane; k < classes; k += G) f(k);
  }
}

// A row's greatest logit and log Σ exp(logit − greatest), in every lane.
struct LogSum {
  float greatest, log_of_sum;
};
template <int G, typename T>
__device__ LogSum log_sum(const T* row, int classes, int lane) {
  if constexpr (G == 32) {
    if (classes >= kLongRow) {  // read once
      RunningExponentials own;
      for_row<32>(row, classes, lane, [&](int, const auto& pack) { own.add(pack); });
      const float largest = warp_max(own.largest);
      return {largest, logf(warp_sum(own.sum_less(largest)))};
    }
  }
  float greatest = -INFINITY;
  for_classes<G>(classes, lane, [&](int k) { greatest = fmaxf(greatest, widen(row[k])); });
  if constexpr (G == 32) greatest = warp_max(greatest);
  float sum = 0;
  for_classes<G>(classes, lane, [&](int k) { sum += expf(widen(row[k]) - greatest); });
  return {greatest, logf(group_sum<G>(sum))};
}

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
  // w_k t_k. __ldg: loops over k read the label once, whatever they store.
  __device__ float target(int64_t row, int k) const {
    return (weights != nullptr ? weights[k] : 1.0f) * ((k == __ldg(label + row) ? kept : 0.0f) + spread);
  }
  // Σ w_k t_k, in every lane.
  template <int G>
  __device__ float total(int64_t row, int lane) const {
    if (weights == nullptr) return 1.0f;
    float sum = 0;
    if (spread > 0) for_classes<G>(classes, lane, [&](int k) { sum += weights[k]; });
    return kept * weights[label[row]] + spread * group_sum<G>(sum);
  }
  // Σ w_k t_k (log Σ exp − x_k), in every lane.
  template <int G, typename T>
  __device__ float loss(const T* x, const LogSum& sum, int64_t row, int lane) const {
    const int own = label[row];
    const float weight = weights != nullptr ? weights[own] : 1.0f;
    const float share = kept * weight;  // if it is 0 the class counts for nothing, even if its logit is −∞
    const float loss = share != 0 ? share * (sum.log_of_sum - (widen(x[own]) - sum.greatest)) : 0.0f;
    if (!(spread > 0)) return loss;
    float others = 0;
    for_classes<G>(classes, lane, [&](int k) {
      const float weight_of_k = weights != nullptr ? weights[k] : 1.0f;
      if (weight_of_k != 0) others += weight_of_k * (sum.log_of_sum - (widen(x[k]) - sum.greatest));
    });
    return loss + spread * group_sum<G>(others);
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
  template <int G>
  __device__ float total(int64_t row, int lane) const {
    float sum = 0;
    for_classes<G>(classes, lane, [&](int k) { sum += target(row, k); });
    return group_sum<G>(sum);
  }
  // A target of 0 adds nothing, even if the logit is −∞.
  template <int G, typename T>
  __device__ float loss(const T* x, const LogSum& sum, int64_t row, int lane) const {
    float loss = 0;
    for_classes<G>(classes, lane, [&](int k) {
      const float of_k = target(row, k);
      if (of_k != 0) loss += of_k * (sum.log_of_sum - (widen(x[k]) - sum.greatest));
    });
    return group_sum<G>(loss);
  }
};

// 1 if the label's logit is the greatest of the row and the first of equals, as Accuracy counts the top class; else 0.
template <int G, typename T>
__device__ float is_foremost(const T* x, int own, int classes, int lane, float greatest) {
  const float value = widen(x[own]);
  if (value < greatest) return 0.0f;
  bool ahead = value != value;
  const auto look = [&](int k, T element) {
    const float other = widen(element);
    ahead = ahead || (k < own ? !(other < value) : k > own && !(other <= value));
  };
  if constexpr (G == 32) {
    for_row<32>(x, classes, lane, [&]<int W>(int first, const Pack<T, W>& pack) {
#pragma unroll
      for (int w = 0; w < W; ++w) look(first + w, pack.element[w]);
    });
    ahead = __any_sync(0xffffffffu, ahead);
  } else {
    for_classes<G>(classes, lane, [&](int k) { look(k, x[k]); });
  }
  return ahead ? 0.0f : 1.0f;
}

// A row whose label is out of range gives NaN, and one whose label is ignored nothing.
template <typename T, typename Of>
struct RowLoss {
  using Result = Weighted;
  const T* logits;  // (rows, K)
  Of of;
  bool counts;  // whether the label is foremost

  __device__ Weighted operator()(int64_t row, int lane) const {
    return of_row<32>(logits + row * of.classes, row, lane);
  }
  template <int G>
  __device__ Weighted of_row(const T* x, int64_t row, int lane) const {
    if (!of.takes_part(row)) return {};
    if (!of.is_sound(row)) return {NAN, 1.0f, NAN, 1.0f};
    const LogSum sum = log_sum<G>(x, of.classes, lane);
    Weighted result{of.template loss<G>(x, sum, row, lane), of.weight(row), 0.0f, 1.0f};
    if constexpr (std::is_same_v<Of, Classes>) {
      if (counts) result.second = is_foremost<G>(x, of.label[row], of.classes, lane, sum.greatest);
    }
    return result;
  }
};

// Rows of few classes: a thread a row. Where they are many, a block's lie in one piece and pass through its shared
// memory.
template <typename T>
struct ShortRows {
  static constexpr int kMost = 128 / sizeof(T);  // classes
  static constexpr int64_t kMany = 8192;

  static bool take(const ScoreRows& rows) { return rows.rows > kMany && rows.classes <= kMost; }
  // Whether the threads of one block get through the rows in a few µs, and sooner than its warps with a row each. A
  // warp takes as long for a row as a thread for some sixteen classes.
  static bool fit_one_block(const ScoreRows& rows) {
    constexpr int64_t kBlock = 1024, kFewTurns = 8, kAsOneOfWarp = 16;
    const int64_t turns = (rows.rows + kBlock - 1) / kBlock, warp_turns = (rows.rows + 31) / 32;
    const int64_t classes = rows.classes * turns;  // that a thread goes through
    return turns <= kFewTurns && classes <= kMost && classes < kAsOneOfWarp * warp_turns;
  }

  // Copies between device memory and shared memory, by all threads.
  __device__ static void copy(T* to, const T* from, int count) {
    constexpr int W = 16 / sizeof(T);
    const bool wide = (reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % 16 == 0;
    const int packs = wide ? count / W : 0;
    for (int i = int(threadIdx.x); i < packs; i += kThreads) store(to + i * W, load<W>(from + i * W));
    for (int i = packs * W + int(threadIdx.x); i < count; i += kThreads) to[i] = from[i];
  }
  // The class that this thread begins with. Rows of an even number of words share banks of shared memory, which threads
  // then read in turn.
  __device__ static int first_class(int classes) {
    const bool turned = sizeof(T) == 2 ? classes % 4 < 2 : classes % 2 == 0;
    return turned ? int(threadIdx.x) % classes : 0;
  }
};

// sums: (blocks).
template <typename T>
__global__ void __launch_bounds__(kThreads)
    short_rows_kernel(ScoreRows rows, const StepScalars* scalars, RowLoss<T, Classes> value, Weighted* sums) {
  using Short = ShortRows<T>;
  __shared__ __align__(16) T tile[kThreads * Short::kMost];
  const int t = int(threadIdx.x), classes = value.of.classes, begin = Short::first_class(classes);
  wait_for_dependencies();
  const int64_t valid = rows.valid(scalars->valid);
  Weighted sum = {};
  for (int64_t first = int64_t(blockIdx.x) * kThreads; first < valid; first += thread_count()) {
    const int count = int(min(int64_t(kThreads), valid - first));
    __syncthreads();  // rows of the turn before have been read
    Short::copy(tile, value.logits + first * classes, count * classes);
    __syncthreads();
    if (t < count) sum = plus(sum, value.template of_row<1>(tile + t * classes, first + t, begin));
  }
  sum = block_sum(sum);
  if (t == 0) sums[blockIdx.x] = sum;
}

// One block for all rows.
template <typename T>
__global__ void __launch_bounds__(1024)
    short_rows_mean_kernel(ScoreRows rows, const StepScalars* scalars, RowLoss<T, Classes> value, Means means) {
  wait_for_dependencies();
  const int64_t valid = rows.valid(scalars->valid);
  Weighted sum = {};
  for (int64_t row = threadIdx.x; row < valid; row += blockDim.x) {
    sum = plus(sum, value.template of_row<1>(value.logits + row * value.of.classes, row, 0));
  }
  write_means(sum, valid, means);
}

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

// dloss / Σ weight, in every thread of a block. `sums`: of weights_kernel; null: every block adds up the weights.
template <typename Of>
__device__ inline float gradient_scale(const Of& of, int64_t valid, const float* sums, const float* dloss) {
  float weight = float(valid);
  if (sums != nullptr) {
    weight = block_sum(sums[threadIdx.x]);
  } else if (std::is_same_v<Of, Classes> && (of.weights != nullptr || of.ignored.any)) {
    weight = 0;
    for (int64_t row = threadIdx.x; row < valid; row += kThreads) weight += of.weight(row);
    weight = block_sum(weight);
  }
  return *dloss / (weight > 0 ? weight : fmaxf(1.0f, float(valid)));
}

// dlogits = (softmax · Σ target − target) · dloss / Σ weight of a row; `dx` may be `x`. Rows past the valid ones and
// ignored ones get 0, those with a label out of range NaN.
template <int G, typename T, typename Of>
__device__ inline void row_gradient(const Of& of, int64_t row, int64_t valid, float scale, int lane, const T* x,
                                    T* dx) {
  const bool idle = row >= valid || !of.takes_part(row);
  if (idle || !of.is_sound(row)) {
    const T fill = narrow<T>(idle ? 0.0f : NAN);
    for_classes<G>(of.classes, lane, [&](int k) { dx[k] = fill; });
    return;
  }
  const LogSum sum = log_sum<G>(x, of.classes, lane);
  const float total = of.template total<G>(row, lane);
  const auto gradient = [&](int k, T logit) {
    const float softmax = expf(widen(logit) - sum.greatest - sum.log_of_sum);
    return narrow<T>((softmax * total - of.target(row, k)) * scale);
  };
  if constexpr (G == 32) {
    const auto write = [&]<int W>(int k, const Pack<T, W>& pack) {
      Pack<T, W> made;
#pragma unroll
      for (int w = 0; w < W; ++w) made.element[w] = gradient(k + w, pack.element[w]);
      store(dx + k, made);
    };
    for_row<32>(x, of.classes, lane, write, dx);
  } else {
    for_classes<G>(of.classes, lane, [&](int k) { dx[k] = gradient(k, x[k]); });
  }
}

template <typename T, typename Of>
__global__ void __launch_bounds__(kThreads)
    softmax_gradient_kernel(ScoreRows rows, Of of, const StepScalars* scalars, const float* sums, const float* dloss,
                            const T* logits, T* dlogits) {
  wait_for_dependencies();
  const int64_t valid = rows.valid(scalars->valid);
  const float scale = gradient_scale(of, valid, sums, dloss);
  for (int64_t row = thread_index() / 32; row < rows.rows; row += thread_count() / 32) {
    row_gradient<32>(of, row, valid, scale, int(threadIdx.x) % 32, logits + row * of.classes,
                     dlogits + row * of.classes);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    short_rows_gradient_kernel(ScoreRows rows, Classes of, const StepScalars* scalars, const float* sums,
                               const float* dloss, const T* logits, T* dlogits) {
  using Short = ShortRows<T>;
  __shared__ __align__(16) T tile[kThreads * Short::kMost];
  const int t = int(threadIdx.x), begin = Short::first_class(of.classes);
  wait_for_dependencies();
  const int64_t valid = rows.valid(scalars->valid);
  const float scale = gradient_scale(of, valid, sums, dloss);
  for (int64_t first = int64_t(blockIdx.x) * kThreads; first < rows.rows; first += thread_count()) {
    const int count = int(min(int64_t(kThreads), rows.rows - first));
    __syncthreads();  // the gradients of the turn before have been stored
    Short::copy(tile, logits + first * of.classes, count * of.classes);
    __syncthreads();
    T* x = tile + t * of.classes;
    if (t < count) row_gradient<1>(of, first + t, valid, scale, begin, x, x);
    __syncthreads();
    Short::copy(dlogits + first * of.classes, tile, count * of.classes);
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
  std::array<bool, 4> wanted{};
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = request.has_output(i);
  return with_type(request, request.inputs[0].dtype, [&](auto element) {
    using T = decltype(element);
    return with_labels(request, LossInput::Target, [=](auto of) {
      return make_kernel(
          [=](const KernelContext& c) {
            constexpr const char* kName = "softmax_cross_entropy";
            using Of = decltype(of(c));
            const RowLoss<T, Of> row{input<T>(c, 0), of(c), wanted[CrossEntropyOutput::Accuracy]};
            const auto to = [&](size_t i) { return wanted[i] ? output<float>(c, i) : nullptr; };
            const Means means{to(0), to(1), to(2), to(3)};
            if constexpr (std::is_same_v<Of, Classes>) {
              if (ShortRows<T>::fit_one_block(rows)) {
                const int threads = int(std::min<int64_t>((rows.rows + 31) / 32 * 32, 1024));
                launch_dependent(short_rows_mean_kernel<T>, 1, threads, 0, stream_of(c), rows, c.scalars, row, means);
                return check_launch(kName);
              }
              if (ShortRows<T>::take(rows)) {
                auto* sums = static_cast<Weighted*>(c.workspace);
                const int blocks = row_blocks(rows, kThreads);
                launch_dependent(short_rows_kernel<T>, blocks, kThreads, 0, stream_of(c), rows, c.scalars, row, sums);
                check_launch(kName);
                return launch_means(kName, c, rows, blocks, sums, means);
              }
            }
            launch_row_mean(kName, c, rows, row, means);
          },
          row_mean_workspace<Weighted>(rows));
    });
  });
}

std::unique_ptr<Kernel> entropy_gradient(const KernelRequest& request) {
  using In = LossGradInput;
  const ScoreRows rows(request.inputs[In::X]);
  const int multiprocessors = multiprocessors_of(request);
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
            constexpr const char* kName = "softmax_cross_entropy gradient";
            const float* dloss = input<float>(c, In::dLoss);
            const T* x = input<T>(c, In::X);
            if constexpr (std::is_same_v<Of, Classes>) {
              if (ShortRows<T>::take(rows)) {
                launch_dependent(short_rows_gradient_kernel<T>, blocks_for(rows.rows, multiprocessors), kThreads, 0,
                                 stream_of(c), rows, of(c), c.scalars, sums, dloss, x, output<T>(c, 0));
                return check_launch(kName);
              }
            }
            launch_dependent(softmax_gradient_kernel<T, Of>, blocks_for(rows.rows * 32, multiprocessors), kThreads, 0,
                             stream_of(c), rows, of(c), c.scalars, sums, dloss, x, output<T>(c, 0));
            check_launch(kName);
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
