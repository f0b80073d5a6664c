// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sliding windows of convolution and pooling over one, two or three spatial axes: attributes and extents.

#include <array>

#include "base/host_device.h"
#include "graph/op.h"

namespace arbalest {

// Values of the spatial axes of a tensor (N, C, …), always three: depth, height, width. Axes that a tensor of lower
// rank lacks come first; its extents along them are 1, and so are its windows'.
using Pixels = std::array<int64_t, 3>;

// Spatial extents of a tensor or of filters of rank 3, 4 or 5.
Pixels pixels_of(const Shape& shape);
// depth · height · width
int64_t pixel_count(const Pixels& pixels);

struct Window {
  Pixels kernel{1, 1, 1}, stride{1, 1, 1}, dilation{1, 1, 1}, pad_begin{0, 0, 0}, pad_end{0, 0, 0};

  // Input pixels that a window spans.
  int64_t span(int axis) const { return dilation[axis] * (kernel[axis] - 1) + 1; }
  int64_t output_extent(int axis, int64_t input, bool ceil_mode = false) const;
  // Pads so that there are as many windows along each axis as strides fit into the image. These are ONNX's SAME_UPPER
  // and, with `lower`, SAME_LOWER, which puts an odd pixel before the image.
  void pad_to_same(const Pixels& image, bool lower);
};

// The attributes strides, pads, dilations and auto_pad of the node, for an image (N, C, …) with as many spatial axes as
// `kernel_shape` has. Fails if they do not describe a window.
Window window_of(const Node& node, const std::vector<int64_t>& kernel_shape, const Shape& image);
// The same with the node's `kernel_shape`: extents of at least 1, one for each spatial axis of the image.
Window window_of(const Node& node, const Shape& image);
// Fails if not one window fits the padded image.
void check_fits(const Node& node, const Window& window, const TensorType& x, bool ceil_mode = false);
// Shape (N, channels, …) of the result of windows over an image of shape `x`.
Shape windowed_shape(const Window& window, const Shape& x, int64_t channels, bool ceil_mode = false);

// Windows over images of `in` pixels that make images of `out` pixels; both with channels innermost.
struct SlidingWindow {
  Pixels in, out;
  Window window;

  int64_t taps() const { return pixel_count(window.kernel); }

  // The input coordinate of element `tap` of the window at `out`; −1 outside the image.
  int64_t input_at(int axis, int64_t at, int64_t tap) const {
    const int64_t coordinate = at * window.stride[axis] + tap * window.dilation[axis] - window.pad_begin[axis];
    return coordinate < in[axis] ? coordinate : -1;
  }
  // The window whose element `tap` lies on input coordinate `at`, or −1 if there is none.
  int64_t output_at(int axis, int64_t at, int64_t tap) const {
    const int64_t scaled = at + window.pad_begin[axis] - tap * window.dilation[axis];
    if (scaled < 0 || scaled % window.stride[axis] != 0) return -1;
    const int64_t coordinate = scaled / window.stride[axis];
    return coordinate < out[axis] ? coordinate : -1;
  }
  // f(tap, pixel of the input image) for the elements of the window at `at`, in row-major order.
  template <typename F>
  void for_each_input(const Pixels& at, const F& f) const {
    for_each_tap([&](int axis, int64_t tap) { return input_at(axis, at[axis], tap); }, in, f);
  }
  // f(tap, pixel of the output image) for the windows that see the input pixel `at`.
  template <typename F>
  void for_each_output(const Pixels& at, const F& f) const {
    for_each_tap([&](int axis, int64_t tap) { return output_at(axis, at[axis], tap); }, out, f);
  }
  // f(input pixel, output pixel), both counted over a batch of images, for all windows whose element `tap` is in the
  // image.
  template <typename F>
  void for_each_pair(int64_t batch, int64_t tap, const F& f) const {
    const Pixels& kernel = window.kernel;
    const int64_t t = tap / (kernel[1] * kernel[2]), r = tap / kernel[2] % kernel[1], s = tap % kernel[2];
    for (int64_t row = 0; row < batch * out[0] * out[1]; ++row) {
      const int64_t d = input_at(0, row / out[1] % out[0], t), h = input_at(1, row % out[1], r);
      if (d < 0 || h < 0) continue;
      const int64_t in_row = ((row / out[1] / out[0] * in[0] + d) * in[1] + h) * in[2];
      for (int64_t q = 0; q < out[2]; ++q) {
        if (const int64_t w = input_at(2, q, s); w >= 0) f(in_row + w, row * out[2] + q);
      }
    }
  }

 private:
  // place(axis, tap): a coordinate in an image of `extents`, or −1.
  template <typename Place, typename F>
  void for_each_tap(const Place& place, const Pixels& extents, const F& f) const {
    const Pixels& kernel = window.kernel;
    for (int64_t t = 0; t < kernel[0]; ++t) {
      const int64_t d = place(0, t);
      if (d < 0) continue;
      for (int64_t r = 0; r < kernel[1]; ++r) {
        const int64_t h = place(1, r);
        if (h < 0) continue;
        for (int64_t s = 0; s < kernel[2]; ++s) {
          if (const int64_t w = place(2, s); w >= 0) {
            f((t * kernel[1] + r) * kernel[2] + s, (d * extents[1] + h) * extents[2] + w);
          }
        }
      }
    }
  }
};

// How many of `kernel` elements, `dilation` apart from `begin` on, lie in low … high − 1.
template <typename Int>
ARBALEST_HOST_DEVICE Int elements_between(Int begin, Int dilation, Int kernel, Int low, Int high) {
  const Int first = begin >= low ? 0 : (low - begin + dilation - 1) / dilation;
  const Int end = high > begin ? (high - 1 - begin) / dilation + 1 : 0;
  const Int stop = end < kernel ? end : kernel;
  return stop > first ? stop - first : 0;
}

// strides, pads, dilations and auto_pad.
std::vector<AttributeSpec> window_specs();
// The same attributes as written in `node`, for its gradient nodes.
Attributes window_attributes(const Node& node, const std::vector<std::string>& others);

}  // namespace arbalest
