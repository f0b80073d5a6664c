// SPDX-License-Identifier: Apache-2.0

// Accuracy: the fraction of samples whose label is among the top k classes. A label beyond the classes makes it NaN.

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/names.h"

namespace arbalest {
namespace {

void infer_accuracy(InferContext& context) {
  const TensorType& logits = floating_input(context, MetricInput::Scores, {2});
  expect_input(context, MetricInput::Labels, {DataType::Int32, {logits.shape[0]}}, "one label a row of 'logits'");
  const int64_t top_k = int_attribute_from(context.node(), "top_k", 1);
  if (top_k > logits.shape[1]) {
    context.fail(fmt::format("attribute 'top_k' is {}; expected at most the {} classes of input 'logits'", top_k,
                             logits.shape[1]));
  }
  const TensorType scalar{master_type(logits.dtype), {}};
  context.set_output(MetricOutput::Mean, scalar);
  // If all samples count, the sum of weights is just their number, and the output is a token without a value.
  context.set_output(MetricOutput::Weight,
                     ignored_label(context.node()).any ? scalar : TensorType{DataType::Token, {}});
}

// True if fewer than k classes rank ahead of the label, which is a valid class. A class ranks ahead if its score is
// greater, or equal with a lower index. NaN ranks ahead of all, and a label whose own logit is NaN is wrong.
template <typename T>
bool among_top(const T* row, int64_t classes, int64_t label, int64_t top_k) {
  if (std::isnan(widen(row[label]))) return false;
  const Wide<T> own = widen(row[label]);
  int64_t ahead = 0;
  for (int64_t c = 0; c < label; ++c) ahead += !(widen(row[c]) < own);
  for (int64_t c = label + 1; c < classes; ++c) ahead += !(widen(row[c]) <= own);
  return ahead < top_k;
}

std::unique_ptr<Kernel> accuracy_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  using In = MetricInput;
  using Out = MetricOutput;
  const int64_t batch = request.inputs[In::Scores].shape[0], classes = request.inputs[In::Scores].shape[1];
  const int64_t top_k = int_attribute(request.node, "top_k");
  const IgnoredLabel ignored = ignored_label(request.node);
  const bool weighs = request.has_output(Out::Weight);
  return make_kernel([=](const KernelContext& context) {
    const T* logits = input<T>(context, In::Scores);
    const int32_t* label = input<int32_t>(context, In::Labels);
    const int64_t valid = valid_samples(context, batch);
    double right = 0, counted = 0;
    for (int64_t n = 0; n < valid; ++n) {
      if (ignored.holds(label[n])) continue;
      const bool sound = label[n] >= 0 && label[n] < classes;
      counted += 1;
      right +=
          sound ? among_top(logits + n * classes, classes, label[n], top_k) : std::numeric_limits<double>::quiet_NaN();
    }
    *output<Wide<T>>(context, Out::Mean) = counted > 0 ? Wide<T>(right / counted) : Wide<T>(0);
    if (weighs) *output<Wide<T>>(context, Out::Weight) = Wide<T>(counted);
  });
}

std::vector<Sample> accuracy_samples() {
  const auto sample = [](std::string name, Shape shape, int64_t top_k, int32_t valid) {
    const int64_t batch = shape[0], classes = shape[1];
    return Sample{.name = std::move(name),
                  .inputs = {{.type = {DataType::Float32, shape}, .distinct = true},
                             {{DataType::Int32, {batch}}, 0, double(classes - 1), false}},
                  .attributes = {{"top_k", top_k}},
                  .tolerance = 1e-6,
                  .scalars = {.valid = valid}};
  };
  const auto ignoring = [&](std::string name, Shape shape, int64_t ignored, int32_t valid) {
    Sample made = sample(std::move(name), std::move(shape), 1, valid);
    made.inputs[MetricInput::Labels].low = double(std::min<int64_t>(ignored, 0));
    made.attributes.set("ignore_index", ignored);
    made.output_count = 2;
    return made;
  };
  return {sample("top 1", {64, 10}, 1, 64),
          sample("top 5", {33, 100}, 5, 33),
          sample("part of the batch", {16, 4}, 1, 5),
          sample("nothing valid", {8, 3}, 1, 0),
          sample("one class", {1, 1}, 1, 1),
          ignoring("ignored labels", {40, 3}, -1, 33),
          ignoring("a class is ignored", {33, 4}, 2, 33),
          ignoring("all ignored", {5, 1}, 0, 5),
          ignoring("ignored labels, many", {400, 100}, 7, 399)};
}

}  // namespace

void register_metrics_accuracy(OpRegistry& registry) {
  registry.add({.domain = "arbalest",
                .name = "Accuracy",
                .doc =
                    "the fraction of the valid samples whose label is among the top_k classes; and, with ignore_index, "
                    "the number of samples that it is of",
                .inputs = {{.name = "logits", .lowered = true}, {.name = "label"}},
                .outputs = {{.name = "fraction"}, {.name = "fraction_weight", .arity = OperandSpec::Optional}},
                .attributes = {int_spec("top_k", 1, "how many of the greatest logits count as right"), ignore_spec()},
                .infer = infer_accuracy,
                .cost =
                    [](const Graph& graph, const Node& node) {
                      return Cost{double(input_type(graph, node, 0).elements()), operand_bytes(graph, node)};
                    },
                .samples = accuracy_samples,
                .metric = MetricSpec{.better = MetricSpec::Better::Higher, .least = 0, .most = 1, .counts = true},
                .compares = Comparison{Comparison::Target::Classes},
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return accuracy_cpu(r, t); })});
}

}  // namespace arbalest
