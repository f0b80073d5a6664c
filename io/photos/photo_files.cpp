// SPDX-License-Identifier: Apache-2.0
#include "io/photos/photo_files.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/random_access_file.h"

namespace arbalest {

std::string PhotoFiles::path(int64_t number) const {
  const std::string_view path = paths_[size_t(number)];
  if (root_.empty() || path.starts_with('/')) return std::string(path);
  std::string whole = root_;
  if (!whole.ends_with('/')) whole += '/';
  return whole.append(path);
}

void PhotoFiles::read(int64_t number, std::vector<std::byte>& bytes) const {
  const RandomAccessFile file(path(number), "an image file");
  constexpr int64_t kMost = int64_t{1} << 30;
  if (file.size() > kMost) {
    throw RunError(fmt::format("the file has {} bytes, expected an image of at most {}", file.size(), kMost));
  }
  bytes.resize(size_t(file.size()));
  file.read(0, bytes);
}

}  // namespace arbalest
