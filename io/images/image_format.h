// SPDX-License-Identifier: Apache-2.0
#pragma once
// Kinds of image files: what they are called, and the endings of their names. Code that takes an image file by its name
// asks here; what a file is, its content says (io/images/image.h).

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace arbalest {

enum class ImageFormat : uint8_t { Jpeg, Png, WebP, Bmp, Gif, Tiff };
inline constexpr size_t kImageFormats = 6;

const char* name_of(ImageFormat format);         // "JPEG"
std::string_view ending_of(ImageFormat format);  // "jpg", as files of it are written

// Whether a name ends as an image file's does, in letters of any case.
bool is_image_name(std::string_view name);

// For messages: "JPEG, PNG, … or TIFF", and ".jpg, .jpeg, … or .tiff".
std::string image_formats();
std::string image_endings();

}  // namespace arbalest
