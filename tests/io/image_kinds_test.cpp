// SPDX-License-Identifier: Apache-2.0

// Decoding of images: every kind of PNG and WebP, orientations, and what is reported of a file.

#include <doctest/doctest.h>

#include <algorithm>

#include "io/images/image.h"
#include "tests/io/image_files.h"
#include "tests/io/image_reference.h"

using namespace arbalest;

TEST_CASE("images: PNGs of every kind") {
  ImageDecoder decoder;
  for (const bool interlaced : {false, true}) {
    for (int channels = 1; channels <= 4; ++channels) {
      for (const bool key : {false, true}) {
        if (key && channels % 2 == 0) continue;  // alpha excludes a key
        const TestImage image = test_image(29, 23, channels, 99);
        const FileBytes file = encode_png(image, {.interlaced = interlaced, .transparent_key = key});
        const ImageInfo info = image_info(bytes_of(file));
        CHECK(info.format == ImageFormat::Png);
        CHECK(info.channels == (channels < 3 ? 1 : 3));
        CHECK(info.alpha == (channels % 2 == 0 || key));
        CHECK(info.bits == 8);
        std::vector<uint8_t> expected;  // alpha is dropped
        for (size_t k = 0; k < image.bytes.size(); k += size_t(channels)) {
          for (size_t c = 0; c < 3; ++c) expected.push_back(image.bytes[k + (channels < 3 ? 0 : c)]);
        }
        CAPTURE(channels);
        CHECK(decode_all(decoder, file, 3) == expected);
        const Region region{6, 5, 15, 11};
        CHECK(
            difference(decode_region(decoder, file, region, 30, 9, 3),
                       scaled({.width = 29, .height = 23, .channels = 3, .bits = 8, .bytes = expected}, region, 30, 9))
                .greatest < 1.1);
      }
    }
  }
}

TEST_CASE("images: PNGs of one, two, four and sixteen bits, and of palettes") {
  ImageDecoder decoder;
  for (const bool interlaced : {false, true}) {
    for (const int bits : {1, 2, 4, 8}) {
      TestImage image = test_image(21, 10, 1, 99);
      for (uint8_t& value : image.bytes) value = uint8_t(value & ((1 << bits) - 1));
      const FileBytes grey = encode_png(image, {.interlaced = interlaced, .bits = bits, .transparent_key = bits == 2});
      CHECK(image_info(bytes_of(grey)).bits == bits);
      std::vector<uint8_t> levels;
      for (const uint8_t value : image.bytes) levels.push_back(uint8_t(value * 255 / ((1 << bits) - 1)));
      CHECK(decode_all(decoder, grey, 1) == levels);
      for (const bool key : {false, true}) {
        const FileBytes palette =
            encode_png(image, {.interlaced = interlaced, .palette = true, .bits = bits, .transparent_key = key});
        const ImageInfo info = image_info(bytes_of(palette));
        CHECK(info.channels == 3);
        CHECK(info.bits == bits);
        CHECK(info.alpha == key);
        std::vector<uint8_t> colours;
        for (const uint8_t value : image.bytes) {
          const std::vector<uint8_t> colour = palette_colour(value);
          colours.insert(colours.end(), colour.begin(), colour.end());
        }
        CHECK(decode_all(decoder, palette, 3) == colours);
      }
    }
    for (int channels = 1; channels <= 4; ++channels) {
      TestImage image = test_image(2 * 19, 14, channels, 99);  // bytes for half as many values of 16 bits
      image.width = 19;
      image.bits = 16;
      const FileBytes file = encode_png(image, {.interlaced = interlaced});
      CHECK(image_info(bytes_of(file)).bits == 16);
      std::vector<double> expected;
      for (int y = 0; y < image.height; ++y) {
        for (int x = 0; x < image.width; ++x) {
          for (int c = 0; c < 3; ++c) expected.push_back(image.at(y, x, channels < 3 ? 0 : c) / 257);
        }
      }
      CHECK(difference(decode_all(decoder, file, 3), expected).greatest < 0.51);
    }
  }
}

TEST_CASE("images: WebPs, lossless or not, with alpha or not") {
  ImageDecoder decoder;
  for (const int channels : {3, 4}) {
    const TestImage image = test_image(70, 51, channels, 20);
    std::vector<uint8_t> colours;
    for (size_t k = 0; k < image.bytes.size(); k += size_t(channels)) {
      colours.insert(colours.end(), image.bytes.begin() + int64_t(k), image.bytes.begin() + int64_t(k + 3));
    }
    for (const int quality : {0, 90}) {
      const FileBytes file = encode_webp(image, quality);
      const ImageInfo info = image_info(bytes_of(file));
      CHECK(info.format == ImageFormat::WebP);
      CHECK(info.alpha == (channels == 4));
      CHECK(info.channels == 3);
      const std::vector<uint8_t> all = decode_all(decoder, file, 3);
      CHECK(difference(all, colours).mean < (quality == 0 ? 1e-9 : 9));
      TestImage shown{.width = 70, .height = 51, .channels = 3, .bits = 8, .bytes = all};
      for (const Region& region :
           {Region{0, 0, 70, 51}, Region{13, 7, 31, 29}, Region{69, 50, 1, 1}, Region{1, 1, 2, 50}}) {
        CAPTURE(region.left);
        const int height = int(region.height), width = int(region.width);
        CHECK(difference(decode_region(decoder, file, region, height, width, 3), scaled(shown, region, height, width))
                  .greatest < 1);
      }
    }
  }
}

