// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "base/other_names.h"
#include "base/plain_message.h"

namespace arbalest {
namespace {

// Shortens text that a message quotes from a file or a command. Cuts between characters of UTF-8.
std::string shortened(const std::string& text, size_t longest) {
  if (text.size() <= longest) return text;
  size_t end = longest;
  while (end > 0 && (uint8_t(text[end]) & 0xc0u) == 0x80u) --end;
  return text.substr(0, end) + " …";
}

std::string with_place(const Position& where, const std::string& whole) {
  constexpr size_t kLongest = 800;
  const std::string message = shortened(whole, kLongest);
  if (where.line > 0) return fmt::format("{}:{}:{}: {}", where.file, where.line, where.column, message);
  return where.file.empty() ? message : fmt::format("{}: {}", where.file, message);
}

// Letters that are put in, left out, replaced, or exchanged with their neighbour; compared without case.
size_t edit_distance(std::string_view a, std::string_view b) {
  const auto same = [&](size_t i, size_t j) { return std::tolower(uint8_t(a[i])) == std::tolower(uint8_t(b[j])); };
  std::vector<size_t> row(b.size() + 1), before, before_that;
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    before_that = std::exchange(before, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({before[j - 1] + (same(i - 1, j - 1) ? 0 : 1), before[j] + 1, row[j - 1] + 1});
      const bool exchanged = i > 1 && j > 1 && same(i - 1, j - 2) && same(i - 2, j - 1);
      if (exchanged) row[j] = std::min(row[j], before_that[j - 2] + 1);
    }
  }
  return row[b.size()];
}

constexpr size_t kMostTold = 20, kMostKept = 1000;

}  // namespace

std::string printable(std::string_view text, bool keep_lines) {
  return shown_text(text, keep_lines);
}

GraphError::GraphError(const Position& where, const std::string& message)
    : Error(Code::Graph, with_place(where, message), where) {}

std::string nearest_name(std::string_view name, std::span<const std::string> candidates) {
  constexpr size_t kLongest = 256;  // longer names are data, not typing errors
  if (name.empty() || name.size() > kLongest) return "";
  if (std::string own = own_name(name, candidates); !own.empty()) return own;
  size_t least = std::max<size_t>(1, (name.size() + 2) / 3) + 1, begins_alike = 0;
  std::string nearest;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > kLongest) continue;
    const size_t distance = edit_distance(name, candidate);
    const auto differ = std::mismatch(name.begin(), name.end(), candidate.begin(), candidate.end()).first;
    const auto alike = size_t(differ - name.begin());
    // On a tie, prefers the candidate with the longer common prefix: for "rotation" it suggests "rotate" rather than
    // "ratio".
    if (distance > least || (distance == least && (nearest.empty() || alike <= begins_alike))) continue;
    least = distance;
    begins_alike = alike;
    nearest = candidate;
  }
  return nearest;
}

std::string did_you_mean(std::string_view name, std::span<const std::string> candidates) {
  const std::string nearest = nearest_name(name, candidates);
  return nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest);
}

void ErrorList::add(Kept error) {
  const auto same = [&](const Kept& known) { return error.place.line > 0 && known.place == error.place; };
  if (std::any_of(errors_.begin(), errors_.end(), same)) return;
  errors_.push_back(std::move(error));
  if (errors_.size() == kMostKept) throw_if_any();
}

void ErrorList::throw_if_any() const {
  if (errors_.empty()) return;
  std::vector<Kept> sorted = errors_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const Kept& one, const Kept& other) {
    const Position &a = one.place, &b = other.place;
    return std::tie(a.file, a.line, a.column) < std::tie(b.file, b.line, b.column);
  });
  const size_t told = std::min(sorted.size(), kMostTold), more = sorted.size() - told;
  std::vector<std::string> messages;
  for (size_t i = 0; i < told; ++i) messages.push_back(sorted[i].message);
  const bool all = sorted.size() < kMostKept;
  if (more > 0)
    messages.push_back(fmt::format("and {}{} more error{}", all ? "" : "at least ", more, more == 1 ? "" : "s"));
  throw GraphError::about_places(sorted.front().place, fmt::format("{}", fmt::join(messages, "\n")));
}

}  // namespace arbalest
