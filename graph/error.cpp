#include "graph/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <numeric>
#include <vector>

namespace arbalest {
namespace {

std::string with_place(const Position& where, const std::string& message) {
  if (where.line > 0) return fmt::format("{}:{}:{}: {}", where.file, where.line, where.column, message);
  return where.file.empty() ? message : fmt::format("{}: {}", where.file, message);
}

// Levenshtein's distance, letters compared without case.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = std::tolower(uint8_t(a[i - 1])) == std::tolower(uint8_t(b[j - 1]));
      const size_t replaced = diagonal + (same ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

GraphError::GraphError(const Position& where, const std::string& message)
    : std::runtime_error(with_place(where, message)) {}

std::string nearest_name(std::string_view name, std::span<const std::string> candidates) {
  constexpr size_t kLongest = 256;  // longer names are data, not typing errors
  if (name.empty() || name.size() > kLongest) return "";
  size_t least = std::max<size_t>(1, (name.size() + 2) / 3) + 1;
  std::string nearest;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > kLongest) continue;
    const size_t distance = edit_distance(name, candidate);
    if (distance < least) {
      least = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

std::string did_you_mean(std::string_view name, std::span<const std::string> candidates) {
  const std::string nearest = nearest_name(name, candidates);
  return nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest);
}

}  // namespace arbalest
