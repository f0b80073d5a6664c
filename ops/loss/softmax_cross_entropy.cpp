// SoftmaxCrossEntropy and its gradient. With smoothing s the target of class k is (1 − s)·[k = label] + s / K, as in
// PyTorch.

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "ops/cpu.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

struct Loss {
  int64_t batch, classes;
  double smoothing;

  explicit Loss(const KernelRequest& request, size_t logits)
      : batch(request.inputs[logits].shape[0]),
        classes(request.inputs[logits].shape[1]),
        smoothing(float_attribute(request.node, "label_smoothing")) {}
};

void check_operands(InferContext& context, size_t logits) {
  const TensorType& type = floating_input(context, logits, {2});
  if (type.shape[1] < 1) context.fail(fmt::format("input 'logits' is {}: there are no classes", to_string(type)));
  expect_input(context, logits + 1, {DataType::Int32, {type.shape[0]}}, "one label a row of 'logits'");
  const double smoothing = float_attribute(context.node(), "label_smoothing");
  if (!(smoothing >= 0 && smoothing <= 1)) {
    context.fail(fmt::format("attribute 'label_smoothing' is {}; expected 0 to 1", smoothing));
  }
}

// The greatest logit and log Σ exp(logit − greatest) of a row.
template <typename T>
std::pair<Wide<T>, Wide<T>> log_sum(const T* row, int64_t classes) {
  using W = Wide<T>;
  W greatest = widen(row[0]);
  for (int64_t c = 1; c < classes; ++c) greatest = std::max(greatest, widen(row[c]));
  W sum = 0;
  for (int64_t c = 0; c < classes; ++c) sum += std::exp(widen(row[c]) - greatest);
  return {greatest, std::log(sum)};
}

template <typename T>
double sample_loss(const Loss& loss, const T* row, int32_t label) {
  if (label < 0 || label >= loss.classes) return std::numeric_limits<double>::quiet_NaN();
  const auto [greatest, log_of_sum] = log_sum(row, loss.classes);
  double value = (1 - loss.smoothing) * (double(log_of_sum) - (double(row[label]) - double(greatest)));
  if (loss.smoothing > 0) {
    double mean = 0;
    for (int64_t c = 0; c < loss.classes; ++c) mean += double(row[c]) - double(greatest);
    value += loss.smoothing * (double(log_of_sum) - mean / double(loss.classes));
  }
  return value;
}

// Whether the label's logit is the greatest of the row, the first of equals: what Accuracy counts for the top class.
template <typename T>
bool foremost(const T* row, int64_t classes, int32_t label) {
  if (label < 0 || label >= classes || std::isnan(widen(row[label]))) return false;
  const Wide<T> own = widen(row[label]);
  for (int64_t c = 0; c < classes; ++c) {
    const bool behind = c < label ? widen(row[c]) < own : widen(row[c]) <= own;
    if (!behind) return false;
  }
  return true;
}

template <typename T>
Wide<T> share_of_foremost(const Loss& loss, const T* logits, const int32_t* label, int64_t valid) {
  int64_t right = 0;
  for (int64_t n = 0; n < valid; ++n) right += foremost(logits + n * loss.classes, loss.classes, label[n]);
  return valid ? Wide<T>(double(right) / double(valid)) : Wide<T>(0);
}

std::unique_ptr<Kernel> loss_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  return make_kernel(
      [loss = Loss(request, 0), counts = request.has_output(1)](const KernelContext& context) {
        const T* logits = input<T>(context, 0);
        const int32_t* label = input<int32_t>(context, 1);
        double* losses = static_cast<double*>(context.workspace);
        const int64_t valid = valid_samples(context, loss.batch);
        parallel_for(valid, 16 * loss.classes, [=, &loss](int64_t begin, int64_t end) {
          for (int64_t n = begin; n < end; ++n) losses[n] = sample_loss(loss, logits + n * loss.classes, label[n]);
        });
        double sum = 0;
        for (int64_t n = 0; n < valid; ++n) sum += losses[n];
        *output<Wide<T>>(context, 0) = valid ? Wide<T>(sum / double(valid)) : Wide<T>(0);
        if (counts) *output<Wide<T>>(context, 1) = share_of_foremost(loss, logits, label, valid);
      },
      request.inputs[0].shape[0] * int64_t(sizeof(double)));
}

// d_row = (softmax(row) − target) · scale
template <typename T>
void sample_gradient(const Loss& loss, const T* row, int32_t label, Wide<T> scale, T* d_row) {
  using W = Wide<T>;
  if (label < 0 || label >= loss.classes) {
    std::fill(d_row, d_row + loss.classes, narrow<T>(std::numeric_limits<W>::quiet_NaN()));
    return;
  }
  const auto [greatest, log_of_sum] = log_sum(row, loss.classes);
  const W others = W(loss.smoothing / double(loss.classes)), own = W(1 - loss.smoothing) + others;
  for (int64_t c = 0; c < loss.classes; ++c) {
    const W softmax = std::exp(widen(row[c]) - greatest - log_of_sum);
    d_row[c] = narrow<T>((softmax - (c == label ? own : others)) * scale);
  }
}

