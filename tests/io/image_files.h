#pragma once
// Image files made in memory, by the libraries that read them.

#include <cstdint>
#include <string>
#include <vector>

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

struct JpegKind {
  int quality = 90;
  int horizontal = 2, vertical = 2;  // chroma's subsampling
  bool progressive = false;
  int scans_a_coefficient = 0;  // of a grey image: progressive, 1 + 63 times as many scans
  bool arithmetic = false;
  int restart_rows = 0;
  int orientation = 0;  // written where it is not 0
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
  int orientation = 0;           // in an eXIf chunk, where it is not 0
};
FileBytes encode_png(const TestImage& image, const PngKind& kind = {});
// The palette's colour of an index.
std::vector<uint8_t> palette_colour(int index);

// Lossless where quality is 0. Of 3 or 4 channels.
FileBytes encode_webp(const TestImage& image, int quality = 0);
// The same with an EXIF chunk, of an image without alpha.
FileBytes with_orientation(const FileBytes& webp, const TestImage& image, int orientation);

}  // namespace arbalest
