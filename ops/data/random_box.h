// SPDX-License-Identifier: Apache-2.0
#pragma once
// Parts of images drawn at random: on CPUs and GPUs, and while files are prepared.

#include <cmath>
#include <string_view>

#include "base/checked.h"
#include "base/host_device.h"
#include "base/random.h"
#include "graph/graph.h"
#include "ops/data/box.h"

namespace arbalest {

// Drawn uniformly between `least` and `most`.
struct Range {
  double least = 0, most = 0;

  ARBALEST_HOST_DEVICE double at(uint32_t word) const { return least + uniform(word) * (most - least); }
};

// The attribute, [least, most]: shares of an area; the logarithms of quotients. Throw GraphError.
Range area_range(const Node& node, std::string_view name);
Range log_ratio_range(const Node& node, std::string_view name);

// The first of ten tries that fits into height × width with `margin` pixels to spare, as torchvision makes them. Each
// has a share of the area drawn uniformly, and a quotient of width and height drawn log-uniformly. Try i is made of
// draws(first_draw + i). A box of height 0: none fits.
template <typename Draws>
ARBALEST_HOST_DEVICE Box random_box(const Draws& draws, int first_draw, const Range& area, const Range& log_ratio,
                                    int height, int width, int margin) {
  constexpr int kTries = 10;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    const Random4 draw = draws(first_draw + attempt);
    const double pixels = area.at(draw.word[0]) * height * width, ratio = std::exp(log_ratio.at(draw.word[1]));
    const int64_t rows = whole_part(std::sqrt(pixels / ratio) + 0.5),
                  columns = whole_part(std::sqrt(pixels * ratio) + 0.5);
    if (rows < 1 || columns < 1 || rows > height - margin || columns > width - margin) continue;
    const int h = int(rows), w = int(columns);
    return {int(below(draw.word[2], uint32_t(height - h + 1))), int(below(draw.word[3], uint32_t(width - w + 1))), h,
            w};
  }
  return {};
}

// The greatest centred part of height × width whose ratio is in the range; used if no try fits.
ARBALEST_HOST_DEVICE inline Box middle_box(const Range& log_ratio, int height, int width) {
  const double least = std::exp(log_ratio.least), most = std::exp(log_ratio.most), ratio = double(width) / height;
  Box box{0, 0, height, width};
  if (ratio < least) box.height = int(std::fmax(1, double(whole_part(width / least + 0.5))));
  if (ratio > most) box.width = int(std::fmax(1, double(whole_part(height * most + 0.5))));
  box.top = (height - box.height) / 2;
  box.left = (width - box.width) / 2;
  return box;
}

}  // namespace arbalest
