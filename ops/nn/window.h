#pragma once
// Sliding windows of convolution and pooling: attributes and extents.

#include "graph/op.h"

namespace arbalest {

// Vertical then horizontal; pads are (top, left, bottom, right), as in ONNX.
struct Window {
  int64_t kernel[2] = {1, 1}, stride[2] = {1, 1}, dilation[2] = {1, 1}, pad_begin[2] = {0, 0}, pad_end[2] = {0, 0};

  // Input pixels that a window spans.
  int64_t span(int axis) const { return dilation[axis] * (kernel[axis] - 1) + 1; }
  int64_t output_extent(int axis, int64_t input, bool ceil_mode = false) const;
};

// The attributes strides, pads, dilations and auto_pad of the node; fails where they are no window.
Window window_of(const Node& node, const std::vector<int64_t>& kernel_shape);
// "kernel_shape" of the node: two extents of at least 1.
std::vector<int64_t> kernel_shape_of(const Node& node);
// Fails where the window does not fit the padded image.
void check_fits(const Node& node, const Window& window, const TensorType& x);

// strides, pads, dilations and auto_pad.
std::vector<AttributeSpec> window_specs();
// The same attributes as written in `node`, for its gradient nodes.
Attributes window_attributes(const Node& node, const std::vector<std::string>& others);

}  // namespace arbalest
