// SPDX-License-Identifier: Apache-2.0

// CUDA kernel of arbalest.Accuracy: a warp a row.

#include "ops/definition.h"
#include "ops/loss/row_mean.cuh"
#include "ops/names.h"

namespace arbalest {

using namespace cuda;

namespace {

// 1 if fewer than top_k classes are ahead of the label: greater, or equal with a lower index. NaN is ahead of all,
// and a label whose own logit is NaN is wrong; one that is out of range makes the mean NaN.
template <typename T>
struct RowHit {
  using Result = float;
  const T* logits;  // (rows, K)
  const int32_t* label;
  int classes, top_k;

  __device__ float operator()(int64_t row, int lane) const {
    const T* x = logits + row * classes;
    const int own = label[row];
    if (own < 0 || own >= classes) return NAN;
    const float value = widen(x[own]);
    if (value != value) return 0.0f;
    unsigned ahead = 0;
    for (int k = lane; k < classes; k += 32) {
      const float other = widen(x[k]);
      ahead += k < own ? !(other < value) : k > own && !(other <= value);
    }
    return __reduce_add_sync(0xffffffffu, ahead) < unsigned(top_k) ? 1.0f : 0.0f;
  }
};

// The same of the rows whose label is not ignored.
template <typename T>
struct CountedHit {
  using Result = Weighted;
  RowHit<T> hit;
  IgnoredLabel ignored;

  __device__ Weighted operator()(int64_t row, int lane) const {
    if (ignored.holds(hit.label[row])) return {};
    return {hit(row, lane), 1.0f};
  }
};

}  // namespace

void register_metrics_accuracy_cuda(OpRegistry& registry) {
  using In = MetricInput;
  using Out = MetricOutput;
  registry.find("arbalest.Accuracy")->cuda = [](const KernelRequest& request) {
    const ScoreRows rows(request.inputs[In::Scores]);
    const int top_k = int(int_attribute(request.node, "top_k"));
    const IgnoredLabel ignored = ignored_label(request.node);
    const bool weighs = request.has_output(Out::Weight), counted = weighs || ignored.any;
    return with_type(request, request.inputs[In::Scores].dtype, [=](auto element) {
      using T = decltype(element);
      return make_kernel(
          [=](const KernelContext& c) {
            const RowHit<T> hit{input<T>(c, In::Scores), input<int32_t>(c, In::Labels), int(rows.classes), top_k};
            if (counted) {
              launch_row_mean("accuracy", c, rows, CountedHit<T>{hit, ignored},
                              {output<float>(c, Out::Mean), nullptr, weighs ? output<float>(c, Out::Weight) : nullptr});
            } else {
              launch_row_mean("accuracy", c, rows, hit, {output<float>(c, Out::Mean)});
            }
          },
          counted ? row_mean_workspace<Weighted>(rows) : row_mean_workspace<float>(rows));
    });
  };
}

}  // namespace arbalest
