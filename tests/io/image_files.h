// SPDX-License-Identifier: Apache-2.0
#pragma once
// Image files made in memory, by the libraries that read them.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/images/image.h"

namespace arbalest {

// (height, width, channels), 8 or 16 bits a channel (16: two bytes, the high one first).
struct TestImage {
  int width = 0, height = 0, channels = 3, bits = 8;
  std::vector<uint8_t> bytes;

  double at(int y, int x, int c) const;  // of 8 bits: 0 … 255; of 16: 0 … 65535
};

// Colours that change slowly, with sharp bars and noise of `noise` levels.
TestImage test_image(int width, int height, int channels, int noise = 0, uint64_t seed = 1);

using FileBytes = std::vector<uint8_t>;

// The image's data from the header. Throws RunError as ImageDecoder::open does.
inline ImageInfo image_info(std::span<const std::byte> file) {
  return ImageDecoder().open(file);
}

struct JpegKind {
  int quality = 90;
  int horizontal = 2, vertical = 2;  // chroma's subsampling
  bool progressive = false;
  int scans_a_coefficient = 0;  // of a grey image: progressive, 1 + 63 times as many scans
  bool arithmetic = false;
  int restart_rows = 0;
  int orientation = 0;  // written if it is not 0
  bool big_endian_exif = false;
  bool rgb = false;   // stored as RGB, not as YCbCr
  bool ycck = false;  // of four channels, inverted CMYK: stored as YCCK
};
FileBytes encode_jpeg(const TestImage& image, const JpegKind& kind = {});

struct PngKind {
  bool interlaced = false;
  bool palette = false;          // of one channel: indices, see palette_colour()
  int bits = 8;                  // 1, 2, 4: of one channel; values are bytes less than 2^bits
  bool transparent_key = false;  // a tRNS chunk
  int orientation = 0;           // in an eXIf chunk, if it is not 0
};
FileBytes encode_png(const TestImage& image, const PngKind& kind = {});
// The palette's colour of an index.
std::vector<uint8_t> palette_colour(int index);

// Lossless if quality is 0. The image has 3 or 4 channels.
FileBytes encode_webp(const TestImage& image, int quality = 0);
// The same with an EXIF chunk, of an image without alpha.
FileBytes with_orientation(const FileBytes& webp, const TestImage& image, int orientation);

struct BmpKind {
  int bits = 24;              // a pixel; 1, 2, 4, 8: of one channel, indices into palette_colour()
  bool grey_palette = false;  // or, of 4 bits and less, into a ramp
  bool from_top = false;
  int header = 40;                   // bytes; 12: of OS/2
  std::vector<uint32_t> masks = {};  // of 16 or 32 bits: of red, green, blue and perhaps alpha
};
FileBytes encode_bmp(const TestImage& image, const BmpKind& kind = {});

struct GifKind {
  bool interlaced = false;
  int left = 0, top = 0;                    // of the frame
  int canvas_width = 0, canvas_height = 0;  // if they are larger than the frame
  int transparent = -1;                     // an index
  bool grey_palette = false;                // a ramp of 16
  int frames = 1;                           // those after the first are mirrored
};
// `image` has one channel: indices into palette_colour().
FileBytes encode_gif(const TestImage& image, const GifKind& kind = {});

struct TiffKind {
  int photometric = 2;  // as tiff.h numbers them: 0 inverted grey, 1 grey, 2 RGB, 3 palette, 5 CMYK, 6 YCbCr
  int compression = 1;  // 1 none, 4 fax, 5 LZW, 7 JPEG, 8 deflate, 32773 PackBits
  int bits = 8;         // fewer than 8: one channel, values below 2^bits
  int rows = 0;         // of a strip; 0: all
  int tile = 0;         // pixels a side; 0: strips
  bool separate = false, big_endian = false, floats = false;
  int orientation = 0;  // written if it is not 0
  int pages = 1;        // the same
};
FileBytes encode_tiff(const TestImage& image, const TiffKind& kind = {});

}  // namespace arbalest
