#include "graph/error_list.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <tuple>

namespace arbalest {
namespace {

constexpr size_t kMostTold = 20, kMostKept = 1000;

// The "FILE:LINE:COLUMN: " that GraphError begins its message with.
struct Place {
  std::string_view file;
  int line = 0, column = 0;  // 0: the message has no place

  bool operator==(const Place&) const = default;
};

Place place_of(std::string_view message) {
  for (size_t colon = message.find(':'); colon != message.npos; colon = message.find(':', colon + 1)) {
    Place place{message.substr(0, colon)};
    const char* const end = message.data() + message.size();
    const auto line = std::from_chars(message.data() + colon + 1, end, place.line);
    if (line.ec != std::errc() || line.ptr == end || *line.ptr != ':') continue;
    const auto column = std::from_chars(line.ptr + 1, end, place.column);
    if (column.ec == std::errc() && std::string_view(column.ptr, size_t(end - column.ptr)).starts_with(": ")) {
      return place;
    }
  }
  return {};
}

}  // namespace

void ErrorList::add(std::string message) {
  const Place place = place_of(message);
  const auto same = [&](const std::string& known) { return place.line > 0 && place_of(known) == place; };
  if (std::any_of(messages_.begin(), messages_.end(), same)) return;
  messages_.push_back(std::move(message));
  if (messages_.size() == kMostKept) throw_if_any();
}

void ErrorList::throw_if_any() const {
  if (messages_.empty()) return;
  std::vector<std::string> sorted = messages_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const std::string& one, const std::string& other) {
    const Place a = place_of(one), b = place_of(other);
    return std::tie(a.file, a.line, a.column) < std::tie(b.file, b.line, b.column);
  });
  const size_t told = std::min(sorted.size(), kMostTold), more = sorted.size() - told;
  const bool all = sorted.size() < kMostKept;
  sorted.resize(told);
  if (more > 0)
    sorted.push_back(fmt::format("and {}{} more error{}", all ? "" : "at least ", more, more == 1 ? "" : "s"));
  throw GraphError(fmt::format("{}", fmt::join(sorted, "\n")));
}

}  // namespace arbalest
