// SPDX-License-Identifier: Apache-2.0

// SoftmaxCrossEntropy and its gradient, as in PyTorch. With smoothing s the target of class k is
// t_k = (1 − s)·[k = label] + s / K, or (1 − s)·label_k + s / K if labels are rows of K numbers. A row's loss is
// −Σ w_k t_k log softmax(logits)_k with the class weights w. The mean weighs a row by w_label, one whose label is a row
// by 1, and one whose label is ignored by 0. Smoothing makes a loss even of rows that weigh 0. A batch of those alone
// has no such mean, but its sum is part of a mean over several batches. Its mean is over its n valid rows, and its
// weight is −n: the sum counts, and adds nothing to what it is divided by.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/loss/operands.h"
#include "ops/loss/score_rows.h"
#include "ops/math/float_functions.h"

namespace arbalest {
namespace {

// Whether labels are rows of numbers, not classes.
bool is_soft(const TensorType& label) {
  return is_floating(label.dtype);
}

struct Loss : ScoreRows {
  double smoothing;
  IgnoredLabel ignored;

  explicit Loss(const KernelRequest& request, size_t logits)
      : ScoreRows(request.inputs[logits]),
        smoothing(float_attribute(request.node, "label_smoothing")),
        ignored(ignored_label(request.node)) {}
};

void check_class_weights(InferContext& context, size_t logits, int64_t classes) {
  const TensorType& type = context.input(logits);
  const size_t operand = logits + LossInput::Weights;
  if (context.has_input(operand)) {
    expect_input(context, operand, {master_type(type.dtype), {classes}}, "one weight a class");
  }
  if (!context.node().op->attribute_spec("class_weights")) return;
  const std::vector<double> weights = floats_attribute(context.node(), "class_weights");
  if (weights.empty()) return;
  if (context.has_input(operand)) context.fail("'class_weights' are given twice: as an input and as an attribute");
  if (int64_t(weights.size()) != classes) {
    context.fail(
        fmt::format("attribute 'class_weights' has {} numbers; expected one for each of the {} classes of "
                    "input 'logits'",
                    weights.size(), classes));
  }
  for (const double weight : weights) {
    if (weight >= 0 && std::isfinite(float(weight))) continue;
    context.fail(fmt::format("attribute 'class_weights' holds {}; expected numbers of at least 0", weight));
  }
  if (std::all_of(weights.begin(), weights.end(), [](double weight) { return float(weight) == 0; })) {
    context.fail(
        fmt::format("all {} numbers of attribute 'class_weights' are 0, so that nothing would be learnt; expected "
                    "one above 0",
                    weights.size()));
  }
}

void check_loss_attributes(InferContext& context, size_t logits, int64_t classes) {
  const TensorType &type = context.input(logits), &label = context.input(logits + LossInput::Target);
  if (classes < 1) context.fail(fmt::format("input 'logits' is {}: there are no classes", to_string(type)));
  if (is_soft(label)) {
    expect_input(context, logits + LossInput::Target, {master_type(type.dtype), type.shape},
                 "the target of each class of each row of 'logits'");
  }
  const double smoothing = float_attribute(context.node(), "label_smoothing");
  if (!(smoothing >= 0 && smoothing <= 1)) {
    context.fail(fmt::format("attribute 'label_smoothing' is {}; expected 0 to 1", smoothing));
  }
  if (ignored_label(context.node()).any && is_soft(label)) {
    context.fail("attribute 'ignore_index' is for labels that are classes; input 'label' has a target for each class");
  }
  check_class_weights(context, logits, classes);
}

// Labels that are classes, with the weights of classes. `weights` may be null: all are 1.
template <typename W>
struct Classes {
  const int32_t* label;
  const W* weights;
  int64_t classes;
  W kept, spread;  // 1 − s, s / K
  IgnoredLabel ignored;

  Classes(const Loss& loss, const int32_t* labels, const W* class_weights)
      : label(labels),
        weights(class_weights),
        classes(loss.classes),
        kept(W(1 - loss.smoothing)),
        spread(W(loss.smoothing / double(loss.classes))),
        ignored(loss.ignored) {}

