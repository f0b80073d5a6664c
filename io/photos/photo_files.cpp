#include "io/photos/photo_files.h"

#include "io/formats/random_access_file.h"

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
  bytes.resize(size_t(file.size()));
  file.read(0, bytes);
}

}  // namespace arbalest
