// SPDX-License-Identifier: Apache-2.0
#include "graph/file/external_data.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/file.h"

namespace arbalest {

const RandomAccessFile& ExternalData::open(const std::string& location) {
  std::unique_ptr<RandomAccessFile>& file = files_[location];
  if (file) return *file;
  if (!stays_inside(location)) {
    throw RunError(
        fmt::format("the location of its data is '{}', expected a file in the model's folder", printable(location)));
  }
  file = std::make_unique<RandomAccessFile>(folder_ / location, "data of a model");
  return *file;
}

std::vector<std::byte> ExternalData::read(const ExternalTensor& tensor, uint64_t bytes) {
  const RandomAccessFile& file = open(tensor.location);
  const uint64_t length = tensor.length.value_or(bytes);
  if (tensor.offset > file.size() || length > file.size() - tensor.offset) {
    throw RunError(fmt::format("its data are {} bytes from byte {} on of '{}', which has {} bytes", length,
                               tensor.offset, file.path(), file.size()));
  }
  if (length != bytes) throw RunError(fmt::format("{} bytes expected, found {} in '{}'", bytes, length, file.path()));
  std::vector<std::byte> content(static_cast<size_t>(bytes));
  file.read(tensor.offset, content);
  return content;
}

std::vector<std::string> ExternalData::files() const {
  std::vector<std::string> paths;
  for (const auto& [location, file] : files_) {
    if (file) paths.push_back(file->path());
  }
  return paths;
}

}  // namespace arbalest
