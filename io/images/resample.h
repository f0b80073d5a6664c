// SPDX-License-Identifier: Apache-2.0
#pragma once
// Scaling by an antialiased triangle filter, in integers: the same bytes on every machine.

#include <cstdint>
#include <vector>

#include "io/images/codec.h"

namespace arbalest {

// Along one axis, each output is a weighted sum of neighbouring inputs.
struct AxisWeights {
  static constexpr int kSum = 65535;  // of the weights of an output

  int taps = 0;  // room for the weights of each output
  std::vector<int32_t> first, count;
  std::vector<uint16_t> weights;  // (outputs, taps)

  // Outputs divide [start, start + extent) evenly, which lies within 0 … inputs; inputs that this does not touch have
  // no weight.
  void set(double start, double extent, int64_t inputs, int64_t outputs);
};

// Keeps its buffers from image to image.
class Resampler {
 public:
  // (height, width, channels). Colour pixels give 3 channels; grey ones 1, or 3 that are equal.
  void run(const Pixels& pixels, int64_t height, int64_t width, int channels, uint8_t* out);

 private:
  template <int kPixelBytes, int kChannels>
  void scale(const Pixels& pixels, int64_t height, int64_t width, uint8_t* out);

  AxisWeights rows_, columns_;
  std::vector<uint8_t> strip_;
};

}  // namespace arbalest
