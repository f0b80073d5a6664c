// SPDX-License-Identifier: Apache-2.0

// PNG by libpng. Its errors come by longjmp, so that no function of this file that may be left so holds an object with
// a destructor.

#include <fmt/format.h>
#include <png.h>

#include <csetjmp>
#include <cstring>

#include "base/error.h"
#include "io/images/codec.h"
#include "io/images/orientation.h"

namespace arbalest {

namespace {

class PngCodec final : public ImageCodec {
 public:
  PngCodec() = default;
  ~PngCodec() override { close(); }
  PngCodec(const PngCodec&) = delete;
  PngCodec& operator=(const PngCodec&) = delete;

  ImageInfo open(std::span<const std::byte> file) override;
  void read(const PixelRequest& request, Pixels& pixels) override;

 private:
  template <typename Call>
  void run(Call call) {
    if (setjmp(jump_) != 0) fail();
    call();
  }
  [[noreturn]] void fail();
  void close() { png_destroy_read_struct(&png_, &info_, nullptr); }
  void read_rows(const PixelBox& box, int passes, Pixels& pixels);

  static void on_error(png_structp png, png_const_charp text);
  static void on_read(png_structp png, png_bytep to, size_t count);

  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  std::span<const std::byte> file_;
  size_t at_ = 0;  // how far the file was read
  bool truncated_ = false;
  std::jmp_buf jump_ = {};
  char text_[128] = {};  // what the library said
};

void PngCodec::on_error(png_structp png, png_const_charp text) {
  PngCodec& self = *static_cast<PngCodec*>(png_get_error_ptr(png));
  std::strncpy(self.text_, text, sizeof self.text_ - 1);
  std::longjmp(self.jump_, 1);
}

void PngCodec::on_read(png_structp png, png_bytep to, size_t count) {
  PngCodec& self = *static_cast<PngCodec*>(png_get_io_ptr(png));
  if (count > self.file_.size() - self.at_) {
    self.truncated_ = true;
    std::longjmp(self.jump_, 1);
  }
  std::memcpy(to, self.file_.data() + self.at_, count);
  self.at_ += count;
}

void PngCodec::fail() {
  close();
  if (truncated_) {
    throw RunError(fmt::format("the PNG is truncated: its {} bytes end before the image does", file_.size()));
  }
  throw RunError(fmt::format("the PNG is corrupt; libpng: {}", text_));
}

ImageInfo PngCodec::open(std::span<const std::byte> file) {
  close();
  file_ = file;
  at_ = 0;
  truncated_ = false;
  run([&] {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, on_error, [](png_structp, png_const_charp) {});
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
  });
  if (info_ == nullptr) throw RunError("libpng is of another version than its headers, or there is no memory");
  run([&] {
    png_set_read_fn(png_, this, on_read);
    png_set_user_limits(png_, 0x7fffffff, 0x7fffffff);  // check_image_size() says what the limits are
    png_set_chunk_malloc_max(png_, size_t{64} << 20);
    // Keeps only the orientation (eXIf) of the chunks that decoding pixels does not need.
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_AS_DEFAULT, reinterpret_cast<png_const_bytep>("eXIf"), 1);
    png_read_info(png_, info_);
  });
  ImageInfo info;
  info.format = ImageFormat::Png;
  info.width = png_get_image_width(png_, info_);
  info.height = png_get_image_height(png_, info_);
  info.bits = png_get_bit_depth(png_, info_);
  const int type = png_get_color_type(png_, info_);
  info.channels = type & PNG_COLOR_MASK_COLOR ? 3 : 1;
  info.alpha = type & PNG_COLOR_MASK_ALPHA || png_get_valid(png_, info_, PNG_INFO_tRNS);
  png_uint_32 exif_size = 0;
  png_bytep exif = nullptr;
  if (png_get_eXIf_1(png_, info_, &exif_size, &exif) != 0) info.orientation = exif_orientation({exif, exif_size});
  check_image_size("PNG", info.width, info.height);
  // Deflate compresses by a factor of at most 1032.
  if (int64_t(png_get_rowbytes(png_, info_)) * info.height / 1032 > int64_t(file.size())) {
    throw RunError(
        fmt::format("the PNG is truncated: {} bytes cannot hold {} × {} pixels", file.size(), info.width, info.height));
  }
  return info;
}

void PngCodec::read(const PixelRequest& request, Pixels& pixels) {
  const int type = png_get_color_type(png_, info_);
  const int64_t width = png_get_image_width(png_, info_), height = png_get_image_height(png_, info_);
  pixels.grey = (type & PNG_COLOR_MASK_COLOR) == 0;
  int passes = 1;
  run([&] {
    png_set_scale_16(png_);
    if (pixels.grey) {
      png_set_expand_gray_1_2_4_to_8(png_);
      png_set_strip_alpha(png_);
    } else {
      png_set_palette_to_rgb(png_);
      png_set_add_alpha(png_, 0xff, PNG_FILLER_AFTER);
    }
    passes = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
  });
  const PixelBox box = pixels_of(request.region, width, height);
  const int64_t top = passes > 1 ? 0 : box.top;
  pixels.width = width;
  pixels.height = passes > 1 ? height : box.height;
  pixels.region = {request.region.left, request.region.top - double(top), request.region.width, request.region.height};
  if (png_get_rowbytes(png_, info_) != size_t(pixels.width * pixels.pixel_bytes())) {
    throw RunError(fmt::format("the PNG is of a kind that is not decoded: a row of {} pixels has {} bytes", width,
                               png_get_rowbytes(png_, info_)));
  }
  pixels.reserve();
  read_rows(box, passes, pixels);
  close();
}

void PngCodec::read_rows(const PixelBox& box, int passes, Pixels& pixels) {
  const int64_t row_bytes = pixels.width * pixels.pixel_bytes();
  run([&] {
    if (passes > 1) {
      for (int pass = 0; pass < passes; ++pass) {
        for (int64_t row = 0; row < pixels.height; ++row) {
          png_read_row(png_, pixels.bytes.data() + row * row_bytes, nullptr);
        }
      }
      return;
    }
    for (int64_t row = 0; row < box.top; ++row) png_read_row(png_, nullptr, nullptr);
    for (int64_t row = 0; row < box.height; ++row) png_read_row(png_, pixels.bytes.data() + row * row_bytes, nullptr);
  });
}

}  // namespace

std::unique_ptr<ImageCodec> png_codec() {
  return std::make_unique<PngCodec>();
}

}  // namespace arbalest
