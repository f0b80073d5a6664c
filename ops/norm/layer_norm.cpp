// SPDX-License-Identifier: Apache-2.0

// LayerNormalization and RMSNormalization over the last axes, arbalest.Normalize, the same without scale and bias, and
// their gradient. arbalest.NormalizeSamples is the norm of whole samples.

#include <fmt/format.h>

#include <cmath>

#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/norm/layer_norm.h"

namespace arbalest {
namespace {

// The same as arbalest.Normalize from axis 1 on. Whole samples are normalised, in whatever layout they are.
constexpr const char *kSamples = "arbalest.NormalizeSamples", *kSamplesGrad = "arbalest.NormalizeSamplesGrad";

// X as (rows, length): each row is normalised.
struct RowExtents {
  int64_t rows = 1, length = 1;

  RowExtents(const Node& node, const TensorType& x) {
    const size_t first = normalized_axis(int_attribute(node, "axis"), x.shape.size());
    for (size_t i = 0; i < x.shape.size(); ++i) (i < first ? rows : length) *= x.shape[i];
  }
};

// First of the normalised axes; fails if `axis` is none of X's.
size_t first_axis(const InferContext& context, const TensorType& x) {
  const int64_t rank = int64_t(x.shape.size()), axis = int_attribute(context.node(), "axis");
  if (axis < -rank || axis >= rank) {
    context.fail(fmt::format("attribute 'axis' is {}; expected {} to {} for input 'X', {}", axis, -rank, rank - 1,
                             to_string(x)));
  }
  return normalized_axis(axis, size_t(rank));
}

void infer_norm(InferContext& context) {
  using In = LayerNormInput;
  const TensorType& x = floating_input(context, In::X);
  const size_t first = first_axis(context, x);
  check_least_epsilon(context);
  const TensorType normalised{master_type(x.dtype), {x.shape.begin() + int64_t(first), x.shape.end()}};
  for (const size_t i : {size_t{1}, size_t{2}}) {
    if (context.has_input(i)) expect_input(context, i, normalised, "the axes of 'X' that are normalised");
  }
  if (context.has_input(In::Bias) && !context.has_input(In::Scale))
    context.fail("there is an input 'B' without 'Scale'");
  Shape statistics = x.shape;
  std::fill(statistics.begin() + int64_t(first), statistics.end(), 1);
  context.set_output(LayerNormOutput::Y, x);
  for (const size_t i : {size_t{1}, size_t{2}}) context.set_output(i, {master_type(x.dtype), statistics});
}

void grad_norm(GradContext& c) {
  using In = LayerNormInput;
  for (const size_t i : {size_t{1}, size_t{2}}) {
    if (i < c.node().outputs.size() && c.output_gradient(i) != kNone) {
      fail(c.node(), "a loss depends on output 'Mean' or 'InvStdDev', whose gradients are not defined here");
    }
  }
  if (c.output_gradient(LayerNormOutput::Y) == kNone) return;
  const bool has_bias = c.input(In::Bias) != kNone, scale = c.input(In::Scale) != kNone && c.needs_gradient(In::Scale);
  const bool bias = has_bias && c.needs_gradient(In::Bias);
  if (!scale && !bias && !c.needs_gradient(In::X)) return;
  std::vector<ValueId> inputs = {c.output_gradient(LayerNormOutput::Y), c.input(In::X)};
  if (c.input(In::Scale) != kNone) inputs.push_back(c.input(In::Scale));
  const Node node = c.node();
  const bool samples = node.op->name == "NormalizeSamples";
  Attributes attributes = {{"axis", int_attribute(node, "axis")}, {"epsilon", float_attribute(node, "epsilon")}};
  if (!is_centred(node)) attributes.set("centred", int64_t{0});
  const auto gradients = c.add(samples ? kSamplesGrad : "arbalest.NormalizeGrad", "grad", inputs,
                               bias    ? 3
                               : scale ? 2
                                       : 1,
                               std::move(attributes));
  if (c.needs_gradient(In::X)) c.set_input_gradient(In::X, gradients[0]);
  if (scale) c.set_input_gradient(In::Scale, gradients[1]);
  if (bias) c.set_input_gradient(In::Bias, gradients[2]);
}

void infer_layer_norm_grad(InferContext& context) {
  using In = NormalizeGradInput;
  const TensorType& x = floating_input(context, In::X);
  expect_input(context, In::dY, x, "the type of 'X'");
  const size_t first = first_axis(context, x);
  const TensorType normalised{master_type(x.dtype), {x.shape.begin() + int64_t(first), x.shape.end()}};
  if (context.has_input(In::Scale)) {
    expect_input(context, In::Scale, normalised, "the axes of 'X' that are normalised");
  }
  if (context.has_input(In::Summand)) expect_input(context, In::Summand, x, "the type of 'X'");
  context.set_output(NormalizeGradOutput::dX, x);
  for (const size_t i : {size_t{1}, size_t{2}}) context.set_output(i, normalised);
}

template <typename W>
struct Statistics {
  W mean, inv_std;
};

// How a row is normalised.
struct RowNorm {
  int64_t length;
  double epsilon;
  bool centred;

