// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reference for scaled images, computed in doubles.

#include <cstdint>
#include <span>
#include <vector>

#include "io/images/image.h"
#include "tests/io/image_files.h"

namespace arbalest {

inline std::span<const std::byte> bytes_of(const FileBytes& file) {
  return std::as_bytes(std::span(file));
}

// (height, width, channels) of the region.
std::vector<uint8_t> decode_region(ImageDecoder& decoder, const FileBytes& file, const Region& region, int height,
                                   int width, int channels);
// All of it as it is.
std::vector<uint8_t> decode_all(ImageDecoder& decoder, const FileBytes& file, int channels);

// The region of an image of 8 bits scaled by a triangle filter, (height, width, channels).
std::vector<double> scaled(const TestImage& image, const Region& region, int height, int width);

struct Difference {
  double mean = 0, greatest = 0;
};
Difference difference(std::span<const uint8_t> found, const std::vector<double>& expected);
Difference difference(std::span<const uint8_t> found, std::span<const uint8_t> expected);

}  // namespace arbalest
