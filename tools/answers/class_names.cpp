// SPDX-License-Identifier: Apache-2.0
#include "tools/answers/class_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/files/file.h"

namespace arbalest {
namespace {

std::string shortened(const std::vector<std::string>& names) {
  constexpr size_t kMost = 10;
  const std::vector<std::string> shown(names.begin(), names.begin() + int64_t(std::min(names.size(), kMost)));
  return fmt::format("'{}'{}", fmt::join(shown, "', '"),
                     names.size() > kMost ? fmt::format(" and {} more", names.size() - kMost) : "");
}

}  // namespace

void refuse_other_classes(const std::vector<std::string>& of_model, const std::vector<std::string>& of_data,
                          const std::string& data) {
  const auto [ours, theirs] = std::mismatch(of_model.begin(), of_model.end(), of_data.begin(), of_data.end());
  if (ours == of_model.end() || theirs == of_data.end()) return;
  throw GraphError(fmt::format(
      "the model's classes are {}, and those of {} are {}; expected the same in the same order, or --class-names FILE, "
      "if they are the same by other names",
      shortened(of_model), data, shortened(of_data)));
}

std::vector<int64_t> classes_by_name(const std::vector<std::string>& of_model,
                                     const std::vector<std::string>& of_data) {
  std::vector<int64_t> classes;
  for (const std::string& name : of_data) {
    const auto found = std::find(of_model.begin(), of_model.end(), name);
    classes.push_back(found == of_model.end() ? -1 : found - of_model.begin());
  }
  return classes;
}

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
