// SPDX-License-Identifier: Apache-2.0
#pragma once
// The work of arbalest.Augment on a sample, on CPUs and GPUs alike: its settings and its random draws. Draws are a
// function of the seed, the node's name, the epoch and the sample's position. They are turned into sizes, angles and
// factors in double, so that values rounded to pixels are the same everywhere.

#include <cmath>
#include <vector>

#include "base/host_device.h"
#include "base/random.h"
#include "graph/graph.h"
#include "graph/kernel.h"
#include "ops/data/random_box.h"

namespace arbalest {

class InferContext;

void infer_augment(InferContext& context);
// Makes the node take the middle of the image, scaled if training scales parts of it; it then states `resize`, which
// export reads.
void augment_for_inference(Graph& graph, NodeId node);

// The range 1 − amount to 1 + amount, but not below 0, from which a factor of brightness, contrast or saturation is
// drawn.
ARBALEST_HOST_DEVICE inline Range around_one(double amount) {
  return {amount < 1 ? 1 - amount : 0, 1 + amount};
}

// Settings of one node. Those that `random` = 0 turns off are 0 here.
struct Augmentation {
  int64_t batch = 0;
  int channels = 0, height = 0, width = 0;  // of the images
  int crop_height = 0, crop_width = 0;      // of the output
  int pad = 0;
  bool random = false, flip = false, vertical_flip = false;
  bool resizes = false;                         // a part of the image is scaled to the output's size
  int64_t scaled_height = 0, scaled_width = 0;  // of the padded image, whose middle is taken if nothing is random
  Range area, log_ratio;                        // of that part: its share of the padded image; ln(width / height)
  double rotate = 0;                            // radians
  double brightness = 0, contrast = 0, saturation = 0, hue = 0;  // hue in turns
  double grey = 0, erase = 0;                                    // probabilities
  Range erase_area, log_erase_ratio;                             // as area and log_ratio, of the output
  uint64_t placement_hash = 0, rest_hash = 0;                    // of the two sequences of draws

  Augmentation() = default;
  explicit Augmentation(const KernelRequest& request);  // of an Augment that infer has checked

  ARBALEST_HOST_DEVICE int padded_height() const { return height + 2 * pad; }
  ARBALEST_HOST_DEVICE int padded_width() const { return width + 2 * pad; }
  ARBALEST_HOST_DEVICE bool warps() const { return resizes || rotate > 0; }
  ARBALEST_HOST_DEVICE bool colours() const {
    return brightness > 0 || contrast > 0 || saturation > 0 || hue > 0 || grey > 0;
  }
  // Whether pixels are only placed and normalised.
  bool places_only() const { return !warps() && !colours() && !(erase > 0); }
};

// y = x · scale + shift of each channel is (x / 255 − mean) / std.
struct Normalisation {
  std::vector<double> scale, shift;

  explicit Normalisation(const KernelRequest& request);
};

// The words that a sample's choices are made of.
class SampleDraws {
 public:
  enum Draw : int { kCrop = 0, kRotation = 10, kColour = 11, kChances = 12, kErase = 16, kDraws = 32 };

  ARBALEST_HOST_DEVICE SampleDraws(const Augmentation& a, const StepScalars& scalars, int64_t sample)
      : placement_key_(random_key(scalars.seed, a.placement_hash)),
        rest_key_(random_key(scalars.seed, a.rest_hash)),
        epoch_(scalars.epoch),
        position_(scalars.position + uint64_t(sample)) {}

  // Row, column, mirroring and turning upside down.
  ARBALEST_HOST_DEVICE Random4 placement() const { return philox(placement_key_, epoch_, position_); }
  ARBALEST_HOST_DEVICE Random4 operator()(int draw) const {
    return philox(rest_key_, epoch_, position_ * kDraws + uint64_t(draw));
  }

 private:
  uint64_t placement_key_, rest_key_, epoch_, position_;
};

// How one sample's crop lies in its image. Output (row, column) is image (row + top, column + left), columns counted
// from the right if it is mirrored, rows from below if it is upside down.
struct Placement {
  int top = 0, left = 0;
  bool mirrored = false, upside_down = false;

  ARBALEST_HOST_DEVICE Placement(const Augmentation& a, const SampleDraws& draws) {
    const int rows = a.padded_height() - a.crop_height, columns = a.padded_width() - a.crop_width;
    top = rows / 2 - a.pad;
    left = columns / 2 - a.pad;
    if (!a.random) return;
    const Random4 draw = draws.placement();
    if (!a.resizes) {
      top = int(below(draw.word[0], uint32_t(rows + 1))) - a.pad;
      left = int(below(draw.word[1], uint32_t(columns + 1))) - a.pad;
    }
    mirrored = a.flip && (draw.word[2] & 1) != 0;
    upside_down = a.vertical_flip && (draw.word[3] & 1) != 0;
  }
};

// The place in the image that an output pixel shows, in pixels from the centre of the image's first. It is
// column' = xx · column + xy · row + x, row' = yx · column + yy · row + y.
struct Warp {
  double xx = 1, xy = 0, x = 0, yx = 0, yy = 1, y = 0;

