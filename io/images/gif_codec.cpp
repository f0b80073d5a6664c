// SPDX-License-Identifier: Apache-2.0

// GIF by giflib: the first frame, where it lies on the canvas.

#include <fmt/format.h>
#include <gif_lib.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "io/images/codec.h"

namespace arbalest {

namespace {

// Rows of an interlaced frame come in four passes.
struct Pass {
  int64_t first, step;
};
constexpr std::array<Pass, 4> kInterlaced = {{{0, 8}, {4, 8}, {2, 4}, {1, 2}}};
constexpr std::array<Pass, 1> kInOrder = {{{0, 1}}};

class GifCodec final : public ImageCodec {
 public:
  GifCodec() = default;
  ~GifCodec() override { close(); }
  GifCodec(const GifCodec&) = delete;
  GifCodec& operator=(const GifCodec&) = delete;

  ImageInfo open(std::span<const std::byte> file) override;
  void read(const PixelRequest& request, Pixels& pixels) override;

 private:
  static int on_read(GifFileType* gif, GifByteType* to, int count);
  [[noreturn]] void fail(int error) const;
  void need(int status) const {
    if (status == GIF_ERROR) fail(gif_->Error);
  }
  void close() {
    if (gif_ != nullptr) DGifCloseFile(gif_, nullptr);
    gif_ = nullptr;
  }
  void find_frame();
  void read_extension();
  void read_palette();
  bool has_another_frame() const;
  void read_frame(const PixelBox& box, Pixels& pixels);

