// SPDX-License-Identifier: Apache-2.0
#include "tools/answers/class_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/files/file.h"

namespace arbalest {

ClassNames::ClassNames(const std::string& path, const std::vector<std::string>& known, int64_t classes) {
  if (path.empty()) {
    for (int64_t label = 0; label < classes; ++label) {
      names_.push_back(label < int64_t(known.size()) ? known[size_t(label)] : std::to_string(label));
    }
    return;
  }
  names_ = read_lines(path);
  std::map<std::string, size_t> lines;
  for (size_t i = 0; i < names_.size(); ++i) {
    const auto [first, added] = lines.emplace(names_[i], i + 1);
    if (added) continue;
    throw GraphError(
        fmt::format("--class-names {}: '{}' is there twice (lines {} and {}), expected a name for each class", path,
                    names_[i], first->second, i + 1));
  }
  if (int64_t(names_.size()) == classes) return;
  throw GraphError(fmt::format("--class-names {}: found {} names, expected one for each of the {} classes", path,
                               names_.size(), classes));
}

size_t ClassNames::width() const {
  size_t width = 0;
  for (const std::string& name : names_) width = std::max(width, printable(name).size());
  return std::min<size_t>(width, 24);
}

}  // namespace arbalest
