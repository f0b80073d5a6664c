// CUDA kernels of arbalest.SoftmaxCrossEntropy and its gradient: a warp a row.

#include "ops/cuda/row_mean.cuh"

namespace arbalest {

using namespace cuda;

namespace {

// A row's greatest logit and log Σ exp(logit − greatest), in every lane.
struct LogSum {
  float greatest, log_of_sum;

  template <typename T>
  __device__ LogSum(const T* row, int classes, int lane) {
    greatest = -INFINITY;
    for (int k = lane; k < classes; k += 32) greatest = fmaxf(greatest, widen(row[k]));
    greatest = warp_max(greatest);
    float sum = 0;
    for (int k = lane; k < classes; k += 32) sum += expf(widen(row[k]) - greatest);
    log_of_sum = logf(warp_sum(sum));
  }
};

// With smoothing s the target of class k is (1 − s)·[k = label] + s / K. A label out of range gives NaN.
template <typename T>
struct RowLoss {
  using Result = float;
  const T* logits;  // (N, K)
  const int32_t* label;
  int classes;
  float smoothing;

  __device__ float operator()(int64_t row, int lane) const {
    const T* x = logits + row * classes;
    const int own = label[row];
    if (own < 0 || own >= classes) return NAN;
    const LogSum sum(x, classes, lane);
    float loss = (1.0f - smoothing) * (sum.log_of_sum - (widen(x[own]) - sum.greatest));
    if (smoothing > 0) {
      float total = 0;
      for (int k = lane; k < classes; k += 32) total += widen(x[k]) - sum.greatest;
      loss += smoothing * (sum.log_of_sum - warp_sum(total) / float(classes));
    }
    return loss;
  }
};

// The loss, and 1 where the label's logit is the greatest of the row, the first of equals: what Accuracy counts for the
// top class.
template <typename T>
struct RowLossAndHit {
  using Result = float2;
  RowLoss<T> loss;

  __device__ float2 operator()(int64_t row, int lane) const {
    const T* x = loss.logits + row * loss.classes;
    const int own = loss.label[row];
    const float value = own < 0 || own >= loss.classes ? NAN : widen(x[own]);
    bool ahead = value != value;
    for (int k = lane; k < loss.classes; k += 32) {
      const float other = widen(x[k]);
      ahead = ahead || (k < own ? !(other < value) : k > own && !(other <= value));
    }
    return {loss(row, lane), __any_sync(0xffffffffu, ahead) ? 0.0f : 1.0f};
  }
};

// dlogits = (softmax − target) · dloss / valid; rows past the valid ones get 0, those with a label out of range NaN.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    gradient_kernel(int64_t rows, int classes, float smoothing, const StepScalars* scalars, const float* dloss,
                    const T* logits, const int32_t* label, T* dlogits) {
  const int lane = int(threadIdx.x) % 32;
  const int64_t valid = valid_rows(scalars, rows);
  const float scale = valid > 0 ? *dloss / float(valid) : 0.0f, others = smoothing / float(classes);
  for (int64_t row = thread_index() / 32; row < rows; row += thread_count() / 32) {
    const T* x = logits + row * classes;
    T* dx = dlogits + row * classes;
    const int own = label[row];
    if (row >= valid || own < 0 || own >= classes) {
      const T fill = narrow<T>(row >= valid ? 0.0f : NAN);
      for (int k = lane; k < classes; k += 32) dx[k] = fill;
      continue;
    }
    const LogSum sum(x, classes, lane);
    for (int k = lane; k < classes; k += 32) {
      const float softmax = expf(widen(x[k]) - sum.greatest - sum.log_of_sum);
      const float target = k == own ? 1.0f - smoothing + others : others;
      dx[k] = narrow<T>((softmax - target) * scale);
    }
  }
}

std::unique_ptr<Kernel> loss(const KernelRequest& request) {
  const int64_t rows = request.inputs[0].shape[0], classes = request.inputs[0].shape[1];
  const float smoothing = float(float_attribute(request.node, "label_smoothing"));
  const int multiprocessors = cuda_context(request).multiprocessors;
  const bool counts = request.has_output(1);
  return with_type(request, request.inputs[0].dtype, [=](auto element) {
    using T = decltype(element);
    if (counts) {
      return make_kernel(
          [=](const KernelContext& c) {
            const RowLossAndHit<T> row{{input<T>(c, 0), input<int32_t>(c, 1), int(classes), smoothing}};
            launch_row_mean("softmax_cross_entropy", c, multiprocessors, rows, classes, row,
                            {output<float>(c, 0), output<float>(c, 1)});
          },
          row_mean_workspace<float2>(rows, classes));
    }
    return make_kernel(
        [=](const KernelContext& c) {
          const RowLoss<T> row_loss{input<T>(c, 0), input<int32_t>(c, 1), int(classes), smoothing};
          launch_row_mean("softmax_cross_entropy", c, multiprocessors, rows, classes, row_loss, {output<float>(c, 0)});
        },
        row_mean_workspace<float>(rows, classes));
  });
}

std::unique_ptr<Kernel> gradient(const KernelRequest& request) {
  const int64_t rows = request.inputs[1].shape[0], classes = request.inputs[1].shape[1];
  const float smoothing = float(float_attribute(request.node, "label_smoothing"));
  const int multiprocessors = cuda_context(request).multiprocessors;
  return with_type(request, request.inputs[1].dtype, [=](auto element) {
    using T = decltype(element);
    return make_kernel([=](const KernelContext& c) {
      if (rows == 0) return;
      gradient_kernel<<<blocks_for(rows * 32, multiprocessors), kThreads, 0, stream_of(c)>>>(
          rows, int(classes), smoothing, c.scalars, input<float>(c, 0), input<T>(c, 1), input<int32_t>(c, 2),
          output<T>(c, 0));
      check_launch("softmax_cross_entropy gradient");
    });
  });
}

}  // namespace

void register_loss_softmax_cross_entropy_cuda(OpRegistry& registry) {
  registry.find("arbalest.SoftmaxCrossEntropy")->cuda = loss;
  registry.find("arbalest.SoftmaxCrossEntropyGrad")->cuda = gradient;
}

}  // namespace arbalest
