// SPDX-License-Identifier: Apache-2.0

// BMP, as Windows and OS/2 store it: rows of pixels that are not compressed. No library of our platforms is for it.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

#include "base/error.h"
#include "io/images/codec.h"

namespace arbalest {

namespace {

constexpr size_t kFileHeader = 14, kCoreHeader = 12, kInfoHeader = 40, kOs2Header = 64;
constexpr size_t kMasks = kFileHeader + kInfoHeader;  // after that header, or within a longer one

enum class Compression : uint32_t { None = 0, Runs8 = 1, Runs4 = 2, Masks = 3, Jpeg = 4, Png = 5, MasksWithAlpha = 6 };

// Adjacent bits of a pixel that are one channel.
struct Channel {
  uint32_t mask = 0;

  bool is_adjacent() const { return mask == 0 || std::has_single_bit(uint64_t{mask >> shift()} + 1); }
  int shift() const { return mask == 0 ? 0 : std::countr_zero(mask); }
  uint8_t value(uint32_t pixel) const {
    if (mask == 0) return 0;
    const uint64_t most = mask >> shift(), stored = (pixel & mask) >> shift();
    return uint8_t((stored * 255 + most / 2) / most);
  }
};

class BmpCodec final : public ImageCodec {
 public:
  ImageInfo open(std::span<const std::byte> file) override;
  void read(const PixelRequest& request, Pixels& pixels) override;

 private:
  [[noreturn]] void truncated() const {
    throw RunError(fmt::format("the BMP is truncated: its {} bytes end before the image does", file_.size()));
  }
  uint32_t number(size_t at, size_t count) const {
    if (at > file_.size() || file_.size() - at < count) truncated();
    uint32_t value = 0;
    for (size_t k = 0; k < count; ++k) value |= uint32_t{file_[at + k]} << 8 * k;
    return value;
  }
  void read_header();
  void check_compression(size_t header, Compression compression) const;
  void read_masks(size_t header, Compression compression);
  void read_palette(size_t at, size_t count, size_t entry_bytes);
  bool is_grey() const;
  void read_row(const uint8_t* row, const PixelBox& box, uint8_t* to) const;

