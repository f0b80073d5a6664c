// SPDX-License-Identifier: Apache-2.0
#pragma once
// Interface of the formats' decoders, which ImageDecoder calls: they give pixels as the file stores them, before these
// are scaled and turned upright.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "io/images/image.h"

namespace arbalest {

// The region of the stored image that is wanted, in its pixels, and the size that this will be scaled to.
struct PixelRequest {
  Region region;
  int64_t height = 0, width = 0;
  bool grey = false;  // luma, else colour
};

// Bytes that may be read beyond the last pixel.
inline constexpr int64_t kPixelSlack = 64;

// Rows of pixels: one byte per pixel if grey, else four, of which the first three are red, green and blue.
struct Pixels {
  int64_t height = 0, width = 0;
  bool grey = false;
  Region region;               // what was wanted, in these pixels
  std::vector<uint8_t> bytes;  // of the pixels, kPixelSlack and more; kept from image to image

  int64_t pixel_bytes() const { return grey ? 1 : 4; }
  size_t size() const { return size_t(height * width * pixel_bytes()); }
  void reserve() {
    if (bytes.size() < size() + kPixelSlack) bytes.resize(size() + kPixelSlack);
  }
};

// One format. Its errors are RunErrors; the libraries' own ways of failing end in it.
class ImageCodec {
 public:
  virtual ~ImageCodec() = default;
  virtual ImageInfo open(std::span<const std::byte> file) = 0;
  // Reads the image that was opened, once.
  virtual void read(const PixelRequest& request, Pixels& pixels) = 0;
};

std::unique_ptr<ImageCodec> jpeg_codec();
std::unique_ptr<ImageCodec> png_codec();
std::unique_ptr<ImageCodec> webp_codec();
std::unique_ptr<ImageCodec> bmp_codec();
std::unique_ptr<ImageCodec> gif_codec();
std::unique_ptr<ImageCodec> tiff_codec();

inline constexpr int64_t kMaxImageSide = 65535, kMaxImagePixels = int64_t{1} << 28;

// Throws RunError if an image of this size is beyond the limits: "the PNG states 60000 × 60000 pixels; …".
void check_image_size(const char* format, int64_t width, int64_t height);

struct PixelBox {
  int64_t left = 0, top = 0, width = 0, height = 0;
};
// The pixels of an image of width × height that a region touches, with up to `margin` pixels around them inside the
// image.
PixelBox pixels_of(const Region& region, int64_t width, int64_t height, int64_t margin = 0);
// Makes room for the pixels of a box, in which the region of the image has its place. Whether they are grey is known.
void make_room(Pixels& pixels, const PixelBox& box, const Region& region);

// Chroma of less resolution is interpolated between neighbours: decoded with a margin, the pixels of a region are as
// they are in the whole image.
inline constexpr int64_t kChromaMargin = 2;

}  // namespace arbalest
