// SPDX-License-Identifier: Apache-2.0
#include "io/photos/path_list.h"

#include <algorithm>
#include <cstring>

namespace arbalest {

void PathList::add(std::string_view path) {
  starts_.push_back(characters_.size());
  characters_.insert(characters_.end(), path.begin(), path.end());
  characters_.push_back('\0');
}

void PathList::clear() {
  characters_.clear();
  starts_.clear();
}

void PathList::sort() {
  const char* const first = characters_.data();
  std::sort(starts_.begin(), starts_.end(),
            [first](uint64_t a, uint64_t b) { return std::strcmp(first + a, first + b) < 0; });
}

void PathList::shrink() {
  characters_.shrink_to_fit();
  starts_.shrink_to_fit();
}

}  // namespace arbalest
