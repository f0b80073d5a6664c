// SPDX-License-Identifier: Apache-2.0
#pragma once
// Photos for training: decodes JPEG, PNG, WebP (still images), BMP, GIF and TIFF from memory, a region of them at the
// size that a model reads. Takes the first of several frames or pages.
//
// Pixels come as the file has them: colour profiles and gamma are not applied, and alpha is dropped (the colour under
// it stays, as with Pillow's convert("RGB")). 16 bits become 8 by rounding, and a JPEG's CMYK is taken as inverted, as
// its writers store it. Colour becomes grey by ITU-R 601's luma; a JPEG's luma is taken as it is stored.
//
// Limits: 65 535 pixels a side, 2^28 in all, 500 scans of a progressive JPEG, 16 channels of a TIFF. A file that is too
// short for the pixels that it states is refused before memory is taken for them, except for WebP. Decoding takes up to
// 4 bytes for each pixel of the region. For a PNG its rows count (interlaced: the image), for a TIFF its strip or tile
// as well. A progressive JPEG takes another 6 for each pixel of the image (CMYK: 8). WebP's library takes memory of its
// own, up to 5 bytes for each pixel of the image.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "graph/preparation.h"
#include "io/images/image_format.h"

namespace arbalest {

// A file's header data about its image.
struct ImageInfo {
  ImageFormat format = ImageFormat::Jpeg;
  int64_t width = 0, height = 0;  // of the upright image: the EXIF orientation is applied
  int channels = 0;               // 1 grey, 3 colour: what the file has, without alpha
  int bits = 8;                   // of a channel, or of an index into a palette
  bool alpha = false;
  bool several = false;  // frames or pages, of which this is the first
  int orientation = 1;   // as EXIF has it, 1 … 8; 1: stored upright
};

// In pixels of the upright image.
struct Region {
  double left = 0, top = 0, width = 0, height = 0;
};

// For one thread at a time; keeps its handles and buffers from image to image.
class ImageDecoder {
 public:
  ImageDecoder();
  ~ImageDecoder();
  ImageDecoder(ImageDecoder&&) noexcept;
  ImageDecoder& operator=(ImageDecoder&&) noexcept;

  // Reads the header only. The bytes have to stay until decode() has returned. Throws RunError if they are no image, or
  // one that is corrupt, truncated or beyond the limits, as far as the header shows.
  ImageInfo open(std::span<const std::byte> file);

  // The region of the image that was opened, scaled to height × width, as (height, width, channels) bytes; channels is
  // 1 or 3. Scaled by an antialiased triangle filter, as Pillow's BILINEAR; pixels outside of the region do not count.
  // Decodes no more than that needs. A JPEG is decoded at the scale (1, 1/2, 1/4 or 1/8) that still has the output's
  // resolution, and only the rows and columns of the region. The pixels are the same on every machine with the same
  // versions of the decoding libraries. Call it once for each open(). Throws RunError if the file is corrupt or
  // truncated as far as it was read, or if the region is not within the image.
  void decode(const Region& region, int64_t height, int64_t width, int channels, uint8_t* out, PreparationTimes& times);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace arbalest
