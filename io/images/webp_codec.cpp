// SPDX-License-Identifier: Apache-2.0

// WebP by libwebp.

#include <fmt/format.h>
#include <webp/decode.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "io/images/codec.h"
#include "io/images/orientation.h"

namespace arbalest {

namespace {

[[noreturn]] void fail(VP8StatusCode status, size_t file_size) {
  switch (status) {
    case VP8_STATUS_NOT_ENOUGH_DATA:
    case VP8_STATUS_SUSPENDED:
      throw RunError(fmt::format("the WebP is truncated: its {} bytes end before the image does", file_size));
    case VP8_STATUS_OUT_OF_MEMORY: throw RunError("the WebP needs more memory than there is");
    case VP8_STATUS_UNSUPPORTED_FEATURE: throw RunError("the WebP is of a kind that libwebp does not decode");
    default: throw RunError("the WebP is corrupt");
  }
}

uint32_t little_endian(std::span<const uint8_t> bytes) {
  return bytes[0] | bytes[1] << 8 | bytes[2] << 16 | uint32_t{bytes[3]} << 24;
}

// The orientation from the EXIF chunk; 1 if there is none. A chunk is a name (4 bytes), a size (4 bytes) and that many
// bytes, padded to an even number.
int orientation_of(std::span<const uint8_t> file) {
  constexpr size_t kRiffHeader = 12, kChunkHeader = 8;
  for (size_t at = kRiffHeader; at + kChunkHeader <= file.size();) {
    const std::span<const uint8_t> chunk = file.subspan(at + kChunkHeader);
    const size_t size = little_endian(file.subspan(at + 4));
    if (std::memcmp(&file[at], "EXIF", 4) == 0) {
      const std::span<const uint8_t> exif = chunk.first(std::min(size, chunk.size()));
      constexpr std::string_view kJpegName("Exif\0\0", 6);  // not WebP's, but found in it
      const bool named =
          exif.size() >= kJpegName.size() && std::memcmp(exif.data(), kJpegName.data(), kJpegName.size()) == 0;
      return exif_orientation(exif.subspan(named ? kJpegName.size() : 0));
    }
    at += kChunkHeader + size + size % 2;
  }
  return 1;
}

class WebpCodec final : public ImageCodec {
 public:
  ImageInfo open(std::span<const std::byte> file) override {
    file_ = {reinterpret_cast<const uint8_t*>(file.data()), file.size()};
    WebPBitstreamFeatures features;
    if (const VP8StatusCode status = WebPGetFeatures(file_.data(), file_.size(), &features); status != VP8_STATUS_OK) {
      fail(status, file_.size());
    }
    if (features.has_animation) throw RunError("the WebP is animated; expected a still image");
    ImageInfo info;
    info.format = ImageFormat::WebP;
    info.width = features.width;
    info.height = features.height;
    info.channels = 3;
    info.alpha = features.has_alpha;
    info.orientation = orientation_of(file_);
    check_image_size("WebP", info.width, info.height);
    return info;
  }

  void read(const PixelRequest& request, Pixels& pixels) override {
    WebPDecoderConfig config;
    if (!WebPInitDecoderConfig(&config)) throw RunError("libwebp is of another version than its headers");
    if (const VP8StatusCode status = WebPGetFeatures(file_.data(), file_.size(), &config.input);
        status != VP8_STATUS_OK) {
      fail(status, file_.size());
    }
    const PixelBox box = pixels_of(request.region, config.input.width, config.input.height, kChromaMargin);
    // libwebp starts at even pixels.
    const int64_t left = box.left & ~int64_t{1}, top = box.top & ~int64_t{1};
    pixels.grey = false;
    make_room(pixels, {left, top, box.left + box.width - left, box.top + box.height - top}, request.region);
    config.options.use_cropping = 1;
    config.options.crop_left = int(left);
    config.options.crop_top = int(top);
    config.options.crop_width = int(pixels.width);
    config.options.crop_height = int(pixels.height);
    config.output.colorspace = MODE_RGBA;
    config.output.is_external_memory = 1;
    config.output.u.RGBA = {pixels.bytes.data(), int(pixels.width * 4), pixels.size()};
    if (const VP8StatusCode status = WebPDecode(file_.data(), file_.size(), &config); status != VP8_STATUS_OK) {
      fail(status, file_.size());
    }
  }

 private:
  std::span<const uint8_t> file_;
};

}  // namespace

std::unique_ptr<ImageCodec> webp_codec() {
  return std::make_unique<WebpCodec>();
}

}  // namespace arbalest
