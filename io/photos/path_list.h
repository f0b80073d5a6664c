// SPDX-License-Identifier: Apache-2.0
#pragma once
// Many paths in little memory. Internal to io.

#include <cstdint>
#include <string_view>
#include <vector>

namespace arbalest {

// Paths by their numbers. Their characters lie one after the other in one array, so that a path takes its length and
// nine bytes.
class PathList {
 public:
  void add(std::string_view path);  // holds no NUL, as no path does
  void clear();
  void sort();    // in byte order
  void shrink();  // gives back what is reserved for further paths

  size_t size() const { return starts_.size(); }
  std::string_view operator[](size_t number) const { return characters_.data() + starts_[number]; }

 private:
  std::vector<char> characters_;  // each path ends with NUL
  std::vector<uint64_t> starts_;
};

}  // namespace arbalest
