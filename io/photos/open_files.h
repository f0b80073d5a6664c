// SPDX-License-Identifier: Apache-2.0
#pragma once
// Files that are read from again and again, of which the process keeps a few open. Internal to io.

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/files/random_access_file.h"

namespace arbalest {

// Any thread may ask.
class OpenFiles {
 public:
  OpenFiles(std::vector<std::string> paths, std::string what) : paths_(std::move(paths)), what_(std::move(what)) {}

  const std::vector<std::string>& paths() const { return paths_; }
  std::shared_ptr<const RandomAccessFile> file(size_t number) const;  // throws RunError

 private:
  static constexpr size_t kMost = 128;  // two windows of blocks, each of which may lie in two files, and some more

  const std::vector<std::string> paths_;
  const std::string what_;
  mutable std::mutex mutex_;  // of what follows
  mutable std::unordered_map<size_t, std::shared_ptr<const RandomAccessFile>> open_;
  mutable std::deque<size_t> order_;  // in which they were opened
};

}  // namespace arbalest
