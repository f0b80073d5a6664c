// SPDX-License-Identifier: Apache-2.0
#include "io/images/image.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/files/file_kind.h"
#include "io/images/codec.h"
#include "io/images/orientation.h"
#include "io/images/resample.h"

namespace arbalest {

void check_image_size(const char* format, int64_t width, int64_t height) {
  if (std::min(width, height) < 1 || std::max(width, height) > kMaxImageSide || width * height > kMaxImagePixels) {
    throw RunError(
        fmt::format("the {} states {} × {} pixels; expected at least one, at most {} a side and 2^28 = {} in all",
                    format, width, height, kMaxImageSide, kMaxImagePixels));
  }
}

PixelBox pixels_of(const Region& region, int64_t width, int64_t height, int64_t margin) {
  const auto begin = [&](double start, int64_t size) {
    return std::clamp<int64_t>(int64_t(std::floor(start)) - margin, 0, size - 1);
  };
  const auto end = [&](double end, int64_t begin, int64_t size) {
    return std::clamp<int64_t>(int64_t(std::ceil(end)) + margin, begin + 1, size);
  };
  PixelBox box = {begin(region.left, width), begin(region.top, height), 0, 0};
  box.width = end(region.left + region.width, box.left, width) - box.left;
  box.height = end(region.top + region.height, box.top, height) - box.top;
  return box;
}

void make_room(Pixels& pixels, const PixelBox& box, const Region& region) {
  pixels.width = box.width;
  pixels.height = box.height;
  pixels.region = {region.left - double(box.left), region.top - double(box.top), region.width, region.height};
  pixels.reserve();
}

namespace {

using Clock = std::chrono::steady_clock;

struct ImageSignature {
  size_t offset;
  std::string_view bytes;
  const char* name;
};
using std::string_view_literals::operator""sv;
constexpr ImageSignature kOthers[] = {
    {4, "ftypheic"sv, "a HEIC"},
    {4, "ftypheix"sv, "a HEIC"},
    {4, "ftypmif1"sv, "a HEIF"},
    {4, "ftypavif"sv, "an AVIF"},
    {0, "\xff\x0a"sv, "a JPEG XL"},
    {0, "\0\0\0\x0cJXL "sv, "a JPEG XL"},
    {0, "\0\0\0\x0cjP  "sv, "a JPEG 2000"},
    {0, "\xff\x4f\xff\x51"sv, "a JPEG 2000"},
    {0, "8BPS"sv, "a Photoshop image"},
};

// The message about a file that is no image that is decoded.
std::string fault_of(std::string_view file) {
  if (file.empty()) return "the file is empty";
  for (const ImageSignature& other : kOthers) {
    if (file.substr(std::min(other.offset, file.size())).starts_with(other.bytes)) {
      return fmt::format("the file is {} image", other.name);
    }
  }
  const std::string_view head = file.substr(0, 512);
  const std::string kind = kind_of_file({reinterpret_cast<const uint8_t*>(head.data()), head.size()});
  if (!kind.empty()) return fmt::format("the file is {}", kind);
  return fmt::format("not an image: it begins with \"{}\"",
                     printable(file.substr(0, std::min<size_t>(file.size(), 12))));
}

ImageFormat format_of(std::string_view file) {
  constexpr std::pair<std::string_view, ImageFormat> kStarts[] = {
      {"\xff\xd8\xff"sv, ImageFormat::Jpeg}, {"\x89PNG\r\n\x1a\n"sv, ImageFormat::Png},
      {"GIF87a"sv, ImageFormat::Gif},        {"GIF89a"sv, ImageFormat::Gif},
      {"II*\0"sv, ImageFormat::Tiff},        {"MM\0*"sv, ImageFormat::Tiff},
      {"II+\0"sv, ImageFormat::Tiff},        {"MM\0+"sv, ImageFormat::Tiff},
  };
  for (const auto& [start, format] : kStarts) {
    if (file.starts_with(start)) return format;
  }
  if (file.starts_with("RIFF"sv) && file.size() >= 12 && file.substr(8, 4) == "WEBP"sv) return ImageFormat::WebP;
  // Two letters are few: the size of a BMP's second header, which is small, has to follow, if the file goes so far.
  constexpr size_t kSize = 14;
  if (file.starts_with("BM"sv) && (file.size() < kSize + 4 || file.substr(kSize + 1, 3) == "\0\0\0"sv)) {
    return ImageFormat::Bmp;
  }
  if (file.starts_with("\x89PNG"sv)) {
    throw RunError("the PNG has line ends that were changed, as where a file is transferred as text");
  }
  throw RunError(fmt::format("{}; expected a {}", fault_of(file), image_formats()));
}

std::unique_ptr<ImageCodec> codec_for(ImageFormat format) {
  switch (format) {
    case ImageFormat::Jpeg: return jpeg_codec();
    case ImageFormat::Png: return png_codec();
    case ImageFormat::WebP: return webp_codec();
    case ImageFormat::Bmp: return bmp_codec();
    case ImageFormat::Gif: return gif_codec();
    case ImageFormat::Tiff: return tiff_codec();
  }
  throw std::logic_error("an image is of no format");
}

// ITU-R 601's luma in 16 bits, rounded. In place: four bytes become one.
void to_grey(Pixels& pixels) {
  uint8_t* bytes = pixels.bytes.data();
  const int64_t count = pixels.width * pixels.height;
  for (int64_t k = 0; k < count; ++k) {
    const uint8_t* from = bytes + 4 * k;
    bytes[k] = uint8_t((from[0] * 19595 + from[1] * 38470 + from[2] * 7471 + 0x8000) >> 16);
  }
  pixels.grey = true;
}

}  // namespace

struct ImageDecoder::State {
  ImageInfo info;
  ImageCodec* codec = nullptr;  // has an image open; null if none is
  std::unique_ptr<ImageCodec> codecs[kImageFormats];
  Pixels pixels;
  Resampler resampler;
  std::vector<uint8_t> stored;  // the output before it is turned upright

