#include "tools/answers/class_names.h"

#include <fmt/format.h>

#include <algorithm>

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
