// SPDX-License-Identifier: Apache-2.0
#include "ops/nn/window.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "ops/definition.h"

namespace arbalest {
namespace {

// `fallback`: of an empty list; none: it is refused.
std::vector<int64_t> checked_ints(const Node& node, std::string_view name, size_t count, int64_t least,
                                  std::optional<int64_t> fallback) {
  std::vector<int64_t> values = ints_attribute(node, name);
  if (values.empty() && fallback) values.assign(count, *fallback);
  // Pixels: products of two, plus an image's extent, stay far from the end of 64 bits.
  constexpr int64_t kMost = int64_t{1} << 30;
  const auto fits = [least](int64_t value) { return value >= least && value <= kMost; };
  if (values.size() != count || !std::all_of(values.begin(), values.end(), fits)) {
    fail(node, fmt::format("attribute '{}' is {}; expected {} numbers from {} to 2^30", name,
                           to_string(values, '[', ']'), count, least));
  }
  return values;
}

}  // namespace

Pixels pixels_of(const Shape& shape) {
  Pixels pixels{1, 1, 1};
  std::copy_backward(shape.begin() + 2, shape.end(), pixels.end());
  return pixels;
}

int64_t pixel_count(const Pixels& pixels) {
  return pixels[0] * pixels[1] * pixels[2];
}

int64_t Window::output_extent(int axis, int64_t input, bool ceil_mode) const {
  const int64_t free = input + pad_begin[axis] + pad_end[axis] - span(axis);
  int64_t extent = (ceil_mode ? (free + stride[axis] - 1) / stride[axis] : free / stride[axis]) + 1;
  // The last window must start inside the image or the padding before it, as in PyTorch.
  if (ceil_mode && (extent - 1) * stride[axis] >= input + pad_begin[axis]) --extent;
  return extent;
}

void Window::pad_to_same(const Pixels& image, bool lower) {
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t windows = (image[axis] + stride[axis] - 1) / stride[axis];
    const int64_t total = std::max<int64_t>(0, (windows - 1) * stride[axis] + span(axis) - image[axis]);
    pad_begin[axis] = lower ? total - total / 2 : total / 2;
    pad_end[axis] = total - pad_begin[axis];
  }
}

Window window_of(const Node& node, const std::vector<int64_t>& kernel_shape, const Shape& image) {
  const std::string auto_pad = string_attribute(node, "auto_pad");
  const size_t axes = kernel_shape.size(), first = 3 - axes;
  const std::vector<int64_t> strides = checked_ints(node, "strides", axes, 1, 1),
                             dilations = checked_ints(node, "dilations", axes, 1, 1);
  std::vector<int64_t> pads(2 * axes, 0);
  if (auto_pad == "NOTSET") pads = checked_ints(node, "pads", 2 * axes, 0, 0);
  Window window;
  for (size_t axis = 0; axis < axes; ++axis) {
    window.kernel[first + axis] = kernel_shape[axis];
    window.stride[first + axis] = strides[axis];
    window.dilation[first + axis] = dilations[axis];
    window.pad_begin[first + axis] = pads[axis];
    window.pad_end[first + axis] = pads[axis + axes];
  }
  if (auto_pad.starts_with("SAME")) window.pad_to_same(pixels_of(image), auto_pad == "SAME_LOWER");
  return window;
}

Window window_of(const Node& node, const Shape& image) {
  return window_of(node, checked_ints(node, "kernel_shape", image.size() - 2, 1, std::nullopt), image);
}

void check_fits(const Node& node, const Window& window, const TensorType& x, bool ceil_mode) {
  constexpr const char* kNames[] = {"depth", "height", "width"};
  const Pixels image = pixels_of(x.shape);
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t padded = image[axis] + window.pad_begin[axis] + window.pad_end[axis];
    const int64_t beyond = ceil_mode ? window.stride[axis] - 1 : 0;  // pixels that the last window may lack
    if (window.span(axis) > padded + beyond) {
      fail(node, fmt::format("the window spans {} pixels of {}, but input 'X' is {}: {} with padding",
                             window.span(axis), kNames[axis], to_string(x), padded));
    }
  }
}

Shape windowed_shape(const Window& window, const Shape& x, int64_t channels, bool ceil_mode) {
  Shape shape = {x[0], channels};
  for (size_t i = 2; i < x.size(); ++i) {
    shape.push_back(window.output_extent(int(i + 3 - x.size()), x[i], ceil_mode));
  }
  return shape;
}

std::vector<AttributeSpec> window_specs() {
  AttributeSpec auto_pad = string_spec(
      "auto_pad", "NOTSET",
      "NOTSET: as 'pads' says; SAME_UPPER, SAME_LOWER: as many windows as strides fit into the image, an odd pixel of "
      "padding after or before it; VALID: no padding");
  auto_pad.choices = {"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"};
  return {ints_spec("strides", {}, "pixels from one window to the next along each spatial axis; default: 1"),
          ints_spec("pads", {}, "pixels before the image along each spatial axis, then after it; default: none"),
          ints_spec("dilations", {}, "pixels from one element of the window to the next; default: 1"), auto_pad};
}

Attributes window_attributes(const Node& node, const std::vector<std::string>& others) {
  Attributes attributes;
  for (const NamedAttribute& attribute : node.attributes) {
    const std::string& name = attribute.name;
    const bool wanted = name == "strides" || name == "pads" || name == "dilations" || name == "auto_pad" ||
                        name == "kernel_shape" || std::find(others.begin(), others.end(), name) != others.end();
    if (wanted) attributes.set(name, attribute.value, attribute.where);
  }
  return attributes;
}

}  // namespace arbalest