  bool takes_part(int64_t row) const { return !ignored.holds(label[row]); }
  bool is_sound(int64_t row) const { return label[row] >= 0 && label[row] < classes; }
  // Weight of a row, 0 if its label is ignored. An invalid label counts with weight 1, because it makes the loss NaN.
  W weight(int64_t row) const {
    if (!takes_part(row)) return 0;
    return weights && is_sound(row) ? weights[label[row]] : W(1);
  }
  // w_k t_k
  W target(int64_t row, int64_t k) const {
    return (weights ? weights[k] : W(1)) * ((k == label[row] ? kept : W(0)) + spread);
  }
};

template <typename W>
struct Targets {
  const W *label, *weights;
  int64_t classes;
  W kept, spread;

  Targets(const Loss& loss, const W* labels, const W* class_weights)
      : label(labels),
        weights(class_weights),
        classes(loss.classes),
        kept(W(1 - loss.smoothing)),
        spread(W(loss.smoothing / double(loss.classes))) {}

  bool takes_part(int64_t) const { return true; }
  bool is_sound(int64_t) const { return true; }
  W weight(int64_t) const { return 1; }
  W target(int64_t row, int64_t k) const {
    return (weights ? weights[k] : W(1)) * (kept * label[row * classes + k] + spread);
  }
};

// The greatest logit and log Σ exp(logit − greatest) of a row.
template <typename T>
std::pair<Wide<T>, Wide<T>> log_sum(const T* row, int64_t classes) {
  using W = Wide<T>;
  W greatest = widen(row[0]);
  for (int64_t c = 1; c < classes; ++c) greatest = std::max(greatest, widen(row[c]));
  const W sum = sum_in_lanes<W>(classes, [=](int64_t c) { return elementwise::exp(widen(row[c]) - greatest); });
  return {greatest, std::log(sum)};
}

// A target of 0 adds nothing, even if the logit is −∞.
template <typename T, typename Of>
double row_loss(const Of& of, const T* logits, int64_t row) {
  if (!of.takes_part(row)) return 0;
  if (!of.is_sound(row)) return std::numeric_limits<double>::quiet_NaN();
  const T* x = logits + row * of.classes;
  const auto [greatest, log_of_sum] = log_sum(x, of.classes);
  double loss = 0;
  for (int64_t k = 0; k < of.classes; ++k) {
    const double target = of.target(row, k);
    if (target != 0) loss += target * (double(log_of_sum) - (double(x[k]) - double(greatest)));
  }
  return loss;
}

// Whether the label's logit is the greatest of the row, the first of equals: what Accuracy counts for the top class.
template <typename T>
bool is_foremost(const T* row, int64_t classes, int32_t label) {
  if (label < 0 || label >= classes || std::isnan(widen(row[label]))) return false;
  const Wide<T> own = widen(row[label]);
  for (int64_t c = 0; c < classes; ++c) {
    const bool behind = c < label ? widen(row[c]) < own : widen(row[c]) <= own;
    if (!behind) return false;
  }
  return true;
}

// A mean over rows, and what it is divided by.
template <typename W>
struct Mean {
  W value, weight;

