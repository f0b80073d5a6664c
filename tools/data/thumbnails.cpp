// SPDX-License-Identifier: Apache-2.0
#include "tools/data/thumbnails.h"

#include <algorithm>

namespace arbalest {

Thumbnail Thumbnails::make(int64_t index) {
  return stated_.dtype == DataType::String ? of_file(index) : of_array(index);
}

Thumbnail Thumbnails::of_file(int64_t index) {
  source_.read(index, size_t(field_), file_);
  const ImageInfo info = decoder_.open(file_);
  Thumbnail small = blank(info.width, info.height);
  PreparationTimes times;
  decoder_.decode({0, 0, double(info.width), double(info.height)}, small.height, small.width, 3, small.pixels.data(),
                  times);
  return small;
}

// By the nearest pixel: such images are small.
Thumbnail Thumbnails::of_array(int64_t index) {
  const int64_t channels = stated_.shape[0], height = stated_.shape[1], width = stated_.shape[2];
  array_.resize(size_t(stated_.sample().bytes()));
  std::vector<std::byte*> fields(source_.fields().size(), nullptr);
  fields[size_t(field_)] = reinterpret_cast<std::byte*>(array_.data());
  const SampleRef sample{index, 0, uint64_t(index)};
  source_.fill({&sample, 1}, fields);
  Thumbnail small = blank(width, height);
  uint8_t* out = small.pixels.data();
  for (int64_t y = 0; y < small.height; ++y) {
    for (int64_t x = 0; x < small.width; ++x) {
      const int64_t pixel = y * height / small.height * width + x * width / small.width;
      for (int64_t c = 0; c < 3; ++c) *out++ = array_[size_t(pixel * channels + std::min(c, channels - 1))];
    }
  }
  return small;
}

Thumbnail Thumbnails::blank(int64_t width, int64_t height) const {
  const int64_t longer = std::max(width, height);
  Thumbnail small{std::max<int64_t>(1, width * side_ / longer), std::max<int64_t>(1, height * side_ / longer), {}};
  small.pixels.resize(size_t(small.width * small.height * 3));
  return small;
}

}  // namespace arbalest