  RowNorm(const Node& node, const RowExtents& extents)
      : length(extents.length), epsilon(float_attribute(node, "epsilon")), centred(is_centred(node)) {}
};

// The mean, 0 if it stays, and 1 over the deviation from it.
template <typename T>
Statistics<Wide<T>> statistics_of(const T* x, const RowNorm& norm) {
  using W = Wide<T>;
  const auto [length, epsilon, centred] = norm;
  if (length == 0) return {0, 0};
  const auto element = [x](int64_t i) { return double(widen(x[i])); };
  const W mean = centred ? W(sum_in_lanes<double>(length, element) / double(length)) : W(0);
  const W squares = sum_in_lanes<W>(length, [x, mean](int64_t i) {
    const W difference = widen(x[i]) - mean;
    return difference * difference;
  });
  return {mean, W(1) / std::sqrt(squares / W(length) + W(epsilon))};
}

std::unique_ptr<Kernel> norm_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  using W = Wide<T>;
  using In = LayerNormInput;
  using Out = LayerNormOutput;
  const RowExtents extents(request.node, request.inputs[In::X]);
  const RowNorm norm(request.node, extents);
  const bool has_scale = request.has_input(In::Scale), has_bias = request.has_input(In::Bias);
  const bool has_mean = request.has_output(Out::Mean), has_inv_std = request.has_output(Out::InvStd);
  return make_kernel([=](const KernelContext& context) {
    const W *scale = has_scale ? input<W>(context, In::Scale) : nullptr,
            *bias = has_bias ? input<W>(context, In::Bias) : nullptr;
    const T* x = input<T>(context, In::X);
    T* y = output<T>(context, Out::Y);
    parallel_for(extents.rows, 8 * extents.length, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* from = x + row * extents.length;
        T* to = y + row * extents.length;
        const auto [mean, inv_std] = statistics_of(from, norm);
        for (int64_t i = 0; i < extents.length; ++i) {
          W value = (widen(from[i]) - mean) * inv_std;
          if (scale) value *= scale[i];
          if (bias) value += bias[i];
          to[i] = narrow<T>(value);
        }
        if (has_mean) output<W>(context, Out::Mean)[row] = mean;
        if (has_inv_std) output<W>(context, Out::InvStd)[row] = inv_std;
      }
    });
  });
}

// Operands of the gradient; scale and the summand may be null.
template <typename T>
struct RowOperands {
  const T *dy, *x;
  const Wide<T>* scale;
  const T* more;
};

// Writes a row of dX, and adds dY · normalised X and dY to sums over rows, which may be null.
template <typename T>
void row_gradient(const RowOperands<T>& row, const RowNorm& norm, T* dx, Wide<T>* products, Wide<T>* sums) {
  using W = Wide<T>;
  const int64_t length = norm.length;
  const auto [dy, x, scale, more] = row;
  const auto [mean, inv_std] = statistics_of(x, norm);
  const auto normal = [x = x, mean = mean, inv_std = inv_std](int64_t i) { return (widen(x[i]) - mean) * inv_std; };
  const auto finish = [&](const auto& gradient) {
    const W sum = norm.centred ? sum_in_lanes<W>(length, gradient) / W(length) : W(0);
    const W product = sum_in_lanes<W>(length, [&](int64_t i) { return gradient(i) * normal(i); }) / W(length);
    const auto own = [&](int64_t i) { return inv_std * (gradient(i) - sum - normal(i) * product); };
    if (more) {
      ARBALEST_INDEPENDENT
      for (int64_t i = 0; i < length; ++i) dx[i] = narrow<T>(own(i) + widen(more[i]));
    } else {
      ARBALEST_INDEPENDENT
      for (int64_t i = 0; i < length; ++i) dx[i] = narrow<T>(own(i));
    }
  };
  if (scale) {
    finish([dy = dy, scale = scale](int64_t i) { return widen(dy[i]) * scale[i]; });
  } else {
    finish([dy = dy](int64_t i) { return widen(dy[i]); });
  }
  if (!products) return;
  ARBALEST_INDEPENDENT
  for (int64_t i = 0; i < length; ++i) products[i] += widen(dy[i]) * normal(i);
  ARBALEST_INDEPENDENT
  for (int64_t i = 0; i < length; ++i) sums[i] += widen(dy[i]);
}

