// SPDX-License-Identifier: Apache-2.0
#pragma once
// Photos that are files of their own. Internal to io.

#include <cstddef>
#include <string>
#include <vector>

#include "io/photos/path_list.h"

namespace arbalest {

// About how long it takes to open and read a photo that the system has in its cache.
inline constexpr double kMicrosecondsToReadPhoto = 50;

// Files by their numbers, below one folder.
class PhotoFiles {
 public:
  // `root` is put before each relative path.
  PhotoFiles(std::string root, PathList paths) : root_(std::move(root)), paths_(std::move(paths)) { paths_.shrink(); }

  int64_t size() const { return int64_t(paths_.size()); }
  std::string path(int64_t number) const;
  // The whole of the file. Throws RunError.
  void read(int64_t number, std::vector<std::byte>& bytes) const;

 private:
  std::string root_;
  PathList paths_;
};

}  // namespace arbalest