std::unique_ptr<Kernel> grad_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  return make_kernel([loss = Loss(request, 1)](const KernelContext& context) {
    const T* logits = input<T>(context, 1);
    const int32_t* label = input<int32_t>(context, 2);
    T* d_logits = output<T>(context, 0);
    const int64_t valid = valid_samples(context, loss.batch);
    const Wide<T> scale = valid ? *input<Wide<T>>(context, 0) / Wide<T>(valid) : Wide<T>(0);
    parallel_for(valid, 16 * loss.classes, [=, &loss](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        sample_gradient(loss, logits + n * loss.classes, label[n], scale, d_logits + n * loss.classes);
      }
    });
    std::fill(d_logits + valid * loss.classes, d_logits + loss.batch * loss.classes, T(0));
  });
}

struct Case {
  const char* name;
  int64_t batch, classes;
  int32_t valid;
  double smoothing;
  double range = 3;
};
constexpr Case kCases[] = {
    {"digits", 64, 10, 64, 0},       {"one sample", 1, 7, 1, 0},        {"one class", 3, 1, 3, 0},
    {"smoothed", 9, 5, 9, 0.1},      {"part valid", 16, 10, 5, 0},      {"nothing valid", 4, 3, 0, 0},
    {"thousand", 40, 1000, 33, 0.1}, {"large logits", 8, 10, 8, 0, 80},
};

std::vector<Sample> samples(bool gradient) {
  std::vector<Sample> samples;
  for (const Case& c : kCases) {
    std::vector<Sample::Input> inputs = {{{DataType::Float32, {c.batch, c.classes}}, -c.range, c.range},
                                         {{DataType::Int32, {c.batch}}, 0, double(c.classes - 1), false}};
    if (gradient) inputs.insert(inputs.begin(), {{DataType::Float32, {}}, 0.5, 2});
    samples.push_back({.name = c.name,
                       .inputs = inputs,
                       .attributes = {{"label_smoothing", c.smoothing}},
                       .tolerance = 1e-5,
                       .scalars = {.valid = c.valid}});
    if (gradient || c.batch * c.classes > 1000) continue;
    Sample with_accuracy = samples.back();
    with_accuracy.name += ", accuracy";
    with_accuracy.inputs[0].distinct = true;
    with_accuracy.output_count = 2;
    samples.push_back(std::move(with_accuracy));
  }
  return samples;
}

AttributeSpec smoothing_spec() {
  return float_spec("label_smoothing", 0.0, "the share of the target spread over all classes");
}

}  // namespace

void register_loss_softmax_cross_entropy(OpRegistry& registry) {
  registry.add({.domain = "arbalest",
                .name = "SoftmaxCrossEntropy",
                .doc =
                    "the mean over the valid samples of −log softmax(logits)[label], and the fraction whose label is "
                    "the foremost class",
                .inputs = {{.name = "logits", .lowered = true}, {.name = "label"}},
                .outputs = {{.name = "loss"}, {.name = "accuracy", .arity = OperandSpec::Optional}},
                .attributes = {smoothing_spec()},
                .infer =
                    [](InferContext& c) {
                      check_operands(c, 0);
                      c.set_output(0, {master_type(c.input(0).dtype), {}});
                      c.set_output(1, {master_type(c.input(0).dtype), {}});
                    },
                .grad =
                    [](GradContext& c) {
                      if (!c.needs_gradient(0)) return;
                      Attributes attributes{{"label_smoothing", float_attribute(c.node(), "label_smoothing")}};
                      c.set_input_gradient(0, c.add("arbalest.SoftmaxCrossEntropyGrad", "grad_logits",
                                                    {c.output_gradient(0), c.input(0), c.input(1)}, 1, attributes)[0]);
                    },
                .cost =
                    [](const Graph& graph, const Node& node) {
                      return Cost{4 * double(input_type(graph, node, 0).elements()), operand_bytes(graph, node)};
                    },
                .samples = [] { return samples(false); },
                .metric = MetricSpec{.better = MetricSpec::Better::Lower, .least = 0},
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return loss_cpu(r, t); })});
  registry.add({.domain = "arbalest",
                .name = "SoftmaxCrossEntropyGrad",
                .doc = "(softmax − target) · dloss / valid; rows that are not valid are 0",
                .inputs = {{.name = "dloss"}, {.name = "logits", .lowered = true}, {.name = "label"}},
                .outputs = {{.name = "dlogits", .lowered = true}},
                .attributes = {smoothing_spec()},
                .internal = true,
                .infer =
                    [](InferContext& c) {
                      check_operands(c, 1);
                      expect_input(c, 0, {master_type(c.input(1).dtype), {}}, "the type of the loss");
                      c.set_output(0, c.input(1));
                    },
                .cost = elementwise_cost(4),
                .samples = [] { return samples(true); },
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return grad_cpu(r, t); }, 1)});
}

}  // namespace arbalest
