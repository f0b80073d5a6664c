#include "ops/nn/window.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/definition.h"

namespace arbalest {
namespace {

std::vector<int64_t> checked_ints(const Node& node, std::string_view name, size_t count, int64_t least) {
  const std::vector<int64_t> values = ints_attribute(node, name);
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

int64_t Window::output_extent(int axis, int64_t input, bool ceil_mode) const {
  const int64_t free = input + pad_begin[axis] + pad_end[axis] - span(axis);
  int64_t extent = (ceil_mode ? (free + stride[axis] - 1) / stride[axis] : free / stride[axis]) + 1;
  // The last window must start inside the image or the padding before it, as in PyTorch.
  if (ceil_mode && (extent - 1) * stride[axis] >= input + pad_begin[axis]) --extent;
  return extent;
}

std::vector<int64_t> kernel_shape_of(const Node& node) {
  return checked_ints(node, "kernel_shape", 2, 1);
}

Window window_of(const Node& node, const std::vector<int64_t>& kernel_shape) {
  if (const std::string auto_pad = string_attribute(node, "auto_pad"); auto_pad != "NOTSET") {
    fail(node, fmt::format("attribute 'auto_pad' is \"{}\"; expected \"NOTSET\" with explicit 'pads'", auto_pad));
  }
  const std::vector<int64_t> strides = checked_ints(node, "strides", 2, 1), pads = checked_ints(node, "pads", 4, 0),
                             dilations = checked_ints(node, "dilations", 2, 1);
  Window window;
  for (size_t axis = 0; axis < 2; ++axis) {
    window.kernel[axis] = kernel_shape[axis];
    window.stride[axis] = strides[axis];
    window.dilation[axis] = dilations[axis];
    window.pad_begin[axis] = pads[axis];
    window.pad_end[axis] = pads[axis + 2];
  }
  return window;
}

void check_fits(const Node& node, const Window& window, const TensorType& x) {
  for (int axis = 0; axis < 2; ++axis) {
    const int64_t padded = x.shape[size_t(axis) + 2] + window.pad_begin[axis] + window.pad_end[axis];
    if (window.span(axis) > padded) {
      fail(node, fmt::format("the window spans {} pixels of {}, but input 'X' is {}: {} with padding",
                             window.span(axis), axis == 0 ? "height" : "width", to_string(x), padded));
    }
  }
}

std::vector<AttributeSpec> window_specs() {
  return {ints_spec("strides", {1, 1}, "pixels from one window to the next: vertical, horizontal"),
          ints_spec("pads", {0, 0, 0, 0}, "zeros around the image: top, left, bottom, right"),
          ints_spec("dilations", {1, 1}, "pixels from one element of the window to the next"),
          string_spec("auto_pad", "NOTSET", "only NOTSET: padding is explicit")};
}

Attributes window_attributes(const Node& node, const std::vector<std::string>& others) {
  Attributes attributes;
  for (const NamedAttribute& attribute : node.attributes) {
    const std::string& name = attribute.name;
    const bool wanted = name == "strides" || name == "pads" || name == "dilations" || name == "kernel_shape" ||
                        std::find(others.begin(), others.end(), name) != others.end();
    if (wanted) attributes.set(name, attribute.value, attribute.where);
  }
  return attributes;
}

}  // namespace arbalest