namespace image_kinds_test {
namespace {

// Pixel (x, y) of the upright image of a stored one with this orientation, by what EXIF says of the stored first row
// and column.
std::vector<uint8_t> upright(const std::vector<uint8_t>& stored, int width, int height, int orientation) {
  const bool turned = orientation >= 5;
  const int out_width = turned ? height : width, out_height = turned ? width : height;
  std::vector<uint8_t> out(stored.size());
  for (int v = 0; v < height; ++v) {
    for (int u = 0; u < width; ++u) {
      int x = u, y = v;
      switch (orientation) {
        case 2: x = out_width - 1 - u; break;                          // first row top, first column right
        case 3: x = out_width - 1 - u, y = out_height - 1 - v; break;  // bottom, right
        case 4: y = out_height - 1 - v; break;                         // bottom, left
        case 5: x = v, y = u; break;                                   // first row left, first column top
        case 6: x = out_width - 1 - v, y = u; break;                   // right, top
        case 7: x = out_width - 1 - v, y = out_height - 1 - u; break;  // right, bottom
        case 8: x = v, y = out_height - 1 - u; break;                  // left, bottom
        default: break;
      }
      std::copy_n(&stored[size_t((v * width + u) * 3)], 3, &out[size_t((y * out_width + x) * 3)]);
    }
  }
  return out;
}

}  // namespace

TEST_CASE("images: every orientation is turned upright") {
  ImageDecoder decoder;
  const TestImage image = test_image(52, 37, 3, 10);
  const std::vector<uint8_t> jpeg = decode_all(decoder, encode_jpeg(image), 3);
  for (int orientation = 1; orientation <= 8; ++orientation) {
    CAPTURE(orientation);
    const int width = orientation >= 5 ? 37 : 52, height = orientation >= 5 ? 52 : 37;
    const std::vector<FileBytes> files = {
        encode_jpeg(image, {.orientation = orientation}),
        encode_jpeg(image, {.orientation = orientation, .big_endian_exif = true}),
        encode_png(image, {.orientation = orientation}),
        with_orientation(encode_webp(image), image, orientation),
    };
    for (size_t k = 0; k < files.size(); ++k) {
      CAPTURE(k);
      const ImageInfo info = image_info(bytes_of(files[k]));
      CHECK(info.orientation == orientation);
      CHECK(info.width == width);
      CHECK(info.height == height);
      const std::vector<uint8_t> expected = upright(k < 2 ? jpeg : image.bytes, 52, 37, orientation);
      CHECK(decode_all(decoder, files[k], 3) == expected);
      const TestImage shown{.width = width, .height = height, .channels = 3, .bits = 8, .bytes = expected};
      for (const Region& region : {Region{4, 9, 20, 25}, Region{0.5, 1.25, 30, 22}}) {
        CHECK(difference(decode_region(decoder, files[k], region, 19, 33, 3), scaled(shown, region, 19, 33)).greatest <
              1.2);
      }
    }
  }
}

TEST_CASE("images: an orientation that is none is upright") {
  const TestImage image = test_image(20, 10, 3);
  for (const int orientation : {9, 255, 0xffff}) {
    CHECK(image_info(bytes_of(encode_jpeg(image, {.orientation = orientation}))).orientation == 1);
  }
  FileBytes file = encode_jpeg(image, {.orientation = 6});
  const FileBytes name = {'E', 'x', 'i', 'f'};
  const auto at = std::search(file.begin(), file.end(), name.begin(), name.end());
  REQUIRE(at != file.end());
  CHECK(image_info(bytes_of(file)).orientation == 6);
  for (int byte = 0; byte < 40; ++byte) {  // whatever EXIF says, the image is read
    for (const int value : {0, 0x7f, 0xff}) {
      const uint8_t old = at[byte];
      at[byte] = uint8_t(value);
      const ImageInfo info = image_info(bytes_of(file));
      CHECK(info.width * info.height == 200);
      at[byte] = old;
    }
  }
}

TEST_CASE("images: what is reported of a file") {
  const ImageInfo colour = image_info(bytes_of(encode_jpeg(test_image(31, 17, 3))));
  CHECK(colour.format == ImageFormat::Jpeg);
  CHECK(colour.width == 31);
  CHECK(colour.height == 17);
  CHECK(colour.channels == 3);
  CHECK(colour.bits == 8);
  CHECK(colour.orientation == 1);
  CHECK_FALSE(colour.alpha);
  CHECK(image_info(bytes_of(encode_jpeg(test_image(31, 17, 1)))).channels == 1);
}

}  // namespace image_kinds_test
