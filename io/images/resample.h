#pragma once
// Scaling by an antialiased triangle filter, in integers: the same bytes on every machine.

#include <cstdint>
#include <vector>

#include "io/images/codec.h"

namespace arbalest {

// Along one axis, each output is a weighted sum of neighbouring inputs.
struct AxisWeights {
  int bits = 0;  // weights of an output sum to 1 << bits
  int taps = 0;  // room for weights of each output
  std::vector<int32_t> first, count;
  std::vector<int16_t> weights;  // (outputs, taps)

  // Outputs divide [start, start + extent) evenly, which lies within 0 … inputs; inputs that this does not touch have
  // no weight.
  void set(double start, double extent, int64_t inputs, int64_t outputs);
};

// Keeps its buffers from image to image.
class Resampler {
 public:
  // (height, width, channels); channels is 1, or 3, where grey pixels give three equal bytes. Colour pixels give 3.
  void run(const Pixels& pixels, int64_t height, int64_t width, int channels, uint8_t* out);

 private:
  AxisWeights rows_, columns_;
  std::vector<uint8_t> line_, strip_;
};

}  // namespace arbalest