  static Mean of(double sum, double weight, int64_t rows) {
    if (weight > 0) return {W(sum / weight), W(weight)};
    return sum == 0 ? Mean{W(0), W(0)} : Mean{W(sum / double(rows)), W(-double(rows))};
  }
};

// A label that is none makes it NaN.
template <typename T>
Mean<Wide<T>> share_of_foremost(const Classes<Wide<T>>& of, const T* logits, int64_t valid) {
  double right = 0, counted = 0;
  for (int64_t n = 0; n < valid; ++n) {
    if (!of.takes_part(n)) continue;
    counted += 1;
    right += of.is_sound(n) ? is_foremost(logits + n * of.classes, of.classes, of.label[n])
                            : std::numeric_limits<double>::quiet_NaN();
  }
  return Mean<Wide<T>>::of(right, counted, valid);
}

// The mean over the valid rows.
template <typename T, typename Of>
Mean<Wide<T>> mean_loss(const KernelContext& context, const Of& of, const T* logits, int64_t valid) {
  double* losses = static_cast<double*>(context.workspace);
  parallel_for(valid, 16 * of.classes, [=, &of](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) losses[n] = row_loss(of, logits, n);
  });
  double sum = 0, weight = 0;
  for (int64_t n = 0; n < valid; ++n) {
    sum += losses[n];
    weight += of.weight(n);
  }
  return Mean<Wide<T>>::of(sum, weight, valid);
}

std::unique_ptr<Kernel> cross_entropy_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  using W = Wide<T>;
  const bool soft = is_soft(request.inputs[LossInput::Target]), weighted = request.has_input(LossInput::Weights);
  const std::array<bool, 4> wanted = {true, request.has_output(CrossEntropyOutput::Accuracy),
                                      request.has_output(CrossEntropyOutput::MeanWeight),
                                      request.has_output(CrossEntropyOutput::AccuracyWeight)};
  return make_kernel(
      [=, loss = Loss(request, 0)](const KernelContext& context) {
        const T* logits = input<T>(context, 0);
        const W* weights = weighted ? input<W>(context, LossInput::Weights) : nullptr;
        const int64_t valid = loss.valid(context.scalars->valid);
        const auto put = [&](size_t at, W value) {
          if (wanted[at]) *output<W>(context, at) = value;
        };
        if (soft) {
          put(CrossEntropyOutput::Mean,
              mean_loss(context, Targets<W>(loss, input<W>(context, LossInput::Target), weights), logits, valid).value);
          return;
        }
        const Classes<W> of(loss, input<int32_t>(context, LossInput::Target), weights);
        const Mean<W> mean = mean_loss(context, of, logits, valid);
        put(CrossEntropyOutput::Mean, mean.value);
        put(CrossEntropyOutput::MeanWeight, mean.weight);
        if (!wanted[CrossEntropyOutput::Accuracy] && !wanted[CrossEntropyOutput::AccuracyWeight]) return;
        const Mean<W> share = share_of_foremost(of, logits, valid);
        put(CrossEntropyOutput::Accuracy, share.value);
        put(CrossEntropyOutput::AccuracyWeight, share.weight);
      },
      ScoreRows(request.inputs[0]).rows * int64_t(sizeof(double)));
}

// d_row = (softmax(row) · Σ target − target) · scale
template <typename T, typename Of>
void row_gradient(const Of& of, const T* logits, int64_t row, Wide<T> scale, T* d_logits) {
  using W = Wide<T>;
  const T* x = logits + row * of.classes;
  T* dx = d_logits + row * of.classes;
  if (!of.takes_part(row) || !of.is_sound(row)) {
    std::fill(dx, dx + of.classes, narrow<T>(of.takes_part(row) ? std::numeric_limits<W>::quiet_NaN() : W(0)));
    return;
  }
  const auto [greatest, log_of_sum] = log_sum(x, of.classes);
  const W total = sum_in_lanes<W>(of.classes, [&](int64_t k) { return of.target(row, k); });
  ARBALEST_INDEPENDENT
  for (int64_t k = 0; k < of.classes; ++k) {
    const W softmax = elementwise::exp(widen(x[k]) - greatest - log_of_sum);
    dx[k] = narrow<T>((softmax * total - of.target(row, k)) * scale);
  }
}

template <typename T, typename Of>
void cross_entropy_gradient(const Of& of, const T* logits, int64_t valid, int64_t rows, Wide<T> dloss, T* d_logits) {
  double weight = 0;
  for (int64_t n = 0; n < valid; ++n) weight += of.weight(n);
  const Wide<T> scale = Wide<T>(dloss / (weight > 0 ? weight : double(std::max<int64_t>(1, valid))));
  parallel_for(valid, 16 * of.classes, [=, &of](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) row_gradient(of, logits, n, scale, d_logits);
  });
  std::fill(d_logits + valid * of.classes, d_logits + rows * of.classes, T(0));
}

