// SPDX-License-Identifier: Apache-2.0

// Accuracy: the fraction of samples, or of their places, whose label is among the top k classes. A label beyond the
// classes makes it NaN.

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/loss/score_rows.h"
#include "ops/names.h"

namespace arbalest {
namespace {

void infer_accuracy(InferContext& context) {
  const TensorType& logits = floating_input(context, MetricInput::Scores);
  const int64_t classes = logits.shape[class_axis(context)];
  check_classes(context);
  const int64_t top_k = int_attribute_from(context.node(), "top_k", 1);
  if (top_k > classes) {
    context.fail(
        fmt::format("attribute 'top_k' is {}; expected at most the {} classes of input 'logits'", top_k, classes));
  }
  const TensorType scalar{master_type(logits.dtype), {}};
  context.set_output(MetricOutput::Mean, scalar);
  // If one row of each sample counts, the sum of weights is just their number, and the output is a token without a
  // value.
  const bool weighs = ignored_label(context.node()).any || logits.shape.size() > 2;
  context.set_output(MetricOutput::Weight, weighs ? scalar : TensorType{DataType::Token, {}});
}

void expand_accuracy(ExpandContext& c) {
  const auto [logits, label] = rows_for_kernels(c);
  const std::vector<ValueId> made = c.add("arbalest.Accuracy", "", {logits, label}, int(c.node().outputs.size()),
                                          {{"top_k", int_attribute(c.node(), "top_k")},
                                           {"ignore_index", ints_attribute(c.node(), "ignore_index")},
                                           {"axis", int64_t{-1}}});
  for (size_t i = 0; i < made.size(); ++i) c.replace_output(i, made[i]);
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
  const ScoreRows rows(request.inputs[In::Scores]);
  const int64_t classes = rows.classes, top_k = int_attribute(request.node, "top_k");
  const IgnoredLabel ignored = ignored_label(request.node);
  const bool weighs = request.has_output(Out::Weight);
  return make_kernel([=](const KernelContext& context) {
    const T* logits = input<T>(context, In::Scores);
    const int32_t* label = input<int32_t>(context, In::Labels);
    const int64_t valid = rows.valid(context.scalars->valid);
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
    const auto classes = double(shape.back());
    const Shape rows(shape.begin(), shape.end() - 1);
    return Sample{.name = std::move(name),
                  .inputs = {{.type = {DataType::Float32, shape}, .distinct = true},
                             {{DataType::Int32, rows}, 0, classes - 1, false}},
                  .attributes = {{"top_k", top_k}, {"axis", int64_t{-1}}},
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
          ignoring("ignored labels, many", {400, 100}, 7, 399),
          sample("tokens", {3, 7, 5}, 2, 2),
          ignoring("pixels", {3, 4, 5, 6}, -1, 3)};
}

}  // namespace

void register_metrics_accuracy(OpRegistry& registry) {
  registry.add(
      {.domain = "arbalest",
       .name = "Accuracy",
       .doc = "the fraction of the valid samples, or of all their places, whose label is among the top_k classes; "
              "and the number that it is of, where that is not the number of samples",
       .inputs = {{.name = "logits", .lowered = true}, {.name = "label"}},
       .outputs = {{.name = "fraction"}, {.name = "fraction_weight", .arity = OperandSpec::Optional}},
       .attributes = {int_spec("top_k", 1, "how many of the greatest logits count as right"), ignore_spec(),
                      class_axis_spec()},
       .infer = infer_accuracy,
       .expand = expand_accuracy,
       .expands = has_other_rows,
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
