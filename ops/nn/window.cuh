// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sliding windows on the device.

#include <cstdint>

#include "ops/nn/window.h"

namespace arbalest::cuda {

// A SlidingWindow in 32 bits.
struct DeviceWindow {
  int in[3], out[3], kernel[3], stride[3], dilation[3], pad_begin[3], pad_end[3];

  explicit DeviceWindow(const SlidingWindow& from) {
    for (int axis = 0; axis < 3; ++axis) {
      in[axis] = int(from.in[axis]);
      out[axis] = int(from.out[axis]);
      kernel[axis] = int(from.window.kernel[axis]);
      stride[axis] = int(from.window.stride[axis]);
      dilation[axis] = int(from.window.dilation[axis]);
      pad_begin[axis] = int(from.window.pad_begin[axis]);
      pad_end[axis] = int(from.window.pad_end[axis]);
    }
  }

  // The coordinate of element `tap` of the window at `at`; −1 outside the image.
  __device__ int input_at(int axis, int at, int tap) const {
    const int coordinate = at * stride[axis] + tap * dilation[axis] - pad_begin[axis];
    return coordinate < in[axis] ? coordinate : -1;
  }
  // The window whose element `tap` lies on input coordinate `at`, or −1 if there is none.
  __device__ int output_at(int axis, int at, int tap) const {
    const int scaled = at + pad_begin[axis] - tap * dilation[axis];
    if (scaled < 0 || scaled % stride[axis] != 0) return -1;
    return scaled / stride[axis] < out[axis] ? scaled / stride[axis] : -1;
  }
  // The pixel of the input image on which element `tap` of the window at `at` lies; −1 outside the image.
  __device__ int64_t input_pixel(const int (&at)[3], int tap) const {
    const int d = input_at(0, at[0], tap / (kernel[1] * kernel[2]));
    const int h = input_at(1, at[1], tap / kernel[2] % kernel[1]), w = input_at(2, at[2], tap % kernel[2]);
    return d < 0 || h < 0 || w < 0 ? -1 : (int64_t(d) * in[1] + h) * in[2] + w;
  }
  // f(tap, pixel of the input image) for the elements of the window at (p0, p1, p2), in row-major order.
  template <typename Function>
  __device__ void for_each_input(const int (&at)[3], Function f) const {
    for (int t = 0; t < kernel[0]; ++t) {
      const int d = input_at(0, at[0], t);
      if (d < 0) continue;
      for (int r = 0; r < kernel[1]; ++r) {
        const int h = input_at(1, at[1], r);
        if (h < 0) continue;
        for (int s = 0; s < kernel[2]; ++s) {
          const int w = input_at(2, at[2], s);
          if (w >= 0) f((t * kernel[1] + r) * kernel[2] + s, (int64_t(d) * in[1] + h) * in[2] + w);
        }
      }
    }
  }
  // f(tap, pixel of the output image, coordinates of the window) for the windows that see the input pixel `at`.
  template <typename Function>
  __device__ void for_each_output(const int (&at)[3], Function f) const {
    int window[3];
    for (int t = 0; t < kernel[0]; ++t) {
      window[0] = output_at(0, at[0], t);
      if (window[0] < 0) continue;
      for (int r = 0; r < kernel[1]; ++r) {
        window[1] = output_at(1, at[1], r);
        if (window[1] < 0) continue;
        for (int s = 0; s < kernel[2]; ++s) {
          window[2] = output_at(2, at[2], s);
          if (window[2] < 0) continue;
          f((t * kernel[1] + r) * kernel[2] + s, (int64_t(window[0]) * out[1] + window[1]) * out[2] + window[2],
            window);
        }
      }
    }
  }
};

// Item i of (images, pixels of `extents`, packs of channels).
struct PixelPlace {
  int64_t image, pixel;  // the pixel within its image
  int at[3], pack;

  __device__ PixelPlace(int64_t i, const int (&extents)[3], int packs) {
    i <= INT32_MAX ? split(uint32_t(i), extents, uint32_t(packs)) : split(uint64_t(i), extents, uint64_t(packs));
  }

 private:
  // Division of 32-bit numbers is several times faster.
  template <typename Index>
  __device__ void split(Index i, const int (&extents)[3], Index packs) {
    pack = int(i % packs);
    i /= packs;
    at[2] = int(i % Index(extents[2]));
    i /= Index(extents[2]);
    at[1] = int(i % Index(extents[1]));
    i /= Index(extents[1]);
    at[0] = int(i % Index(extents[0]));
    image = int64_t(i / Index(extents[0]));
    pixel = (int64_t(at[0]) * extents[1] + at[1]) * extents[2] + at[2];
  }
};

}  // namespace arbalest::cuda
