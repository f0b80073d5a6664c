// SPDX-License-Identifier: Apache-2.0
#include "io/images/image_format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <strings.h>

#include <algorithm>
#include <vector>

namespace arbalest {
namespace {

struct Kind {
  const char* name;
  std::vector<std::string_view> endings;  // the one that is written first
};

// In the order of ImageFormat.
const Kind (&kinds())[kImageFormats] {
  static const Kind all[kImageFormats] = {
      {"JPEG", {"jpg", "jpeg", "jpe", "jfif"}},
      {"PNG", {"png"}},
      {"WebP", {"webp"}},
      {"BMP", {"bmp"}},
      {"GIF", {"gif"}},
      {"TIFF", {"tif", "tiff"}},
  };
  return all;
}

std::string listed(const std::vector<std::string>& items) {
  return fmt::format("{} or {}", fmt::join(items.begin(), items.end() - 1, ", "), items.back());
}

}  // namespace

const char* name_of(ImageFormat format) {
  return kinds()[size_t(format)].name;
}

std::string_view ending_of(ImageFormat format) {
  return kinds()[size_t(format)].endings.front();
}

bool is_image_name(std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == name.npos || dot == 0) return false;
  const std::string_view ending = name.substr(dot + 1);
  const auto fits = [ending](std::string_view each) {
    return each.size() == ending.size() && strncasecmp(each.data(), ending.data(), each.size()) == 0;
  };
  return std::any_of(std::begin(kinds()), std::end(kinds()),
                     [&](const Kind& kind) { return std::any_of(kind.endings.begin(), kind.endings.end(), fits); });
}

std::string image_formats() {
  std::vector<std::string> names;
  for (const Kind& kind : kinds()) names.emplace_back(kind.name);
  return listed(names);
}

std::string image_endings() {
  std::vector<std::string> endings;
  for (const Kind& kind : kinds()) {
    for (const std::string_view ending : kind.endings) endings.push_back(fmt::format(".{}", ending));
  }
  return listed(endings);
}

}  // namespace arbalest
