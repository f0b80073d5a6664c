// SPDX-License-Identifier: Apache-2.0
#include "io/sources/passed_over.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <utility>
#include <vector>

#include "base/process.h"

namespace arbalest {

void pass_over(PassedOver& files, std::string_view name) {
  constexpr size_t kLongest = 12;
  name.remove_prefix(name.rfind('/') + 1);
  const size_t dot = name.rfind('.');
  std::string ending(dot == name.npos || dot == 0 ? "" : name.substr(dot));
  const auto is_letter = [](char c) { return std::isalpha(uint8_t(c)) != 0; };
  const bool plain = ending.size() <= kLongest && std::any_of(ending.begin(), ending.end(), is_letter) &&
                     std::all_of(ending.begin() + !ending.empty(), ending.end(),
                                 [](char c) { return std::isalnum(uint8_t(c)) || c == '_' || c == '-'; });
  if (!plain) ending.clear();
  std::transform(ending.begin(), ending.end(), ending.begin(), [](char c) { return char(std::tolower(uint8_t(c))); });
  ++files[ending];
}

int64_t count(const PassedOver& files) {
  int64_t all = 0;
  for (const auto& [ending, number] : files) all += number;
  return all;
}

std::string to_string(const PassedOver& files) {
  constexpr size_t kShown = 6;
  std::vector<std::pair<std::string, int64_t>> kinds(files.begin(), files.end());
  std::stable_sort(kinds.begin(), kinds.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<std::string> shown;
  int64_t left = count(files);
  const std::string head = fmt::format("{} file{} passed over", left, left == 1 ? " was" : "s were");
  for (size_t i = 0; i < std::min(kinds.size(), kShown); ++i) {
    const auto& [ending, number] = kinds[i];
    shown.push_back(fmt::format("{} {}", number, ending.empty() ? "without an ending" : ending));
    left -= number;
  }
  if (left > 0) shown.push_back(fmt::format("{} of other kinds", left));
  return fmt::format("{}: {}", head, fmt::join(shown, ", "));
}

void warn_of_passed_over(const std::string& label, const PassedOver& files) {
  if (!files.empty()) warn(fmt::format("source '{}': {}", label, to_string(files)));
}

}  // namespace arbalest
