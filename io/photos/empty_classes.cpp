#include "io/photos/empty_classes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "graph/plain_message.h"

namespace arbalest {

void warn_of_empty_classes(const SourceSpec& spec, int64_t classes, const std::vector<std::string>& names,
                           size_t samples, const std::function<int64_t(size_t)>& label) {
  std::vector<bool> present(static_cast<size_t>(classes));
  for (size_t i = 0; i < samples; ++i) {
    if (const int64_t c = label(i); c >= 0 && c < classes) present[size_t(c)] = true;
  }
  constexpr size_t kShown = 5;
  std::vector<std::string> shown;
  size_t empty = 0;
  for (size_t c = 0; c < present.size(); ++c) {
    if (present[c] || empty++ >= kShown) continue;
    shown.push_back(c < names.size() ? names[c] : std::to_string(c));
  }
  if (empty == 0) return;
  warn(fmt::format("source '{}': {} of {} classes have no sample: {}{}", spec.label(), empty, classes,
                   fmt::join(shown, ", "), empty > kShown ? fmt::format(" and {} more", empty - kShown) : ""));
}

}  // namespace arbalest
