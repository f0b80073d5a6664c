// SPDX-License-Identifier: Apache-2.0
#include "tests/io/image_files.h"

#include <doctest/doctest.h>
#include <png.h>
#include <webp/encode.h>

#include <algorithm>
#include <cmath>
#include <cstdio>  // jpeglib.h wants it
#include <cstdlib>
//
#include <jpeglib.h>

#include "base/random.h"

namespace arbalest {

double TestImage::at(int y, int x, int c) const {
  const size_t k = (size_t(y) * size_t(width) + size_t(x)) * size_t(channels) + size_t(c);
  return bits == 16 ? bytes[2 * k] * 256 + bytes[2 * k + 1] : bytes[k];
}

TestImage test_image(int width, int height, int channels, int noise, uint64_t seed) {
  TestImage image{.width = width, .height = height, .channels = channels, .bits = 8, .bytes = {}};
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      const Random4 random = philox(seed, uint64_t(y), uint64_t(x));
      for (int c = 0; c < channels; ++c) {
        const double slow = 128 + 70 * std::sin(0.05 * x + c) + 50 * std::cos(0.07 * y - 2 * c);
        const int bar = (x / 9 + y / 13) % 7 == 0 ? 40 - 30 * c : 0;
        const int value = int(slow) + bar + (noise > 0 ? int(below(random.word[c], uint32_t(noise))) : 0);
        image.bytes.push_back(uint8_t(std::clamp(value, 0, 255)));
      }
    }
  }
  return image;
}

namespace {

FileBytes exif(int orientation, bool big_endian) {
  FileBytes bytes = big_endian ? FileBytes{'M', 'M', 0, 42, 0, 0, 0, 8} : FileBytes{'I', 'I', 42, 0, 8, 0, 0, 0};
  const auto put = [&](uint32_t value, int count) {
    for (int k = 0; k < count; ++k) bytes.push_back(uint8_t(value >> 8 * (big_endian ? count - 1 - k : k)));
  };
  put(2, 2);  // entries
  put(0x010f, 2), put(2, 2), put(4, 4), put(0, 4);
  put(0x0112, 2), put(3, 2), put(1, 4), put(uint32_t(orientation), 2), put(0, 2);
  put(0, 4);
  return bytes;
}

}  // namespace

FileBytes encode_jpeg(const TestImage& image, const JpegKind& kind) {
  jpeg_compress_struct jpeg;
  jpeg_error_mgr errors;
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&jpeg, &memory, &size);
  jpeg.image_width = JDIMENSION(image.width);
  jpeg.image_height = JDIMENSION(image.height);
  jpeg.input_components = image.channels;
  jpeg.in_color_space = image.channels == 1 ? JCS_GRAYSCALE : image.channels == 3 ? JCS_RGB : JCS_CMYK;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, kind.quality, TRUE);
  if (kind.rgb) jpeg_set_colorspace(&jpeg, JCS_RGB);
  if (kind.ycck) jpeg_set_colorspace(&jpeg, JCS_YCCK);
  if (image.channels == 4) jpeg.write_Adobe_marker = TRUE;
  if (jpeg.jpeg_color_space == JCS_YCbCr || kind.ycck) {
    jpeg.comp_info[0].h_samp_factor = kind.horizontal;
    jpeg.comp_info[0].v_samp_factor = kind.vertical;
    if (kind.ycck) jpeg.comp_info[3].h_samp_factor = kind.horizontal, jpeg.comp_info[3].v_samp_factor = kind.vertical;
  }
  if (kind.progressive) jpeg_simple_progression(&jpeg);
  std::vector<jpeg_scan_info> scans = {{.comps_in_scan = 1, .component_index = {}, .Ss = 0, .Se = 0, .Ah = 0, .Al = 0}};
  for (int k = 1; k < 64 && kind.scans_a_coefficient > 0; ++k) {
    for (int bit = kind.scans_a_coefficient - 1; bit >= 0; --bit) {
      const int before = bit + 1 < kind.scans_a_coefficient ? bit + 1 : 0;
      scans.push_back({.comps_in_scan = 1, .component_index = {}, .Ss = k, .Se = k, .Ah = before, .Al = bit});
    }
  }
  if (kind.scans_a_coefficient > 0) {
    jpeg.scan_info = scans.data();
    jpeg.num_scans = int(scans.size());
  }
  jpeg.arith_code = kind.arithmetic;
  jpeg.restart_in_rows = kind.restart_rows;
  jpeg_start_compress(&jpeg, TRUE);
  if (kind.orientation != 0) {
    FileBytes marker = {'E', 'x', 'i', 'f', 0, 0};
    const FileBytes tiff = exif(kind.orientation, kind.big_endian_exif);
    marker.insert(marker.end(), tiff.begin(), tiff.end());
    jpeg_write_marker(&jpeg, JPEG_APP0 + 1, marker.data(), unsigned(marker.size()));
  }
  while (jpeg.next_scanline < jpeg.image_height) {
    JSAMPROW row =
        const_cast<uint8_t*>(&image.bytes[size_t(jpeg.next_scanline) * size_t(image.width * image.channels)]);
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  FileBytes file(memory, memory + size);
  std::free(memory);
  jpeg_destroy_compress(&jpeg);
  return file;
}

