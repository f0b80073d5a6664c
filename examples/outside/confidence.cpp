// SPDX-License-Identifier: Apache-2.0

// A metric of one's own: the mean probability that the model gives the right class. A metric is an operator with a
// scalar output, the mean over the batch's valid samples, that says which way is better.

#include <arbalest/arbalest.h>

#include <algorithm>
#include <cmath>

#include "own.h"

using namespace arbalest;

namespace {

template <typename T>
double probability(const T* logits, int64_t classes, int32_t label) {
  const double greatest = double(*std::max_element(logits, logits + classes));
  double sum = 0;
  for (int64_t c = 0; c < classes; ++c) sum += std::exp(double(logits[c]) - greatest);
  return std::exp(double(logits[label]) - greatest) / sum;
}

template <typename T>
std::unique_ptr<Kernel> confidence_kernel(const Shape& logits) {
  return make_kernel([batch = logits[0], classes = logits[1]](const KernelContext& context) {
    const T* rows = static_cast<const T*>(context.inputs[0]);
    const int32_t* labels = static_cast<const int32_t*>(context.inputs[1]);
    const int64_t valid = std::clamp<int64_t>(context.scalars->valid, 0, batch);  // the rest is padding
    double sum = 0;
    for (int64_t n = 0; n < valid; ++n) sum += probability(rows + n * classes, classes, labels[n]);
    *static_cast<T*>(context.outputs[0]) = T(valid > 0 ? sum / double(valid) : 0);
  });
}

void infer_confidence(InferContext& context) {
  const TensorType& logits = context.input(0);
  if (logits.shape.size() != 2) context.fail("input 'logits' is " + to_string(logits) + "; expected a matrix");
  if (!(context.input(1) == TensorType{DataType::Int32, {logits.shape[0]}})) {
    context.fail("input 'label' is " + to_string(context.input(1)) + "; expected an int32 for each row of 'logits'");
  }
  context.set_output(0, {logits.dtype, {}});
}

std::vector<Sample> samples() {
  return {{.name = "part of a batch",
           .inputs = {{{DataType::Float32, {9, 4}}, -3, 3}, {{DataType::Int32, {9}}, 0, 3, false}},
           .tolerance = 1e-6,
           .scalars = {.valid = 7}}};
}

}  // namespace

void register_confidence() {
  register_operator({.domain = "own",
                     .name = "Confidence",
                     .doc = "the mean probability of the right class",
                     .inputs = {{.name = "logits"}, {.name = "label"}},
                     .outputs = {{.name = "confidence"}},
                     .infer = infer_confidence,
                     .samples = samples,
                     .metric = MetricSpec{.better = MetricSpec::Better::Higher, .least = 0, .most = 1},
                     .cpu = [](const KernelRequest& request) {
                       const TensorType& logits = request.inputs[0];
                       return logits.dtype == DataType::Float64 ? confidence_kernel<double>(logits.shape)
                                                                : confidence_kernel<float>(logits.shape);
                     }});
}
