// SPDX-License-Identifier: Apache-2.0
#include "graph/name_patterns.h"

#include <fmt/format.h>

#include <algorithm>

namespace arbalest {
namespace {

// Candidates for a mistyped pattern: the names, their beginnings up to a "." or "/" followed by "*", and their ends
// from one on preceded by "*".
std::vector<std::string> likely_patterns(const std::vector<std::string>& names) {
  std::vector<std::string> likely = names;
  for (const std::string& name : names) {
    for (size_t at = 0; at < name.size(); ++at) {
      if (name[at] != '.' && name[at] != '/') continue;
      likely.push_back(fmt::format("{}*", name.substr(0, at + 1)));
      likely.push_back(fmt::format("*{}", name.substr(at)));
    }
  }
  return likely;
}

}  // namespace

bool fits(std::string_view name, std::string_view pattern) {
  // Position of the last * and the end of the characters it covers so far. If the rest does not match, it covers one
  // more.
  size_t n = 0, p = 0, star = std::string_view::npos, covered = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      covered = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++covered;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

size_t first_fit(std::string_view name, const std::vector<std::string>& patterns) {
  return size_t(
      std::find_if(patterns.begin(), patterns.end(), [&](const auto& pattern) { return fits(name, pattern); }) -
      patterns.begin());
}

std::vector<std::string> name_patterns(const Node& node, std::string_view attribute,
                                       const std::vector<std::string>& names) {
  std::vector<std::string> patterns = strings_attribute(node, attribute);
  for (const std::string& pattern : patterns) {
    const bool any = std::any_of(names.begin(), names.end(), [&](const auto& name) { return fits(name, pattern); });
    if (any) continue;
    fail(node, fmt::format("attribute '{}': no parameter is called \"{}\"{}", attribute, pattern,
                           did_you_mean(pattern, likely_patterns(names))));
  }
  return patterns;
}

}  // namespace arbalest
