// SPDX-License-Identifier: Apache-2.0
#include "executor/plan/run_end.h"

#include <algorithm>
#include <array>

namespace arbalest {
namespace {

constexpr std::array<std::string_view, 7> kRunEnds = {"",           "complete", "until", "patience", "interrupted",
                                                      "time limit", "failed"};
constexpr std::array<std::string_view, 6> kSegmentBegins = {"",          "resumed",   "tuned", "planned anew",
                                                            "gone back", "ranks lost"};

}  // namespace

std::string_view name_of(RunEnd end) {
  return kRunEnds[size_t(end)];
}

RunEnd parse_run_end(std::string_view text) noexcept {
  const auto* const found = std::find(kRunEnds.begin(), kRunEnds.end(), text);
  return found == kRunEnds.end() ? RunEnd::Unknown : RunEnd(found - kRunEnds.begin());
}

std::string_view name_of(SegmentBegin begin) {
  return kSegmentBegins[size_t(begin)];
}

SegmentBegin parse_segment_begin(std::string_view text) noexcept {
  const auto* const found = std::find(kSegmentBegins.begin(), kSegmentBegins.end(), text);
  return found == kSegmentBegins.end() ? SegmentBegin::PlannedAnew : SegmentBegin(found - kSegmentBegins.begin());
}

}  // namespace arbalest
