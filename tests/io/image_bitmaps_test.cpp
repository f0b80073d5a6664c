// SPDX-License-Identifier: Apache-2.0

// Decoding of BMPs, GIFs and TIFFs of every kind, and files that are refused.

#include <doctest/doctest.h>

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "io/images/image.h"
#include "tests/io/image_files.h"
#include "tests/io/image_reference.h"
#include "tests/io/test_folder.h"

using namespace arbalest;

namespace image_bitmaps_test {
namespace {

std::string refusal(const FileBytes& file) {
  ImageDecoder decoder;
  return message_of<RunError>([&] { decode_all(decoder, file, 3); });
}

// An image of one channel with palette indices below 2^bits.
TestImage indices(int width, int height, int bits) {
  TestImage image = test_image(width, height, 1, 99);
  for (uint8_t& value : image.bytes) value = uint8_t(value & ((1 << bits) - 1));
  return image;
}

std::vector<uint8_t> colours_of(const TestImage& image) {
  std::vector<uint8_t> colours;
  for (const uint8_t value : image.bytes) {
    const std::vector<uint8_t> colour = palette_colour(value);
    colours.insert(colours.end(), colour.begin(), colour.end());
  }
  return colours;
}

// The first three channels of an image; for one or two channels, the first one three times.
std::vector<uint8_t> without_alpha(const TestImage& image) {
  std::vector<uint8_t> colours;
  for (size_t k = 0; k < image.bytes.size(); k += size_t(image.channels)) {
    for (size_t c = 0; c < 3; ++c) colours.push_back(image.bytes[k + (image.channels < 3 ? 0 : c)]);
  }
  return colours;
}

// All of it, and regions of it that are not scaled and such that are.
void check_pixels(const FileBytes& file, int width, int height, const std::vector<uint8_t>& expected) {
  ImageDecoder decoder;
  CHECK(decode_all(decoder, file, 3) == expected);
  const TestImage shown{.width = width, .height = height, .channels = 3, .bits = 8, .bytes = expected};
  for (const Region& region : {Region{3, 2, 9, 7}, Region{0, 0, 1, 1}, Region{width - 4.0, height - 3.0, 4, 3}}) {
    const int rows = int(region.height), columns = int(region.width);
    CHECK(difference(decode_region(decoder, file, region, rows, columns, 3), scaled(shown, region, rows, columns))
              .greatest < 0.6);
    CHECK(difference(decode_region(decoder, file, region, 5, 11, 3), scaled(shown, region, 5, 11)).greatest < 1.1);
  }
}

void put_little(FileBytes& file, size_t at, uint64_t value, int count) {
  for (int k = 0; k < count; ++k) file[at + size_t(k)] = uint8_t(value >> 8 * k);
}

}  // namespace

TEST_CASE("images: BMPs of every kind") {
  const TestImage image = test_image(29, 23, 3, 99), alpha = test_image(29, 23, 4, 99);
  for (const bool from_top : {false, true}) {
    for (const int header : {12, 40, 52, 56, 108, 124}) {
      if (header == 12 && from_top) continue;  // has no sign
      const FileBytes file = encode_bmp(image, {.from_top = from_top, .header = header});
      const ImageInfo info = image_info(bytes_of(file));
      CHECK(info.format == ImageFormat::Bmp);
      CHECK(info.width == 29);
      CHECK(info.height == 23);
      CHECK(info.channels == 3);
      CHECK(info.bits == 8);
      CHECK_FALSE(info.alpha);
      CAPTURE(header);
      check_pixels(file, 29, 23, image.bytes);
      for (const int bits : {1, 2, 4, 8}) {
        const TestImage few = indices(29, 23, bits);
        const FileBytes palette = encode_bmp(few, {.bits = bits, .from_top = from_top, .header = header});
        CHECK(image_info(bytes_of(palette)).bits == bits);
        CHECK(image_info(bytes_of(palette)).channels == 3);
        check_pixels(palette, 29, 23, colours_of(few));
      }
    }
  }
  check_pixels(encode_bmp(image, {.bits = 32}), 29, 23, image.bytes);
  const FileBytes masks = encode_bmp(alpha, {.bits = 32, .header = 56, .masks = {0xff, 0xff00, 0xff0000, 0xff000000}});
  CHECK(image_info(bytes_of(masks)).alpha);
  check_pixels(masks, 29, 23, without_alpha(alpha));
  const FileBytes ramp = encode_bmp(indices(29, 23, 4), {.bits = 4, .grey_palette = true});
  CHECK(image_info(bytes_of(ramp)).channels == 1);
  ImageDecoder decoder;
  std::vector<uint8_t> levels = indices(29, 23, 4).bytes;
  for (uint8_t& level : levels) level = uint8_t(level * 17);
  CHECK(decode_all(decoder, ramp, 1) == levels);
}

TEST_CASE("images: BMPs whose channels have other bits than 8") {
  const TestImage image = test_image(29, 23, 3, 99);
  for (const auto& masks : std::vector<std::vector<uint32_t>>{
           {}, {0xf800, 0x7e0, 0x1f}, {0xf, 0xf0, 0xf00}, {0x3ff00000, 0xffc00, 0x3ff}}) {
    const bool ten = !masks.empty() && masks[2] == 0x3ff;
    const std::vector<uint64_t> most = masks.empty()        ? std::vector<uint64_t>{31, 31, 31}
                                       : masks[0] == 0xf800 ? std::vector<uint64_t>{31, 63, 31}
                                       : ten                ? std::vector<uint64_t>{1023, 1023, 1023}
                                                            : std::vector<uint64_t>{15, 15, 15};
    std::vector<uint8_t> expected;
    for (size_t k = 0; k < image.bytes.size(); ++k) {
      const uint64_t stored = (image.bytes[k] * most[k % 3] + 127) / 255;
      expected.push_back(uint8_t((stored * 255 + most[k % 3] / 2) / most[k % 3]));
    }
    const FileBytes file = encode_bmp(image, {.bits = ten ? 32 : 16, .masks = masks});
    check_pixels(file, 29, 23, expected);
    CHECK(image_info(bytes_of(file)).bits == (ten ? 10 : masks.empty() ? 5 : masks[0] == 0xf800 ? 6 : 4));
  }
}

TEST_CASE("images: BMPs that are refused say why") {
  const FileBytes good = encode_bmp(test_image(16, 8, 3));
  const auto changed = [&](size_t at, uint64_t value, int count) {
    FileBytes file = good;
    put_little(file, at, value, count);
    return refusal(file);
  };
  check_parts(changed(14, 41, 4), {"the BMP is corrupt or of a kind that is not decoded: found a header of 41 bytes"});
  check_parts(changed(18, 0, 4), {"the BMP states 0 × 8 pixels"});
  check_parts(changed(18, uint64_t(-5), 4), {"the BMP states -5 × 8 pixels"});
  check_parts(changed(22, 0x80000000, 4), {"the BMP states 16 × 2147483648 pixels"});
  check_parts(changed(18, 60000, 4), {"the BMP is truncated: its 438 bytes end before the image does"});
  check_parts(changed(28, 7, 2), {"found 7 bits a pixel, expected 1, 2, 4, 8, 16, 24 or 32"});
  check_parts(changed(30, 1, 4), {"compressed by run lengths, which is not decoded"});
  check_parts(changed(30, 4, 4), {"compressed as a JPEG"});
  check_parts(changed(30, 3, 4), {"compressed (kind 3)"});  // masks, of 24 bits
  check_parts(changed(10, 20, 4), {"its pixels begin at byte 20, within its header"});
  check_parts(changed(10, 60, 4), {"the BMP is truncated"});
  check_parts(changed(10, 0xffffffff, 4), {"the BMP is truncated"});
  FileBytes masks = encode_bmp(test_image(16, 8, 3), {.bits = 16, .masks = {0xf800, 0x7e0, 0x1f}});
  put_little(masks, 54, 0xf00f, 4);
  check_parts(refusal(masks), {"found a channel of the bits f00f, expected adjacent ones"});
  FileBytes many = encode_bmp(indices(16, 8, 4), {.bits = 4});
  put_little(many, 46, 0xffffffff, 4);  // colours
  ImageDecoder decoder;
  CHECK(decode_all(decoder, many, 3) == colours_of(indices(16, 8, 4)));
}

TEST_CASE("images: GIFs of every kind") {
  ImageDecoder decoder;
  const TestImage image = indices(29, 23, 8);
  for (const bool interlaced : {false, true}) {
    const FileBytes file = encode_gif(image, {.interlaced = interlaced});
    const ImageInfo info = image_info(bytes_of(file));
    CHECK(info.format == ImageFormat::Gif);
    CHECK(info.width == 29);
    CHECK(info.height == 23);
    CHECK(info.channels == 3);
    CHECK_FALSE(info.alpha);
    CHECK_FALSE(info.several);
    check_pixels(file, 29, 23, colours_of(image));
    const FileBytes frames = encode_gif(image, {.interlaced = interlaced, .transparent = 7, .frames = 3});
    CHECK(image_info(bytes_of(frames)).several);
    CHECK(image_info(bytes_of(frames)).alpha);
    check_pixels(frames, 29, 23, colours_of(image));
  }
  // On a larger canvas the area around the frame has the transparent colour, or the first one if there is none.
  for (const int transparent : {-1, 9}) {
    const FileBytes file =
        encode_gif(image, {.left = 4, .top = 3, .canvas_width = 40, .canvas_height = 30, .transparent = transparent});
    TestImage canvas{.width = 40, .height = 30, .channels = 1, .bits = 8, .bytes = {}};
    canvas.bytes.resize(1200, uint8_t(std::max(transparent, 0)));
    for (int y = 0; y < 23; ++y) {
      std::copy_n(&image.bytes[size_t(y * 29)], 29, &canvas.bytes[size_t((y + 3) * 40 + 4)]);
    }
    check_pixels(file, 40, 30, colours_of(canvas));
  }
  const FileBytes ramp = encode_gif(indices(29, 23, 4), {.grey_palette = true});
  std::vector<uint8_t> levels = indices(29, 23, 4).bytes;
  for (uint8_t& level : levels) level = uint8_t(level * 17);
  CHECK(decode_all(decoder, ramp, 1) == levels);
}

TEST_CASE("images: GIFs that are refused say why") {
  const FileBytes good = encode_gif(indices(16, 8, 8));
  const FileBytes half(good.begin(), good.begin() + int64_t(good.size() / 2 + 400));
  check_parts(refusal(half), {"the GIF is truncated: its", "bytes end before the image does"});
  constexpr size_t kFrame = 6 + 7 + 3 * 256;
  REQUIRE(good[kFrame] == ',');
  const auto changed = [&](size_t at, uint64_t value, int count) {
    FileBytes file = good;
    put_little(file, at, value, count);
    return refusal(file);
  };
  check_parts(changed(kFrame + 5, 60000 | 4000 << 16, 4), {"the GIF is truncated", "cannot hold 60000 × 4000 pixels"});
  check_parts(changed(kFrame + 5, 0, 2), {"the GIF states 0 × 8 pixels"});
  check_parts(changed(6, 0xffff'ffff, 4), {"the GIF states 65535 × 65535 pixels"});
  check_parts(changed(kFrame, ';', 1), {"the GIF is corrupt: it has no frame"});
  check_parts(changed(kFrame, 'x', 1), {"the GIF is corrupt; giflib: "});
  check_parts(changed(kFrame + 10, 13, 1), {"the GIF is corrupt; giflib: "});
  FileBytes without = good;
  without[10] = 0;  // no palette
  without.erase(without.begin() + 13, without.begin() + int64_t(kFrame));
  check_parts(refusal(without), {"the GIF is corrupt: its first frame has no palette"});
}

TEST_CASE("images: a GIF's canvas may be larger than what its first frame needs bytes for") {
  FileBytes file = encode_gif(indices(16, 8, 8));
  put_little(file, 6, 20000 | 10000 << 16, 4);
  const ImageInfo info = image_info(bytes_of(file));
  CHECK(info.width == 20000);
  CHECK(info.height == 10000);
}

TEST_CASE("images: TIFFs of every kind") {
  ImageDecoder decoder;
  for (const bool big_endian : {false, true}) {
    for (const bool separate : {false, true}) {
      for (const int tile : {0, 16}) {
        for (const int compression : {1, 5, 8, 32773}) {
          for (const int channels : {1, 2, 3, 4}) {
            const TestImage image = test_image(29, 23, channels, 99);
            const TiffKind kind{.photometric = channels < 3 ? 1 : 2,
                                .compression = compression,
                                .rows = 5,
                                .tile = tile,
                                .separate = separate,
                                .big_endian = big_endian};
            CAPTURE(compression);
            CAPTURE(channels);
            CAPTURE(tile);
            const FileBytes file = encode_tiff(image, kind);
            const ImageInfo info = image_info(bytes_of(file));
            CHECK(info.format == ImageFormat::Tiff);
            CHECK(info.channels == (channels < 3 ? 1 : 3));
            CHECK(info.alpha == (channels % 2 == 0));
            CHECK(info.bits == 8);
            CHECK_FALSE(info.several);
            CHECK(decode_all(decoder, file, 3) == without_alpha(image));
            if (compression == 1) check_pixels(file, 29, 23, without_alpha(image));
          }
        }
      }
    }
  }
}

TEST_CASE("images: TIFFs of one to sixteen bits, palettes, inks and pages") {
  ImageDecoder decoder;
  for (const int bits : {1, 2, 4, 8}) {
    const TestImage image = indices(29, 23, bits);
    std::vector<uint8_t> levels, inverted;
    for (const uint8_t value : image.bytes) {
      levels.push_back(uint8_t(value * 255 / ((1 << bits) - 1)));
      inverted.push_back(uint8_t(255 - levels.back()));
    }
    for (const int tile : {0, 16}) {
      CHECK(decode_all(decoder, encode_tiff(image, {.photometric = 1, .bits = bits, .tile = tile}), 1) == levels);
      CHECK(decode_all(decoder, encode_tiff(image, {.photometric = 0, .bits = bits, .tile = tile}), 1) == inverted);
      check_pixels(encode_tiff(image, {.photometric = 3, .bits = bits, .tile = tile}), 29, 23, colours_of(image));
    }
    if (bits == 1) {
      CHECK(decode_all(decoder, encode_tiff(image, {.photometric = 0, .compression = 4, .bits = 1}), 1) == inverted);
    }
  }
  for (const bool big_endian : {false, true}) {
    for (const int channels : {1, 3}) {
      TestImage image = test_image(2 * 19, 14, channels, 99);  // bytes for half as many values of 16 bits
      image.width = 19;
      image.bits = 16;
      const FileBytes file = encode_tiff(image, {.photometric = channels == 1 ? 1 : 2, .big_endian = big_endian});
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
  const TestImage inks = test_image(24, 20, 4, 99);
  std::vector<double> colours;
  for (size_t k = 0; k < inks.bytes.size(); k += 4) {
    for (size_t c = 0; c < 3; ++c) colours.push_back((255 - inks.bytes[k + c]) * (255.0 - inks.bytes[k + 3]) / 255);
  }
  CHECK(difference(decode_all(decoder, encode_tiff(inks, {.photometric = 5}), 3), colours).greatest < 0.51);
  const TestImage image = test_image(40, 24, 3);
  const FileBytes jpeg = encode_tiff(image, {.photometric = 6, .compression = 7});
  CHECK(difference(decode_all(decoder, jpeg, 3), std::vector<double>(image.bytes.begin(), image.bytes.end())).mean < 6);
  const FileBytes pages = encode_tiff(image, {.pages = 2});
  CHECK(image_info(bytes_of(pages)).several);
  CHECK(decode_all(decoder, pages, 3) == image.bytes);
  const FileBytes turned = encode_tiff(image, {.orientation = 6});
  CHECK(image_info(bytes_of(turned)).width == 24);
  CHECK(image_info(bytes_of(turned)).orientation == 6);
}

TEST_CASE("images: TIFFs that are refused say why") {
  TestImage wide = test_image(2 * 19, 14, 1, 99);
  wide.width = 19;
  wide.bits = 16;
  check_parts(refusal(encode_tiff(wide, {.photometric = 1, .floats = true})),
              {"the TIFF has floating-point numbers of 16 bits a channel; expected whole numbers of 1, 2, 4, 8 or 16"});
  const TestImage image = test_image(32, 32, 3, 30);
  check_parts(refusal(encode_tiff(image, {.photometric = 8})),
              {"of a kind that is not decoded (PhotometricInterpretation 8)"});
  FileBytes huge = encode_tiff(test_image(16, 16, 1), {.photometric = 1});
  for (size_t at = 8; at + 12 <= huge.size(); ++at) {  // entries: a tag, a type, a count and a value
    if (huge[at] == 0 && huge[at + 1] == 1 && huge[at + 2] == 3 && huge[at + 4] == 1)
      put_little(huge, at + 8, 65000, 2);
    if (huge[at] == 1 && huge[at + 1] == 1 && huge[at + 2] == 3 && huge[at + 4] == 1)
      put_little(huge, at + 8, 65000, 2);
  }
  check_parts(refusal(huge), {"the TIFF states 65000 × 65000 pixels"});
  TestImage deep = test_image(2 * 16, 16, 4, 99);
  deep.width = 16;
  deep.bits = 16;
  FileBytes part = encode_tiff(deep, {.photometric = 2, .tile = 16});
  for (size_t at = 8; at + 12 <= part.size(); ++at) {  // TileWidth and TileLength, as numbers of 16 or 32 bits
    const bool tile = (part[at] == 0x42 || part[at] == 0x43) && part[at + 1] == 1 && part[at + 4] == 1;
    if (tile && (part[at + 2] == 3 || part[at + 2] == 4)) put_little(part, at + 8, 14400, 2);
  }
  check_parts(refusal(part), {"the TIFF has parts of 1658880000 bytes; expected at most 1073741824"});
  check_parts(refusal({'I', 'I', 42, 0, 8, 0, 0, 0}), {"the TIFF is "});
  FileBytes jpeg = encode_tiff(test_image(64, 64, 3, 30), {.photometric = 6, .compression = 7});
  for (size_t k = jpeg.size() / 2; k < jpeg.size() / 2 + 8; ++k) jpeg[k] = 0xff;
  check_parts(refusal(jpeg), {"the TIFF is corrupt or of a kind that is not decoded; libtiff: "});
}

}  // namespace image_bitmaps_test