std::unique_ptr<Kernel> cross_entropy_grad_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  using W = Wide<T>;
  using In = LossGradInput;
  const bool soft = is_soft(request.inputs[LossGradInput::Target]),
             weighted = request.has_input(LossGradInput::Weights);
  return make_kernel([=, loss = Loss(request, 1)](const KernelContext& context) {
    const W dloss = *input<W>(context, In::dLoss);
    const T* logits = input<T>(context, In::X);
    const W* weights = weighted ? input<W>(context, LossGradInput::Weights) : nullptr;
    const int64_t valid = loss.valid(context.scalars->valid);
    T* d_logits = output<T>(context, 0);
    if (soft) {
      const Targets<W> of(loss, input<W>(context, LossGradInput::Target), weights);
      cross_entropy_gradient(of, logits, valid, loss.rows, dloss, d_logits);
    } else {
      const Classes<W> of(loss, input<int32_t>(context, LossGradInput::Target), weights);
      cross_entropy_gradient(of, logits, valid, loss.rows, dloss, d_logits);
    }
  });
}

struct CrossEntropyCase {
  const char* name;
  int64_t batch, classes;
  int32_t valid;
  double smoothing;
  double range = 3;
  bool soft = false, weighted = false;
  int ignored = 0;  // -1: labels are drawn from there on, and those are ignored
  Shape places = {};
};
const CrossEntropyCase kCrossEntropyCases[] = {
    {"digits", 64, 10, 64, 0},
    {"one sample", 1, 7, 1, 0},
    {"one class", 3, 1, 3, 0},
    {"smoothed", 9, 5, 9, 0.1},
    {"part valid", 16, 10, 5, 0},
    {"nothing valid", 4, 3, 0, 0},
    {"thousand", 40, 1000, 33, 0.1},
    {"2000 rows", 2000, 10, 1900, 0.1},
    {"300 rows of a hundred", 300, 100, 290, 0, 3, false, true},
    {"large logits", 8, 10, 8, 0, 80},
    {"long rows", 3, 4999, 3, 0},
    {"long rows, part valid, smoothed", 4, 5003, 3, 0.1, 20},
    {"class weights", 33, 10, 31, 0, 3, false, true},
    {"class weights, smoothed", 12, 5, 12, 0.2, 3, false, true},
    {"class weights, thousand", 40, 1000, 33, 0, 3, false, true},
    {"class weights, nothing valid", 4, 3, 0, 0.1, 3, false, true},
    {"ignored labels", 33, 3, 31, 0, 3, false, false, -1},
    {"ignored labels, class weights", 33, 3, 31, 0.2, 3, false, true, -1},
    {"ignored labels, thousand", 40, 1000, 33, 0, 3, false, true, -1},
    {"all ignored", 4, 1, 4, 0, 3, false, false, -2},
    {"soft", 17, 9, 16, 0, 3, true},
    {"soft, smoothed", 17, 9, 17, 0.1, 3, true},
    {"soft, class weights", 40, 1000, 33, 0.1, 3, true, true},
    {"tokens", 3, 5, 2, 0.1, 3, false, false, 0, {7}},
    {"pixels, ignored labels, class weights", 2, 4, 2, 0, 3, false, true, -1, {5, 6}},
    {"many pixels, ignored labels, class weights", 3, 4, 2, 0, 3, false, true, -1, {64, 48}},
    {"pixels, soft", 2, 3, 1, 0, 3, true, false, 0, {4, 2}},
    {"9000 pixels", 3, 5, 2, 0, 3, false, false, 0, {60, 50}},
    {"9000 pixels of two classes", 3, 2, 2, 0, 3, false, false, -1, {60, 50}},
    {"9000 pixels, even classes, class weights, smoothed", 3, 6, 3, 0.1, 3, false, true, 0, {60, 50}},
    {"9027 pixels, ignored labels, class weights", 3, 4, 2, 0.2, 3, false, true, -1, {51, 59}},
    {"long rows of pixels", 2, 70, 2, 0.1, 3, false, false, -1, {25, 20}},
};

