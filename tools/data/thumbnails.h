// SPDX-License-Identifier: Apache-2.0
#pragma once
// Images of a source, small.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "io/images/image.h"
#include "io/sources/source.h"

namespace arbalest {

struct Thumbnail {
  int64_t width = 0, height = 0;
  std::vector<uint8_t> pixels;  // (height, width, 3): red, green and blue
};

// For one thread at a time.
class Thumbnails {
 public:
  // `field`: the source's images, as image_field() finds it; `side`: pixels that the longer side has.
  Thumbnails(const Source& source, int field, int64_t side)
      : source_(source), field_(field), side_(side), stated_(source.fields()[size_t(field)]) {}

  Thumbnail make(int64_t index);  // throws RunError if the sample cannot be read

 private:
  Thumbnail of_file(int64_t index);
  Thumbnail of_array(int64_t index);
  Thumbnail blank(int64_t width, int64_t height) const;

  const Source& source_;
  int field_;
  int64_t side_;
  Field stated_;
  ImageDecoder decoder_;
  std::vector<std::byte> file_;
  std::vector<uint8_t> array_;
};

}  // namespace arbalest
