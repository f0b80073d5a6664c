// SPDX-License-Identifier: Apache-2.0

// Files that are no images, or broken ones: always an error that says what is wrong, never a crash or pixels that are
// not there.

#include <doctest/doctest.h>
#include <zlib.h>

#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/random.h"
#include "io/images/image.h"
#include "tests/io/image_files.h"
#include "tests/io/image_reference.h"
#include "tests/io/test_folder.h"

using namespace arbalest;

namespace image_errors_test {
namespace {

std::string refusal(const FileBytes& file) {
  ImageDecoder decoder;
  return message_of<RunError>([&] { decode_all(decoder, file, 3); });
}

FileBytes bytes(std::string_view text) {
  return {text.begin(), text.end()};
}

using std::string_view_literals::operator""sv;

void put_number(FileBytes& file, size_t at, uint32_t value, int count) {
  for (int k = 0; k < count; ++k) file[at + size_t(k)] = uint8_t(value >> 8 * (count - 1 - k));
}

// A PNG that says it is of another size.
FileBytes png_of_size(uint32_t width, uint32_t height) {
  FileBytes file = encode_png(test_image(4, 4, 3));
  put_number(file, 16, width, 4);
  put_number(file, 20, height, 4);
  put_number(file, 29, uint32_t(crc32(0, &file[12], 17)), 4);
  return file;
}

FileBytes jpeg_of_size(uint32_t width, uint32_t height, bool progressive) {
  FileBytes file = encode_jpeg(test_image(16, 16, 3), {.progressive = progressive});
  size_t at = 2;
  while (file[at + 1] != 0xc0 && file[at + 1] != 0xc2) at += 2 + size_t(file[at + 2] << 8 | file[at + 3]);  // to SOF
  put_number(file, at + 5, height, 2);
  put_number(file, at + 7, width, 2);
  return file;
}

std::vector<FileBytes> one_of_each() {
  const TestImage image = test_image(40, 24, 3, 30), grey = test_image(33, 20, 1, 30), inks = test_image(24, 24, 4);
  TestImage levels = grey;
  for (uint8_t& value : levels.bytes) value = uint8_t(value & 15);
  return {encode_jpeg(image),
          encode_jpeg(image, {.progressive = true}),
          encode_jpeg(image, {.horizontal = 1, .vertical = 1, .restart_rows = 1, .orientation = 6}),
          encode_jpeg(image, {.arithmetic = true}),
          encode_jpeg(inks, {.ycck = true}),
          encode_jpeg(grey),
          encode_png(image, {.orientation = 3}),
          encode_png(inks, {.interlaced = true}),
          encode_png(levels, {.palette = true, .bits = 4, .transparent_key = true}),
          encode_webp(image),
          encode_webp(inks),
          encode_webp(image, 80),
          encode_webp(inks, 80),
          encode_bmp(image),
          encode_bmp(levels, {.bits = 4, .from_top = true, .header = 12 + 28}),
          encode_bmp(inks, {.bits = 32, .header = 108, .masks = {0xff, 0xff00, 0xff0000, 0xff000000}}),
          encode_gif(grey),
          encode_gif(levels, {.interlaced = true, .left = 3, .canvas_width = 50, .transparent = 2}),
          encode_tiff(image, {.compression = 5, .rows = 7}),
          encode_tiff(grey, {.photometric = 1, .compression = 8, .tile = 16, .big_endian = true}),
          encode_tiff(levels, {.photometric = 3, .bits = 4}),
          encode_tiff(inks, {.photometric = 5, .separate = true}),
          encode_tiff(image, {.photometric = 6, .compression = 7})};
}

}  // namespace

TEST_CASE("images: what is none is named") {
  check_parts(refusal({}), {"the file is empty", "expected a JPEG, PNG, WebP, BMP, GIF or TIFF"});
  check_parts(refusal(bytes("hello world, this is text")),
              {"not an image: it begins with \"hello world,\"", "expected a JPEG"});
  check_parts(refusal(bytes("\x01\xff"sv)), {"begins with \"\\x01\\xff\""});
  check_parts(refusal(bytes("GIF89a......")), {"the GIF is truncated: its 12 bytes end before the image does"});
  check_parts(refusal(bytes("GIF88a......")), {"not an image: it begins with \"GIF88a"});
  check_parts(refusal(bytes("BM......")), {"the BMP is truncated: its 8 bytes end before the image does"});
  check_parts(refusal(bytes("BMW is no bitmap but a car")), {"not an image: it begins with \"BMW is no bi\""});
  check_parts(refusal(bytes("II*\0...."sv)), {"the TIFF is truncated: its 8 bytes end before the image does"});
  check_parts(refusal(bytes("MM\0*...."sv)), {"the TIFF is truncated"});
  check_parts(refusal(bytes("\0\0\0\x18"
                            "ftypheic...."sv)),
              {"a HEIC"});
  check_parts(refusal(bytes("\0\0\0\x18"
                            "ftypavif...."sv)),
              {"an AVIF"});
  check_parts(refusal(bytes("version https://git-lfs.github.com/spec/v1\n")),
              {"the file is a pointer of Git LFS; 'git lfs pull'", "expected a JPEG, PNG, WebP"});
  check_parts(refusal(bytes("<!DOCTYPE html><html>404")), {"the file is a web page", "expected a JPEG"});
  check_parts(refusal(bytes("PK\x03\x04...."sv)), {"the file is a zip archive"});
  check_parts(refusal(bytes("\x89PNG\n\x1a\n...."sv)), {"the PNG has line ends that were changed"});
  check_parts(refusal(bytes("RIFF\x10\0\0\0WAVEfmt "sv)), {"not an image: it begins with \"RIFF"});
  check_parts(refusal(bytes("\xff\xd8\xff"sv)), {"the JPEG is truncated: its 3 bytes end before the image does"});
  check_parts(refusal(bytes("\x89PNG\r\n\x1a\n"sv)), {"the PNG is truncated: its 8 bytes end"});
  check_parts(refusal(bytes("RIFF\x10\0\0\0WEBP"sv)), {"the WebP is"});
}

TEST_CASE("images: sizes are judged before memory is taken") {
  check_parts(refusal(png_of_size(60000, 60000)), {"the PNG states 60000 × 60000 pixels", "2^28 = 268435456"});
  check_parts(refusal(png_of_size(70000, 1)), {"the PNG states 70000 × 1 pixels", "65535 a side"});
  check_parts(refusal(png_of_size(16000, 16000)), {"the PNG is truncated", "cannot hold 16000 × 16000 pixels"});
  check_parts(refusal(png_of_size(0, 3)), {"the PNG is corrupt"});
  for (const bool progressive : {false, true}) {
    check_parts(refusal(jpeg_of_size(65000, 65000, progressive)), {"the JPEG states 65000 × 65000 pixels", "2^28"});
    check_parts(refusal(jpeg_of_size(16000, 16000, progressive)),
                {"the JPEG is truncated", "cannot hold 16000 × 16000"});
  }
}

TEST_CASE("images: animations and scans without end are refused") {
  const TestImage image = test_image(16, 16, 3);
  FileBytes animated = with_orientation(encode_webp(image), image, 1);
  animated[20] = 0x02;  // VP8X: there is an animation
  check_parts(refusal(animated), {"animated", "expected a still image"});

  ImageDecoder decoder;
  const TestImage grey = test_image(16, 16, 1);
  const FileBytes many = encode_jpeg(grey, {.scans_a_coefficient = 7}),
                  more = encode_jpeg(grey, {.scans_a_coefficient = 8});
  CHECK(decode_all(decoder, many, 1) == decode_all(decoder, encode_jpeg(grey), 1));
  check_parts(refusal(more), {"the JPEG has more than 500 scans"});
}

TEST_CASE("images: regions and calls that make no sense") {
  ImageDecoder decoder;
  const FileBytes file = encode_jpeg(test_image(40, 24, 3));
  std::vector<uint8_t> out(300);
  PreparationTimes times;
  const auto decode = [&](const Region& region) {
    return message_of<RunError>([&] {
      decoder.open(bytes_of(file));
      decoder.decode(region, 10, 10, 3, out.data(), times);
    });
  };
  check_parts(decode({0, 0, 41, 24}), {"a region of 41 × 24 pixels at (0, 0)", "the image's 40 × 24"});
  decode({-1, 0, 10, 10});
  decode({0, 20, 10, 10});
  decode({0, 0, 0, 10});
  decode({0, 0, std::nan(""), 10});
  decode({0, 0, 1e300, 10});
  decoder.open(bytes_of(file));
  decoder.decode({0, 0, 40 + 1e-9, 24}, 10, 10, 3, out.data(), times);
  check_parts(message_of<RunError>([&] {
                decoder.decode({0, 0, 40, 24}, 10, 10, 3, out.data(), times);
              }),
              {"not opened"});
}

TEST_CASE("images: a file that ends anywhere is an error, or the whole image") {
  ImageDecoder decoder;
  for (const FileBytes& file : one_of_each()) {
    const std::vector<uint8_t> whole = decode_all(decoder, file, 3);
    size_t complete = 0;
    for (size_t size = 0; size < file.size(); ++size) {
      const FileBytes part(file.begin(), file.begin() + int64_t(size));
      std::vector<uint8_t> found;
      try {
        found = decode_all(decoder, part, 3);
      } catch (const RunError& error) {
        CHECK(std::string(error.what()).size() > 10);
        continue;
      }
      ++complete;
      CAPTURE(size);
      CAPTURE(file.size());
      CHECK(found == whole);
    }
    CHECK(complete < 70);  // what follows the pixels: an end marker, chunks of a PNG
    CHECK(decode_all(decoder, file, 3) == whole);
  }
}

TEST_CASE("images: a JPEG without its end marker is read, one that ends within its rows is not") {
  ImageDecoder decoder;
  FileBytes file = encode_jpeg(test_image(200, 100, 3, 40));
  const std::vector<uint8_t> whole = decode_all(decoder, file, 3);
  file.resize(file.size() - 2);
  CHECK(decode_all(decoder, file, 3) == whole);
  const FileBytes half(file.begin(), file.begin() + int64_t(file.size() / 2));
  check_parts(refusal(half), {"the JPEG is truncated", "bytes end before the image does, near row", "of 100"});
  CHECK(decode_region(decoder, half, {0, 0, 200, 20}, 20, 200, 3).size() == 12000);  // these rows are there
  CHECK_THROWS_AS(decode_all(decoder, half, 3), RunError);
  const FileBytes start(file.begin(), file.begin() + 20);
  const std::string message = message_of<RunError>([&] { decoder.open(std::as_bytes(std::span(start))); });
  CHECK(message == "the JPEG is truncated: its 20 bytes end before the image does");  // no row of the image before it
}

TEST_CASE("images: damaged data is an error where the format can tell") {
  FileBytes png = encode_png(test_image(40, 24, 3, 30));
  png[png.size() / 2] ^= 0x10;
  check_parts(refusal(png), {"the PNG is corrupt; libpng: "});
  FileBytes jpeg = encode_jpeg(test_image(64, 64, 3, 30));
  for (size_t k = jpeg.size() / 2; k < jpeg.size() / 2 + 8; ++k) jpeg[k] = 0xff;
  check_parts(refusal(jpeg), {"the JPEG is corrupt or of a kind that is not decoded; libjpeg: "});
}

// ARBALEST_IMAGE_MUTATIONS=N makes it as many.
TEST_CASE("images: mutations never do harm") {
  const char* wanted = std::getenv("ARBALEST_IMAGE_MUTATIONS");
  const uint64_t mutations = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : 3000;
  const std::vector<FileBytes> files = one_of_each();
  ImageDecoder decoder;
  std::vector<uint8_t> out(64 * 64 * 3);
  uint64_t read = 0;
  for (uint64_t k = 0; k < mutations; ++k) {
    FileBytes file = files[k % files.size()];
    const Random4 choice = philox(7, k, 0);
    const uint32_t changes = 1 + below(choice.word[0], 4);
    for (uint32_t change = 0; change < changes; ++change) {
      const Random4 random = philox(7, k, 1 + change);
      const uint32_t reach =
          random.word[3] % 3 == 0 ? std::min<uint32_t>(64, uint32_t(file.size())) : uint32_t(file.size());
      file[below(random.word[0], reach)] = uint8_t(random.word[1] % 4 == 0 ? 0xff : random.word[1] >> 8);
    }
    if (choice.word[1] % 8 == 0) file.resize(below(choice.word[2], uint32_t(file.size())));
    try {
      const ImageInfo info = decoder.open(bytes_of(file));
      if (info.width * info.height > 1 << 22) continue;  // takes long, and is like a smaller one
      PreparationTimes times;
      const double part = (1 + below(choice.word[3], 8)) / 8.0;
      decoder.decode({0, 0, double(info.width) * part, double(info.height) * part}, 1 + choice.word[2] % 64,
                     1 + choice.word[0] % 64, k % 2 == 0 ? 1 : 3, out.data(), times);
      ++read;
    } catch (const RunError&) {
    }
  }
  CHECK(read > mutations / 50);
  CHECK(read < mutations);
  for (const FileBytes& file : files) decode_all(decoder, file, 3);  // it still works
}

}  // namespace image_errors_test
