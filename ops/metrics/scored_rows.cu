// SPDX-License-Identifier: Apache-2.0

// CUDA kernel of AUC, Precision, Recall and F1: scores and labels of a batch as rows of floats.

#include "ops/cuda/cuda_math.cuh"
#include "ops/names.h"

namespace arbalest {

using namespace cuda;

namespace {

__device__ inline float label_value(float label) {
  return label;
}
__device__ inline float label_value(int32_t label) {
  return float(label);
}
__device__ inline float label_value(uint8_t label) {
  return float(label);
}

// rows: (N · P, C + L) of scores (N, P…, C) and labels (N, P…, L).
template <typename T, typename Label>
__global__ void __launch_bounds__(kThreads) scored_rows_kernel(int64_t count, int scores_of_row, int labels_of_row,
                                                               const T* scores, const Label* label, float* rows) {
  const int columns = scores_of_row + labels_of_row;
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    const int64_t row = i / columns;
    const int column = int(i % columns);
    rows[i] = column < scores_of_row ? widen(scores[row * scores_of_row + column])
                                     : label_value(label[row * labels_of_row + column - scores_of_row]);
  }
}

template <typename T, typename Label>
std::unique_ptr<Kernel> scored_rows(const KernelRequest& request) {
  using In = MetricInput;
  const Shape &of_scores = request.inputs[In::Scores].shape, &of_labels = request.inputs[In::Labels].shape;
  const int64_t scores = of_scores.size() > 1 ? of_scores.back() : 1;
  const int64_t labels = of_scores.size() > 1 && of_labels.size() == of_scores.size() ? of_labels.back() : 1;
  const int64_t count = request.outputs[0].elements();
  const int multiprocessors = multiprocessors_of(request);
  return make_kernel([=](const KernelContext& c) {
    if (count == 0) return;
    scored_rows_kernel<<<blocks_for(count, multiprocessors), kThreads, 0, stream_of(c)>>>(
        count, int(scores), int(labels), input<T>(c, In::Scores), input<Label>(c, In::Labels), output<float>(c, 0));
    check_launch("scored rows");
  });
}

}  // namespace

void register_metrics_scored_rows_cuda(OpRegistry& registry) {
  using In = MetricInput;
  const auto rows = [](const KernelRequest& request) {
    return with_type(request, request.inputs[In::Scores].dtype, [&](auto score) -> std::unique_ptr<Kernel> {
      using T = decltype(score);
      switch (request.inputs[In::Labels].dtype) {
        case DataType::Int32: return scored_rows<T, int32_t>(request);
        case DataType::Uint8: return scored_rows<T, uint8_t>(request);
        case DataType::Float32: return scored_rows<T, float>(request);
        default: fail_type(request, request.inputs[In::Labels].dtype, "labels in int32, uint8 or float");
      }
    });
  };
  for (const char* name : {"arbalest.AUC", "arbalest.Precision", "arbalest.Recall", "arbalest.F1"}) {
    registry.find(name)->cuda = rows;
  }
}

}  // namespace arbalest
