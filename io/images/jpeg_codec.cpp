// SPDX-License-Identifier: Apache-2.0

// JPEG by libjpeg-turbo. Its errors come by longjmp, so no function of this file that may be left that way holds an
// object with a destructor. Memory is taken between calls of the library, not during them.

#include <fmt/format.h>

#include <csetjmp>
#include <cstdio>  // jpeglib.h wants it
//
#include <jerror.h>
#include <jpeglib.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "io/images/codec.h"
#include "io/images/orientation.h"

namespace arbalest {

namespace {

constexpr int kMaxScans = 500;  // of a progressive file: each goes over the whole image
constexpr int kExifMarker = JPEG_APP0 + 1;
constexpr std::string_view kExifName("Exif\0\0", 6);

// Whether a file with this warning of the library still decodes to the image that its writer meant.
bool is_harmless(int warning) {
  return warning == JWRN_ADOBE_XFORM || warning == JWRN_JFIF_MAJOR || warning == JWRN_EXTRANEOUS_DATA ||
         warning == JWRN_NOT_SEQUENTIAL;
}

struct ErrorState {
  jpeg_error_mgr manager;  // first, so that the library's pointer to it is one to this
  jpeg_progress_mgr progress;
  std::jmp_buf jump;
  bool ended;  // the file ended before the library had what it needed
  bool too_many_scans;
};

[[noreturn]] void leave(j_common_ptr handle) {
  std::longjmp(reinterpret_cast<ErrorState*>(handle->err)->jump, 1);
}

// Stops decoding at a warning that is not harmless. At the file's end the library inserts an end marker and warns. All
// rows may be there by then, and if not, Huffman decoding ends in another warning. But in a file of several scans some
// of them would be missing, and arithmetic decoding would never end.
void on_message(j_common_ptr common, int level) {
  if (level >= 0 || is_harmless(common->err->msg_code)) return;
  if (common->err->msg_code == JWRN_JPEG_EOF) {
    const j_decompress_ptr handle = reinterpret_cast<j_decompress_ptr>(common);
    reinterpret_cast<ErrorState*>(common->err)->ended = true;
    if (!jpeg_has_multiple_scans(handle) && !handle->arith_code) return;
  }
  leave(common);
}

void on_progress(j_common_ptr handle) {
  if (reinterpret_cast<j_decompress_ptr>(handle)->input_scan_number <= kMaxScans) return;
  reinterpret_cast<ErrorState*>(handle->err)->too_many_scans = true;
  leave(handle);
}

void ignore_message(j_common_ptr) {}

class JpegCodec final : public ImageCodec {
 public:
  JpegCodec() {
    handle_.err = jpeg_std_error(&errors_.manager);
    errors_.manager.error_exit = leave;
    errors_.manager.emit_message = on_message;
    errors_.manager.output_message = ignore_message;
    errors_.progress.progress_monitor = on_progress;
    if (!guarded([this] {
          jpeg_create_decompress(&handle_);
          jpeg_save_markers(&handle_, kExifMarker, 0xffff);
        })) {
      fail();
    }
    handle_.progress = &errors_.progress;
  }
  ~JpegCodec() override { jpeg_destroy_decompress(&handle_); }
  JpegCodec(const JpegCodec&) = delete;
  JpegCodec& operator=(const JpegCodec&) = delete;

  ImageInfo open(std::span<const std::byte> file) override;
  void read(const PixelRequest& request, Pixels& pixels) override;

 private:
  // Runs `call`; false if the library failed. `call` must hold nothing with a destructor.
  template <typename Call>
  bool guarded(Call call) {
    if (setjmp(errors_.jump) != 0) return false;
    call();
    return true;
  }
  template <typename Call>
  void run(Call call) {
    if (!guarded(call)) fail();
  }
  [[noreturn]] void fail();
  int orientation() const;
  void read_rows(const PixelBox& box, Pixels& pixels);

