// SPDX-License-Identifier: Apache-2.0

// TIFF by libtiff, which decompresses its strips and tiles: the first image, of whole numbers of 1 to 16 bits.

#include <fmt/format.h>
#include <tiffio.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "io/images/codec.h"

namespace arbalest {

namespace {

constexpr int64_t kMostChannels = 16;  // of which those after the colours are ignored

// The meaning of a pixel's first channels.
enum class Colours : uint8_t { Grey, InvertedGrey, Rgb, Palette, Cmyk };

int64_t channels_of(Colours colours) {
  return colours == Colours::Rgb ? 3 : colours == Colours::Cmyk ? 4 : 1;
}

// The image is divided into these: tiles, or strips, which are as wide as it. (rows, pixels, channels), rows of whole
// bytes; if planes are separate, a block holds one channel.
struct Blocks {
  bool tiled = false, separate = false;
  int64_t width = 0, height = 0;
  int64_t channels = 0;   // of a block
  int64_t row_bytes = 0;  // of a block
  size_t bytes() const { return size_t(row_bytes * height); }
};

class TiffCodec final : public ImageCodec {
 public:
  TiffCodec() = default;
  ~TiffCodec() override { close(); }
  TiffCodec(const TiffCodec&) = delete;
  TiffCodec& operator=(const TiffCodec&) = delete;

  ImageInfo open(std::span<const std::byte> file) override;
  void read(const PixelRequest& request, Pixels& pixels) override;

 private:
  static tmsize_t on_read(thandle_t handle, void* to, tmsize_t count);
  static toff_t on_seek(thandle_t handle, toff_t offset, int whence);
  static int on_error(TIFF* tiff, void* codec, const char* where, const char* format, va_list values);
  static int on_warning(TIFF* tiff, void* codec, const char* where, const char* format, va_list values);

  void open_library();
  void close() {
    if (tiff_ != nullptr) TIFFClose(tiff_);
    tiff_ = nullptr;
  }
  [[noreturn]] void fail() const;
  template <typename T>
  T field(uint32_t tag, T otherwise) const {
    T value = otherwise;
    return TIFFGetFieldDefaulted(tiff_, tag, &value) == 1 ? value : otherwise;
  }
  Colours read_colours() const;
  void read_layout();
  void read_palette();
  void read_block(int64_t x, int64_t y, int64_t rows);
  void unpack(int64_t row, int64_t channel, int64_t first, int64_t count);
  void put(int64_t count, uint8_t* to) const;

  TIFF* tiff_ = nullptr;
  std::span<const std::byte> file_;
  uint64_t at_ = 0;  // where the library reads
  bool truncated_ = false, strict_ = false;
  char text_[160] = {};  // what the library said first

