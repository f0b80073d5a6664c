// SPDX-License-Identifier: Apache-2.0
#include "io/photos/empty_classes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_set>

#include "base/process.h"

namespace arbalest {

void warn_of_empty_classes(const SourceSpec& spec, int64_t classes, const std::vector<std::string>& names,
                           size_t samples, const std::function<int64_t(size_t)>& label) {
  std::unordered_set<int64_t> present;
  for (size_t i = 0; i < samples; ++i) {
    if (const int64_t c = label(i); c >= 0 && c < classes) present.insert(c);
  }
  constexpr int64_t kShown = 5;
  const int64_t empty = classes - int64_t(present.size());
  if (empty == 0) return;
  std::vector<std::string> shown;
  for (int64_t c = 0; int64_t(shown.size()) < std::min(empty, kShown); ++c) {
    if (!present.contains(c)) shown.push_back(size_t(c) < names.size() ? names[size_t(c)] : std::to_string(c));
  }
  warn(fmt::format("source '{}': {} of {} classes have no sample: {}{}", spec.label(), empty, classes,
                   fmt::join(shown, ", "), empty > kShown ? fmt::format(" and {} more", empty - kShown) : ""));
}

void warn_of_one_class(const SourceSpec& spec, const std::vector<Field>& fields, const std::vector<std::string>& names,
                       const std::string& expected) {
  if (std::none_of(fields.begin(), fields.end(), [](const Field& field) { return field.classes == 1; })) return;
  const std::string named = names.empty() ? "" : fmt::format(", '{}'", names.front());
  warn(fmt::format("source '{}': found one class{}; expected {}", spec.label(), named, expected));
}

}  // namespace arbalest