  // The part is cut out, scaled to the crop, turned about the crop's middle and flipped; this is the way back.
  ARBALEST_HOST_DEVICE Warp(const Augmentation& a, const SampleDraws& draws, const Placement& place) {
    double top = place.top + a.pad, left = place.left + a.pad, height = a.crop_height, width = a.crop_width;
    if (a.resizes && a.random) {
      Box box = random_box(draws, SampleDraws::kCrop, a.area, a.log_ratio, a.padded_height(), a.padded_width(), 0);
      if (box.height == 0) box = middle_box(a.log_ratio, a.padded_height(), a.padded_width());
      top = box.top, left = box.left, height = box.height, width = box.width;
    } else if (a.resizes) {
      const double rows = double(a.padded_height()) / double(a.scaled_height),
                   columns = double(a.padded_width()) / double(a.scaled_width);
      top = double((a.scaled_height - a.crop_height) / 2) * rows,
      left = double((a.scaled_width - a.crop_width) / 2) * columns;
      height *= rows, width *= columns;
    }
    const double angle = a.rotate > 0 ? Range{-a.rotate, a.rotate}.at(draws(SampleDraws::kRotation).word[0]) : 0;
    const double cosine = std::cos(angle), sine = std::sin(angle);
    const double across = width / a.crop_width, down = height / a.crop_height;
    const int column_sign = place.mirrored ? -1 : 1, row_sign = place.upside_down ? -1 : 1;
    xx = across * cosine * column_sign;
    xy = across * sine * row_sign;
    yx = -down * sine * column_sign;
    yy = down * cosine * row_sign;
    const double middle_column = (a.crop_width - 1) / 2.0, middle_row = (a.crop_height - 1) / 2.0;
    x = left - a.pad + (width - 1) / 2 - xx * middle_column - xy * middle_row;
    y = top - a.pad + (height - 1) / 2 - yx * middle_column - yy * middle_row;
  }
};

// Recolours a pixel, 0 to 255 in each channel: value' = matrix · value + shift, clamped to 0 to 255. The matrix is
// b c (L + s (cos(h) (1 − L) + sin(h) K)) for brightness b, contrast c about mid-grey, saturation s and hue h.
// Saturation blends with the luma L; hue turns about the grey axis of YIQ; L and K are matrices. For one channel only
// the first element is used.
struct Recolouring {
  double matrix[9] = {1, 0, 0, 0, 1, 0, 0, 0, 1};  // row-major
  double shift = 0;

  ARBALEST_HOST_DEVICE Recolouring(const Augmentation& a, const SampleDraws& draws) {
    if (!a.colours()) return;
    const Random4 draw = draws(SampleDraws::kColour);
    const double contrast = around_one(a.contrast).at(draw.word[1]);
    const double factor = around_one(a.brightness).at(draw.word[0]) * contrast;
    shift = 127.5 * (1 - contrast);
    matrix[0] = factor;
    if (a.channels != 3) return;
    constexpr double kTurn = 6.283185307179586;
    const double luma[3] = {0.299, 0.587, 0.114};
    const double quarter[9] = {
        0.167703247, 0.329268146, -0.496971393, -0.328130814, 0.035520929,
        0.292609885, 1.249732606, -1.046508430, -0.203224176};  // a quarter turn in YIQ, of colour alone
    const double angle = kTurn * Range{-a.hue, a.hue}.at(draw.word[3]);
    const bool grey = uniform(draws(SampleDraws::kChances).word[0]) < a.grey;
    const double saturation = grey ? 0 : around_one(a.saturation).at(draw.word[2]);
    const double cosine = saturation * std::cos(angle), sine = saturation * std::sin(angle);
    for (int i = 0; i < 9; ++i) {
      const double grey_part = luma[i % 3], own = i % 4 == 0 ? 1 : 0;
      matrix[i] = factor * (grey_part + cosine * (own - grey_part) + sine * quarter[i]);
    }
  }
};

// Box of the output that is erased; empty if nothing is.
ARBALEST_HOST_DEVICE inline Box erased_box(const Augmentation& a, const SampleDraws& draws) {
  if (!(uniform(draws(SampleDraws::kChances).word[1]) < a.erase)) return {};
  return random_box(draws, SampleDraws::kErase, a.erase_area, a.log_erase_ratio, a.crop_height, a.crop_width, 1);
}

}  // namespace arbalest
