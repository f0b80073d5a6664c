// SPDX-License-Identifier: Apache-2.0

// Batch normalisation: ONNX's operator expands into training or inference form; only those have kernels. The layer
// arbalest.BatchNorm is in layers.cpp. Momentum is PyTorch's (the weight of the batch) everywhere but in ONNX's
// operator.

#include <fmt/format.h>

#include "ops/definition.h"
#include "ops/fused/decomposed.h"
#include "ops/norm/batch_norm_cpu.h"
#include "ops/norm/batch_norm_samples.h"
#include "ops/norm/batch_norms.h"
#include "ops/norm/statistics_chunks.h"

namespace arbalest {
namespace {

// X, and (C) parameters at inputs `first` to `last`.
const TensorType& check_norm_operands(InferContext& context, size_t x, size_t first, size_t last) {
  const TensorType& type = floating_input(context, x, {2, 3, 4, 5});
  if (rows_of(type).rows == 0) context.fail(fmt::format("input 'X' is {}: nothing to normalise", to_string(type)));
  const TensorType channels{master_type(type.dtype), {type.shape[1]}};
  for (size_t i = first; i <= last; ++i) {
    expect_input(context, i, channels, fmt::format("since input 'X' has {} channels", type.shape[1]));
  }
  return type;
}

void check_norm_momentum(InferContext& context) {
  const double momentum = float_attribute(context.node(), "momentum");
  if (!(momentum >= 0 && momentum <= 1)) {
    context.fail(fmt::format("attribute 'momentum' is {}; expected 0 to 1", momentum));
  }
}

void infer_onnx_norm(InferContext& context) {
  const TensorType x = check_norm_operands(context, 0, 1, 4);
  positive_float(context.node(), "epsilon");
  check_norm_momentum(context);
  flag_attribute(context.node(), "correction");
  if (int_attribute(context.node(), "spatial") != 1) {
    context.fail("attribute 'spatial' is not 1; expected statistics of a channel, as opset 9 and later have them");
  }
  const bool training = flag_attribute(context.node(), "training_mode");
  context.set_output(0, x);
  for (size_t i = 1; i < context.output_count(); ++i) {
    if (!training) context.fail("outputs 'running_mean' and 'running_var' exist only where 'training_mode' is 1");
    context.set_output(i, {master_type(x.dtype), {x.shape[1]}});
  }
}

void expand_onnx_norm(ExpandContext& context) {
  const Node& node = context.node();
  const std::vector<ValueId> inputs(node.inputs.begin(), node.inputs.begin() + 5);
  Attributes attributes{{"epsilon", float_attribute(node, "epsilon")}};
  if (!flag_attribute(node, "training_mode")) {
    context.replace_output(0, context.add("arbalest.BatchNormInference", "", inputs, 1, attributes)[0]);
    return;
  }
  attributes.set("momentum", 1 - float_attribute(node, "momentum"));
  attributes.set("correction", int_attribute(node, "correction"));
  const auto outputs = context.add("arbalest.BatchNormTraining", "", inputs, 5, attributes);
  for (size_t i = 0; i < node.outputs.size(); ++i) context.replace_output(i, outputs[i]);
  context.carry(inputs[BatchNormInput::Mean], outputs[BatchNormOutput::NewMean]);
  context.carry(inputs[BatchNormInput::Variance], outputs[BatchNormOutput::NewVariance]);
}

// Puts the operator into inference mode for export, if it has not been expanded.
void onnx_for_inference(Graph& graph, NodeId id) {
  Node& node = graph.nodes[id];
  node.attributes.set("training_mode", int64_t{0});
  node.attributes.erase("correction");
  node.attributes.erase("spatial");
  node.outputs.resize(1);
}

void check_residual(InferContext& context, const TensorType& x) {
  const size_t residual = BatchNormInput::Residual;
  if (context.has_input(residual)) expect_input(context, residual, x, "the type of 'X'");
}

// Checks the partials that a convolution leaves, if there are any: see ops/norm/statistics_chunks.h.
void check_norm_partials(InferContext& context, size_t index, const TensorType& x) {
  if (!context.has_input(index)) return;
  if (x.shape.size() != 4) context.fail("input 'partials' is for images (N,C,H,W)");
  const PixelChunks chunks = pixel_chunks(x.shape, int_attribute(context.node(), "chunk_pixels"));
  expect_input(context, index, {master_type(x.dtype), {chunks.chunks, 2 * x.shape[1]}},
               "two numbers a chunk and channel");
}

void infer_norm_training(InferContext& context) {
  const TensorType x = check_norm_operands(context, 0, 1, 4);
  positive_float(context.node(), "epsilon");
  check_norm_momentum(context);
  flag_attribute(context.node(), "correction");
  check_residual(context, x);
  check_norm_partials(context, BatchNormInput::Partials, x);
  context.set_output(0, x);
  for (size_t i = 1; i < 5; ++i) context.set_output(i, {master_type(x.dtype), {x.shape[1]}});
}

void infer_norm_statistics(InferContext& context) {
  using In = BatchNormStatisticsInput;
  const TensorType x = check_norm_operands(context, In::X, In::Mean, In::Variance);
  positive_float(context.node(), "epsilon");
  check_norm_momentum(context);
  flag_attribute(context.node(), "correction");
  check_norm_partials(context, In::Partials, x);
  for (size_t i = 0; i < 4; ++i) context.set_output(i, {master_type(x.dtype), {x.shape[1]}});
}

// The outputs of training but Y.
void decompose_norm_statistics(ExpandContext& c) {
  using In = BatchNormStatisticsInput;
  const TensorType channels = c.type(c.input(In::Mean));
  const auto all = [&](const char* label, double number) {
    return c.constant(label, channels.dtype, std::vector<double>(size_t(channels.elements()), number));
  };
  const std::vector<ValueId> inputs = {c.input(In::X),        all("scale", 1), all("bias", 0),       c.input(In::Mean),
                                       c.input(In::Variance), kNone,           c.input(In::Partials)};
  const std::vector<ValueId> made = c.add("arbalest.BatchNormTraining", "", inputs, 5, c.node().attributes);
  for (size_t i = 1; i < made.size(); ++i) c.replace_output(i - 1, made[i]);
}

void grad_norm_training(GradContext& c) {
  using In = BatchNormInput;
  using Out = BatchNormOutput;
  const ValueId added = c.input(In::Residual);
  const bool residual = added != kNone && c.needs_gradient(In::Residual);
  const int64_t relu = int_attribute(c.node(), "relu");
  const Attributes attributes{{"relu", relu}, {"residual", int64_t{residual}}};
  std::vector<ValueId> inputs = {c.output_gradient(0), c.input(In::X),           kNone,
                                 c.input(In::Scale),   c.output(Out::SavedMean), c.output(Out::SavedInvStd)};
  // Without a residual what Relu has cut off follows from X: one tensor less to read.
  if (relu != 0 && added == kNone) inputs.push_back(c.input(In::Bias));
  if (relu != 0 && added != kNone) inputs[BatchNormGradInput::Y] = c.output(Out::Y);
  const auto gradients = c.add("arbalest.BatchNormGrad", "grad", inputs, residual ? 4 : 3, attributes);
  for (const size_t i : {In::X, In::Scale, In::Bias}) {
    if (c.needs_gradient(i)) c.set_input_gradient(i, gradients[i]);
  }
  if (residual) c.set_input_gradient(In::Residual, gradients[BatchNormGradOutput::Residual]);
}

Repetition norm_again(const Graph& graph, const Node& node) {
  const ValueId mean = node.outputs[BatchNormOutput::SavedMean], inv_std = node.outputs[BatchNormOutput::SavedInvStd];
  if (mean == kNone || inv_std == kNone) return {};
  Repetition again{
      &graph.op("arbalest.BatchNormAgain"),
      {node.inputs[0], node.inputs[BatchNormInput::Scale], node.inputs[BatchNormInput::Bias], mean, inv_std},
      {{"relu", int_attribute(node, "relu")}},
      {node.outputs[0]}};
  const size_t residual = BatchNormInput::Residual;
  if (node.inputs.size() > residual && node.inputs[residual] != kNone) again.inputs.push_back(node.inputs[residual]);
  return again;
}

// Inference form of BatchNormTraining: the same inputs, running statistics instead of the batch's, one output.
void training_for_inference(Graph& graph, NodeId id) {
  Node& node = graph.nodes[id];
  Attributes attributes{{"epsilon", float_attribute(node, "epsilon")}, {"relu", int_attribute(node, "relu")}};
  node.op = &graph.op("arbalest.BatchNormInference");
  node.attributes = std::move(attributes);
  node.inputs.resize(std::min(node.inputs.size(), BatchNormInput::Residual + 1));  // partials are the batch's
  node.outputs.resize(1);
}

void infer_training_grad(InferContext& context) {
  using In = BatchNormGradInput;
  const TensorType x = check_norm_operands(context, In::X, In::Scale, In::SavedInvStd);
  const bool by_y = context.has_input(In::Y), by_bias = context.has_input(In::Bias);
  for (const size_t i : {In::dY, In::Y, In::Second}) {
    if (context.has_input(i)) expect_input(context, i, x, "the type of 'X'");
  }
  if (by_bias) expect_input(context, In::Bias, {master_type(x.dtype), {x.shape[1]}}, "as 'scale'");
  check_norm_partials(context, In::Partials, x);
  const bool relu = flag_attribute(context.node(), "relu");
  if (by_y + by_bias != int(relu)) {
    context.fail(fmt::format("attribute 'relu' is {}; expected {} of the inputs 'Y' and 'bias'", int(relu),
                             relu ? "one" : "none"));
  }
  const bool residual = flag_attribute(context.node(), "residual");
  if (residual && by_bias) context.fail("with a residual what Relu has cut off does not follow from 'X'");
  if (residual != (context.output_count() > BatchNormGradOutput::Residual)) {
    context.fail(fmt::format("attribute 'residual' is {} with {} outputs", int(residual), context.output_count()));
  }
  context.set_output(0, x);
  for (size_t i = 1; i < 3; ++i) context.set_output(i, {master_type(x.dtype), {x.shape[1]}});
  if (context.has_input(In::Partials) && (by_y || residual || context.has_input(In::Second))) {
    context.fail("with 'partials' there is one gradient, without a residual's, and Relu's by the bias");
  }
  if (residual) context.set_output(BatchNormGradOutput::Residual, x);
}

void infer_norm_again(InferContext& context) {
  const TensorType x = check_norm_operands(context, 0, 1, 4);
  check_residual(context, x);
  context.set_output(0, x);
}

void infer_norm_inference(InferContext& context) {
  const TensorType x = check_norm_operands(context, 0, 1, 4);
  positive_float(context.node(), "epsilon");
  check_residual(context, x);
  context.set_output(0, x);
}

// Statistics that are computed of what is trained have a gradient as well: a filter that is normalised by its own.
void grad_given_statistics(GradContext& c, ValueId dscale, ValueId dbias) {
  using In = BatchNormInput;
  const ValueId scale = c.input(In::Scale), variance = c.input(In::Variance);
  const auto one = [&](const char* op, const char* label, std::vector<ValueId> inputs, Attributes attributes = {}) {
    return c.add(op, label, std::move(inputs), 1, std::move(attributes))[0];
  };
  const auto number = [&](const char* label, double value) {  // in every place of a row of channels
    return one("Clip", label, {variance}, {{"min", value}, {"max", value}});
  };
  const ValueId spread = one("Add", "spread", {variance, number("epsilon", float_attribute(c.node(), "epsilon"))});
  if (c.needs_gradient(In::Mean)) {
    const ValueId sum = one("Mul", "sum", {scale, dbias});
    const ValueId moved = one("Div", "moved", {sum, one("Sqrt", "deviation", {spread})});
    c.set_input_gradient(In::Mean, one("Neg", "grad_mean", {moved}));
  }
  if (c.needs_gradient(In::Variance)) {
    const ValueId scaled = one("Div", "scaled", {one("Mul", "product", {scale, dscale}), spread});
    c.set_input_gradient(In::Variance, one("Mul", "grad_var", {scaled, number("half", -0.5)}));
  }
}

void grad_norm_inference(GradContext& c) {
  using In = BatchNormInput;
  ValueId dy = c.output_gradient(0);
  if (int_attribute(c.node(), "relu") != 0) dy = c.add("arbalest.ReluGrad", "grad_relu", {dy, c.output(0)}, 1)[0];
  if (c.input(In::Residual) != kNone && c.needs_gradient(In::Residual)) c.set_input_gradient(In::Residual, dy);
  const bool statistics = c.needs_gradient(In::Mean) || c.needs_gradient(In::Variance);
  const bool parameters = c.needs_gradient(In::Scale) || c.needs_gradient(In::Bias) || statistics;
  if (!parameters && !c.needs_gradient(In::X)) return;
  const auto gradients = c.add("arbalest.BatchNormInferenceGrad", "grad",
                               {dy, c.input(In::X), c.input(In::Scale), c.input(In::Mean), c.input(In::Variance)},
                               parameters ? 3 : 1, {{"epsilon", float_attribute(c.node(), "epsilon")}});
  for (const size_t i : {In::X, In::Scale, In::Bias}) {
    if (c.needs_gradient(i)) c.set_input_gradient(i, gradients[i]);
  }
  if (statistics) grad_given_statistics(c, gradients[1], gradients[2]);
}

void infer_inference_grad(InferContext& context) {
  const TensorType x = check_norm_operands(context, 1, 2, 4);
  positive_float(context.node(), "epsilon");
  expect_input(context, 0, x, "the type of 'X'");
  context.set_output(0, x);
  for (size_t i = 1; i < 3; ++i) context.set_output(i, {master_type(x.dtype), {x.shape[1]}});
}

// Inputs of the samples: images, channel vectors, and positive ones (variances).
struct SampleShape {
  const char* name;
  Shape shape;
  double low = -2, high = 2;
};
const std::vector<SampleShape>& batch_norm_shapes() {
  static const std::vector<SampleShape> shapes = {{"matrix", {7, 5}},
                                                  {"odd image", {2, 3, 5, 7}},
                                                  {"one sample", {1, 13, 4, 4}},
                                                  {"one channel", {3, 1, 3, 3}},
                                                  {"sequence", {3, 6, 7}},
                                                  {"volume", {2, 4, 3, 2, 5}},
                                                  {"stage", {16, 16, 32, 32}},
                                                  {"rows side by side", {16, 61, 12, 12}},
                                                  {"large mean", {8, 6, 12, 12}, 999, 1001}};
  return shapes;
}
Sample::Input norm_tensor(const Shape& shape, double low, double high) {
  return {{DataType::Float32, shape}, low, high};
}
Sample::Input norm_channels(const Shape& shape, double low, double high, bool differentiable = true) {
  return {{DataType::Float32, {shape[1]}}, low, high, differentiable};
}

// Random partials, which need not be those of X: what is made of them is no function of X to differentiate.
Sample with_partials(Sample sample, const Shape& image, int64_t chunk_pixels = 0) {
  const int64_t chunks = pixel_chunks(image, chunk_pixels).chunks;
  sample.inputs.push_back({{DataType::Float32, {chunks, 2 * image[1]}}, 0.5, 2});
  sample.attributes.set("chunk_pixels", chunk_pixels);
  for (Sample::Input& input : sample.inputs) input.differentiable = false;
  sample.name += fmt::format(", partials of {} chunks", chunks);
  return sample;
}
// Images with one chunk, with many and a short last one, and with channels that no pack fits.
const std::vector<Shape>& images_in_chunks() {
  static const std::vector<Shape> images = {{3, 16, 12, 11}, {129, 16, 16, 16}, {2, 13, 4, 5}, {8, 42, 16, 16}};
  return images;
}

// Without and with relu and residual; `inputs` makes the operands before the residual.
template <typename Inputs>
std::vector<Sample> fused_samples(int outputs, const Attributes& attributes, Inputs inputs) {
  std::vector<Sample> samples;
  for (const SampleShape& s : batch_norm_shapes()) {
    for (const bool fused : {false, true}) {
      Sample sample{.name = fmt::format("{}{}", s.name, fused ? ", residual and relu" : ""),
                    .inputs = inputs(s),
                    .output_count = outputs,
                    .attributes = attributes,
                    // One rounding of x at 1000 is 6e-5 of a deviation.
                    .tolerance = s.low > 100 ? 2e-3 : 2e-5};
      if (outputs > 1) sample.attributes.set("correction", int64_t{!fused});
      if (fused) {
        sample.inputs.push_back(norm_tensor(s.shape, -1, 1));
        sample.attributes.set("relu", int64_t{1});
      }
      samples.push_back(std::move(sample));
    }
  }
  return samples;
}

std::vector<Sample> norm_training_samples() {
  const auto inputs = [](const SampleShape& s) {
    return std::vector<Sample::Input>{norm_tensor(s.shape, s.low, s.high), norm_channels(s.shape, 0.5, 2),
                                      norm_channels(s.shape, -1, 1), norm_channels(s.shape, -1, 1, false),
                                      norm_channels(s.shape, 0.5, 2, false)};
  };
  std::vector<Sample> samples = fused_samples(5, {{"epsilon", 1e-5}, {"momentum", 0.3}}, inputs);
  std::vector<Shape> images = images_in_chunks();
  images.push_back(image_in_turns());
  for (const Shape& image : images) {
    for (const bool residual : {false, true}) {
      Sample sample{.name = fmt::format("{}{}", to_string(image), residual ? ", residual" : ""),
                    .inputs = inputs({"", image}),
                    .output_count = 5,
                    .attributes = {{"epsilon", 1e-5}, {"momentum", 0.3}, {"relu", int64_t{1}}},
                    .tolerance = 2e-5};
      sample.inputs.push_back(residual ? norm_tensor(image, -1, 1) : nothing());
      samples.push_back(with_partials(sample, image));
      samples.push_back(with_partials(std::move(sample), image, 128));
    }
  }
  return samples;
}

std::vector<Sample> norm_statistics_samples() {
  std::vector<Sample> samples;
  for (const Sample& training : norm_training_samples()) {
    if (training.inputs.size() > BatchNormInput::Residual &&
        training.inputs[BatchNormInput::Residual].type.dtype != DataType::Token)
      continue;
    Sample sample = training;
    sample.output_count = 4;
    sample.attributes.erase("relu");
    sample.inputs.erase(sample.inputs.begin() + BatchNormInput::Scale, sample.inputs.begin() + BatchNormInput::Mean);
    if (sample.inputs.size() > 3) sample.inputs.erase(sample.inputs.begin() + 3);
    samples.push_back(std::move(sample));
  }
  return samples;
}

std::vector<Sample::Input> given_statistics(const SampleShape& s) {
  return {norm_tensor(s.shape, s.low, s.high), norm_channels(s.shape, 0.5, 2), norm_channels(s.shape, -1, 1),
          norm_channels(s.shape, s.low, s.high), norm_channels(s.shape, 0.5, 2)};
}

std::vector<Sample> norm_inference_samples() {
  return fused_samples(1, {{"epsilon", 1e-5}}, given_statistics);
}

std::vector<Sample> norm_again_samples() {
  std::vector<Sample> samples = fused_samples(1, {}, given_statistics);
  for (Sample& sample : samples) {
    for (Sample::Input& input : sample.inputs) input.differentiable = false;
  }
  return samples;
}

std::vector<Sample> training_grad_samples() {
  std::vector<Sample> samples;
  enum class Relu { None, ByY, ByX };
  for (const SampleShape& s : batch_norm_shapes()) {
    for (const Relu relu : {Relu::None, Relu::ByY, Relu::ByX}) {
      for (const bool residual : {false, true}) {
        for (const bool two : {false, true}) {
          if (relu == Relu::ByX && residual) continue;
          constexpr const char* kNames[] = {"no relu", "relu by Y", "relu by X"};
          Sample sample{
              .name = fmt::format("{}, {}{}{}", s.name, kNames[int(relu)], residual ? ", residual" : "",
                                  two ? ", two gradients" : ""),
              .inputs = {norm_tensor(s.shape, -1, 1), norm_tensor(s.shape, s.low, s.high),
                         relu == Relu::ByY ? norm_tensor(s.shape, -1, 1) : nothing(), norm_channels(s.shape, 0.5, 2),
                         norm_channels(s.shape, s.low, s.high), norm_channels(s.shape, 0.5, 2),
                         relu == Relu::ByX ? norm_channels(s.shape, -1, 1) : nothing()},
              .output_count = residual ? 4 : 3,
              .attributes = {{"relu", int64_t{relu != Relu::None}}, {"residual", int64_t{residual}}},
              .tolerance = s.low > 100 ? 2e-3 : 2e-5};
          if (two) sample.inputs.push_back(norm_tensor(s.shape, -1, 1));
          samples.push_back(std::move(sample));
        }
      }
    }
  }
  std::vector<Shape> images = images_in_chunks();
  images.push_back(image_in_turns());
  for (const Shape& image : images) {
    Sample sample{
        .name = to_string(image),
        .inputs = {norm_tensor(image, -1, 1), norm_tensor(image, -2, 2), nothing(), norm_channels(image, 0.5, 2),
                   norm_channels(image, -1, 1), norm_channels(image, 0.5, 2), nothing(), nothing()},
        .output_count = 3,
        .tolerance = 2e-5};
    samples.push_back(with_partials(sample, image));
    samples.push_back(with_partials(sample, image, 128));
    sample.name += ", relu by X";
    sample.inputs[BatchNormInput::Partials] = norm_channels(image, -1, 1);
    sample.attributes.set("relu", int64_t{1});
    samples.push_back(with_partials(std::move(sample), image));
  }
  return samples;
}

std::vector<Sample> inference_grad_samples() {
  std::vector<Sample> samples;
  for (const SampleShape& s : batch_norm_shapes()) {
    samples.push_back(
        {.name = s.name,
         .inputs = {norm_tensor(s.shape, -1, 1), norm_tensor(s.shape, s.low, s.high), norm_channels(s.shape, 0.5, 2),
                    norm_channels(s.shape, s.low, s.high), norm_channels(s.shape, 0.5, 2)},
         .output_count = 3,
         .tolerance = s.low > 100 ? 2e-3 : 2e-5});
  }
  samples.push_back(samples[1]);
  samples.back().name += ", statistics, scale and bias frozen";
  samples.back().output_count = 1;
  return samples;
}

AttributeSpec epsilon_spec() {
  return float_spec("epsilon", 1e-5, "added to the variance");
}
AttributeSpec momentum_spec() {
  return float_spec("momentum", 0.1, "weight of the batch, as in PyTorch");
}
AttributeSpec correction_spec() {
  return int_spec("correction", 1,
                  "what the divisor of the running variance lacks of the batch's rows: 1 as in PyTorch, 0 as in ONNX");
}
AttributeSpec relu_after_sum_spec() {
  return int_spec("relu", 0, "1: Relu after the sum");
}

void add_statistics(OpRegistry& registry) {
  using enum OperandSpec::Arity;
  registry.add(
      {.domain = "arbalest",
       .name = "BatchNormStatistics",
       .doc = "the statistics of BatchNormTraining, for a Y that is made elsewhere",
       .inputs = {lowered("X"), plain("running_mean"), plain("running_var"), plain("partials", Optional)},
       .outputs = {plain("new_mean"), plain("new_var"), plain("saved_mean"), plain("saved_inv_std")},
       .attributes = {epsilon_spec(), momentum_spec(), correction_spec(), int_spec("chunk_pixels", 0, kChunkPixelsDoc)},
       .internal = true,
       .layout = Layout::ChannelsLast,
       .infer = infer_norm_statistics,
       .decompose = decompose_norm_statistics,
       .cost = elementwise_cost(3),
       .samples = norm_statistics_samples,
       .aliases = {{0, 1}, {1, 2}},
       .cpu = decomposed_cpu});
}

void add_inference(OpRegistry& registry) {
  using enum OperandSpec::Arity;
  registry.add({.domain = "arbalest",
                .name = "BatchNormInference",
                .doc = "[relu](normalised X * scale + bias [+ residual]) by given statistics",
                .inputs = {lowered("X"), plain("scale"), plain("bias"), plain("mean"), plain("var"),
                           lowered("residual", Optional)},
                .outputs = {lowered("Y")},
                .attributes = {epsilon_spec(), relu_after_sum_spec()},
                .internal = true,
                .layout = Layout::ChannelsLast,
                .infer = infer_norm_inference,
                .grad = grad_norm_inference,
                .cost = elementwise_cost(3),
                .samples = norm_inference_samples,
                .cpu = batch_norm_inference_cpu});
  registry.add(
      {.domain = "arbalest",
       .name = "BatchNormInferenceGrad",
       .doc = "the gradients of BatchNormInference, without relu and residual; of X alone where no other is asked for",
       .inputs = {lowered("dY"), lowered("X"), plain("scale"), plain("mean"), plain("var")},
       .outputs = {lowered("dX"), plain("dscale", Optional), plain("dbias", Optional)},
       .attributes = {epsilon_spec()},
       .internal = true,
       .layout = Layout::ChannelsLast,
       .infer = infer_inference_grad,
       .cost = elementwise_cost(6),
       .samples = inference_grad_samples,
       .cpu = batch_norm_inference_grad_cpu});
}

}  // namespace

void register_norm_batch_norm(OpRegistry& registry) {
  using enum OperandSpec::Arity;
  registry.add(
      {.domain = "",
       .name = "BatchNormalization",
       .doc = "batch normalisation with explicit parameters and statistics",
       .inputs = {lowered("X"), plain("scale").as(OperandSpec::Scale), plain("B").as(OperandSpec::Bias),
                  plain("input_mean").as(OperandSpec::Mean), plain("input_var").as(OperandSpec::Variance)},
       .outputs = {lowered("Y"), plain("running_mean", Optional), plain("running_var", Optional)},
       .attributes = {epsilon_spec(), float_spec("momentum", 0.9, "weight of the old running statistics, as in ONNX"),
                      int_spec("training_mode", 0,
                               "1: by the batch's statistics, whose variance goes into the running one; 0: by the "
                               "running ones"),
                      int_spec("correction", 0,
                               "rows that the divisor of the running variance lacks: 1 in PyTorch's models, else 0"),
                      int_spec("spatial", 1, "of opsets before 9: 1")},
       .layout = Layout::ChannelsLast,
       .infer = infer_onnx_norm,
       .expand = expand_onnx_norm,
       .for_inference = onnx_for_inference});
  registry.add(
      {.domain = "arbalest",
       .name = "BatchNormTraining",
       .doc = "[relu](normalised X * scale + bias [+ residual]) by the batch's statistics; updates the running ones",
       .inputs = {lowered("X"), plain("scale"), plain("bias"), plain("running_mean"), plain("running_var"),
                  lowered("residual", Optional), plain("partials", Optional)},
       .outputs = {lowered("Y"), plain("new_mean"), plain("new_var"), plain("saved_mean"), plain("saved_inv_std")},
       .attributes = {epsilon_spec(), momentum_spec(), relu_after_sum_spec(), correction_spec(),
                      int_spec("chunk_pixels", 0, kChunkPixelsDoc)},
       .internal = true,
       .layout = Layout::ChannelsLast,
       .infer = infer_norm_training,
       .grad = grad_norm_training,
       .for_inference = training_for_inference,
       .again = norm_again,
       .cost = elementwise_cost(8),
       .samples = norm_training_samples,
       .aliases = {{1, 3}, {2, 4}},
       .cpu = batch_norm_training_cpu,
       .keeps_statistics = true});
  add_statistics(registry);
  registry.add({.domain = "arbalest",
                .name = "BatchNormAgain",
                .doc = "Y of BatchNormTraining once more, to the same bits, by the statistics that it has saved",
                .inputs = {lowered("X"), plain("scale"), plain("bias"), plain("saved_mean"), plain("saved_inv_std"),
                           lowered("residual", Optional)},
                .outputs = {lowered("Y")},
                .attributes = {relu_after_sum_spec()},
                .internal = true,
                .layout = Layout::ChannelsLast,
                .infer = infer_norm_again,
                .cost = elementwise_cost(3),
                .samples = norm_again_samples,
                .cpu = batch_norm_again_cpu});
  registry.add({.domain = "arbalest",
                .name = "BatchNormGrad",
                .doc = "the gradients of BatchNormTraining for dY + dY2; with relu it needs Y, or the bias where there "
                       "is no residual. With partials dY may be what Relu has let pass or what there was before it",
                .inputs = {lowered("dY"), lowered("X"), lowered("Y", Optional), plain("scale"), plain("saved_mean"),
                           plain("saved_inv_std"), plain("bias", Optional), lowered("dY2", Optional),
                           plain("partials", Optional)},
                .outputs = {lowered("dX"), plain("dscale"), plain("dbias"), lowered("dresidual", Optional)},
                .attributes = {relu_after_sum_spec(), int_spec("residual", 0, "1: with the gradient of the residual"),
                               int_spec("chunk_pixels", 0, kChunkPixelsDoc)},
                .internal = true,
                .layout = Layout::ChannelsLast,
                .infer = infer_training_grad,
                .cost = elementwise_cost(10),
                .samples = training_grad_samples,
                .overwrites = {{0, 1}, {3, 0}},
                .cpu = batch_norm_grad_cpu});
  add_inference(registry);
}

}  // namespace arbalest
