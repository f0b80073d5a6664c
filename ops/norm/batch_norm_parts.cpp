// SPDX-License-Identifier: Apache-2.0

// Batch normalisation of tensors that are concatenated along the channels, by Concat in a graph file. The pass
// fuse_concats makes these operators of BatchNormTraining and BatchNormInference (batch_norm.cpp), whose attributes
// they have. The order of their operands is in ops/norm/batch_norms.h.

#include "ops/norm/batch_norms.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/definition.h"
#include "ops/fused/decomposed.h"
#include "ops/norm/batch_norm_cpu.h"
#include "ops/norm/batch_norm_samples.h"

namespace arbalest {
namespace {

using Place = size_t (*)(size_t part);

// The type of all parts together, concatenated along the channels; part i is input at(i).
TensorType whole_type(const InferContext& context, size_t parts, Place at) {
  if (parts == 0 || parts > kMostParts) context.fail(fmt::format("{} parts; expected 1 to {}", parts, kMostParts));
  TensorType whole = floating_input(context, at(0), {2, 3, 4, 5});
  for (size_t i = 1; i < parts; ++i) {
    TensorType like = whole;
    if (context.input(at(i)).shape.size() == whole.shape.size()) like.shape[1] = context.input(at(i)).shape[1];
    expect_input(context, at(i), like, "as part 0 but for the channels");
    whole.shape[1] += context.input(at(i)).shape[1];
  }
  for (size_t i = 0; i < parts; ++i) {
    if (context.input(at(i)).elements() == 0) context.fail(fmt::format("part {} is empty", i));
  }
  return whole;
}

TensorType channels_of(const TensorType& whole) {
  return {master_type(whole.dtype), {whole.shape[1]}};
}

void check_channels(const InferContext& context, size_t first, size_t last, const TensorType& whole) {
  for (size_t i = first; i <= last; ++i) {
    if (context.has_input(i)) expect_input(context, i, channels_of(whole), "a number a channel of all parts");
  }
}

void infer_part_statistics(InferContext& context) {
  const TensorType x = floating_input(context, 0, {2, 3, 4, 5});
  if (x.elements() == 0) context.fail(fmt::format("input 'X' is {}: nothing to average", to_string(x)));
  context.set_output(0, {master_type(x.dtype), {x.shape[1], 2}});
}

void infer_parts_training(InferContext& context) {
  const size_t parts = training_parts(context.input_count());
  const TensorType whole = whole_type(context, parts, training_part);
  check_channels(context, 1, 4, whole);
  for (size_t i = 0; i < parts; ++i) {
    const TensorType two{master_type(whole.dtype), {context.input(training_part(i)).shape[1], 2}};
    expect_input(context, training_statistics(i), two, "two numbers a channel of the part");
  }
  context.set_output(0, whole);
  for (size_t i = 1; i < 5; ++i) context.set_output(i, channels_of(whole));
}

// Nothing flows back through the statistics by themselves: what does is part of dX.
void grad_parts_training(GradContext& c) {
  using Out = BatchNormOutput;
  const size_t parts = training_parts(c.node().inputs.size());
  const bool relu = int_attribute(c.node(), "relu") != 0;
  std::vector<ValueId> inputs = {c.output_gradient(Out::Y), c.input(BatchNormInput::Scale), c.output(Out::SavedMean),
                                 c.output(Out::SavedInvStd), relu ? c.input(BatchNormInput::Bias) : kNone};
  for (size_t i = 0; i < parts; ++i) {
    inputs.push_back(c.input(training_part(i)));
    inputs.push_back(kNone);  // no addend so far: fuse_gradient_sums
  }
  const auto gradients = c.add("arbalest.BatchNormPartsGrad", "grad", inputs, int(part_gradient(parts)));
  for (const size_t i : {size_t{1}, size_t{2}}) {
    if (c.needs_gradient(i)) c.set_input_gradient(i, gradients[i - 1]);
  }
  for (size_t i = 0; i < parts; ++i) {
    if (c.needs_gradient(training_part(i))) c.set_input_gradient(training_part(i), gradients[part_gradient(i)]);
  }
}

Repetition parts_again(const Graph& graph, const Node& node) {
  const ValueId mean = node.outputs[BatchNormOutput::SavedMean], inv_std = node.outputs[BatchNormOutput::SavedInvStd];
  if (mean == kNone || inv_std == kNone) return {};
  Repetition again{
      &graph.op("arbalest.BatchNormPartsAgain"),
      {node.inputs[0], node.inputs[BatchNormInput::Scale], node.inputs[BatchNormInput::Bias], mean, inv_std},
      {{"relu", int_attribute(node, "relu")}},
      {node.outputs[0]}};
  for (size_t i = 1; i < training_parts(node.inputs.size()); ++i) again.inputs.push_back(node.inputs[training_part(i)]);
  return again;
}

// Running statistics instead of the batch's, and one output.
void parts_for_inference(Graph& graph, NodeId id) {
  Node& node = graph.nodes[id];
  Attributes attributes{{"epsilon", float_attribute(node, "epsilon")}, {"relu", int_attribute(node, "relu")}};
  std::vector<ValueId> inputs(node.inputs.begin(), node.inputs.begin() + 5);
  for (size_t i = 1; i < training_parts(node.inputs.size()); ++i) inputs.push_back(node.inputs[training_part(i)]);
  node.op = &graph.op("arbalest.BatchNormPartsInference");
  node.attributes = std::move(attributes);
  node.inputs = std::move(inputs);
  node.outputs.resize(1);
}

void infer_parts_inference(InferContext& context) {
  const TensorType whole = whole_type(context, inference_parts(context.input_count()), inference_part);
  check_channels(context, 1, 4, whole);
  context.set_output(0, whole);
}

// Copies the parts together after all. This is needed if statistics are frozen but layers before them are not, which is
// rare.
void grad_parts_inference(GradContext& c) {
  using Ints = std::vector<int64_t>;
  using In = BatchNormInput;
  ValueId dy = c.output_gradient(0);
  if (int_attribute(c.node(), "relu") != 0) dy = c.add("arbalest.ReluGrad", "grad_relu", {dy, c.output(0)}, 1)[0];
  std::vector<ValueId> parts;
  for (size_t i = 0; i < inference_parts(c.node().inputs.size()); ++i) parts.push_back(c.input(inference_part(i)));
  const ValueId whole = c.add("Concat", "grad_whole", parts, 1, {{"axis", int64_t{1}}})[0];
  const bool parameters = c.needs_gradient(In::Scale) || c.needs_gradient(In::Bias);
  const auto gradients = c.add("arbalest.BatchNormInferenceGrad", "grad",
                               {dy, whole, c.input(In::Scale), c.input(In::Mean), c.input(In::Variance)},
                               parameters ? 3 : 1, {{"epsilon", float_attribute(c.node(), "epsilon")}});
  for (const size_t i : {size_t{1}, size_t{2}}) {
    if (c.needs_gradient(i)) c.set_input_gradient(i, gradients[i]);
  }
  int64_t place = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const int64_t begin = place;
    place += c.type(parts[i]).shape[1];
    if (!c.needs_gradient(inference_part(i))) continue;
    c.set_input_gradient(inference_part(i),
                         c.add("Slice", fmt::format("grad_{}", i), {gradients[0]}, 1,
                               {{"starts", Ints{begin}}, {"ends", Ints{place}}, {"axes", Ints{1}}})[0]);
  }
}

void infer_parts_grad(InferContext& context) {
  const size_t parts = gradient_parts(context.input_count());
  const TensorType whole = whole_type(context, parts, gradient_part);
  if (context.input_count() != gradient_part(parts)) context.fail("expected an addend, or none, for each part");
  if (context.output_count() != part_gradient(parts)) context.fail("expected a gradient for each part");
  expect_input(context, 0, whole, "the type of all parts");
  check_channels(context, 1, 4, whole);
  for (size_t i = 0; i < 2; ++i) context.set_output(i, channels_of(whole));
  for (size_t i = 0; i < parts; ++i) {
    const TensorType part = context.input(gradient_part(i));
    if (context.has_input(gradient_addend(i))) expect_input(context, gradient_addend(i), part, "the type of its part");
    context.set_output(part_gradient(i), part);
  }
}

ValueId side_by_side(ExpandContext& c, size_t parts, Place at, int64_t axis = 1) {
  std::vector<ValueId> inputs;
  for (size_t i = 0; i < parts; ++i) inputs.push_back(c.input(at(i)));
  return add_one(c, "Concat", inputs, {{"axis", axis}});
}

// The channels from `begin` on, up to `end`.
ValueId channels_between(ExpandContext& c, ValueId whole, int64_t begin, int64_t end) {
  using Ints = std::vector<int64_t>;
  return add_one(c, "Slice", {whole}, {{"starts", Ints{begin}}, {"ends", Ints{end}}, {"axes", Ints{1}}});
}

void decompose_parts_training(ExpandContext& c) {
  using In = BatchNormInput;
  using Out = BatchNormOutput;
  const size_t parts = training_parts(c.node().inputs.size());
  const ValueId x = side_by_side(c, parts, training_part), moments = side_by_side(c, parts, training_statistics, 0);
  const auto number = [&](double value) { return c.constant("number", c.type(x).dtype, std::vector<double>{value}); };
  const auto column = [&](int64_t i) {
    const ValueId taken = channels_between(c, moments, i, i + 1);
    return add_one(c, "Reshape", {taken}, {{"shape", std::vector<int64_t>{-1}}});
  };
  const double rows = double(rows_of(c.type(x)).rows), momentum = float_attribute(c.node(), "momentum");
  const double corrected = rows / std::max(rows - double(int_attribute(c.node(), "correction")), 1.0);
  const ValueId mean = column(0), variance = add_one(c, "Div", {column(1), number(rows)});
  const ValueId above_zero = add_one(c, "Add", {variance, number(float_attribute(c.node(), "epsilon"))});
  const ValueId inv_std = add_one(c, "Reciprocal", {add_one(c, "Sqrt", {above_zero})});
  const auto moved = [&](ValueId running, ValueId of_batch, double weight) {
    const ValueId old = add_one(c, "Mul", {running, number(1 - momentum)});
    return add_one(c, "Add", {old, add_one(c, "Mul", {of_batch, number(weight)})});
  };
  c.replace_output(Out::Y,
                   add_one(c, "arbalest.BatchNormAgain", {x, c.input(In::Scale), c.input(In::Bias), mean, inv_std},
                           {{"relu", int_attribute(c.node(), "relu")}}));
  c.replace_output(Out::NewMean, moved(c.input(In::Mean), mean, momentum));
  c.replace_output(Out::NewVariance, moved(c.input(In::Variance), variance, momentum * corrected));
  c.replace_output(Out::SavedMean, mean);
  c.replace_output(Out::SavedInvStd, inv_std);
}

// `op`: the operator of one tensor.
std::function<void(ExpandContext&)> decompose_parts_inference(std::string op) {
  using In = BatchNormInput;
  return [op = std::move(op)](ExpandContext& c) {
    const ValueId x = side_by_side(c, inference_parts(c.node().inputs.size()), inference_part);
    c.replace_output(
        0, add_one(c, op, {x, c.input(In::Scale), c.input(In::Bias), c.input(In::Mean), c.input(In::Variance)},
                   c.node().attributes));
  };
}

void decompose_parts_grad(ExpandContext& c) {
  using In = BatchNormPartsGradInput;
  const size_t parts = gradient_parts(c.node().inputs.size());
  const ValueId x = side_by_side(c, parts, gradient_part), bias = c.input(In::Bias);
  const std::vector<ValueId> made =
      c.add("arbalest.BatchNormGrad", "",
            {c.input(In::dY), x, kNone, c.input(In::Scale), c.input(In::SavedMean), c.input(In::SavedInvStd), bias}, 3,
            {{"relu", int64_t{bias != kNone}}});
  c.replace_output(BatchNormPartsGradOutput::dScale, made[BatchNormGradOutput::dScale]);
  c.replace_output(BatchNormPartsGradOutput::dBias, made[BatchNormGradOutput::dBias]);
  int64_t begin = 0;
  for (size_t i = 0; i < parts; ++i) {
    const int64_t end = begin + c.type(c.input(gradient_part(i))).shape[1];
    const ValueId own = channels_between(c, made[BatchNormGradOutput::dX], begin, end);
    const ValueId addend = c.input(gradient_addend(i));
    c.replace_output(part_gradient(i), addend == kNone ? own : add_one(c, "Add", {own, addend}));
    begin = end;
  }
}

// Cost of `flops` for each element of the node's first input.
std::function<Cost(const Graph&, const Node&)> cost_of_input(double flops) {
  return [flops](const Graph& graph, const Node& node) {
    return Cost{flops * double(input_type(graph, node, 0).elements()), operand_bytes(graph, node)};
  };
}

// Parts of images or of matrices: one, several, many, of odd channels, of more channels than a slice has; rows in one
// chunk and in several.
struct SampleShapes {
  const char* name;
  Shape shape;  // without the channels, which follow
  std::vector<int64_t> channels;
};
const std::vector<SampleShapes>& parts_shapes() {
  static const std::vector<SampleShapes> shapes = {
      {"one", {3, 0, 5, 7}, {16}},
      {"a dense block", {3, 0, 6, 5}, {64, 32, 32, 32}},
      {"odd channels", {2, 0, 5, 7}, {3, 8, 1, 13}},
      {"channels of fours", {3, 0, 6, 5}, {24, 12, 12, 4}},
      {"channels of twos", {3, 0, 6, 5}, {6, 70, 2}},
      {"several slices", {5, 0, 9, 8}, {8, 136, 24, 200}},
      {"several chunks", {9, 0, 16, 16}, {32, 16, 64}},
      {"several chunks of odd channels", {9, 0, 16, 16}, {3, 5}},
      {"as many as there may be", {2, 0, 3, 4}, std::vector<int64_t>(kMostParts, 8)},
      {"as many as there may be, several chunks", {5, 0, 16, 16}, std::vector<int64_t>(kMostParts, 8)},
      {"matrices", {37, 0}, {5, 16, 8}},
      {"sequences", {3, 0, 11}, {8, 24}},
      {"one row", {1, 0, 1, 1}, {8, 16}}};
  return shapes;
}

Shape part_shape(const SampleShapes& s, size_t part) {
  Shape shape = s.shape;
  shape[1] = s.channels[part];
  return shape;
}
Shape whole_shape(const SampleShapes& s) {
  Shape shape = s.shape;
  for (const int64_t channels : s.channels) shape[1] += channels;
  return shape;
}
Sample::Input parts_tensor(Shape shape, double low, double high, bool differentiable = true) {
  return {{DataType::Float32, std::move(shape)}, low, high, differentiable};
}
Sample::Input parts_channels(const SampleShapes& s, double low, double high, bool differentiable = true) {
  return parts_tensor({whole_shape(s)[1]}, low, high, differentiable);
}

std::vector<Sample> part_statistics_samples() {
  std::vector<Sample> samples;
  for (const SampleShapes& s : parts_shapes()) {
    samples.push_back({.name = to_string(whole_shape(s)), .inputs = {parts_tensor(whole_shape(s), -2, 2)}});
  }
  samples.push_back({.name = "large mean", .inputs = {parts_tensor({8, 6, 12, 12}, 999, 1001)}, .tolerance = 2e-3});
  return samples;
}

// Statistics are random, as partials of BatchNormTraining's samples are: what is made of them is no function of X to
// differentiate.
std::vector<Sample> parts_training_samples() {
  std::vector<Sample> samples;
  for (const SampleShapes& s : parts_shapes()) {
    for (const bool relu : {false, true}) {
      Sample sample{
          .name = fmt::format("{}{}", s.name, relu ? ", relu" : ""),
          .output_count = 5,
          .attributes = {{"epsilon", 1e-5}, {"momentum", 0.3}, {"relu", int64_t{relu}}, {"correction", int64_t{!relu}}},
          .tolerance = 2e-5};
      for (size_t i = 0; i < s.channels.size(); ++i) {
        sample.inputs.push_back(parts_tensor(part_shape(s, i), -2, 2, false));
        if (i == 0) {
          sample.inputs.insert(sample.inputs.end(),
                               {parts_channels(s, 0.5, 2, false), parts_channels(s, -1, 1, false),
                                parts_channels(s, -1, 1, false), parts_channels(s, 0.5, 2, false)});
        }
        sample.inputs.push_back(parts_tensor({s.channels[i], 2}, 0.5, 2, false));
      }
      samples.push_back(std::move(sample));
    }
  }
  return samples;
}

std::vector<Sample> parts_inference_samples() {
  std::vector<Sample> samples;
  for (const SampleShapes& s : parts_shapes()) {
    // Among very many elements some are so near to Relu's kink that finite differences would cross it.
    const bool few = element_count(whole_shape(s)) < 50'000;
    for (const bool relu : {false, true}) {
      Sample sample{.name = fmt::format("{}{}", s.name, relu ? ", relu" : ""),
                    .attributes = {{"epsilon", 1e-5}, {"relu", int64_t{relu}}},
                    .tolerance = 2e-5};
      for (size_t i = 0; i < s.channels.size(); ++i) {
        sample.inputs.push_back(parts_tensor(part_shape(s, i), -2, 2, few));
        if (i > 0) continue;
        sample.inputs.insert(sample.inputs.end(), {parts_channels(s, 0.5, 2, few), parts_channels(s, -1, 1, few),
                                                   parts_channels(s, -1, 1, false), parts_channels(s, 0.5, 2, false)});
      }
      samples.push_back(std::move(sample));
    }
  }
  return samples;
}

std::vector<Sample> parts_again_samples() {
  std::vector<Sample> samples;
  for (const Sample& of_inference : parts_inference_samples()) {
    Sample& sample = samples.emplace_back(of_inference);
    sample.attributes = {{"relu", std::get<int64_t>(*of_inference.attributes.find("relu"))}};
    for (Sample::Input& input : sample.inputs) input.differentiable = false;
  }
  return samples;
}

std::vector<Sample> parts_grad_samples() {
  enum class Addends { None, Some, All };
  std::vector<Sample> samples;
  for (const SampleShapes& s : parts_shapes()) {
    for (const bool relu : {false, true}) {
      for (const Addends addends : {Addends::None, Addends::Some, Addends::All}) {
        constexpr const char* kNames[] = {"no addends", "some addends", "addends"};
        Sample sample{
            .name = fmt::format("{}{}, {}", s.name, relu ? ", relu" : "", kNames[int(addends)]),
            .inputs = {parts_tensor(whole_shape(s), -1, 1), parts_channels(s, 0.5, 2), parts_channels(s, -1, 1),
                       parts_channels(s, 0.5, 2), relu ? parts_channels(s, -1, 1) : nothing()},
            .output_count = int(part_gradient(s.channels.size())),
            .tolerance = 2e-5};
        for (size_t i = 0; i < s.channels.size(); ++i) {
          const bool added = addends == Addends::All || (addends == Addends::Some && i % 2 == 1);
          sample.inputs.push_back(parts_tensor(part_shape(s, i), -2, 2));
          sample.inputs.push_back(added ? parts_tensor(part_shape(s, i), -1, 1) : nothing());
        }
        samples.push_back(std::move(sample));
      }
    }
  }
  return samples;
}

// Adds the operands of parts from `from` on: a tensor, and if `beside` is not null, an operand of that name after it.
std::vector<OperandSpec> with_parts(std::vector<OperandSpec> operands, size_t from, const char* tensor_name,
                                    const char* beside = nullptr, bool beside_lowered = false) {
  for (size_t i = from; i < kMostParts; ++i) {
    operands.push_back(lowered(fmt::format("{}_{}", tensor_name, i), OperandSpec::Optional));
    if (!beside) continue;
    operands.push_back(plain(fmt::format("{}_{}", beside, i), OperandSpec::Optional));
    operands.back().lowered = beside_lowered;
  }
  return operands;
}

AttributeSpec relu_after_spec() {
  return int_spec("relu", 0, "1: Relu after it");
}
std::vector<AttributeSpec> epsilon_and_relu() {
  return {float_spec("epsilon", 1e-5, "added to the variance"), relu_after_spec()};
}

std::vector<AttributeSpec> training_attributes() {
  std::vector<AttributeSpec> specs = epsilon_and_relu();
  specs.push_back(float_spec("momentum", 0.1, "weight of the batch, as in PyTorch"));
  specs.push_back(int_spec("correction", 1, "as BatchNormTraining has it"));
  return specs;
}

// Lets a part's gradient be added in place to its addend, the gradient that reaches the part by other ways.
std::vector<std::pair<int, int>> sums_in_place() {
  std::vector<std::pair<int, int>> aliases;
  for (size_t i = 0; i < kMostParts; ++i) aliases.emplace_back(int(part_gradient(i)), int(gradient_addend(i)));
  return aliases;
}

}  // namespace

