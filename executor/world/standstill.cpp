// SPDX-License-Identifier: Apache-2.0
#include "executor/world/standstill.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace arbalest {

double limit_of_sums(double device_timeout, int64_t bytes) {
  constexpr double kSlowLink = 25e6;  // bytes/s
  return device_timeout + double(bytes) / kSlowLink;
}

void Standstill::hear(int rank, RankProgress progress, Time now) {
  // Between two signs of life no more counts: if a process itself stood still, nothing was watched.
  constexpr Seconds kLongestStep{5};
  constexpr double kLeastWork = 0.01;  // of the time: threads that look around take less
  // A thread that looks all the time takes more, as Gloo's does while another one holds the connection it is to serve.
  constexpr double kMostSending = 0.2;
  const auto [place, fresh] = ranks_.try_emplace(rank);
  Heard& heard = place->second;
  const Seconds step = fresh ? Seconds{0} : std::min<Seconds>(now - heard.last, kLongestStep);
  const bool same = progress.completed == heard.progress.completed && progress.under_way == heard.progress.under_way &&
                    progress.under_way != RankProgress::UnderWay::Nothing;
  const double worked = double(progress.worked - heard.progress.worked) * 1e-9;
  const double most = progress.under_way == RankProgress::UnderWay::Others ? kMostSending : INFINITY;
  const bool works = worked > kLeastWork * step.count() && worked < most * step.count();
  heard.same = same ? heard.same + step : Seconds{0};
  heard.still = same && !works ? heard.still + step : Seconds{0};
  heard.progress = std::move(progress);
  heard.last = now;
}

std::optional<Standstill::Found> Standstill::find(int size) const {
  using UnderWay = RankProgress::UnderWay;
  int waiting = 0;
  for (const auto& [rank, heard] : ranks_) {
    const UnderWay under_way = heard.progress.under_way;
    // On a busy processor such a thread takes as little as sending does, but nothing is sent for so long.
    constexpr double kLongestSending = 10;  // limits
    const double limit = heard.progress.limit;
    const bool waits = under_way == UnderWay::Others && heard.same.count() > kLongestSending * limit;
    if (under_way == UnderWay::Nothing || (heard.still.count() <= limit && !waits)) continue;
    if (under_way == UnderWay::Own) return Found{rank, "it stands still at " + place(rank)};
    ++waiting;
  }
  if (waiting < size) return std::nullopt;
  std::string why = "all ranks wait for each other";
  for (const auto& [rank, heard] : ranks_) why += fmt::format("; rank {} is at {}", rank, place(rank));
  return Found{std::nullopt, std::move(why)};
}

std::string Standstill::last_place(int rank, Time now) const {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end() || found->second.progress.at.empty()) return "";
  const Heard& heard = found->second;
  return fmt::format("{:.1f} s before, it was at {}", Seconds(now - heard.last).count(), heard.progress.at);
}

std::string Standstill::owed(int rank) const {
  constexpr size_t kMost = 8;
  const auto found = ranks_.find(rank);
  if (found == ranks_.end() || found->second.progress.under_way != RankProgress::UnderWay::Own) return "";
  std::vector<int> waiting;
  const Heard* longest = nullptr;
  for (const auto& [other, heard] : ranks_) {
    if (heard.progress.under_way != RankProgress::UnderWay::Others) continue;
    waiting.push_back(other);
    if (!longest || heard.same > longest->same) longest = &heard;
  }
  if (!longest) return "";
  const size_t named = std::min(kMost, waiting.size());
  return fmt::format("{}, to rank{} {}{}, for {:.1f} s", longest->progress.at, waiting.size() == 1 ? "" : "s",
                     fmt::join(waiting.begin(), waiting.begin() + int64_t(named), ", "),
                     named < waiting.size() ? fmt::format(" and {} more", waiting.size() - named) : "",
                     longest->same.count());
}

std::string Standstill::place(int rank) const {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end() || found->second.progress.at.empty()) return "";
  return fmt::format("{}, for {:.1f} s", found->second.progress.at, found->second.same.count());
}

}  // namespace arbalest
