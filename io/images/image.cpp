#include "io/images/image.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string_view>

#include "graph/error.h"
#include "io/formats/file_kind.h"
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

namespace {

using Clock = std::chrono::steady_clock;

struct Signature {
  size_t offset;
  std::string_view bytes;
  const char* name;
};
using std::string_view_literals::operator""sv;
constexpr Signature kOthers[] = {
    {0, "GIF8"sv, "a GIF"},
    {0, "BM"sv, "a BMP"},
    {0, "II*\0"sv, "a TIFF"},
    {0, "MM\0*"sv, "a TIFF"},
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

[[noreturn]] void refuse(std::string_view file) {
  if (file.empty()) throw RunError("the file is empty; expected a JPEG, PNG or WebP");
  for (const Signature& other : kOthers) {
    if (file.substr(std::min(other.offset, file.size())).starts_with(other.bytes)) {
      throw RunError(fmt::format("the file is {} image; expected a JPEG, PNG or WebP", other.name));
    }
  }
  if (file.starts_with("\x89PNG"sv)) {
    throw RunError("the PNG has line ends that were changed, as where a file is transferred as text");
  }
  const std::string_view head = file.substr(0, 512);
  const std::string kind = kind_of_file({reinterpret_cast<const uint8_t*>(head.data()), head.size()});
  if (!kind.empty()) throw RunError(fmt::format("the file is {}; expected a JPEG, PNG or WebP", kind));
  throw RunError(fmt::format("not an image: it begins with \"{}\"; expected a JPEG, PNG or WebP",
                             printable(file.substr(0, std::min<size_t>(file.size(), 12)))));
}

ImageInfo::Format format_of(std::string_view file) {
  if (file.starts_with("\xff\xd8\xff"sv)) return ImageInfo::Format::Jpeg;
  if (file.starts_with("\x89PNG\r\n\x1a\n"sv)) return ImageInfo::Format::Png;
  if (file.starts_with("RIFF"sv) && file.size() >= 12 && file.substr(8, 4) == "WEBP"sv) return ImageInfo::Format::WebP;
  refuse(file);
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
  ImageCodec* codec = nullptr;  // has an image open; null where none is
  std::unique_ptr<ImageCodec> codecs[3];
  Pixels pixels;
  Resampler resampler;
  std::vector<uint8_t> stored;  // the output before it is turned upright

  // One large image should not cost its memory for ever.
  void release_large() {
    constexpr size_t kKept = size_t{64} << 20;
    if (pixels.bytes.size() > kKept) pixels.bytes = {};
    if (stored.size() > kKept) stored = {};
  }

  ImageCodec& codec_of(ImageInfo::Format format) {
    std::unique_ptr<ImageCodec>& codec = codecs[size_t(format)];
    if (codec == nullptr) {
      codec = format == ImageInfo::Format::Jpeg  ? jpeg_codec()
              : format == ImageInfo::Format::Png ? png_codec()
                                                 : webp_codec();
    }
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

ImageInfo image_info(std::span<const std::byte> file) {
  return ImageDecoder().open(file);
}

}  // namespace arbalest