  int64_t width_ = 0, height_ = 0;
  int bits_ = 0;
  Colours colours_ = Colours::Grey;
  Blocks blocks_;
  std::vector<uint8_t> palette_;   // (colours, 3)
  std::vector<uint8_t> block_;     // the one that was read, or one for each channel
  std::vector<uint8_t> channels_;  // (4, pixels of a part of a row), of 8 bits
};

tmsize_t TiffCodec::on_read(thandle_t handle, void* to, tmsize_t count) {
  TiffCodec& self = *static_cast<TiffCodec*>(handle);
  const uint64_t left = self.file_.size() - std::min<uint64_t>(self.at_, self.file_.size());
  const uint64_t have = std::min(left, uint64_t(std::max<tmsize_t>(count, 0)));
  if (have > 0) std::memcpy(to, self.file_.data() + self.at_, have);
  self.at_ += have;
  self.truncated_ = self.truncated_ || have < uint64_t(count);
  return tmsize_t(have);
}

toff_t TiffCodec::on_seek(thandle_t handle, toff_t offset, int whence) {
  TiffCodec& self = *static_cast<TiffCodec*>(handle);
  self.at_ = offset + (whence == SEEK_CUR ? self.at_ : whence == SEEK_END ? self.file_.size() : 0);
  return self.at_;
}

int TiffCodec::on_error(TIFF* /*tiff*/, void* codec, const char* where, const char* format, va_list values) {
  TiffCodec& self = *static_cast<TiffCodec*>(codec);
  if (self.text_[0] == '\0') {
    const int length = std::snprintf(self.text_, sizeof self.text_, "%s: ", where != nullptr ? where : "");
    const size_t begun = std::min(size_t(std::max(length, 0)), sizeof self.text_ - 1);
    std::vsnprintf(self.text_ + begun, sizeof self.text_ - begun, format, values);
  }
  return 1;
}

// libjpeg, within libtiff, warns of pixels that are not there. Of all others the image is what its writer meant.
int TiffCodec::on_warning(TIFF* tiff, void* codec, const char* where, const char* format, va_list values) {
  return static_cast<TiffCodec*>(codec)->strict_ ? on_error(tiff, codec, where, format, values) : 1;
}

void TiffCodec::fail() const {
  if (truncated_) {
    throw RunError(fmt::format("the TIFF is truncated: its {} bytes end before the image does", file_.size()));
  }
  throw RunError(fmt::format("the TIFF is corrupt or of a kind that is not decoded; libtiff: {}", text_));
}

void TiffCodec::open_library() {
  constexpr tmsize_t kMostAtOnce = tmsize_t{1} << 30;
  TIFFOpenOptions* const options = TIFFOpenOptionsAlloc();
  if (options == nullptr) throw std::bad_alloc();
  TIFFOpenOptionsSetMaxSingleMemAlloc(options, kMostAtOnce);
  TIFFOpenOptionsSetErrorHandlerExtR(options, on_error, this);
  TIFFOpenOptionsSetWarningHandlerExtR(options, on_warning, this);
  tiff_ = TIFFClientOpenExt(
      "", "rm", this, on_read, [](thandle_t, void*, tmsize_t) -> tmsize_t { return 0; }, on_seek,
      [](thandle_t) { return 0; },
      [](thandle_t handle) -> toff_t { return static_cast<TiffCodec*>(handle)->file_.size(); }, nullptr, nullptr,
      options);
  TIFFOpenOptionsFree(options);
  if (tiff_ == nullptr) fail();
}

Colours TiffCodec::read_colours() const {
  const int photometric = field<uint16_t>(TIFFTAG_PHOTOMETRIC, 0xffff);
  const bool jpeg = field<uint16_t>(TIFFTAG_COMPRESSION, COMPRESSION_NONE) == COMPRESSION_JPEG;
  switch (photometric) {
    case PHOTOMETRIC_MINISWHITE: return Colours::InvertedGrey;
    case PHOTOMETRIC_MINISBLACK: return Colours::Grey;
    case PHOTOMETRIC_RGB: return Colours::Rgb;
    case PHOTOMETRIC_PALETTE:
      if (bits_ <= 8) return Colours::Palette;
      break;
    case PHOTOMETRIC_SEPARATED:
      if (field<uint16_t>(TIFFTAG_INKSET, INKSET_CMYK) == INKSET_CMYK) return Colours::Cmyk;
      break;
    case PHOTOMETRIC_YCBCR:
      if (jpeg && TIFFSetField(tiff_, TIFFTAG_JPEGCOLORMODE, JPEGCOLORMODE_RGB) == 1) return Colours::Rgb;
      break;
    default: break;
  }
  throw RunError(
      fmt::format("the TIFF has pixels of a kind that is not decoded (PhotometricInterpretation {}); expected "
                  "grey, RGB, a palette, CMYK or a JPEG's YCbCr",
                  photometric));
}

void TiffCodec::read_layout() {
  width_ = field<uint32_t>(TIFFTAG_IMAGEWIDTH, 0);
  height_ = field<uint32_t>(TIFFTAG_IMAGELENGTH, 0);
  check_image_size("TIFF", width_, height_);
  bits_ = field<uint16_t>(TIFFTAG_BITSPERSAMPLE, 1);
  const int format = field<uint16_t>(TIFFTAG_SAMPLEFORMAT, SAMPLEFORMAT_UINT);
  const bool whole = format == SAMPLEFORMAT_UINT || format == SAMPLEFORMAT_VOID;
  if (!whole || (bits_ != 1 && bits_ != 2 && bits_ != 4 && bits_ != 8 && bits_ != 16)) {
    throw RunError(fmt::format("the TIFF has {} of {} bits a channel; expected whole numbers of 1, 2, 4, 8 or 16",
                               format == SAMPLEFORMAT_IEEEFP ? "floating-point numbers" : "numbers", bits_));
  }
  colours_ = read_colours();
  const int64_t channels = field<uint16_t>(TIFFTAG_SAMPLESPERPIXEL, 1);
  if (channels < channels_of(colours_) || channels > kMostChannels) {
    throw RunError(
        fmt::format("the TIFF is corrupt or of a kind that is not decoded: found {} channels, expected {} to {}",
                    channels, channels_of(colours_), kMostChannels));
  }
  blocks_.tiled = TIFFIsTiled(tiff_) != 0;
  blocks_.separate = field<uint16_t>(TIFFTAG_PLANARCONFIG, PLANARCONFIG_CONTIG) == PLANARCONFIG_SEPARATE;
  blocks_.width = blocks_.tiled ? field<uint32_t>(TIFFTAG_TILEWIDTH, 0) : uint32_t(width_);
  blocks_.height = blocks_.tiled
                       ? field<uint32_t>(TIFFTAG_TILELENGTH, 0)
                       : uint32_t(std::min<int64_t>(field<uint32_t>(TIFFTAG_ROWSPERSTRIP, 0xffffffff), height_));
  check_image_size("TIFF's parts", blocks_.width, blocks_.height);
  blocks_.channels = blocks_.separate ? 1 : channels;
  blocks_.row_bytes = (blocks_.width * blocks_.channels * bits_ + 7) / 8;
  const uint64_t expected = blocks_.tiled ? TIFFTileSize64(tiff_) : TIFFStripSize64(tiff_);
  if (expected != blocks_.bytes()) {
    throw RunError(
        fmt::format("the TIFF is corrupt or of a kind that is not decoded: found parts of {} bytes, expected {}",
                    expected, blocks_.bytes()));
  }
  constexpr uint64_t kMostOfPart = uint64_t{1} << 30;
  if (uint64_t(blocks_.bytes()) > kMostOfPart / uint64_t(std::max<int64_t>(1, blocks_.separate ? channels : 1))) {
    throw RunError(fmt::format("the TIFF has parts of {} bytes; expected at most {}", blocks_.bytes(), kMostOfPart));
  }
  // No compression makes more of a byte.
  const uint64_t most = field<uint16_t>(TIFFTAG_COMPRESSION, COMPRESSION_NONE) == COMPRESSION_NONE ? 1 : 1 << 16;
  const uint64_t bytes = std::max(uint64_t((width_ * channels * bits_ + 7) / 8 * height_), uint64_t(blocks_.bytes()));
  if (bytes / most > file_.size()) {
    throw RunError(
        fmt::format("the TIFF is truncated: {} bytes cannot hold {} × {} pixels", file_.size(), width_, height_));
  }
}

// The palette has 16 bits, except for some writers, which leave 8 there.
void TiffCodec::read_palette() {
  uint16_t* primaries[3] = {};
  if (TIFFGetField(tiff_, TIFFTAG_COLORMAP, &primaries[0], &primaries[1], &primaries[2]) != 1) {
    throw RunError("the TIFF is corrupt: its palette is missing");
  }
  const size_t count = size_t{1} << bits_;
  palette_.resize(count * 3);
  const bool bytes = std::all_of(primaries, primaries + 3, [&](const uint16_t* values) {
    return std::all_of(values, values + count, [](uint16_t value) { return value < 256; });
  });
  for (size_t k = 0; k < 3 * count; ++k) {
    const uint32_t value = primaries[k % 3][k / 3];
    palette_[k] = uint8_t(bytes ? value : value >> 8);  // of 8 bits, writers multiply by 256 or by 257
  }
}

ImageInfo TiffCodec::open(std::span<const std::byte> file) {
  close();
  file_ = file;
  at_ = 0;
  truncated_ = strict_ = false;
  text_[0] = '\0';
  open_library();
  read_layout();
  if (colours_ == Colours::Palette) read_palette();
  ImageInfo info;
  info.format = ImageFormat::Tiff;
  info.width = width_;
  info.height = height_;
  info.channels = colours_ == Colours::Grey || colours_ == Colours::InvertedGrey ? 1 : 3;
  info.bits = bits_;
  uint16_t extra = 0;
  const uint16_t* kinds = nullptr;
  if (TIFFGetFieldDefaulted(tiff_, TIFFTAG_EXTRASAMPLES, &extra, &kinds) == 1 && extra > 0 && kinds != nullptr) {
    info.alpha = kinds[0] == EXTRASAMPLE_ASSOCALPHA || kinds[0] == EXTRASAMPLE_UNASSALPHA;
  }
  const int orientation = field<uint16_t>(TIFFTAG_ORIENTATION, 1);
  info.orientation = orientation >= 1 && orientation <= 8 ? orientation : 1;
  info.several = TIFFLastDirectory(tiff_) == 0;
  return info;
}

// The block that holds the pixel (x, y), as far as its first `rows` rows; of each channel, if planes are separate.
void TiffCodec::read_block(int64_t x, int64_t y, int64_t rows) {
  const int64_t planes = blocks_.separate ? channels_of(colours_) : 1;
  for (int64_t plane = 0; plane < planes; ++plane) {
    uint8_t* const to = block_.data() + size_t(plane) * blocks_.bytes();
    const uint32_t number = blocks_.tiled ? TIFFComputeTile(tiff_, uint32_t(x), uint32_t(y), 0, uint16_t(plane))
                                          : TIFFComputeStrip(tiff_, uint32_t(y), uint16_t(plane));
    const tmsize_t size = tmsize_t(blocks_.bytes());
    const tmsize_t read =
        blocks_.tiled ? TIFFReadEncodedTile(tiff_, number, to, size) : TIFFReadEncodedStrip(tiff_, number, to, size);
    if (read < rows * blocks_.row_bytes || text_[0] != '\0') fail();
  }
}

// A channel of a part of a row of the block that was read: 8 bits each, or indices into the palette.
void TiffCodec::unpack(int64_t row, int64_t channel, int64_t first, int64_t count) {
  const uint8_t* from = block_.data() + row * blocks_.row_bytes;
  if (blocks_.separate) from += size_t(channel) * blocks_.bytes();
  uint8_t* const to = channels_.data() + channel * count;
  const int64_t step = blocks_.channels, start = first * step + (blocks_.separate ? 0 : channel);
  if (bits_ == 8) {
    for (int64_t i = 0; i < count; ++i) to[i] = from[start + i * step];
  } else if (bits_ == 16) {
    for (int64_t i = 0; i < count; ++i) {
      uint16_t value = 0;
      std::memcpy(&value, from + 2 * (start + i * step), sizeof value);
      to[i] = uint8_t((uint32_t{value} * 255 + 32895) >> 16);
    }
  } else {
    const int most = (1 << bits_) - 1, factor = colours_ == Colours::Palette ? 1 : 255 / most;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t bit = (start + i * step) * bits_;
      to[i] = uint8_t((from[bit / 8] >> (8 - bits_ - bit % 8) & most) * factor);
    }
  }
}

// Pixels of the channels that were unpacked.
void TiffCodec::put(int64_t count, uint8_t* to) const {
  const uint8_t* const channel = channels_.data();
  for (int64_t i = 0; i < count; ++i) {
    switch (colours_) {
      case Colours::Grey: to[i] = channel[i]; break;
      case Colours::InvertedGrey: to[i] = uint8_t(255 - channel[i]); break;
      case Colours::Rgb:
        for (int64_t c = 0; c < 3; ++c) to[4 * i + c] = channel[c * count + i];
        break;
      case Colours::Palette: std::copy_n(&palette_[size_t(channel[i]) * 3], 3, to + 4 * i); break;
      case Colours::Cmyk:  // ink, so that 0 is white
        for (int64_t c = 0; c < 3; ++c) {
          to[4 * i + c] = uint8_t(((255 - channel[c * count + i]) * (255 - channel[3 * count + i]) + 127) / 255);
        }
        break;
    }
  }
}

void TiffCodec::read(const PixelRequest& request, Pixels& pixels) {
  const PixelBox box = pixels_of(request.region, width_, height_);
  pixels.grey = colours_ == Colours::Grey || colours_ == Colours::InvertedGrey;
  make_room(pixels, box, request.region);
  strict_ = field<uint16_t>(TIFFTAG_COMPRESSION, COMPRESSION_NONE) == COMPRESSION_JPEG;
  text_[0] = '\0';
  truncated_ = false;
  block_.resize(blocks_.bytes() * size_t(blocks_.separate ? channels_of(colours_) : 1));
  channels_.resize(size_t(std::min(blocks_.width, width_) * 4));
  const int64_t right = box.left + box.width, bottom = box.top + box.height;
  for (int64_t y = box.top / blocks_.height * blocks_.height; y < bottom; y += blocks_.height) {
    for (int64_t x = box.left / blocks_.width * blocks_.width; x < right; x += blocks_.width) {
      const int64_t first_row = std::max(y, box.top), end_row = std::min(y + blocks_.height, bottom);
      const int64_t first = std::max(x, box.left), count = std::min(x + blocks_.width, right) - first;
      read_block(x, y, end_row - y);
      for (int64_t row = first_row; row < end_row; ++row) {
        for (int64_t c = 0; c < channels_of(colours_); ++c) unpack(row - y, c, first - x, count);
        put(count, pixels.bytes.data() + ((row - box.top) * box.width + first - box.left) * pixels.pixel_bytes());
      }
    }
  }
  if (constexpr size_t kKept = size_t{64} << 20; block_.size() > kKept) block_ = {};
  close();
}

}  // namespace

std::unique_ptr<ImageCodec> tiff_codec() {
  return std::make_unique<TiffCodec>();
}

}  // namespace arbalest