  // One large image should not cost its memory for ever.
  void release_large() {
    constexpr size_t kKept = size_t{64} << 20;
    if (pixels.bytes.size() > kKept) pixels.bytes = {};
    if (stored.size() > kKept) stored = {};
  }

  ImageCodec& codec_of(ImageFormat format) {
    std::unique_ptr<ImageCodec>& codec = codecs[size_t(format)];
    if (codec == nullptr) codec = codec_for(format);
    return *codec;
  }
};

ImageDecoder::ImageDecoder() : state_(std::make_unique<State>()) {}
ImageDecoder::~ImageDecoder() = default;
ImageDecoder::ImageDecoder(ImageDecoder&&) noexcept = default;
ImageDecoder& ImageDecoder::operator=(ImageDecoder&&) noexcept = default;

ImageInfo ImageDecoder::open(std::span<const std::byte> file) {
  State& state = *state_;
  state.codec = nullptr;
  ImageCodec& codec = state.codec_of(format_of({reinterpret_cast<const char*>(file.data()), file.size()}));
  state.info = codec.open(file);
  state.codec = &codec;
  if (Orientation(state.info.orientation).transposed) std::swap(state.info.width, state.info.height);
  return state.info;
}

void ImageDecoder::decode(const Region& region, int64_t height, int64_t width, int channels, uint8_t* out,
                          PreparationTimes& times) {
  State& state = *state_;
  if (state.codec == nullptr) throw RunError("an image is decoded that was not opened");
  constexpr double kSlack = 1e-3;  // of a pixel: regions are computed
  if (!(region.left >= -kSlack && region.top >= -kSlack && region.width > 0 && region.height > 0 &&
        region.left + region.width <= double(state.info.width) + kSlack &&
        region.top + region.height <= double(state.info.height) + kSlack)) {
    throw RunError(fmt::format("a region of {} × {} pixels at ({}, {}) is not within the image's {} × {}", region.width,
                               region.height, region.left, region.top, state.info.width, state.info.height));
  }
  const Clock::time_point start = Clock::now();
  const Orientation orientation(state.info.orientation);
  PixelRequest request{orientation.stored(region, state.info.width, state.info.height), height, width, channels == 1};
  if (orientation.transposed) std::swap(request.height, request.width);
  ImageCodec& codec = *state.codec;
  state.codec = nullptr;
  codec.read(request, state.pixels);
  const Clock::time_point decoded = Clock::now();
  if (request.grey && !state.pixels.grey) to_grey(state.pixels);
  if (state.info.orientation == 1) {
    state.resampler.run(state.pixels, height, width, channels, out);
  } else {
    state.stored.resize(size_t(height * width * channels));
    state.resampler.run(state.pixels, request.height, request.width, channels, state.stored.data());
    orientation.turn(state.stored.data(), height, width, channels, out);
  }
  state.release_large();
  times.decode += std::chrono::duration<double>(decoded - start).count();
  times.scale += std::chrono::duration<double>(Clock::now() - decoded).count();
}

}  // namespace arbalest
