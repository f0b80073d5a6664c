// SPDX-License-Identifier: Apache-2.0
#include "io/images/orientation.h"

#include <cstddef>
#include <utility>

namespace arbalest {

int exif_orientation(std::span<const uint8_t> tiff) {
  constexpr int kUpright = 1;
  constexpr uint32_t kTag = 0x0112, kShort = 3;
  constexpr size_t kEntrySize = 12;  // tag (2), type (2), count (4), value (4)
  if (tiff.size() < 8 || tiff[0] != tiff[1] || (tiff[0] != 'I' && tiff[0] != 'M')) return kUpright;
  const bool little = tiff[0] == 'I';
  const auto number = [&](size_t at, size_t count) {
    uint32_t value = 0;
    for (size_t k = 0; k < count; ++k) value = value << 8 | tiff[at + (little ? count - 1 - k : k)];
    return value;
  };
  const size_t folder = number(4, 4);
  if (number(2, 2) != 42 || folder > tiff.size() - 2) return kUpright;
  const size_t entries = number(folder, 2);
  for (size_t k = 0; k < entries; ++k) {
    const size_t at = folder + 2 + k * kEntrySize;
    if (at + kEntrySize > tiff.size()) return kUpright;
    if (number(at, 2) != kTag || number(at + 2, 2) != kShort) continue;
    const uint32_t value = number(at + 8, 2);
    return value >= 1 && value <= 8 ? int(value) : kUpright;
  }
  return kUpright;
}

Region Orientation::stored(const Region& upright, int64_t width, int64_t height) const {
  Region region = upright;
  if (transposed) {
    std::swap(region.left, region.top);
    std::swap(region.width, region.height);
    std::swap(width, height);
  }
  if (flip_u) region.left = double(width) - region.left - region.width;
  if (flip_v) region.top = double(height) - region.top - region.height;
  return region;
}

void Orientation::turn(const uint8_t* from, int64_t height, int64_t width, int channels, uint8_t* to) const {
  const int64_t stored_width = transposed ? height : width, stored_height = transposed ? width : height;
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      int64_t u = transposed ? y : x, v = transposed ? x : y;
      if (flip_u) u = stored_width - 1 - u;
      if (flip_v) v = stored_height - 1 - v;
      const uint8_t* pixel = from + (v * stored_width + u) * channels;
      for (int c = 0; c < channels; ++c) *to++ = pixel[c];
    }
  }
}

}  // namespace arbalest