std::vector<Sample> cross_entropy_samples(bool gradient) {
  std::vector<Sample> samples;
  for (const CrossEntropyCase& c : kCrossEntropyCases) {
    Shape rows = c.places;
    rows.insert(rows.begin(), c.batch);
    const TensorType classes{DataType::Int32, rows};
    rows.push_back(c.classes);
    const TensorType logits{DataType::Float32, rows};
    const bool ignores = c.ignored < 0, all = c.ignored == -2;
    std::vector<Sample::Input> inputs = {
        {logits, -c.range, c.range},
        {classes, double(c.ignored), all ? double(c.ignored) : double(c.classes - 1), false}};
    if (c.soft) inputs[LossInput::Target] = {logits, 0, 1, false};
    if (c.weighted) inputs.push_back({{DataType::Float32, {c.classes}}, 0.2, 2, false});
    if (gradient) inputs.insert(inputs.begin(), {{DataType::Float32, {}}, 0.5, 2});
    samples.push_back({.name = c.name,
                       .inputs = inputs,
                       .attributes = {{"label_smoothing", c.smoothing}},
                       .tolerance = 1e-5,
                       .scalars = {.valid = c.valid}});
    if (ignores) samples.back().attributes.set("ignore_index", int64_t{c.ignored});
    if (!gradient) samples.back().attributes.set("axis", int64_t{-1});
    if (gradient || c.soft || c.batch * c.classes > 1000) continue;
    Sample with_accuracy = samples.back();
    with_accuracy.name += ", accuracy";
    with_accuracy.inputs[0].distinct = true;
    with_accuracy.output_count = ignores ? 4 : c.weighted ? 3 : 2;  // otherwise weights of the loss are a token
    samples.push_back(std::move(with_accuracy));
  }
  return samples;
}

AttributeSpec smoothing_spec() {
  return float_spec("label_smoothing", 0.0, "the share of the target spread over all classes");
}

// If every row weighs 1, the sum of weights follows from the number of samples. The output is a token then, without a
// value. The accuracy of several rows a sample has its weight all the same, since it counts rows.
void infer_loss(InferContext& context) {
  const TensorType& logits = floating_input(context, 0);
  const size_t axis = class_axis(context);
  const bool soft = is_soft(context.input(LossInput::Target)), ignores = ignored_label(context.node()).any;
  if (!soft) check_classes(context);
  check_loss_attributes(context, 0, logits.shape[axis]);
  const bool counts = context.output_count() > CrossEntropyOutput::Accuracy &&
                      context.node().outputs[CrossEntropyOutput::Accuracy] != kNone;
  if (counts && soft) {
    context.fail("output 'accuracy' needs classes for labels; input 'label' has a target for each class");
  }
  const bool weighted =
      context.has_input(LossInput::Weights) || !floats_attribute(context.node(), "class_weights").empty();
  const TensorType scalar{master_type(logits.dtype), {}}, none{DataType::Token, {}};
  context.set_output(CrossEntropyOutput::Mean, scalar);
  context.set_output(CrossEntropyOutput::Accuracy, scalar);
  context.set_output(CrossEntropyOutput::MeanWeight, ignores || (weighted && !soft) ? scalar : none);
  context.set_output(CrossEntropyOutput::AccuracyWeight, ignores || logits.shape.size() > 2 ? scalar : none);
}

void infer_loss_gradient(InferContext& context) {
  const TensorType& logits = floating_input(context, LossGradInput::X);
  if (!is_soft(context.input(LossGradInput::Target))) {
    const Shape rows(logits.shape.begin(), logits.shape.end() - 1);
    expect_input(context, LossGradInput::Target, {DataType::Int32, rows}, "one label a row of 'logits'");
  }
  check_loss_attributes(context, LossGradInput::X, logits.shape.back());
  expect_input(context, LossGradInput::dLoss, {master_type(logits.dtype), {}}, "the type of the loss");
  context.set_output(0, logits);
}

// Attributes that the loss hands on to its gradient and to the node that replaces it in expand_loss().
Attributes shared_attributes(const Node& node) {
  return {{"label_smoothing", float_attribute(node, "label_smoothing")},
          {"ignore_index", ints_attribute(node, "ignore_index")}};
}

