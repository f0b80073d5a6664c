// SPDX-License-Identifier: Apache-2.0

// A convolution leaves partial statistics of its result to the batch norm after it, and a convolution's gradient leaves
// partial sums to the gradient of the batch norm before it. The pass fuse_statistics makes them.

#include <fmt/format.h>

#include "base/device_model.h"
#include "ops/conv/conv_type.h"
#include "ops/fused/decomposed.h"
#include "ops/names.h"
#include "ops/nn/window.h"
#include "ops/norm/batch_norms.h"
#include "ops/norm/statistics_chunks.h"

namespace arbalest {
namespace {

// (chunks, 2 · C): two numbers a channel, one after the other.
TensorType partials_type(InferContext& context, const TensorType& image) {
  if (image.shape.size() != 4 || image.elements() == 0) {
    context.fail(fmt::format("the result is {}; expected images (N,C,H,W)", to_string(image)));
  }
  const int64_t chunk_pixels = int_attribute(context.node(), "chunk_pixels");
  if (chunk_pixels < 0) context.fail(fmt::format("attribute 'chunk_pixels' is {}, expected 0 or more", chunk_pixels));
  return {master_type(image.dtype), {pixel_chunks(image.shape, chunk_pixels).chunks, 2 * image.shape[1]}};
}

void infer_conv_statistics(InferContext& context) {
  const TensorType y = convolved_type(context, ConvInput::X, ConvInput::W);
  context.set_output(ConvStatisticsOutput::Y, y);
  context.set_output(ConvStatisticsOutput::Partials, partials_type(context, y));
}

void infer_gradient_sums(InferContext& context) {
  using In = ConvSumsInput;
  using Out = ConvSumsOutput;
  expect_input(context, In::dY, convolved_type(context, In::X, In::W), "the type of Conv's output");
  const TensorType x = context.input(In::X);
  const TensorType channels{master_type(x.dtype), {x.shape[1]}};
  for (const size_t i : {In::Y, In::Second, In::X2}) {
    if (context.has_input(i)) expect_input(context, i, x, "the type of 'X'");
  }
  for (const size_t i : {In::Scale, In::SavedMean, In::SavedInvStd, In::Bias, In::SavedMean2}) {
    if (context.has_input(i)) expect_input(context, i, channels, "a number a channel of 'X'");
  }
  const bool pair = context.has_input(In::X2), by_y = context.has_input(In::Y);
  if (pair && !(by_y && context.has_input(In::Second))) context.fail("'X2' is there without 'Y' or 'dY2'");
  if (pair != context.has_input(In::SavedMean2)) context.fail("expected both or none of 'X2' and 'saved_mean2'");
  if (by_y && context.has_input(In::Bias)) context.fail("inputs 'Y' and 'bias' are both there; expected one");
  context.set_output(Out::dX, x);
  context.set_output(Out::Partials, partials_type(context, x));
  if (pair) context.set_output(Out::Partials2, partials_type(context, x));
}

// The pixels of an image as the rows of a matrix.
ValueId rows_of_pixels(ExpandContext& c, ValueId image) {
  const int64_t channels = c.type(image).shape[1];
  const ValueId turned = add_one(c, "Transpose", {image}, {{"perm", std::vector<int64_t>{0, 2, 3, 1}}});
  return add_one(c, "Reshape", {turned}, {{"shape", std::vector<int64_t>{-1, channels}}});
}

// Two numbers a chunk and channel, (chunks, 2 · C), that `reduce` makes of the rows of each chunk.
template <typename Reduce>
ValueId reduce_chunks(ExpandContext& c, ValueId rows, int64_t channels, const Reduce& reduce) {
  using Ints = std::vector<int64_t>;
  const TensorType& image = c.type(c.node().outputs[0]);
  const PixelChunks chunks = pixel_chunks(image.shape, int_attribute(c.node(), "chunk_pixels"));
  std::vector<ValueId> reduced;
  for (int64_t first = 0; first < chunks.chunks * chunks.pixels; first += chunks.pixels) {
    reduced.push_back(reduce(add_one(
        c, "Slice", {rows}, {{"starts", Ints{first}}, {"ends", Ints{first + chunks.pixels}}, {"axes", Ints{0}}})));
  }
  const ValueId all = add_one(c, "Concat", reduced, {{"axis", int64_t{0}}});
  return add_one(c, "Reshape", {all}, {{"shape", Ints{chunks.chunks, 2 * channels}}});
}

void decompose_conv_statistics(ExpandContext& c) {
  const ValueId y =
      add_one(c, "Conv", {c.input(ConvInput::X), c.input(ConvInput::W)}, window_attributes(c.node(), {"group"}));
  c.replace_output(ConvStatisticsOutput::Y, y);
  c.replace_output(ConvStatisticsOutput::Partials,
                   reduce_chunks(c, rows_of_pixels(c, y), c.type(y).shape[1],
                                 [&](ValueId rows) { return add_one(c, "arbalest.ChannelStatistics", {rows}); }));
}

// Sums of g and of g · (x − mean).
ValueId sums_of_gradient(ExpandContext& c, ValueId gradient, ValueId x, ValueId mean) {
  const ValueId g = rows_of_pixels(c, gradient), deviation = add_one(c, "Sub", {rows_of_pixels(c, x), mean});
  const ValueId product = add_one(c, "Mul", {g, deviation});
  std::vector<ValueId> columns;
  for (const ValueId term : {g, product}) {
    columns.push_back(add_one(c, "Unsqueeze", {term}, {{"axes", std::vector<int64_t>{2}}}));
  }
  const ValueId both = add_one(c, "Concat", columns, {{"axis", int64_t{2}}});
  return reduce_chunks(c, both, c.type(x).shape[1], [&](ValueId rows) {
    return add_one(c, "ReduceSum", {rows}, {{"axes", std::vector<int64_t>{0}}});
  });
}

void decompose_gradient_sums(ExpandContext& c) {
  using In = ConvSumsInput;
  using Out = ConvSumsOutput;
  const ValueId convolved = add_one(c, "arbalest.ConvGradInput", {c.input(In::dY), c.input(In::W), c.input(In::X)},
                                    window_attributes(c.node(), {"group"}));
  const ValueId second = c.input(In::Second), bias = c.input(In::Bias);
  const ValueId sum = second == kNone ? convolved : add_one(c, "Add", {convolved, second});
  const std::vector<ValueId> norm = {c.input(In::X), c.input(In::Scale), bias, c.input(In::SavedMean),
                                     c.input(In::SavedInvStd)};
  const ValueId y =
      bias == kNone ? c.input(In::Y) : add_one(c, "arbalest.BatchNormAgain", norm, {{"relu", int64_t{1}}});
  const ValueId g = y == kNone ? sum : add_one(c, "arbalest.ReluGrad", {sum, y});
  c.replace_output(Out::dX, bias != kNone && second == kNone ? convolved : g);
  c.replace_output(Out::Partials, sums_of_gradient(c, g, c.input(In::X), c.input(In::SavedMean)));
  if (c.input(In::X2) != kNone) {
    c.replace_output(Out::Partials2, sums_of_gradient(c, g, c.input(In::X2), c.input(In::SavedMean2)));
  }
}

Sample::Input image_tensor(const Shape& shape, double low = -1, double high = 1) {
  return {{DataType::Float32, shape}, low, high};
}

// Images with several chunks, with several tiles a chunk and fewer in the last, and with tiles that matrix units do not
// divide.
const std::vector<Shape>& images() {
  static const std::vector<Shape> images = {{3, 16, 12, 11},   {129, 16, 16, 16}, {5, 32, 7, 9},
                                            {133, 32, 16, 16}, {6, 64, 8, 8},     {2, 12, 5, 6}};
  return images;
}

struct FusedSample {
  Shape image;     // of X or Y
  int64_t others;  // channels of the filter's other side
  int64_t chunk_pixels;
};

// Samples of pointwise convolutions: several chunks, channels that tiles do not divide, a last tile that is not full,
// and a filter that is fetched tile by tile. None has only full tiles and several a chunk: on GPUs such chunks
// interleave their tiles, and their partials would differ from those on CPUs.
const std::vector<FusedSample>& pointwise_images() {
  static const std::vector<FusedSample> images = {{{3, 16, 11, 10}, 24, 128},
                                                  {{2, 128, 20, 20}, 64, 256},
                                                  {{5, 72, 13, 13}, 264, 384},
                                                  {{4, 320, 15, 14}, 136, 0},
                                                  {{2, 64, 12, 12}, 520, 128}};
  return images;
}

// Samples of 3 × 3 convolutions in chunks of whole rows, whose tiles are parts of rows and of images, with an odd
// number of tiles, too; and in those that kernels for few channels take of one of 16 learners.
const std::vector<FusedSample>& padded_images() {
  const auto halo = [](const Shape& image, int64_t others) {
    const HaloTile tile = halo_tile(image, device_model(kUsualDevice).multiprocessors);
    return FusedSample{image, others, 2 * tile.pixels() * (image[3] / tile.width)};
  };
  const auto thin = [](const Shape& image) {
    return FusedSample{image, image[1], statistics_chunks(image, 16).chunk_rows};
  };
  static const std::vector<FusedSample> images = {halo({2, 64, 28, 28}, 48),  halo({5, 136, 7, 7}, 72),
                                                  halo({3, 64, 14, 14}, 128), thin({9, 16, 32, 32}),
                                                  thin({36, 32, 8, 8}),       thin({37, 64, 8, 8})};
  return images;
}

Attributes in_chunks(int64_t chunk_pixels) {
  return {{"chunk_pixels", chunk_pixels}};
}

Attributes same_size() {
  return {{"pads", std::vector<int64_t>{1, 1, 1, 1}}};
}

std::vector<Sample> conv_statistics_samples() {
  std::vector<Sample> samples;
  for (const Shape& x : images()) {
    samples.push_back({.name = to_string(x),
                       .inputs = {image_tensor(x), image_tensor({x[1], x[1], 3, 3})},
                       .output_count = 2,
                       .attributes = same_size()});
  }
  for (const FusedSample& s : pointwise_images()) {
    samples.push_back({.name = fmt::format("pointwise, {} from {}", to_string(s.image), s.others),
                       .inputs = {image_tensor({s.image[0], s.others, s.image[2], s.image[3]}),
                                  image_tensor({s.image[1], s.others, 1, 1})},
                       .output_count = 2,
                       .attributes = in_chunks(s.chunk_pixels)});
  }
  for (const FusedSample& s : padded_images()) {
    Attributes attributes = same_size();
    attributes.set("chunk_pixels", s.chunk_pixels);
    samples.push_back({.name = fmt::format("3 x 3, {} from {}", to_string(s.image), s.others),
                       .inputs = {image_tensor({s.image[0], s.others, s.image[2], s.image[3]}),
                                  image_tensor({s.image[1], s.others, 3, 3})},
                       .output_count = 2,
                       .attributes = attributes});
  }
  // Rows too short for a tile, of the shortest one, of one whose pixels 16 does not divide, of two.
  for (const int64_t width : {33, 127, 150, 300}) {
    samples.push_back({.name = fmt::format("folded by its stride, {} columns", width),
                       .inputs = {image_tensor({2, 3, 20, width}), image_tensor({64, 3, 7, 7})},
                       .output_count = 2,
                       .attributes = {{"pads", std::vector<int64_t>{3, 3, 3, 3}},
                                      {"strides", std::vector<int64_t>{2, 2}},
                                      {"chunk_pixels", 3 * row_tile_pixels((width + 1) / 2)}}});
  }
  samples.push_back(
      {.name = "stride 2",
       .inputs = {image_tensor({4, 8, 9, 8}), image_tensor({16, 8, 3, 3})},
       .output_count = 2,
       .attributes = {{"pads", std::vector<int64_t>{1, 1, 1, 1}}, {"strides", std::vector<int64_t>{2, 2}}}});
  return samples;
}

// The gradient of `image` by a convolution to `others` channels, in every form.
void add_gradient_sums(std::vector<Sample>& samples, std::string_view name, const Shape& image, int64_t others,
                       const Shape& filter, const Attributes& attributes) {
  const Sample::Input nothing = {{DataType::Token, {}}, 0, 0, false};
  const Shape channels = {image[1]};
  for (const char* relu : {"no relu", "relu by Y", "relu by X"}) {
    for (const bool two : {false, true}) {
      const bool by_y = std::string_view(relu) == "relu by Y", by_x = std::string_view(relu) == "relu by X";
      if (element_count(image) > 1 << 20 && !(by_x && two)) continue;  // once is enough of what takes long
      Sample sample{
          .name = fmt::format("{}{}, {}{}", name, to_string(image), relu, two ? ", two gradients" : ""),
          .inputs = {image_tensor({image[0], others, image[2], image[3]}), image_tensor(filter), image_tensor(image),
                     by_y ? image_tensor(image) : nothing, image_tensor(channels, 0.5, 2), image_tensor(channels),
                     image_tensor(channels, 0.5, 2), by_x ? image_tensor(channels) : nothing},
          .output_count = 2,
          .attributes = attributes};
      if (two) sample.inputs.push_back(image_tensor(image));
      samples.push_back(sample);
      if (!two || !by_y) continue;
      sample.name += ", of a pair";
      sample.inputs.insert(sample.inputs.end(), {image_tensor(image), image_tensor(channels)});
      sample.output_count = 3;
      samples.push_back(std::move(sample));
    }
  }
}

std::vector<Sample> gradient_sums_samples() {
  std::vector<Sample> samples;
  for (const Shape& x : images()) add_gradient_sums(samples, "", x, x[1], {x[1], x[1], 3, 3}, same_size());
  for (const FusedSample& s : pointwise_images()) {
    add_gradient_sums(samples, "pointwise, ", s.image, s.others, {s.others, s.image[1], 1, 1},
                      in_chunks(s.chunk_pixels));
  }
  for (const FusedSample& s : padded_images()) {
    Attributes attributes = same_size();
    attributes.set("chunk_pixels", s.chunk_pixels);
    add_gradient_sums(samples, "3 x 3, ", s.image, s.others, {s.others, s.image[1], 3, 3}, attributes);
  }
  return samples;
}

std::vector<AttributeSpec> fused_specs() {
  std::vector<AttributeSpec> specs = conv_specs();
  specs.push_back(int_spec("chunk_pixels", 0, kChunkPixelsDoc));
  return specs;
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
                .attributes = fused_specs(),
                .internal = true,
                .layout = Layout::ChannelsLast,
                .infer = infer_conv_statistics,
                .decompose = decompose_conv_statistics,
                .cost = conv_cost(0, 1),
                .samples = conv_statistics_samples,
                .cpu = decomposed_cpu});
  registry.add(
      {.domain = "arbalest",
       .name = "ConvGradInputSums",
       .doc = "the gradient g of a batch norm's normalised X, of Conv's gradient [+ dY2], where Relu lets it "
              "pass: where Y is above 0, or, with a bias, where what X is normalised to is. And of each chunk "
              "of its pixels and each channel the sums of g and of g * (X - mean), and, where Relu has a second batch "
              "norm's result added, of g and of g * (X2 - mean2). With a bias and without dY2 what Relu does not let "
              "pass stays in the result, though not in the sums",
       .inputs = {lowered("dY"), lowered("W"), lowered("X"), lowered("Y", Optional), plain("scale"),
                  plain("saved_mean"), plain("saved_inv_std"), plain("bias", Optional), lowered("dY2", Optional),
                  lowered("X2", Optional), plain("saved_mean2", Optional)},
       .outputs = {lowered("g"), plain("partials"), plain("partials2", Optional)},
       .attributes = fused_specs(),
       .internal = true,
       .layout = Layout::ChannelsLast,
       .infer = infer_gradient_sums,
       .decompose = decompose_gradient_sums,
       .cost = conv_cost(ConvSumsInput::X, ConvSumsInput::W, ConvSumsInput::dY),
       .samples = gradient_sums_samples,
       .cpu = decomposed_cpu});
}

}  // namespace arbalest