// to[i] = Σ over parts of partial[part, i] for 0 ≤ i < length; `stride`: from part to part.
template <typename W>
void add_parts(int64_t parts, const W* partial, int64_t stride, int64_t length, W* to) {
  for (int64_t i = 0; i < length; ++i) {
    double sum = 0;
    for (int64_t part = 0; part < parts; ++part) sum += double(partial[part * stride + i]);
    to[i] = W(sum);
  }
}

std::unique_ptr<Kernel> layer_norm_grad_cpu(const KernelRequest& request, auto element) {
  using In = NormalizeGradInput;
  using Out = NormalizeGradOutput;
  using T = decltype(element);
  using W = Wide<T>;
  const RowExtents extents(request.node, request.inputs[In::X]);
  const RowNorm norm(request.node, extents);
  const bool has_scale = request.has_input(In::Scale), wants_scale = request.has_output(Out::dScale),
             wants_bias = request.has_output(Out::dBias);
  const bool has_more = request.has_input(In::Summand);
  const bool wants_parameters = wants_scale || wants_bias;
  // Rows of which one thread sums up gradients of parameters, so that results do not depend on the number of threads.
  constexpr int64_t kRowsOfPart = 64;
  const int64_t each = wants_parameters ? kRowsOfPart : 1, parts = (extents.rows + each - 1) / each;
  const int64_t length = extents.length, stride = 2 * length;  // of a part's sums: of products, and of dY
  const auto run = [=](const KernelContext& context) {
    const T *dy = input<T>(context, In::dY), *x = input<T>(context, In::X),
            *more = has_more ? input<T>(context, In::Summand) : nullptr;
    const W* scale = has_scale ? input<W>(context, In::Scale) : nullptr;
    T* dx = output<T>(context, Out::dX);
    auto* partial = static_cast<W*>(context.workspace);
    parallel_for(parts, 16 * each * length, [=](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        W* products = wants_parameters ? partial + part * stride : nullptr;
        W* sums = wants_parameters ? products + length : nullptr;
        if (wants_parameters) std::fill(products, products + stride, W(0));
        const int64_t last = std::min(extents.rows, (part + 1) * each);
        for (int64_t row = part * each; row < last; ++row) {
          const int64_t at = row * length;
          row_gradient<T>({dy + at, x + at, scale, more ? more + at : nullptr}, norm, dx + at, products, sums);
        }
      }
    });
    if (wants_scale) add_parts(parts, partial, stride, length, output<W>(context, Out::dScale));
    if (wants_bias) add_parts(parts, partial + length, stride, length, output<W>(context, Out::dBias));
  };
  return make_kernel(run, wants_parameters ? parts * stride * int64_t(sizeof(W)) : 0);
}

struct LayerNormCase {
  const char* name;
  Shape shape;
  int64_t axis;
  double low = -1, high = 3;
};
const std::vector<LayerNormCase>& layer_norm_cases() {
  static const std::vector<LayerNormCase> cases = {
      {"rows", {7, 5}, -1},
      {"tokens", {2, 9, 48}, -1},
      {"last two axes", {3, 4, 5, 6}, 2},
      {"everything", {3, 5}, 0},
      {"long rows", {3, 2500}, 1},
      {"many rows", {700, 33}, 1},
      {"many short rows", {13000, 40}, 1},
      {"rows of 256", {37, 256}, 1},  // a warp holds these, more and more of them
      {"rows of 384", {21, 384}, 1},
      {"rows of 520", {9, 520}, 1},
      {"rows of 776", {12, 776}, 1},
      {"large mean", {6, 64}, 1, 999, 1001}};
  return cases;
}