  std::span<const uint8_t> file_;
  int64_t width_ = 0, height_ = 0, row_bytes_ = 0;
  bool from_top_ = false;
  int bits_ = 0;                                       // of a pixel
  size_t pixels_ = 0;                                  // where they begin
  std::array<Channel, 4> channels_;                    // red, green, blue, alpha: of 16 and 32 bits
  std::array<std::array<uint8_t, 3>, 256> palette_{};  // of 8 bits and less
  size_t colours_ = 0;                                 // of the palette
};

void BmpCodec::check_compression(size_t header, Compression compression) const {
  const bool masks = compression == Compression::Masks || compression == Compression::MasksWithAlpha;
  if (compression == Compression::None) return;
  if (masks && header != kOs2Header && (bits_ == 16 || bits_ == 32)) return;
  const bool runs = compression == Compression::Runs8 || compression == Compression::Runs4;
  throw RunError(fmt::format("the BMP is compressed{}, which is not decoded; expected one that is not",
                             runs                               ? " by run lengths"
                             : compression == Compression::Jpeg ? " as a JPEG"
                             : compression == Compression::Png  ? " as a PNG"
                                                                : fmt::format(" (kind {})", uint32_t(compression))));
}

void BmpCodec::read_masks(size_t header, Compression compression) {
  channels_ = {};
  if (compression == Compression::None) {
    const bool words = bits_ == 16;
    channels_ = {Channel{words ? 0x7c00u : 0xff0000u}, Channel{words ? 0x3e0u : 0xff00u},
                 Channel{words ? 0x1fu : 0xffu}, Channel{}};
    return;
  }
  const bool alpha = compression == Compression::MasksWithAlpha || header >= kInfoHeader + 16;
  for (size_t c = 0; c < (alpha ? 4 : 3); ++c) {
    channels_[c].mask = number(kMasks + 4 * c, 4);
    if (channels_[c].is_adjacent()) continue;
    throw RunError(
        fmt::format("the BMP is corrupt: found a channel of the bits {:x}, expected adjacent ones", channels_[c].mask));
  }
}

void BmpCodec::read_palette(size_t at, size_t count, size_t entry_bytes) {
  if (pixels_ > at) count = std::min(count, (pixels_ - at) / entry_bytes);
  palette_ = {};  // what it does not have is black
  colours_ = count;
  for (size_t k = 0; k < count; ++k) {
    const uint32_t blue_green_red = number(at + k * entry_bytes, 3);
    palette_[k] = {uint8_t(blue_green_red >> 16), uint8_t(blue_green_red >> 8), uint8_t(blue_green_red)};
  }
}

bool BmpCodec::is_grey() const {
  return bits_ <= 8 && std::all_of(palette_.begin(), palette_.begin() + int64_t(colours_),
                                   [](const auto& colour) { return colour[0] == colour[1] && colour[1] == colour[2]; });
}

void BmpCodec::read_header() {
  const size_t header = number(kFileHeader, 4);
  const bool core = header == kCoreHeader;
  constexpr std::array<size_t, 7> kHeaders = {kCoreHeader, kInfoHeader, 52, 56, kOs2Header, 108, 124};
  if (std::find(kHeaders.begin(), kHeaders.end(), header) == kHeaders.end()) {
    throw RunError(
        fmt::format("the BMP is corrupt or of a kind that is not decoded: found a header of {} bytes", header));
  }
  width_ = core ? int64_t{number(18, 2)} : int64_t{int32_t(number(18, 4))};
  height_ = core ? int64_t{number(20, 2)} : int64_t{int32_t(number(22, 4))};
  from_top_ = height_ < 0;
  height_ = std::abs(height_);
  bits_ = int(number(core ? 24 : 28, 2));
  check_image_size("BMP", width_, height_);
  constexpr std::array kBits = {1, 2, 4, 8, 16, 24, 32};
  if (std::find(kBits.begin(), kBits.end(), bits_) == kBits.end()) {
    throw RunError(fmt::format("the BMP is corrupt: found {} bits a pixel, expected 1, 2, 4, 8, 16, 24 or 32", bits_));
  }
  const Compression compression = core ? Compression::None : Compression(number(30, 4));
  check_compression(header, compression);
  pixels_ = number(10, 4);
  size_t behind = kFileHeader + header;
  if (bits_ <= 8) {
    const size_t most = size_t{1} << bits_, stated = core ? 0 : number(46, 4), entry_bytes = core ? 3 : 4;
    read_palette(behind, stated == 0 ? most : std::min(stated, most), entry_bytes);
    behind += colours_ * entry_bytes;
  } else {
    read_masks(header, compression);
  }
  if (pixels_ == 0) pixels_ = behind;
  if (pixels_ < kFileHeader + header) {
    throw RunError(fmt::format("the BMP is corrupt: its pixels begin at byte {}, within its header", pixels_));
  }
  row_bytes_ = (width_ * bits_ + 31) / 32 * 4;
  // The last row may come without the bytes that fill it up.
  const uint64_t needed = uint64_t(row_bytes_ * (height_ - 1) + (width_ * bits_ + 7) / 8);
  if (pixels_ > file_.size() || file_.size() - pixels_ < needed) truncated();
}

ImageInfo BmpCodec::open(std::span<const std::byte> file) {
  file_ = {reinterpret_cast<const uint8_t*>(file.data()), file.size()};
  read_header();
  ImageInfo info;
  info.format = ImageFormat::Bmp;
  info.width = width_;
  info.height = height_;
  info.channels = is_grey() ? 1 : 3;
  info.bits = bits_ <= 8 ? bits_ : 8;
  if (bits_ == 16 || bits_ == 32) {
    info.bits = 0;
    for (size_t c = 0; c < 3; ++c) info.bits = std::max(info.bits, std::popcount(channels_[c].mask));
    info.alpha = channels_[3].mask != 0;
  }
  return info;
}

void BmpCodec::read_row(const uint8_t* row, const PixelBox& box, uint8_t* to) const {
  const size_t bytes = size_t(bits_) / 8;  // of a pixel
  for (int64_t x = box.left; x < box.left + box.width; ++x, to += 4) {
    const uint8_t* at = row + size_t(x) * bytes;
    if (bits_ <= 8) {
      const size_t bit = size_t(x) * size_t(bits_);
      const int index = row[bit / 8] >> (8 - bits_ - int(bit % 8)) & ((1 << bits_) - 1);
      std::copy_n(palette_[size_t(index)].data(), 3, to);
    } else if (bits_ == 24) {
      std::reverse_copy(at, at + 3, to);
    } else {
      uint32_t pixel = 0;
      for (size_t k = 0; k < bytes; ++k) pixel |= uint32_t{at[k]} << 8 * k;
      for (size_t c = 0; c < 3; ++c) to[c] = channels_[c].value(pixel);
    }
  }
}

void BmpCodec::read(const PixelRequest& request, Pixels& pixels) {
  const PixelBox box = pixels_of(request.region, width_, height_);
  pixels.grey = false;
  make_room(pixels, box, request.region);
  for (int64_t row = 0; row < box.height; ++row) {
    const int64_t y = box.top + row, stored = from_top_ ? y : height_ - 1 - y;
    read_row(file_.data() + pixels_ + stored * row_bytes_, box, pixels.bytes.data() + row * box.width * 4);
  }
}

}  // namespace

std::unique_ptr<ImageCodec> bmp_codec() {
  return std::make_unique<BmpCodec>();
}

}  // namespace arbalest
