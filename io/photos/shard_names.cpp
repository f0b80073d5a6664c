// SPDX-License-Identifier: Apache-2.0
#include "io/photos/shard_names.h"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/number.h"

namespace arbalest {
namespace {

constexpr size_t kMost = 1'000'000;

[[noreturn]] void refuse(const std::string& pattern, const std::string& fault) {
  throw GraphError(fmt::format("pattern '{}': {}", pattern, fault));
}

// The alternatives that the text inside a pair of braces stands for.
std::vector<std::string> alternatives(const std::string& pattern, const std::string& inside) {
  std::vector<std::string> all;
  const size_t dots = inside.find("..");
  if (dots == inside.npos) {
    std::string_view rest = inside;
    while (true) {
      const size_t comma = rest.find(',');
      all.emplace_back(rest.substr(0, comma));
      if (comma == rest.npos) break;
      rest.remove_prefix(comma + 1);
    }
    if (all.size() < 2)
      refuse(pattern, fmt::format("found '{{{}}}', expected {{FIRST..LAST}} or {{ONE,OTHER}}", inside));
    return all;
  }
  const std::string_view first = std::string_view(inside).substr(0, dots);
  const auto from = read_number<uint64_t>(first), to = read_number<uint64_t>(std::string_view(inside).substr(dots + 2));
  if (!from || !to || *to < *from) {
    refuse(pattern, fmt::format("found '{{{}}}', expected a number and one that is not less", inside));
  }
  if (*to - *from >= kMost) refuse(pattern, fmt::format("found '{{{}}}', expected at most {} files", inside, kMost));
  for (uint64_t i = 0; i <= *to - *from; ++i) all.push_back(fmt::format("{:0{}}", *from + i, first.size()));
  return all;
}

void expand_braces(const std::string& pattern, std::vector<std::string>& all) {
  const size_t open = pattern.find('{'), close = pattern.find('}');
  if (open == pattern.npos && close == pattern.npos) {
    if (all.size() >= kMost) refuse(pattern, fmt::format("expected at most {} files", kMost));
    all.push_back(pattern);
    return;
  }
  if (close == pattern.npos || open == pattern.npos || close < open) refuse(pattern, "a brace has no other");
  for (const std::string& each : alternatives(pattern, pattern.substr(open + 1, close - open - 1))) {
    expand_braces(pattern.substr(0, open) + each + pattern.substr(close + 1), all);
  }
}

std::vector<std::string> matches(const std::string& pattern) {
  if (pattern.find_first_of("*[") == pattern.npos) return {pattern};
  glob_t found = {};
  std::vector<std::string> paths;
  if (glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0) {
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  globfree(&found);
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace

std::vector<std::string> files_of(const std::string& pattern) {
  std::vector<std::string> patterns, files;
  expand_braces(pattern, patterns);
  std::set<std::string> seen;
  for (const std::string& each : patterns) {
    for (const std::string& path : matches(each)) {
      if (seen.insert(path).second) files.push_back(path);
    }
  }
  return files;
}

}  // namespace arbalest
