// SPDX-License-Identifier: Apache-2.0

// Col2Im, ONNX's: blocks of pixels added up to an image (torch.nn.functional.fold). It becomes a transposed convolution
// whose filters put each element of a block at its place.

#include <fmt/format.h>

#include "graph/constants.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

using Ints = std::vector<int64_t>;

Ints folded_list(const Node& node, std::string_view name, size_t count, int64_t fallback) {
  Ints values = ints_attribute(node, name);
  if (values.empty()) values.assign(count, fallback);
  if (values.size() != count) {
    fail(node, fmt::format("attribute '{}' is {}; expected {} numbers", name, to_string(values, '[', ']'), count));
  }
  return values;
}

struct FoldedBlocks {
  Ints image, block, strides, dilations, pads;
  Ints windows = {};  // along each axis
  Ints rest = {};     // pixels after the last window, which none covers

  // `node`: with the constant operands in its attributes.
  explicit FoldedBlocks(const Node& node)
      : image(ints_attribute(node, "image_shape")),
        block(ints_attribute(node, "block_shape")),
        strides(folded_list(node, "strides", image.size(), 1)),
        dilations(folded_list(node, "dilations", image.size(), 1)),
        pads(folded_list(node, "pads", 2 * image.size(), 0)) {
    const size_t axes = image.size();
    if (axes < 1 || axes > 3 || block.size() != axes) {
      fail(node, fmt::format("'image_shape' is {} and 'block_shape' {}; expected as many extents, 1 to 3",
                             to_string(image, '[', ']'), to_string(block, '[', ']')));
    }
    for (size_t i = 0; i < axes; ++i) {
      const bool positive = image[i] > 0 && block[i] > 0 && strides[i] > 0 && dilations[i] > 0;
      const int64_t free = image[i] + pads[i] + pads[axes + i] - (positive ? dilations[i] * (block[i] - 1) + 1 : 0);
      if (!positive || pads[i] < 0 || pads[axes + i] < 0 || free < 0) {
        fail(node,
             fmt::format("along axis {} no block of {}, {} apart and {} dilated, lies in {} pixels, padded by {} and "
                         "{}",
                         i, block[i], strides[i], dilations[i], image[i], pads[i], pads[axes + i]));
      }
      windows.push_back(free / strides[i] + 1);
      rest.push_back(free % strides[i]);
    }
  }
};

void infer_col2im(InferContext& context) {
  const TensorType& x = floating_input(context, 0, {3});
  Node node = context.node();
  take_operands(context.graph(), node);
  const FoldedBlocks blocks(node);
  const int64_t pixels = element_count(blocks.block), windows = element_count(blocks.windows);
  if (x.shape[1] % pixels != 0 || x.shape[1] < pixels || x.shape[2] != windows) {
    context.fail(fmt::format("{} is {}; expected (samples, channels · {}, {}), a column for each block",
                             input_name(context, 0), to_string(x), pixels, windows));
  }
  Shape shape = {x.shape[0], x.shape[1] / pixels};
  shape.insert(shape.end(), blocks.image.begin(), blocks.image.end());
  context.set_output(0, {x.dtype, shape});
}

void expand_col2im(ExpandContext& c) {
  const FoldedBlocks blocks(c.node());
  const TensorType x = c.type(c.input(0));
  const int64_t pixels = element_count(blocks.block), channels = x.shape[1] / pixels;
  std::vector<double> places(size_t(x.shape[1] * pixels), 0.0);
  for (int64_t row = 0; row < x.shape[1]; ++row) places[size_t(row * pixels + row % pixels)] = 1;
  Shape filters = {x.shape[1], 1}, columns = {0, x.shape[1]};  // 0: as many samples as there are
  filters.insert(filters.end(), blocks.block.begin(), blocks.block.end());
  columns.insert(columns.end(), blocks.windows.begin(), blocks.windows.end());
  const auto shaped = [&](const char* label, ValueId value, const Shape& shape) {
    return c.add("Reshape", label, {value}, 1, {{"shape", shape}})[0];
  };
  const ValueId weight = shaped("filters", c.constant("places", x.dtype, places), filters);
  const ValueId image = c.add("ConvTranspose", "", {shaped("columns", c.input(0), columns), weight}, 1,
                              {{"strides", blocks.strides},
                               {"dilations", blocks.dilations},
                               {"pads", blocks.pads},
                               {"output_padding", blocks.rest},
                               {"group", channels}})[0];
  c.replace_output(0, image);
}

}  // namespace

void register_conv_col2im(OpRegistry& registry) {
  registry.add({.domain = "",
                .name = "Col2Im",
                .doc = "an image to which each column of the input adds a block of pixels",
                .inputs = {{.name = "input"},
                           {.name = "image_shape", .arity = OperandSpec::Optional, .constant = true},
                           {.name = "block_shape", .arity = OperandSpec::Optional, .constant = true}},
                .outputs = {{.name = "output"}},
                .attributes = {ints_spec("image_shape", {}, "extents of the image along the spatial axes"),
                               ints_spec("block_shape", {}, "extents of a block"),
                               ints_spec("strides", {}, "pixels from one block to the next; default: 1"),
                               ints_spec("dilations", {}, "pixels from one element of a block to the next; default: 1"),
                               ints_spec("pads", {},
                                         "pixels before the image along each spatial axis, then after it; "
                                         "default: none")},
                .infer = infer_col2im,
                .expand = expand_col2im});
}

}  // namespace arbalest