Shape normalised_shape(const LayerNormCase& c) {
  return {c.axis < 0 ? c.shape.end() + c.axis : c.shape.begin() + c.axis, c.shape.end()};
}

// One rounding of x at 1000 is 6e-5 of a deviation.
double tolerance_of(const LayerNormCase& c) {
  return c.low > 100 ? 2e-3 : 2e-5;
}

Sample layer_norm_sample(const LayerNormCase& c, const std::string& name, std::vector<Sample::Input> inputs,
                         int outputs) {
  return {.name = c.name + name,
          .inputs = std::move(inputs),
          .output_count = outputs,
          .attributes = {{"axis", c.axis}, {"epsilon", 1e-3}},
          .tolerance = tolerance_of(c)};
}

std::vector<Sample> norm_samples() {
  std::vector<Sample> samples;
  for (const LayerNormCase& c : layer_norm_cases()) {
    const Sample::Input x{{DataType::Float32, c.shape}, c.low, c.high};
    const Sample::Input parameter{{DataType::Float32, normalised_shape(c)}, 0.5, 2};
    samples.push_back(layer_norm_sample(c, "", {x, parameter, parameter}, 1));
    samples.push_back(layer_norm_sample(c, ", statistics", {x, parameter, parameter}, 3));
    samples.push_back(layer_norm_sample(c, ", without B", {x, parameter}, 1));
  }
  return samples;
}

std::vector<Sample> root_mean_square_samples() {
  std::vector<Sample> samples;
  for (const LayerNormCase& c : layer_norm_cases()) {
    const Sample::Input x{{DataType::Float32, c.shape}, c.low, c.high};
    samples.push_back(layer_norm_sample(c, "", {x, {{DataType::Float32, normalised_shape(c)}, 0.5, 2}}, 1));
    samples.push_back(layer_norm_sample(c, ", without scale", {x}, 1));
  }
  return samples;
}

std::vector<Sample> normalize_samples() {
  std::vector<Sample> samples;
  for (const LayerNormCase& c : layer_norm_cases()) {
    samples.push_back(layer_norm_sample(c, "", {{{DataType::Float32, c.shape}, c.low, c.high}}, 1));
  }
  return samples;
}

std::vector<Sample> layer_norm_grad_samples() {
  std::vector<Sample> samples;
  for (const LayerNormCase& c : layer_norm_cases()) {
    const Sample::Input dy{{DataType::Float32, c.shape}}, x{{DataType::Float32, c.shape}, c.low, c.high};
    const Sample::Input parameter{{DataType::Float32, normalised_shape(c)}, 0.5, 2};
    samples.push_back(layer_norm_sample(c, "", {dy, x, parameter}, 3));
    samples.push_back(layer_norm_sample(c, ", without B", {dy, x, parameter}, 2));
    samples.push_back(layer_norm_sample(c, ", X alone", {dy, x}, 1));
    samples.push_back(layer_norm_sample(c, ", summand", {dy, x, parameter, dy}, 3));
    for (const int outputs : {1, 2}) {
      samples.push_back(layer_norm_sample(c, ", not centred", {dy, x, parameter, dy}, outputs));
      samples.back().name += outputs == 1 ? ", X alone" : "";
      samples.back().attributes.set("centred", int64_t{0});
    }
  }
  return samples;
}

// Images in both layouts, long and short; samples that are rows.
std::vector<TensorType> whole_samples() {
  const DataType type = DataType::Float32;
  return {{type, {3, 4, 5, 7}},
          TensorType{type, {3, 4, 5, 7}}.in(Layout::ChannelsLast),
          TensorType{type, {2, 24, 40, 41}}.in(Layout::ChannelsLast),
          {type, {5, 16400}},
          {type, {2, 1}}};
}

std::vector<Sample> whole_sample_cases(bool gradient) {
  std::vector<Sample> samples;
  for (const TensorType& type : whole_samples()) {
    Sample sample{.name = to_string(type) + (type.layout == Layout::ChannelsLast ? " channels-last" : ""),
                  .inputs = {{type, 2, 5}},
                  .tolerance = 1e-4};
    if (gradient) sample.inputs.insert(sample.inputs.begin(), {type});
    samples.push_back(std::move(sample));
  }
  return samples;
}

