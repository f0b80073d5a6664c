// SPDX-License-Identifier: Apache-2.0
#include "ops/nn/pool.h"

#include <fmt/format.h>

namespace arbalest {

std::vector<AttributeSpec> pool_specs(AttributeSpec own) {
  std::vector<AttributeSpec> specs = window_specs();
  specs.insert(specs.begin(),
               required_spec("kernel_shape", AttributeKind::Ints, "extents of the window along the spatial axes"));
  specs.push_back(int_spec("ceil_mode", 0, "1: windows that reach past the end count"));
  specs.push_back(std::move(own));
  return specs;
}

Cost pool_cost(const Graph& graph, const Node& node) {
  return {double(input_type(graph, node, 0).elements()), operand_bytes(graph, node)};
}

Shape global_pool_shape(const Shape& image) {
  Shape shape = {image[0], image[1]};
  shape.resize(image.size(), 1);
  return shape;
}

void infer_global_pool(InferContext& context) {
  const TensorType& x = floating_input(context, 0, {3, 4, 5});
  if (pixel_count(pixels_of(x.shape)) == 0) {
    context.fail(fmt::format("input 'X' is {}: there are no pixels", to_string(x)));
  }
  context.set_output(0, {x.dtype, global_pool_shape(x.shape)});
}

Attributes PoolCase::attributes() const {
  const auto along_axes = [&](int64_t value) { return std::vector<int64_t>(shape.size() - 2, value); };
  Attributes attributes{{"kernel_shape", along_axes(kernel)},
                        {"strides", along_axes(stride)},
                        {"dilations", along_axes(dilation)},
                        {"ceil_mode", ceil_mode}};
  if (auto_pad == "NOTSET") {
    std::vector<int64_t> pads = along_axes(pad_begin);
    pads.resize(2 * pads.size(), pad_end);
    attributes.set("pads", pads);
  } else {
    attributes.set("auto_pad", auto_pad);
  }
  return attributes;
}

Shape PoolCase::pooled() const {
  Window window;
  for (size_t axis = 5 - shape.size(); axis < 3; ++axis) {
    window.kernel[axis] = kernel, window.stride[axis] = stride, window.dilation[axis] = dilation;
    window.pad_begin[axis] = pad_begin, window.pad_end[axis] = pad_end;
  }
  if (auto_pad != "NOTSET") window.pad_to_same(pixels_of(shape), auto_pad == "SAME_LOWER");
  return windowed_shape(window, shape, shape[1], ceil_mode != 0);
}

}  // namespace arbalest
