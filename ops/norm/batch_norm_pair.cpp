// SPDX-License-Identifier: Apache-2.0

// Two batch norms whose sum goes through Relu, as one node. The pass fuse_batch_norm_pairs makes these of
// BatchNormTraining and BatchNormGrad (batch_norm.cpp); what they read and write is in ops/norm/batch_norms.h.

#include "ops/norm/batch_norms.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/definition.h"
#include "ops/fused/decomposed.h"
#include "ops/norm/batch_norm_samples.h"
#include "ops/norm/statistics_chunks.h"

namespace arbalest {
namespace {

// Checks both inputs X and the `parameters` inputs (C) after each; `at` gives their places. Returns the type of X.
template <typename At>
TensorType check_pair(InferContext& context, At at, size_t parameters) {
  const TensorType x = floating_input(context, at(0, 0), {4});
  if (rows_of(x).rows == 0) context.fail(fmt::format("input 'X' is {}: nothing to normalise", to_string(x)));
  const TensorType channels{master_type(x.dtype), {x.shape[1]}};
  expect_input(context, at(1, 0), x, "the type of 'X'");
  for (size_t of : {0, 1}) {
    for (size_t i = 1; i <= parameters; ++i) {
      expect_input(context, at(of, i), channels, fmt::format("since input 'X' has {} channels", x.shape[1]));
    }
  }
  return x;
}

void check_pair_partials(InferContext& context, size_t input, const char* chunk_pixels, const TensorType& x) {
  if (!context.has_input(input)) return;
  const PixelChunks chunks = pixel_chunks(x.shape, int_attribute(context.node(), chunk_pixels));
  expect_input(context, input, {master_type(x.dtype), {chunks.chunks, 2 * x.shape[1]}},
               "two numbers a chunk and channel");
}

void infer_pair_training(InferContext& context) {
  const TensorType x = check_pair(context, pair_training_input, 4);
  positive_float(context.node(), "epsilon");
  for (size_t of : {0, 1}) check_pair_partials(context, pair_training_partials(of), kPairChunkPixels[of], x);
  context.set_output(0, x);
  for (size_t i = 1; i < context.output_count(); ++i) context.set_output(i, {master_type(x.dtype), {x.shape[1]}});
}

void decompose_pair_training(ExpandContext& c) {
  const auto add_norm = [&](size_t of, ValueId residual) {
    std::vector<ValueId> inputs;
    for (size_t i = 0; i < BatchNormInput::Residual; ++i) inputs.push_back(c.input(pair_training_input(of, i)));
    inputs.insert(inputs.end(), {residual, c.input(pair_training_partials(of))});
    Attributes attributes{{"relu", int64_t{of == 0}}};
    for (const char* name : {"epsilon", "momentum"}) attributes.set(name, float_attribute(c.node(), name));
    attributes.set("correction", int_attribute(c.node(), "correction"));
    attributes.set("chunk_pixels", int_attribute(c.node(), kPairChunkPixels[of]));
    const std::vector<ValueId> outputs = c.add("arbalest.BatchNormTraining", "", inputs, 5, attributes);
    for (size_t i = 1; i < outputs.size(); ++i) c.replace_output(pair_training_statistics(of, i - 1), outputs[i]);
    return outputs[BatchNormOutput::Y];
  };
  c.replace_output(0, add_norm(0, add_norm(1, kNone)));
}

Repetition pair_again(const Graph& graph, const Node& node) {
  Repetition again{&graph.op("arbalest.BatchNormPairAgain"), {}, {}, {node.outputs[0]}};
  for (const size_t of : {size_t{0}, size_t{1}}) {
    for (const size_t i : {size_t{0}, size_t{1}, size_t{2}}) {
      again.inputs.push_back(node.inputs[pair_training_input(of, i)]);
    }
    for (const size_t i : {size_t{2}, size_t{3}}) {
      again.inputs.push_back(node.outputs[pair_training_statistics(of, i)]);
    }
  }
  return std::count(again.inputs.begin(), again.inputs.end(), kNone) > 0 ? Repetition{} : again;
}

void infer_pair_again(InferContext& context) {
  context.set_output(0, check_pair(context, pair_again_input, 4));
}

void decompose_pair_again(ExpandContext& c) {
  ValueId sum = kNone;
  for (const size_t of : {size_t{1}, size_t{0}}) {
    std::vector<ValueId> inputs;
    for (size_t i = 0; i < BatchNormInput::Residual; ++i) inputs.push_back(c.input(pair_again_input(of, i)));
    inputs.push_back(sum);
    sum = add_one(c, "arbalest.BatchNormAgain", inputs, {{"relu", int64_t{of == 0}}});
  }
  c.replace_output(0, sum);
}

void infer_pair_grad(InferContext& context) {
  const TensorType x = check_pair(context, pair_grad_input, 3);
  expect_input(context, 0, x, "the type of 'X'");
  const bool given = context.has_input(kPairGradPartials);
  if (given == context.has_input(kPairGradY)) context.fail("expected one of the inputs 'Y' and 'partials'");
  if (given && context.has_input(kPairGradSecond)) context.fail("with 'partials' there is one gradient");
  if (!given) expect_input(context, kPairGradY, x, "the type of 'X'");
  if (context.has_input(kPairGradSecond)) expect_input(context, kPairGradSecond, x, "the type of 'X'");
  if (context.has_input(kPairGradPartials2) && !given) context.fail("'partials2' is there without 'partials'");
  for (const size_t i : {kPairGradPartials, kPairGradPartials2})
    check_pair_partials(context, i, kPairChunkPixels[0], x);
  for (size_t of : {0, 1}) {
    context.set_output(pair_grad_output(of, 0), x);
    for (size_t i : {1, 2}) context.set_output(pair_grad_output(of, i), {master_type(x.dtype), {x.shape[1]}});
  }
}

void decompose_pair_grad(ExpandContext& c) {
  const auto add_gradient = [&](size_t of, ValueId dy, ValueId y, ValueId dy2, ValueId partials) {
    const auto in = [&](size_t i) { return c.input(pair_grad_input(of, i)); };
    const auto relu = int64_t{y != kNone};
    const std::vector<ValueId> outputs =
        c.add("arbalest.BatchNormGrad", "", {dy, in(0), y, in(1), in(2), in(3), kNone, dy2, partials}, relu ? 4 : 3,
              {{"relu", relu}, {"residual", relu}, {"chunk_pixels", int_attribute(c.node(), kPairChunkPixels[0])}});
    for (size_t i = 0; i < BatchNormGradOutput::Residual; ++i) c.replace_output(pair_grad_output(of, i), outputs[i]);
    return outputs.back();
  };
  const ValueId dy = c.input(0), partials = c.input(kPairGradPartials);
  const ValueId passed = add_gradient(0, dy, c.input(kPairGradY), c.input(kPairGradSecond), partials);
  add_gradient(1, partials == kNone ? passed : dy, kNone, kNone, c.input(kPairGradPartials2));
}

// Images with less than a pack of channels, with an odd number of them, and with many chunks.
const std::vector<Shape>& pair_shapes() {
  static const std::vector<Shape> shapes = {
      {2, 3, 5, 7}, {3, 16, 12, 11}, {2, 13, 4, 5}, {129, 16, 16, 16}, {8, 42, 16, 16}};
  return shapes;
}
Sample::Input pair_tensor(const Shape& shape, double low, double high) {
  return {{DataType::Float32, shape}, low, high, false};
}
Sample::Input pair_channels(const Shape& shape, double low, double high) {
  return pair_tensor({shape[1]}, low, high);
}
// Random ones, which need not be those of X.
Sample::Input partials(const Shape& shape, int64_t chunk_pixels) {
  return pair_tensor({pixel_chunks(shape, chunk_pixels).chunks, 2 * shape[1]}, 0.5, 2);
}

// Large means have what one rounding of x is of a deviation for their tolerance.
constexpr double kTolerance = 2e-5, kOfLargeMean = 2e-3;

std::vector<Sample> pair_training_samples() {
  std::vector<Sample> samples;
  const auto add = [&](std::string name, const Shape& shape, double mean, bool first, bool second) {
    Sample sample{.name = std::move(name),
                  .output_count = 9,
                  .attributes = {{"epsilon", 1e-5}, {"momentum", 0.3}, {"correction", int64_t{first}}},
                  .tolerance = mean > 100 ? kOfLargeMean : kTolerance};
    for (const double shift : {mean, -mean / 2}) {
      sample.inputs.insert(sample.inputs.end(),
                           {pair_tensor(shape, shift - 2, shift + 2), pair_channels(shape, 0.5, 2),
                            pair_channels(shape, -1, 1), pair_channels(shape, -1, 1), pair_channels(shape, 0.5, 2)});
    }
    sample.inputs.push_back(first ? partials(shape, 128) : nothing());
    sample.inputs.push_back(second ? partials(shape, 0) : nothing());
    sample.attributes.set(kPairChunkPixels[0], int64_t{first ? 128 : 0});
    samples.push_back(std::move(sample));
  };
  for (const Shape& shape : pair_shapes()) {
    for (const bool first : {false, true}) {
      for (const bool second : {false, true}) {
        add(fmt::format("{}{}{}", to_string(shape), first ? ", partials" : "",
                        second ? ", partials of the second" : ""),
            shape, 0, first, second);
      }
    }
  }
  add("large mean", {8, 8, 12, 12}, 1000, false, false);
  add("rows in turns", image_in_turns(), 0, true, true);
  return samples;
}

std::vector<Sample> pair_again_samples() {
  std::vector<Sample> samples;
  for (const Shape& shape : pair_shapes()) {
    Sample& sample = samples.emplace_back(Sample{.name = to_string(shape), .tolerance = kTolerance});
    for (size_t of = 0; of < 2; ++of) {
      sample.inputs.insert(sample.inputs.end(),
                           {pair_tensor(shape, -2, 2), pair_channels(shape, 0.5, 2), pair_channels(shape, -1, 1),
                            pair_channels(shape, -2, 2), pair_channels(shape, 0.5, 2)});
    }
  }
  return samples;
}

std::vector<Sample> pair_grad_samples() {
  std::vector<Sample> samples;
  enum class Of { One, Two, Partials, BothPartials };
  const auto add = [&](std::string name, const Shape& shape, Of of, double mean) {
    const bool given = of == Of::Partials || of == Of::BothPartials;
    Sample sample{
        .name = std::move(name),
        .inputs = {pair_tensor(shape, -1, 1), given ? nothing() : pair_tensor(shape, -1, 1),
                   of == Of::Two ? pair_tensor(shape, -1, 1) : nothing(), given ? partials(shape, 128) : nothing()},
        .output_count = 6,
        .attributes = {{kPairChunkPixels[0], int64_t{128}}},
        .tolerance = mean > 100 ? kOfLargeMean : kTolerance};
    for (int i = 0; i < 2; ++i) {
      sample.inputs.insert(sample.inputs.end(),
                           {pair_tensor(shape, mean - 2, mean + 2), pair_channels(shape, 0.5, 2),
                            pair_channels(shape, mean - 1, mean + 1), pair_channels(shape, 0.5, 2)});
    }
    if (of == Of::BothPartials) sample.inputs.push_back(partials(shape, 128));
    samples.push_back(std::move(sample));
  };
  for (const Shape& shape : pair_shapes()) {
    add(to_string(shape) + ", one gradient", shape, Of::One, 0);
    add(to_string(shape) + ", two gradients", shape, Of::Two, 0);
    add(to_string(shape) + ", partials", shape, Of::Partials, 0);
    add(to_string(shape) + ", partials of both", shape, Of::BothPartials, 0);
  }
  add("large mean", {8, 8, 12, 12}, Of::One, 1000);
  add("rows in turns", image_in_turns(), Of::BothPartials, 0);
  return samples;
}

AttributeSpec chunk_pixels_spec(size_t of) {
  return int_spec(kPairChunkPixels[of], 0, kChunkPixelsDoc);
}

}  // namespace

void register_norm_batch_norm_pair(OpRegistry& registry) {
  using enum OperandSpec::Arity;
  registry.add(
      {.domain = "arbalest",
       .name = "BatchNormPairTraining",
       .doc = "Relu of the sum of two BatchNormTraining, of X and of X2",
       .inputs = {lowered("X"), plain("scale"), plain("bias"), plain("running_mean"), plain("running_var"),
                  lowered("X2"), plain("scale2"), plain("bias2"), plain("running_mean2"), plain("running_var2"),
                  plain("partials", Optional), plain("partials2", Optional)},
       .outputs = {lowered("Y"), plain("new_mean"), plain("new_var"), plain("saved_mean"), plain("saved_inv_std"),
                   plain("new_mean2"), plain("new_var2"), plain("saved_mean2"), plain("saved_inv_std2")},
       .attributes = {float_spec("epsilon", 1e-5, "added to the variance"),
                      float_spec("momentum", 0.1, "weight of the batch, as in PyTorch"),
                      int_spec("correction", 1, "as BatchNormTraining has it"), chunk_pixels_spec(0),
                      chunk_pixels_spec(1)},
       .internal = true,
       .layout = Layout::ChannelsLast,
       .infer = infer_pair_training,
       .decompose = decompose_pair_training,
       .again = pair_again,
       .cost = elementwise_cost(16),
       .samples = pair_training_samples,
       .aliases = {{1, 3}, {2, 4}, {5, 8}, {6, 9}},
       .cpu = decomposed_cpu});
  registry.add(
      {.domain = "arbalest",
       .name = "BatchNormPairAgain",
       .doc = "Y of BatchNormPairTraining once more, to the same bits, by the statistics that it has saved",
       .inputs = {lowered("X"), plain("scale"), plain("bias"), plain("saved_mean"), plain("saved_inv_std"),
                  lowered("X2"), plain("scale2"), plain("bias2"), plain("saved_mean2"), plain("saved_inv_std2")},
       .outputs = {lowered("Y")},
       .internal = true,
       .layout = Layout::ChannelsLast,
       .infer = infer_pair_again,
       .decompose = decompose_pair_again,
       .cost = elementwise_cost(6),
       .samples = pair_again_samples,
       .cpu = decomposed_cpu});
  registry.add(
      {.domain = "arbalest",
       .name = "BatchNormPairGrad",
       .doc = "the gradients of BatchNormPairTraining for dY + dY2; or with partials of the first, or of both, "
              "for dY, of which only what Relu has let pass is there",
       .inputs = {lowered("dY"), lowered("Y", Optional), lowered("dY2", Optional), plain("partials", Optional),
                  lowered("X"), plain("scale"), plain("saved_mean"), plain("saved_inv_std"), lowered("X2"),
                  plain("scale2"), plain("saved_mean2"), plain("saved_inv_std2"), plain("partials2", Optional)},
       .outputs = {lowered("dX"), plain("dscale"), plain("dbias"), lowered("dX2"), plain("dscale2"), plain("dbias2")},
       .attributes = {chunk_pixels_spec(0)},
       .internal = true,
       .layout = Layout::ChannelsLast,
       .infer = infer_pair_grad,
       .decompose = decompose_pair_grad,
       .cost = elementwise_cost(20),
       .samples = pair_grad_samples,
       .overwrites = {{int(pair_grad_output(0, 0)), int(pair_grad_input(0, 0))}, {int(pair_grad_output(1, 0)), 0}},
       .cpu = decomposed_cpu});
}

}  // namespace arbalest
