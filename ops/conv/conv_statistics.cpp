// A convolution that leaves partial statistics of its result to the batch norm behind it, and a convolution's gradient
// that leaves partial sums to the gradient of the batch norm before it: the pass fuse_statistics makes them.

#include <fmt/format.h>

#include "graph/passes/statistics_chunks.h"
#include "ops/conv/conv_statistics_cpu.h"
#include "ops/conv/conv_type.h"

namespace arbalest {
namespace {

// (chunks, C, 2)
TensorType partials_type(InferContext& context, const TensorType& image) {
  if (image.shape.size() != 4 || image.elements() == 0) {
    context.fail(fmt::format("the result is {}; expected images (N,C,H,W)", to_string(image)));
  }
  return {master_type(image.dtype), {statistics_chunks(image.shape).chunks, image.shape[1], 2}};
}

void infer_statistics(InferContext& context) {
  const TensorType y = convolved_type(context, 0, 1);
  context.set_output(0, y);
  context.set_output(1, partials_type(context, y));
}

void infer_gradient_sums(InferContext& context) {
  expect_input(context, 0, convolved_type(context, 2, 1), "the type of Conv's output");
  const TensorType x = context.input(2);
  const TensorType channels{master_type(x.dtype), {x.shape[1]}};
  for (const size_t i : {size_t{3}, size_t{8}}) {
    if (context.has_input(i)) expect_input(context, i, x, "the type of 'X'");
  }
  for (const size_t i : {size_t{4}, size_t{5}, size_t{6}, size_t{7}}) {
    if (context.has_input(i)) expect_input(context, i, channels, "a number a channel of 'X'");
  }
  if (context.has_input(3) && context.has_input(7)) context.fail("inputs 'Y' and 'bias' are both there; expected one");
  context.set_output(0, x);
  context.set_output(1, partials_type(context, x));
}

Sample::Input tensor(const Shape& shape, double low = -1, double high = 1) {
  return {{DataType::Float32, shape}, low, high};
}

// With several chunks, with several tiles a chunk and fewer in the last, with tiles that matrix units do not divide.
const std::vector<Shape>& images() {
  static const std::vector<Shape> images = {{3, 16, 12, 11},   {129, 16, 16, 16}, {5, 32, 7, 9},
                                            {133, 32, 16, 16}, {6, 64, 8, 8},     {2, 12, 5, 6}};
  return images;
}

Attributes same_size() {
  return {{"pads", std::vector<int64_t>{1, 1, 1, 1}}};
}

std::vector<Sample> statistics_samples() {
  std::vector<Sample> samples;
  for (const Shape& x : images()) {
    samples.push_back({.name = to_string(x),
                       .inputs = {tensor(x), tensor({x[1], x[1], 3, 3})},
                       .output_count = 2,
                       .attributes = same_size()});
  }
  samples.push_back(
      {.name = "stride 2",
       .inputs = {tensor({4, 8, 9, 8}), tensor({16, 8, 3, 3})},
       .output_count = 2,
       .attributes = {{"pads", std::vector<int64_t>{1, 1, 1, 1}}, {"strides", std::vector<int64_t>{2, 2}}}});
  return samples;
}

std::vector<Sample> gradient_sums_samples() {
  std::vector<Sample> samples;
  const Sample::Input nothing = {{DataType::Token, {}}, 0, 0, false};
  for (const Shape& x : images()) {
    const Shape channels = {x[1]};
    for (const char* relu : {"no relu", "relu by Y", "relu by X"}) {
      for (const bool two : {false, true}) {
        const bool by_y = std::string_view(relu) == "relu by Y", by_x = std::string_view(relu) == "relu by X";
        if (element_count(x) > 1 << 20 && !(by_x && two)) continue;  // once is enough of what takes long
        Sample sample{.name = fmt::format("{}, {}{}", to_string(x), relu, two ? ", two gradients" : ""),
                      .inputs = {tensor(x), tensor({x[1], x[1], 3, 3}), tensor(x), by_y ? tensor(x) : nothing,
                                 tensor(channels, 0.5, 2), tensor(channels), tensor(channels, 0.5, 2),
                                 by_x ? tensor(channels) : nothing},
                      .output_count = 2,
                      .attributes = same_size()};
        if (two) sample.inputs.push_back(tensor(x));
        samples.push_back(std::move(sample));
      }
    }
  }
  return samples;
}

}  // namespace

void register_conv_conv_statistics(OpRegistry& registry) {
  using enum OperandSpec::Arity;
  registry.add({.domain = "arbalest",
                .name = "ConvStatistics",
                .doc =
                    "Conv, and of each chunk of the result's pixels and each channel the mean and the sum of squared "
                    "deviations from it",
                .inputs = {lowered("X"), lowered("W")},
                .outputs = {lowered("Y"), plain("partials")},
                .attributes = conv_specs(),
                .internal = true,
                .layout = Layout::ChannelsLast,
                .infer = infer_statistics,
                .cost = conv_cost(0, 1),
                .samples = statistics_samples,
                .cpu = conv_statistics_cpu});
  registry.add(
      {.domain = "arbalest",
       .name = "ConvGradInputSums",
       .doc = "the gradient g of a batch norm's normalised X, of Conv's gradient [+ dY2], where Relu lets it "
              "pass: where Y is above 0, or, with a bias, where what X is normalised to is. And of each chunk "
              "of its pixels and each channel the sums of g and of g * (X - mean)",
       .inputs = {lowered("dY"), lowered("W"), lowered("X"), lowered("Y", Optional), plain("scale"),
                  plain("saved_mean"), plain("saved_inv_std"), plain("bias", Optional), lowered("dY2", Optional)},
       .outputs = {lowered("g"), plain("partials")},
       .attributes = conv_specs(),
       .internal = true,
       .layout = Layout::ChannelsLast,
       .infer = infer_gradient_sums,
       .cost = conv_cost(2, 1, 0),
       .samples = gradient_sums_samples,
       .cpu = conv_grad_input_sums_cpu});
}

}  // namespace arbalest