  GifFileType* gif_ = nullptr;
  std::span<const uint8_t> file_;
  size_t at_ = 0;  // how far the file was read
  bool truncated_ = false;
  int transparent_ = -1;  // index of the colour that is; none: -1
  std::array<std::array<uint8_t, 4>, 256> palette_{};
  bool grey_ = false;
  int64_t width_ = 0, height_ = 0;  // of the canvas
  PixelBox frame_;
  std::vector<uint8_t> row_;  // indices
};

int GifCodec::on_read(GifFileType* gif, GifByteType* to, int count) {
  GifCodec& self = *static_cast<GifCodec*>(gif->UserData);
  const size_t have = std::min(size_t(std::max(count, 0)), self.file_.size() - self.at_);
  if (have > 0) std::memcpy(to, self.file_.data() + self.at_, have);
  self.at_ += have;
  self.truncated_ = self.truncated_ || have < size_t(count);
  return int(have);
}

void GifCodec::fail(int error) const {
  if (truncated_) {
    throw RunError(fmt::format("the GIF is truncated: its {} bytes end before the image does", file_.size()));
  }
  const char* const text = GifErrorString(error);
  throw RunError(fmt::format("the GIF is corrupt; giflib: {}", text != nullptr ? text : "no reason given"));
}

void GifCodec::read_extension() {
  int code = 0;
  GifByteType* block = nullptr;  // its length, then as many bytes
  need(DGifGetExtension(gif_, &code, &block));
  if (code == GRAPHICS_EXT_FUNC_CODE && block != nullptr && block[0] >= 4 && (block[1] & 1) != 0) {
    transparent_ = block[4];
  }
  while (block != nullptr) need(DGifGetExtensionNext(gif_, &block));
}

// Goes to the first frame's pixels.
void GifCodec::find_frame() {
  while (true) {
    GifRecordType type = UNDEFINED_RECORD_TYPE;
    need(DGifGetRecordType(gif_, &type));
    if (type == IMAGE_DESC_RECORD_TYPE) break;
    if (type != EXTENSION_RECORD_TYPE) throw RunError("the GIF is corrupt: it has no frame");
    read_extension();
  }
  need(DGifGetImageDesc(gif_));
  const GifImageDesc& image = gif_->Image;
  frame_ = {image.Left, image.Top, image.Width, image.Height};
  width_ = std::max<int64_t>(gif_->SWidth, frame_.left + frame_.width);
  height_ = std::max<int64_t>(gif_->SHeight, frame_.top + frame_.height);
  check_image_size("GIF", width_, height_);
  check_image_size("GIF", frame_.width, frame_.height);
  // A code has 3 bits at least, and stands for less than 4096 pixels.
  if (frame_.width * frame_.height / 4096 * 3 / 8 > int64_t(file_.size())) {
    throw RunError(fmt::format("the GIF is truncated: {} bytes cannot hold {} × {} pixels", file_.size(), frame_.width,
                               frame_.height));
  }
}

// Indices that it does not have are black.
void GifCodec::read_palette() {
  palette_ = {};
  grey_ = true;
  const ColorMapObject* const map = gif_->Image.ColorMap != nullptr ? gif_->Image.ColorMap : gif_->SColorMap;
  if (map == nullptr) throw RunError("the GIF is corrupt: its first frame has no palette");
  for (int k = 0; k < std::min(map->ColorCount, int(palette_.size())); ++k) {
    const GifColorType& colour = map->Colors[k];
    palette_[size_t(k)] = {colour.Red, colour.Green, colour.Blue, 0};
    grey_ = grey_ && colour.Red == colour.Green && colour.Green == colour.Blue;
  }
}

// By the lengths of what follows: blocks of a length and as many bytes, up to one of none.
bool GifCodec::has_another_frame() const {
  constexpr uint8_t kExtension = 0x21, kFrame = 0x2c;
  size_t at = at_;
  while (true) {
    while (at < file_.size() && file_[at] != 0) at += 1 + size_t{file_[at]};
    if (++at >= file_.size()) return false;
    if (file_[at] == kFrame) return true;
    if (file_[at] != kExtension) return false;
    at += 2;  // and its kind
  }
}

ImageInfo GifCodec::open(std::span<const std::byte> file) {
  close();
  file_ = {reinterpret_cast<const uint8_t*>(file.data()), file.size()};
  at_ = 0;
  truncated_ = false;
  transparent_ = -1;
  int error = 0;
  gif_ = DGifOpen(this, on_read, &error);
  if (gif_ == nullptr) fail(error);
  find_frame();
  read_palette();
  ImageInfo info;
  info.format = ImageFormat::Gif;
  info.width = width_;
  info.height = height_;
  info.channels = grey_ ? 1 : 3;
  info.alpha = transparent_ >= 0;
  info.several = has_another_frame();
  return info;
}

void GifCodec::read(const PixelRequest& request, Pixels& pixels) {
  const PixelBox box = pixels_of(request.region, width_, height_);
  pixels.grey = false;
  make_room(pixels, box, request.region);
  const uint8_t* const around = palette_[size_t(std::max(transparent_, 0))].data();  // where there is no frame
  for (size_t k = 0; k < pixels.size(); k += 4) std::copy_n(around, 4, pixels.bytes.data() + k);
  row_.resize(size_t(frame_.width));
  read_frame(box, pixels);
  close();
}

void GifCodec::read_frame(const PixelBox& box, Pixels& pixels) {
  const bool interlaced = gif_->Image.Interlace;
  const std::span<const Pass> passes =
      interlaced ? std::span<const Pass>(kInterlaced) : std::span<const Pass>(kInOrder);
  const int64_t left = std::max(box.left, frame_.left),
                right = std::min(box.left + box.width, frame_.left + frame_.width);
  for (const Pass& pass : passes) {
    for (int64_t row = pass.first; row < frame_.height; row += pass.step) {
      const int64_t y = frame_.top + row - box.top;
      if (y >= box.height && !interlaced) return;
      need(DGifGetLine(gif_, row_.data(), int(frame_.width)));
      if (y < 0 || y >= box.height) continue;
      uint8_t* to = pixels.bytes.data() + (y * box.width + left - box.left) * 4;
      for (int64_t x = left; x < right; ++x, to += 4) {
        std::copy_n(palette_[row_[size_t(x - frame_.left)]].data(), 4, to);
      }
    }
  }
}

}  // namespace

std::unique_ptr<ImageCodec> gif_codec() {
  return std::make_unique<GifCodec>();
}

}  // namespace arbalest