void register_norm_batch_norm_parts(OpRegistry& registry) {
  registry.add({.domain = "arbalest",
                .name = "ChannelStatistics",
                .doc = "of each channel the mean, and the sum of squared deviations from it",
                .inputs = {lowered("X")},
                .outputs = {plain("statistics")},
                .internal = true,
                .layout = Layout::ChannelsLast,
                .infer = infer_part_statistics,
                .cost = cost_of_input(5),
                .samples = part_statistics_samples,
                .cpu = channel_statistics_cpu});
  registry.add(
      {.domain = "arbalest",
       .name = "BatchNormPartsTraining",
       .doc = "BatchNormTraining of the parts X_i side by side, by the ChannelStatistics of each",
       .inputs = with_parts({lowered("X_0"), plain("scale"), plain("bias"), plain("running_mean"), plain("running_var"),
                             plain("statistics_0")},
                            1, "X", "statistics"),
       .outputs = {lowered("Y"), plain("new_mean"), plain("new_var"), plain("saved_mean"), plain("saved_inv_std")},
       .attributes = training_attributes(),
       .internal = true,
       .layout = Layout::ChannelsLast,
       .infer = infer_parts_training,
       .grad = grad_parts_training,
       .decompose = decompose_parts_training,
       .for_inference = parts_for_inference,
       .again = parts_again,
       .cost = elementwise_cost(3),
       .samples = parts_training_samples,
       .aliases = {{1, 3}, {2, 4}},
       .cpu = batch_norm_parts_training_cpu,
       .keeps_statistics = true});
  registry.add({.domain = "arbalest",
                .name = "BatchNormPartsGrad",
                .doc = "the gradients of BatchNormPartsTraining, of each part [+ addend_i]; with a bias where Relu "
                       "follows",
                .inputs = with_parts({lowered("dY"), plain("scale"), plain("saved_mean"), plain("saved_inv_std"),
                                      plain("bias", OperandSpec::Optional)},
                                     0, "X", "addend", true),
                .outputs = with_parts({plain("dscale"), plain("dbias")}, 0, "dX"),
                .internal = true,
                .layout = Layout::ChannelsLast,
                .infer = infer_parts_grad,
                .decompose = decompose_parts_grad,
                .cost = cost_of_input(10),
                .samples = parts_grad_samples,
                .aliases = sums_in_place(),
                .cpu = batch_norm_parts_grad_cpu});
  registry.add(
      {.domain = "arbalest",
       .name = "BatchNormPartsInference",
       .doc = "BatchNormInference of the parts X_i side by side",
       .inputs = with_parts({lowered("X_0"), plain("scale"), plain("bias"), plain("mean"), plain("var")}, 1, "X"),
       .outputs = {lowered("Y")},
       .attributes = epsilon_and_relu(),
       .internal = true,
       .layout = Layout::ChannelsLast,
       .infer = infer_parts_inference,
       .grad = grad_parts_inference,
       .decompose = decompose_parts_inference("arbalest.BatchNormInference"),
       .cost = elementwise_cost(3),
       .samples = parts_inference_samples,
       .cpu = batch_norm_parts_inference_cpu});
  registry.add(
      {.domain = "arbalest",
       .name = "BatchNormPartsAgain",
       .doc = "Y of BatchNormPartsTraining once more, to the same bits, by the statistics that it has saved",
       .inputs = with_parts(
           {lowered("X_0"), plain("scale"), plain("bias"), plain("saved_mean"), plain("saved_inv_std")}, 1, "X"),
       .outputs = {lowered("Y")},
       .attributes = {relu_after_spec()},
       .internal = true,
       .layout = Layout::ChannelsLast,
       .infer = infer_parts_inference,
       .decompose = decompose_parts_inference("arbalest.BatchNormAgain"),
       .cost = elementwise_cost(3),
       .samples = parts_again_samples,
       .cpu = batch_norm_parts_again_cpu});
}

}  // namespace arbalest