std::vector<AttributeSpec> whole_sample_specs() {
  return {int_spec("axis", 1, "1: whole samples"), float_spec("epsilon", 1e-5, "added to the variance")};
}

std::vector<AttributeSpec> layer_norm_specs() {
  return {int_spec("axis", -1, "the first of the axes that are normalised, to the last; negative counts from the end"),
          float_spec("epsilon", 1e-5, "added to the variance")};
}

}  // namespace

void register_norm_layer_norm(OpRegistry& registry) {
  Op op{.domain = "",
        .name = "LayerNormalization",
        .doc = "(X − mean) / deviation over the last axes, times Scale, plus B",
        .inputs = {lowered("X"), plain("Scale").as(OperandSpec::Scale),
                   plain("B", OperandSpec::Optional).as(OperandSpec::Bias)},
        .outputs = {{.name = "Y", .lowered = true},
                    {.name = "Mean", .arity = OperandSpec::Optional},
                    {.name = "InvStdDev", .arity = OperandSpec::Optional}},
        .attributes = layer_norm_specs(),
        .infer = infer_norm,
        .grad = grad_norm,
        .cost = elementwise_cost(8),
        .samples = norm_samples,
        .cpu = floating_kernel([](const KernelRequest& r, auto t) { return norm_cpu(r, t); }),
        .normalises = true};
  op.attributes.push_back(int_spec("stash_type", 1, "not read: statistics are float or better"));
  registry.add(op);
  Op square = op;
  square.name = "RMSNormalization";
  square.doc = "X over the root of the mean square over the last axes, times scale, which is 1 if it is left out";
  square.inputs = {lowered("X"), plain("scale", OperandSpec::Optional).as(OperandSpec::Scale)};
  square.outputs.resize(1);
  square.attributes[1].doc = "added to the mean square";
  square.cost = elementwise_cost(6);
  square.samples = root_mean_square_samples;
  registry.add(std::move(square));
  op.domain = "arbalest";
  op.name = "Normalize";
  op.doc = "(X − mean) / deviation over the last axes";
  op.inputs.resize(1);
  op.outputs.resize(1);
  op.attributes = layer_norm_specs();
  op.internal = true;
  op.cost = elementwise_cost(6);
  op.samples = normalize_samples;
  registry.add(op);
  op.name = "NormalizeSamples";
  op.doc = "(X − mean) / deviation of each sample";
  op.attributes = whole_sample_specs();
  op.layout = std::nullopt;
  op.samples = [] { return whole_sample_cases(false); };
  registry.add(op);
  Op grad{.domain = "arbalest",
          .name = "NormalizeGrad",
          .doc =
              "the gradients of LayerNormalization or Normalize; of Scale and B where they are asked for. The summand "
              "is added to dX",
          .inputs = {{.name = "dY", .lowered = true},
                     {.name = "X", .lowered = true},
                     {.name = "Scale", .arity = OperandSpec::Optional},
                     {.name = "summand", .arity = OperandSpec::Optional, .lowered = true}},
          .outputs = {{.name = "dX", .lowered = true},
                      {.name = "dScale", .arity = OperandSpec::Optional},
                      {.name = "dB", .arity = OperandSpec::Optional}},
          .attributes = layer_norm_specs(),
          .internal = true,
          .infer = infer_layer_norm_grad,
          .cost = elementwise_cost(14),
          .samples = layer_norm_grad_samples,
          .cpu = floating_kernel([](const KernelRequest& r, auto t) { return layer_norm_grad_cpu(r, t); })};
  grad.attributes.push_back(int_spec("centred", 1, "0: the gradients of RMSNormalization"));
  registry.add(grad);
  grad.name = "NormalizeSamplesGrad";
  grad.doc = "the gradient of NormalizeSamples";
  grad.inputs.resize(2);
  grad.outputs.resize(1);
  grad.attributes = whole_sample_specs();
  grad.layout = std::nullopt;
  grad.samples = [] { return whole_sample_cases(true); };
  registry.add(std::move(grad));
}

}  // namespace arbalest