std::vector<uint8_t> palette_colour(int index) {
  return {uint8_t(index * 37), uint8_t(255 - index), uint8_t(index * 91 + 5)};
}

FileBytes encode_png(const TestImage& image, const PngKind& kind) {
  FileBytes file;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(
      png, &file,
      [](png_structp to, png_bytep bytes, size_t count) {
        FileBytes& out = *static_cast<FileBytes*>(png_get_io_ptr(to));
        out.insert(out.end(), bytes, bytes + count);
      },
      nullptr);
  constexpr int kTypes[] = {PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGB,
                            PNG_COLOR_TYPE_RGB_ALPHA};
  const int bits = image.bits == 16 ? 16 : kind.bits;
  png_set_IHDR(png, info, png_uint_32(image.width), png_uint_32(image.height), bits,
               kind.palette ? PNG_COLOR_TYPE_PALETTE : kTypes[image.channels - 1],
               kind.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  if (kind.palette) {
    std::vector<png_color> palette;
    for (int k = 0; k < 1 << bits; ++k) {
      const std::vector<uint8_t> colour = palette_colour(k);
      palette.push_back({colour[0], colour[1], colour[2]});
    }
    png_set_PLTE(png, info, palette.data(), int(palette.size()));
  }
  if (kind.transparent_key) {
    const png_color_16 key = {.index = 0, .red = 10, .green = 20, .blue = 30, .gray = 1};
    const std::vector<png_byte> alphas = {0, 128};
    if (kind.palette) {
      png_set_tRNS(png, info, alphas.data(), int(alphas.size()), nullptr);
    } else {
      png_set_tRNS(png, info, nullptr, 0, &key);
    }
  }
  if (kind.orientation != 0) {
    FileBytes tiff = exif(kind.orientation, true);
    png_set_eXIf_1(png, info, png_uint_32(tiff.size()), tiff.data());
  }
  png_write_info(png, info);
  if (bits < 8) png_set_packing(png);
  const int passes = png_set_interlace_handling(png);
  const size_t row_bytes = size_t(image.width * image.channels * image.bits / 8);
  for (int pass = 0; pass < passes; ++pass) {
    for (int y = 0; y < image.height; ++y) png_write_row(png, &image.bytes[size_t(y) * row_bytes]);
  }
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return file;
}

FileBytes encode_webp(const TestImage& image, int quality) {
  WebPConfig config;
  REQUIRE(WebPConfigPreset(&config, WEBP_PRESET_PHOTO, quality > 0 ? float(quality) : 50));
  config.lossless = quality == 0;
  config.exact = 1;  // colours under alpha 0 stay
  config.method = 2;
  WebPPicture picture;
  REQUIRE(WebPPictureInit(&picture));
  picture.use_argb = quality == 0;
  picture.width = image.width;
  picture.height = image.height;
  const int stride = image.width * image.channels;
  REQUIRE((image.channels == 4 ? WebPPictureImportRGBA : WebPPictureImportRGB)(&picture, image.bytes.data(), stride));
  WebPMemoryWriter writer;
  WebPMemoryWriterInit(&writer);
  picture.writer = WebPMemoryWrite;
  picture.custom_ptr = &writer;
  REQUIRE(WebPEncode(&config, &picture));
  FileBytes file(writer.mem, writer.mem + writer.size);
  WebPMemoryWriterClear(&writer);
  WebPPictureFree(&picture);
  return file;
}

FileBytes with_orientation(const FileBytes& webp, const TestImage& image, int orientation) {
  FileBytes chunks = {'W', 'E', 'B', 'P', 'V', 'P', '8', 'X', 10, 0, 0, 0, 0x08, 0, 0, 0};  // 0x08: there is EXIF
  for (const int side : {image.width - 1, image.height - 1}) {
    for (int k = 0; k < 3; ++k) chunks.push_back(uint8_t(side >> 8 * k));
  }
  chunks.insert(chunks.end(), webp.begin() + 12, webp.end());
  const FileBytes tiff = exif(orientation, false);
  chunks.insert(chunks.end(), {'E', 'X', 'I', 'F', uint8_t(tiff.size()), 0, 0, 0});
  chunks.insert(chunks.end(), tiff.begin(), tiff.end());
  FileBytes file = {'R', 'I', 'F', 'F'};
  for (int k = 0; k < 4; ++k) file.push_back(uint8_t(chunks.size() >> 8 * k));
  file.insert(file.end(), chunks.begin(), chunks.end());
  return file;
}

}  // namespace arbalest