void grad_loss(GradContext& c) {
  if (!c.needs_gradient(0)) return;
  c.set_input_gradient(
      0, c.add("arbalest.SoftmaxCrossEntropyGrad", "grad_logits",
               {c.output_gradient(0), c.input(0), c.input(LossInput::Target), c.input(LossInput::Weights)}, 1,
               shared_attributes(c.node()))[0]);
}

// The attribute's weights become the operand, and rows lie, as kernels read them.
void expand_loss(ExpandContext& c) {
  const std::vector<double> weights = floats_attribute(c.node(), "class_weights");
  const DataType type = master_type(c.type(c.input(0)).dtype);
  const auto [logits, label] = rows_for_kernels(c);
  const ValueId operand = weights.empty() ? c.input(LossInput::Weights) : c.constant("class_weights", type, weights);
  Attributes attributes = shared_attributes(c.node());
  attributes.set("axis", int64_t{-1});
  const std::vector<ValueId> made =
      c.add("arbalest.SoftmaxCrossEntropy", "", {logits, label, operand}, int(c.node().outputs.size()), attributes);
  for (size_t i = 0; i < made.size(); ++i) c.replace_output(i, made[i]);
}

std::vector<OperandSpec> operands() {
  return {{.name = "logits", .lowered = true},
          {.name = "label"},
          {.name = "class_weights", .arity = OperandSpec::Optional}};
}

}  // namespace

void register_loss_softmax_cross_entropy(OpRegistry& registry) {
  registry.add(
      {.domain = "arbalest",
       .name = "SoftmaxCrossEntropy",
       .doc = "the mean over the valid samples, or all their places, of −log softmax(logits)[label], weighted by the "
              "label's class, or of −Σ label · log softmax(logits) where labels are float rows; the fraction whose "
              "label is the foremost class; and what either is divided by, where that is not the number of samples",
       .inputs = operands(),
       .outputs = {{.name = "loss"},
                   {.name = "accuracy", .arity = OperandSpec::Optional},
                   {.name = "loss_weight", .arity = OperandSpec::Optional},
                   {.name = "accuracy_weight", .arity = OperandSpec::Optional}},
       .attributes = {smoothing_spec(), floats_spec("class_weights", {}, "a weight for each class; none: all are 1"),
                      ignore_spec(), class_axis_spec()},
       .infer = infer_loss,
       .grad = grad_loss,
       .expand = expand_loss,
       .expands =
           [](const InferContext& c) {
             return has_other_rows(c) || !floats_attribute(c.node(), "class_weights").empty();
           },
       .cost =
           [](const Graph& graph, const Node& node) {
             return Cost{4 * double(input_type(graph, node, 0).elements()), operand_bytes(graph, node)};
           },
       .samples = [] { return cross_entropy_samples(false); },
       .metric = MetricSpec{.better = MetricSpec::Better::Lower, .least = 0},
       .compares = Comparison{Comparison::Target::Classes, Comparison::Activation::Softmax},
       .cpu = floating_kernel([](const KernelRequest& r, auto t) { return cross_entropy_cpu(r, t); })});
  std::vector<OperandSpec> inputs = operands();
  inputs.insert(inputs.begin(), {.name = "dloss"});
  registry.add(
      {.domain = "arbalest",
       .name = "SoftmaxCrossEntropyGrad",
       .doc = "(softmax · Σ target − target) · dloss / weight of the valid rows; rows that take no part are 0",
       .inputs = std::move(inputs),
       .outputs = {{.name = "dlogits", .lowered = true}},
       .attributes = {smoothing_spec(), ignore_spec()},
       .internal = true,
       .infer = infer_loss_gradient,
       .cost = elementwise_cost(4),
       .samples = [] { return cross_entropy_samples(true); },
       .cpu = floating_kernel([](const KernelRequest& r, auto t) { return cross_entropy_grad_cpu(r, t); }, 1)});
}

}  // namespace arbalest
