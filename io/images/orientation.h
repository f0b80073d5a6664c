// SPDX-License-Identifier: Apache-2.0
#pragma once
// Turning stored images upright by the EXIF orientation.

#include <cstdint>
#include <span>

#include "io/images/image.h"

namespace arbalest {

// The orientation that EXIF states, from its TIFF header on: 1 … 8, and 1 if the bytes state none.
int exif_orientation(std::span<const uint8_t> tiff);

// The upright image's pixel (x, y) is the stored one's (u, v). Here u and v are x and y, or y and x if transposed,
// counted from the other end if flipped.
struct Orientation {
  bool transposed, flip_u, flip_v;

  explicit Orientation(int exif)
      : transposed(exif >= 5),
        flip_u(exif == 2 || exif == 3 || exif == 7 || exif == 8),
        flip_v(exif == 3 || exif == 4 || exif == 6 || exif == 7) {}

  // The region of the stored image that a region of the upright image, width × height pixels, comes from.
  Region stored(const Region& upright, int64_t width, int64_t height) const;

  // From stored pixels to the upright (height, width, channels).
  void turn(const uint8_t* from, int64_t height, int64_t width, int channels, uint8_t* to) const;
};

}  // namespace arbalest
