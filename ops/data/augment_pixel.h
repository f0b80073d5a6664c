// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a pixel of arbalest.Augment's output is made if pixels are not only placed: bilinear between four of the
// image, then recoloured. One source for CPUs and GPUs; W is the type of the arithmetic.

#include <cmath>
#include <cstdint>

#include "ops/data/augmentation.h"

namespace arbalest {

// One sample's choices, in the precision of its pixels.
template <typename W>
struct PixelView {
  int height, width, channels;                         // of the image
  bool warped, zeros_outside, coloured;                // zeros outside of the image, or its nearest pixel
  int first_row, row_step, first_column, column_step;  // if not warped
  W xx, xy, x, yx, yy, y;                              // if warped, see Warp
  W matrix[9], shift;                                  // see Recolouring
  Box erased;

  ARBALEST_HOST_DEVICE PixelView(const Augmentation& a, const StepScalars& scalars, int64_t sample)
      : height(a.height),
        width(a.width),
        channels(a.channels),
        warped(a.warps()),
        zeros_outside(a.pad > 0 || a.rotate > 0),
        coloured(a.colours()) {
    const SampleDraws draws(a, scalars, sample);
    const Placement place(a, draws);
    row_step = place.upside_down ? -1 : 1;
    first_row = place.top + (place.upside_down ? a.crop_height - 1 : 0);
    column_step = place.mirrored ? -1 : 1;
    first_column = place.left + (place.mirrored ? a.crop_width - 1 : 0);
    const Warp warp(a, draws, place);
    xx = W(warp.xx), xy = W(warp.xy), x = W(warp.x), yx = W(warp.yx), yy = W(warp.yy), y = W(warp.y);
    const Recolouring colour(a, draws);
    for (int i = 0; i < 9; ++i) matrix[i] = W(colour.matrix[i]);
    shift = W(colour.shift);
    erased = erased_box(a, draws);
  }

  // Writes the C channels of output pixel (row, column), 0 to 255, and returns how much of it lies in the image, 0
  // to 1. `image` begins with the first of the channels that are wanted; C is 1, or 3 of 3.
  template <int C>
  ARBALEST_HOST_DEVICE W pixel(const uint8_t* image, int row, int column, W* value) const {
    const W coverage = warped ? blend<C>(image, row, column, value) : copy<C>(image, row, column, value);
    if (coloured) recolour<C>(value);
    return coverage;
  }

 private:
  // Two neighbours along an axis, and their weights.
  struct Neighbours {
    int first, second;
    W first_weight, second_weight;

    ARBALEST_HOST_DEVICE Neighbours(W place, int extent, bool zeros_outside) {
      const W below = std::floor(place);
      first = int(below), second = first + 1;
      second_weight = place - below, first_weight = 1 - second_weight;
      if (zeros_outside) {
        if (first < 0 || first >= extent) first_weight = 0;
        if (second < 0 || second >= extent) second_weight = 0;
      }
      first = clamped(first, extent), second = clamped(second, extent);
    }
    ARBALEST_HOST_DEVICE static int clamped(int i, int extent) { return i < 0 ? 0 : i >= extent ? extent - 1 : i; }
  };

  template <int C>
  ARBALEST_HOST_DEVICE W blend(const uint8_t* image, int row, int column, W* value) const {
    const Neighbours across(xx * W(column) + xy * W(row) + x, width, zeros_outside);
    const Neighbours down(yx * W(column) + yy * W(row) + y, height, zeros_outside);
    const uint8_t* above = image + int64_t(down.first) * width * channels;
    const uint8_t* below = image + int64_t(down.second) * width * channels;
    const int64_t left = int64_t(across.first) * channels, right = int64_t(across.second) * channels;
    for (int c = 0; c < C; ++c) {
      value[c] =
          down.first_weight * (across.first_weight * W(above[left + c]) + across.second_weight * W(above[right + c])) +
          down.second_weight * (across.first_weight * W(below[left + c]) + across.second_weight * W(below[right + c]));
    }
    if (!zeros_outside) return 1;
    // The colour is that of the part which lies in the image.
    const W coverage = (across.first_weight + across.second_weight) * (down.first_weight + down.second_weight);
    if (coverage > 0 && coverage < 1) {
      for (int c = 0; c < C; ++c) value[c] /= coverage;
    }
    return coverage;
  }

  template <int C>
  ARBALEST_HOST_DEVICE W copy(const uint8_t* image, int row, int column, W* value) const {
    const int from_row = first_row + row_step * row, from_column = first_column + column_step * column;
    const bool inside = from_row >= 0 && from_row < height && from_column >= 0 && from_column < width;
    const uint8_t* from = image + (int64_t(from_row) * width + from_column) * channels;
    for (int c = 0; c < C; ++c) value[c] = inside ? W(from[c]) : W(0);
    return inside ? W(1) : W(0);
  }

  template <int C>
  ARBALEST_HOST_DEVICE void recolour(W* value) const {
    if constexpr (C == 3) {
      const W r = value[0], g = value[1], b = value[2];
      for (int c = 0; c < 3; ++c) {
        value[c] = kept(matrix[3 * c] * r + matrix[3 * c + 1] * g + matrix[3 * c + 2] * b + shift);
      }
    } else {
      for (int c = 0; c < C; ++c) value[c] = kept(matrix[0] * value[c] + shift);
    }
  }
  ARBALEST_HOST_DEVICE static W kept(W value) { return value < 0 ? W(0) : value > 255 ? W(255) : value; }
};

}  // namespace arbalest
