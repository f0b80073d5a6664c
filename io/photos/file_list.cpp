// SPDX-License-Identifier: Apache-2.0
#include "io/photos/file_list.h"

#include <fmt/format.h>

#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "io/photos/photo_files.h"

namespace arbalest {
namespace {

PathList path_list(const std::vector<std::string>& paths) {
  PathList list;
  for (const std::string& path : paths) {
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) {
      throw RunError(fmt::format("{}: found a folder, expected files, as in '{}/*.jpg'", path, path));
    }
    list.add(path);
  }
  return list;
}

class FileList final : public Source {
 public:
  FileList(const std::vector<std::string>& paths, std::vector<Field> fields)
      : files_("", path_list(paths)), fields_(std::move(fields)) {}

  std::vector<Field> fields() const override { return fields_; }
  int64_t size() const override { return files_.size(); }
  void fill(std::span<const SampleRef> samples, std::span<std::byte* const> fields) const override {
    for (size_t f = 0; f < fields.size(); ++f) {
      if (fields[f]) std::memset(fields[f], 0, samples.size() * size_t(fields_[f].sample().bytes()));
    }
  }
  void read(int64_t index, size_t /*field*/, std::vector<std::byte>& bytes) const override {
    files_.read(index, bytes);
  }
  std::string locate(int64_t index) const override { return files_.path(index); }
  std::string describe() const override { return fmt::format("{} files", size()); }

 private:
  const PhotoFiles files_;
  const std::vector<Field> fields_;
};

}  // namespace

std::unique_ptr<Source> file_list_source(const std::vector<std::string>& paths, std::vector<Field> fields) {
  return std::make_unique<FileList>(paths, std::move(fields));
}

}  // namespace arbalest
