// SPDX-License-Identifier: Apache-2.0

// Image files of all formats: what their headers say, and their pixels at 8 × 8.

#include <algorithm>

#include "io/images/image.h"
#include "tests/fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace arbalest;
  static ImageDecoder decoder;
  fuzz::accepted([&] {
    const ImageInfo info = decoder.open(std::as_bytes(std::span(data, size)));
    if (info.width * info.height > 1 << 20) return;  // takes long, and is like a smaller one
    uint8_t pixels[8 * 8 * 3];
    PreparationTimes times;
    const double width = std::max(1.0, double(info.width) / 2), height = std::max(1.0, double(info.height) / 2);
    decoder.decode({double(info.width) - width, 0, width, height}, 8, 8, 3, pixels, times);
  });
  return 0;
}
