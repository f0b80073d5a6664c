// SPDX-License-Identifier: Apache-2.0

// The library's errors come by longjmp: write() holds no object with a destructor.

#include "tools/data/jpeg_writer.h"

#include <fmt/format.h>

#include <csetjmp>
#include <cstdio>  // jpeglib.h wants it
#include <cstdlib>
#include <cstring>
//
#include <jpeglib.h>

#include "base/error.h"

namespace arbalest {
namespace {

struct ErrorState {
  jpeg_error_mgr manager;  // first, so that the library's pointer to it is one to this
  std::jmp_buf jump;
  char message[JMSG_LENGTH_MAX];
};

[[noreturn]] void leave(j_common_ptr handle) {
  ErrorState& state = *reinterpret_cast<ErrorState*>(handle->err);
  handle->err->format_message(handle, state.message);
  std::longjmp(state.jump, 1);
}

struct Output {
  unsigned char* bytes = nullptr;  // malloc's
  unsigned long size = 0;
};

bool write(const uint8_t* pixels, int64_t width, int64_t height, int channels, int quality, ErrorState& errors,
           Output& output) {
  jpeg_compress_struct handle{};
  handle.err = jpeg_std_error(&errors.manager);
  errors.manager.error_exit = leave;
  if (setjmp(errors.jump)) {
    jpeg_destroy_compress(&handle);
    return false;
  }
  jpeg_create_compress(&handle);
  jpeg_mem_dest(&handle, &output.bytes, &output.size);
  handle.image_width = JDIMENSION(width);
  handle.image_height = JDIMENSION(height);
  handle.input_components = channels;
  handle.in_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&handle);
  jpeg_set_quality(&handle, quality, TRUE);
  handle.optimize_coding = TRUE;
  jpeg_start_compress(&handle, TRUE);
  while (handle.next_scanline < handle.image_height) {
    JSAMPROW row = const_cast<JSAMPROW>(pixels + int64_t(handle.next_scanline) * width * channels);
    jpeg_write_scanlines(&handle, &row, 1);
  }
  jpeg_finish_compress(&handle);
  jpeg_destroy_compress(&handle);
  return true;
}

}  // namespace

void write_jpeg(const uint8_t* pixels, int64_t width, int64_t height, int channels, int quality,
                std::vector<std::byte>& file) {
  ErrorState errors{};
  Output output;
  const bool done = write(pixels, width, height, channels, quality, errors, output);
  if (done) {
    file.resize(output.size);
    std::memcpy(file.data(), output.bytes, output.size);
  }
  std::free(output.bytes);
  if (!done) throw RunError(fmt::format("a JPEG of {} × {} cannot be written: {}", width, height, errors.message));
}

}  // namespace arbalest
