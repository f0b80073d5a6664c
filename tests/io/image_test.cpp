// SPDX-License-Identifier: Apache-2.0

// Decoding of images: formats, regions and sizes.

#include <doctest/doctest.h>

#include <cmath>

#include "base/random.h"
#include "io/images/image.h"
#include "tests/io/image_files.h"
#include "tests/io/image_reference.h"

using namespace arbalest;

namespace image_test {
namespace {

Region whole(const TestImage& image) {
  return {0, 0, double(image.width), double(image.height)};
}

// The region of an image of (height, width, channels) bytes.
std::vector<uint8_t> cut(const std::vector<uint8_t>& bytes, int width, int channels, const Region& region) {
  std::vector<uint8_t> out;
  for (int y = 0; y < int(region.height); ++y) {
    const auto from = bytes.begin() + ((int(region.top) + y) * width + int(region.left)) * channels;
    out.insert(out.end(), from, from + int(region.width) * channels);
  }
  return out;
}

Region some_region(int width, int height, uint64_t seed) {
  const Random4 random = philox(seed, 0, 0);
  const int w = 1 + int(below(random.word[0], uint32_t(width))), h = 1 + int(below(random.word[1], uint32_t(height)));
  return {double(below(random.word[2], uint32_t(width - w + 1))),
          double(below(random.word[3], uint32_t(height - h + 1))), double(w), double(h)};
}

// The luma of interleaved colour pixels.
std::vector<double> luma(const std::vector<uint8_t>& bytes, int channels) {
  std::vector<double> out;
  for (size_t k = 0; k < bytes.size(); k += size_t(channels)) {
    out.push_back(0.299 * bytes[k] + 0.587 * bytes[k + 1] + 0.114 * bytes[k + 2]);
  }
  return out;
}

}  // namespace

TEST_CASE("images: a region is scaled by the triangle filter") {
  ImageDecoder decoder;
  const TestImage image = test_image(61, 47, 3, 60), grey = test_image(61, 47, 1, 60);
  for (const Region& region : {whole(image), Region{5, 3, 40, 20}, Region{7.3, 2.8, 31.1, 40.9}, Region{60, 0, 1, 47},
                               Region{3.25, 4.5, 0.5, 0.25}}) {
    for (const auto& [height, width] : {std::pair(13, 17), {47, 61}, {90, 70}, {1, 1}, {100, 3}, {2, 65}}) {
      CAPTURE(region.left);
      CAPTURE(height);
      for (const FileBytes& file : {encode_png(image), encode_webp(image)}) {
        const Difference found =
            difference(decode_region(decoder, file, region, height, width, 3), scaled(image, region, height, width));
        CHECK(found.greatest < 1.1);  // rounded twice
        CHECK(found.mean < 0.5);
      }
      const std::vector<uint8_t> one = decode_region(decoder, encode_png(grey), region, height, width, 1);
      CHECK(difference(one, scaled(grey, region, height, width)).greatest < 1.1);
      std::vector<uint8_t> three;
      for (const uint8_t value : one) three.insert(three.end(), 3, value);
      CHECK(decode_region(decoder, encode_png(grey), region, height, width, 3) == three);
    }
  }
}

TEST_CASE("images: a great many pixels become few, and one many") {
  ImageDecoder decoder;
  const TestImage wide = test_image(5000, 3, 3, 90), tall = test_image(2, 3000, 1, 90);
  for (const int size : {1, 2, 30, 70}) {
    CAPTURE(size);
    CHECK(difference(decode_region(decoder, encode_png(wide), whole(wide), 2, size, 3),
                     scaled(wide, whole(wide), 2, size))
              .greatest < 1.2);
    CHECK(difference(decode_region(decoder, encode_png(tall), whole(tall), size, 5, 1),
                     scaled(tall, whole(tall), size, 5))
              .greatest < 1.2);
  }
  for (const int value : {0, 1, 128, 254, 255}) {  // what is one colour stays so, however it is scaled
    const TestImage flat{
        .width = 300, .height = 40, .channels = 1, .bits = 8, .bytes = FileBytes(12000, uint8_t(value))};
    for (const int size : {1, 7, 64, 300, 700}) {
      const std::vector<uint8_t> found = decode_region(decoder, encode_png(flat), whole(flat), size, size, 1);
      CHECK(std::count(found.begin(), found.end(), value) == size * size);
    }
  }
}

TEST_CASE("images: what a JPEG's region shows does not depend on the region") {
  ImageDecoder decoder;
  std::vector<JpegKind> kinds(8);
  kinds[1] = {.horizontal = 1, .vertical = 1};
  kinds[2] = {.horizontal = 2, .vertical = 1};
  kinds[3] = {.horizontal = 1, .vertical = 2};
  kinds[4] = {.progressive = true};
  kinds[5] = {.restart_rows = 1};
  kinds[6] = {.rgb = true};
  kinds[7] = {.arithmetic = true};
  uint64_t seed = 0;
  for (const auto& [width, height] : {std::pair(150, 101), {64, 48}, {17, 33}}) {
    for (const int channels : {1, 3, 4}) {
      const TestImage image = test_image(width, height, channels, 30);
      for (JpegKind kind : kinds) {
        if (channels != 3 && kind.rgb) continue;
        kind.ycck = channels == 4 && kind.horizontal == 2;
        const FileBytes file = encode_jpeg(image, kind);
        for (const int out : {1, 3}) {
          const std::vector<uint8_t> all = decode_all(decoder, file, out);
          for (int k = 0; k < 6; ++k) {
            const Region region = some_region(width, height, ++seed);
            CAPTURE(seed);
            CHECK(decode_region(decoder, file, region, int(region.height), int(region.width), out) ==
                  cut(all, width, out, region));
          }
        }
      }
    }
  }
}

TEST_CASE("images: a JPEG shows what its writer was given, at every scale") {
  ImageDecoder decoder;
  const TestImage image = test_image(333, 257, 3);
  for (const bool progressive : {false, true}) {
    for (const int sampling : {1, 2}) {
      const FileBytes file =
          encode_jpeg(image, {.quality = 95, .horizontal = sampling, .vertical = sampling, .progressive = progressive});
      for (const Region& region : {whole(image), Region{13, 21, 290, 201}, Region{100.5, 50.25, 64, 130}}) {
        for (const int size : {257, 128, 100, 60, 32, 25, 7, 400}) {
          CAPTURE(size);
          CAPTURE(region.left);
          const std::vector<double> expected = scaled(image, region, size, size);
          const Difference found = difference(decode_region(decoder, file, region, size, size, 3), expected);
          CHECK(found.mean < 2.5);
          std::vector<double> grey;
          for (size_t k = 0; k < expected.size(); k += 3) {
            grey.push_back(0.299 * expected[k] + 0.587 * expected[k + 1] + 0.114 * expected[k + 2]);
          }
          CHECK(difference(decode_region(decoder, file, region, size, size, 1), grey).mean < 2);
        }
      }
    }
  }
}

TEST_CASE("images: colour becomes grey by its luma, grey three equal channels") {
  ImageDecoder decoder;
  const TestImage image = test_image(40, 30, 3, 80);
  CHECK(difference(decode_all(decoder, encode_png(image), 1), luma(image.bytes, 3)).greatest < 0.51);
  CHECK(difference(decode_all(decoder, encode_webp(image), 1), luma(image.bytes, 3)).greatest < 0.51);
  const TestImage smooth = test_image(40, 30, 3);
  CHECK(difference(decode_all(decoder, encode_jpeg(smooth, {.quality = 99}), 1), luma(smooth.bytes, 3)).mean < 1);
  const TestImage grey = test_image(40, 30, 1);
  const std::vector<uint8_t> one = decode_all(decoder, encode_jpeg(grey), 1),
                             three = decode_all(decoder, encode_jpeg(grey), 3);
  for (size_t k = 0; k < one.size(); ++k) {
    CHECK(std::vector(three.begin() + int64_t(3 * k), three.begin() + int64_t(3 * k + 3)) == std::vector(3, one[k]));
  }
}

TEST_CASE("images: CMYK and YCCK are inverted inks") {
  ImageDecoder decoder;
  const TestImage inks = test_image(48, 40, 4);
  std::vector<double> expected;
  for (size_t k = 0; k < inks.bytes.size(); k += 4) {
    for (size_t c = 0; c < 3; ++c) expected.push_back(inks.bytes[k + c] * inks.bytes[k + 3] / 255.0);
  }
  for (const bool ycck : {false, true}) {
    const FileBytes file = encode_jpeg(inks, {.quality = 98, .horizontal = 1, .vertical = 1, .ycck = ycck});
    CHECK(image_info(bytes_of(file)).channels == 3);
    CHECK(difference(decode_all(decoder, file, 3), expected).mean < 1.5);
  }
}

TEST_CASE("images: one pixel, and a few") {
  ImageDecoder decoder;
  for (int width = 1; width <= 9; width += 2) {
    for (int height = 1; height <= 9; height += 4) {
      const TestImage image = test_image(width, height, 3);
      for (const FileBytes& file : {encode_png(image), encode_png(image, {.interlaced = true}), encode_webp(image),
                                    encode_jpeg(image, {.quality = 100, .horizontal = 1, .vertical = 1}),
                                    encode_jpeg(image, {.quality = 100, .progressive = true})}) {
        CHECK(difference(decode_all(decoder, file, 3), image.bytes).mean < 12);
        CHECK(difference(decode_region(decoder, file, whole(image), 20, 30, 3), scaled(image, whole(image), 20, 30))
                  .mean < 12);
        decode_region(decoder, file, {double(width) - 1, double(height) - 1, 1, 1}, 1, 1, 1);
      }
    }
  }
}

}  // namespace image_test
