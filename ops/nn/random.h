// SPDX-License-Identifier: Apache-2.0
#pragma once
// The numbers of RandomUniformLike and RandomNormalLike: the same on CPUs and GPUs, and after a run is resumed.

#include <cmath>
#include <string_view>

#include "ops/nn/dropout.h"

namespace arbalest {

struct RandomNumbers : Drawing {
  float offset, scale;  // of what is drawn: uniform in [0, 1), or normal around 0 with variance 1
  float most;           // what no number is above: uniform ones would be rounded to `high`
  bool normal;

  // `name`: the name of the node that draws first.
  RandomNumbers(const Node& node, std::string_view name, int64_t elements);

  // Element 4 · draw + i is number(draw_of(…), i).
  ARBALEST_HOST_DEVICE float number(const Random4& draw, int i) const {
    const float drawn = offset + scale * (normal ? normal_of(draw, i) : uniform(draw.word[i]));
    return drawn < most ? drawn : most;
  }

 private:
  // Two words make two numbers (Box and Muller, 1958).
  ARBALEST_HOST_DEVICE static float normal_of(const Random4& draw, int i) {
    const int first = i / 2 * 2;
    const float radius = std::sqrt(-2 * std::log(1 - uniform(draw.word[first])));
    const float angle = 6.28318531f * uniform(draw.word[first + 1]);
    return radius * (i == first ? std::cos(angle) : std::sin(angle));
  }
};

}  // namespace arbalest