  jpeg_decompress_struct handle_ = {};
  ErrorState errors_ = {};
  size_t file_size_ = 0;
};

void JpegCodec::fail() {
  char text[JMSG_LENGTH_MAX] = {};
  errors_.manager.format_message(reinterpret_cast<j_common_ptr>(&handle_), text);
  const uint32_t row = handle_.output_scanline;
  jpeg_abort_decompress(&handle_);
  if (errors_.too_many_scans) {
    throw RunError(fmt::format("the JPEG has more than {} scans, which is more than is decoded", kMaxScans));
  }
  if (errors_.ended) {
    throw RunError(fmt::format("the JPEG is truncated: its {} bytes end before the image does{}", file_size_,
                               row > 0 ? fmt::format(", near row {} of {}", row, handle_.output_height) : ""));
  }
  throw RunError(fmt::format("the JPEG is corrupt or of a kind that is not decoded; libjpeg: {}", text));
}

int JpegCodec::orientation() const {
  for (jpeg_saved_marker_ptr marker = handle_.marker_list; marker != nullptr; marker = marker->next) {
    const std::span<const uint8_t> data(marker->data, marker->data_length);
    if (marker->marker != kExifMarker || data.size() < kExifName.size()) continue;
    if (std::memcmp(data.data(), kExifName.data(), kExifName.size()) != 0) continue;
    return exif_orientation(data.subspan(kExifName.size()));
  }
  return 1;
}

ImageInfo JpegCodec::open(std::span<const std::byte> file) {
  jpeg_abort_decompress(&handle_);
  handle_.output_scanline = 0;  // the library leaves the last image's until rows are read of this one
  file_size_ = file.size();
  errors_.ended = errors_.too_many_scans = false;
  run([&] {
    jpeg_mem_src(&handle_, reinterpret_cast<const unsigned char*>(file.data()), file.size());
    jpeg_read_header(&handle_, TRUE);
  });
  ImageInfo info;
  info.format = ImageFormat::Jpeg;
  info.width = handle_.image_width;
  info.height = handle_.image_height;
  info.channels = handle_.jpeg_color_space == JCS_GRAYSCALE ? 1 : 3;
  info.bits = handle_.data_precision;
  info.orientation = orientation();
  check_image_size("JPEG", info.width, info.height);
  // Huffman's codes have a bit at least for each block of 8 × 8.
  if (!handle_.arith_code && info.width * info.height / 64 > int64_t(file.size()) * 8) {
    throw RunError(fmt::format("the JPEG is truncated: {} bytes cannot hold {} × {} pixels", file.size(), info.width,
                               info.height));
  }
  if (handle_.jpeg_color_space == JCS_UNKNOWN) {
    throw RunError(fmt::format("the JPEG has {} components of no known meaning; expected grey, colour or CMYK",
                               handle_.num_components));
  }
  return info;
}

// The smallest scale in eighths at which the region still has the output's resolution. Only these have vector code in
// the library; the ones between are slower than the next larger of these.
int scale_of(const PixelRequest& request) {
  for (const int eighths : {1, 2, 4}) {
    if (request.region.width * eighths >= double(request.width) * 8 &&
        request.region.height * eighths >= double(request.height) * 8) {
      return eighths;
    }
  }
  return 8;
}

// In place, from inverted cyan, magenta, yellow and black.
void to_colour(uint8_t* pixels, int64_t count) {
  for (int64_t k = 0; k < count; ++k, pixels += 4) {
    for (int c = 0; c < 3; ++c) pixels[c] = uint8_t((pixels[c] * pixels[3] + 127) / 255);
  }
}

void JpegCodec::read(const PixelRequest& request, Pixels& pixels) {
  const int eighths = scale_of(request);
  const bool four = handle_.num_components == 4;
  handle_.scale_num = unsigned(eighths);
  handle_.scale_denom = 8;
  handle_.out_color_space = four ? JCS_CMYK : request.grey ? JCS_GRAYSCALE : JCS_EXT_RGBX;
  handle_.do_block_smoothing = FALSE;
  run([&] { jpeg_start_decompress(&handle_); });

  const double scale = eighths / 8.0;
  const Region region = {request.region.left * scale, request.region.top * scale, request.region.width * scale,
                         request.region.height * scale};
  const PixelBox box = pixels_of(region, handle_.output_width, handle_.output_height);
  const PixelBox wide = pixels_of(region, handle_.output_width, handle_.output_height, kChromaMargin);
  JDIMENSION left = JDIMENSION(wide.left), width = JDIMENSION(wide.width);
  run([&] { jpeg_crop_scanline(&handle_, &left, &width); });

  pixels.grey = request.grey && !four;
  pixels.width = handle_.output_width;
  pixels.height = box.height;
  pixels.region = {region.left - left, region.top - double(box.top), region.width, region.height};
  pixels.reserve();
  read_rows(box, pixels);
  if (four) to_colour(pixels.bytes.data(), pixels.width * pixels.height);
}

void JpegCodec::read_rows(const PixelBox& box, Pixels& pixels) {
  const int64_t row_bytes = pixels.width * pixels.pixel_bytes();
  run([&] {
    if (box.top > 0) jpeg_skip_scanlines(&handle_, JDIMENSION(box.top));
    constexpr int kRows = 16;
    for (int64_t row = 0; row < box.height;) {
      JSAMPROW rows[kRows];
      const int64_t count = std::min<int64_t>(kRows, box.height - row);
      for (int64_t k = 0; k < count; ++k) rows[k] = pixels.bytes.data() + (row + k) * row_bytes;
      row += jpeg_read_scanlines(&handle_, rows, JDIMENSION(count));
    }
  });
  jpeg_abort_decompress(&handle_);
}

}  // namespace

std::unique_ptr<ImageCodec> jpeg_codec() {
  return std::make_unique<JpegCodec>();
}

}  // namespace arbalest
