// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <png.h>

#include <algorithm>

#include "base/error.h"
#include "tools/data/jpeg_writer.h"
#include "tools/data/sheet_forms.h"
#include "tools/data/thumbnails.h"

namespace arbalest {
namespace {

constexpr int64_t kTile = 96, kGap = 4;  // pixels
constexpr uint8_t kBackground = 24;

// Rows of red, green and blue.
class Canvas {
 public:
  Canvas(int64_t width, int64_t height)
      : width_(width), height_(height), bytes_(size_t(width * height * 3), kBackground) {}

  uint8_t* pixel(int64_t x, int64_t y) { return bytes_.data() + (y * width_ + x) * 3; }

  std::vector<uint8_t> png() const {
    png_image image{};
    image.version = PNG_IMAGE_VERSION;
    image.width = png_uint_32(width_);
    image.height = png_uint_32(height_);
    image.format = PNG_FORMAT_RGB;
    png_alloc_size_t size = 0;
    std::vector<uint8_t> file;
    bool done = png_image_write_get_memory_size(image, size, 0, bytes_.data(), 0, nullptr) != 0;
    if (done) {
      file.resize(size);
      done = png_image_write_to_memory(&image, file.data(), &size, 0, bytes_.data(), 0, nullptr) != 0;
    }
    if (!done) throw RunError(fmt::format("a contact sheet cannot be written: {}", image.message));
    file.resize(size);
    return file;
  }

  std::vector<uint8_t> jpeg() const {
    constexpr int kQuality = 90;
    std::vector<std::byte> file;
    write_jpeg(bytes_.data(), width_, height_, 3, kQuality, file);
    const auto* bytes = reinterpret_cast<const uint8_t*>(file.data());
    return {bytes, bytes + file.size()};
  }

 private:
  int64_t width_, height_;
  std::vector<uint8_t> bytes_;
};

void draw_tile(Canvas& canvas, int64_t left, int64_t top, Thumbnails& thumbnails, int64_t index) {
  try {
    const Thumbnail small = thumbnails.make(index);
    const int64_t x = left + (kTile - small.width) / 2, y = top + (kTile - small.height) / 2;
    for (int64_t line = 0; line < small.height; ++line) {
      std::copy_n(&small.pixels[size_t(line * small.width * 3)], small.width * 3, canvas.pixel(x, y + line));
    }
  } catch (const RunError&) {  // the survey tells why
    constexpr uint8_t kDarkRed[] = {112, 16, 16};
    for (int64_t y = 0; y < kTile; ++y)
      for (int64_t x = 0; x < kTile; ++x) std::copy_n(kDarkRed, 3, canvas.pixel(left + x, top + y));
  }
}

}  // namespace

std::vector<uint8_t> sheet_picture(const SheetImages& images, const SheetRows& rows, bool png) {
  Canvas canvas(kGap + int64_t(rows.columns) * (kTile + kGap), kGap + int64_t(rows.samples.size()) * (kTile + kGap));
  Thumbnails thumbnails(images.source, images.field, kTile);
  for (size_t row = 0; row < rows.samples.size(); ++row) {
    for (size_t column = 0; column < rows.samples[row].size(); ++column) {
      draw_tile(canvas, kGap + int64_t(column) * (kTile + kGap), kGap + int64_t(row) * (kTile + kGap), thumbnails,
                rows.samples[row][column]);
    }
  }
  return png ? canvas.png() : canvas.jpeg();
}

}  // namespace arbalest
