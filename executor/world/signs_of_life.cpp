// SPDX-License-Identifier: Apache-2.0

// Ranks show that they live, and how far they are; rank 0 looks which one stands still.

#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "executor/world/part.h"
#include "executor/world/ranks.h"

namespace arbalest {

void Ranks::show_life(Connection& connection, const std::optional<RankProgress>& progress) {
  try {
    if (first() || !progress) return connection.show_life();
    PartWriter told;
    told.number(int64_t(progress->under_way));
    told.number(progress->limit);
    told.number(progress->completed);
    told.number(progress->worked);
    connection.send(Frame::Kind::Progress, progress->at, told.bytes);
  } catch (const RunError&) {
    connection.shut_down();
  }
}

void Ranks::stay_alive() {
  std::unique_lock lock(mutex_);
  while (!closing_.load()) {
    Connections all = connections_;
    for (const auto& [number, visit] : back_.visits) all.push_back(visit.connection);
    lock.unlock();
    std::optional<RankProgress> own;
    {
      const std::scoped_lock calling(watched_.mutex);
      if (watched_.progress) own = watched_.progress();
    }
    for (const auto& connection : all) {
      if (connection) show_life(*connection, own);
    }
    if (first()) look_for_standstill(std::move(own));
    look_for_dead_readers();
    lock.lock();
    changed_.wait_for(lock, kAlive, [this] { return closing_.load(); });
  }
}

// A connection that is down is for the thread that reads it to tell of. If that thread stands still, this one does.
void Ranks::look_for_dead_readers() {
  constexpr int kLooks = 9;  // longer than kSilence, for which the reader may have to wait before it tells
  std::vector<int> found;
  {
    const std::scoped_lock lock(mutex_);
    for (const int number : there_.numbers) {
      if (size_t(number) >= connections_.size()) continue;  // rank 0 alone has one with each
      const auto& connection = connections_[size_t(number)];
      const bool down = connection && connection->is_down() && !lost_ && !ended_.load();
      int& looks = watched_.looks_down[number];
      looks = down ? looks + 1 : 0;
      if (looks == kLooks) found.push_back(number);
    }
  }
  for (const int number : found) {
    lose(
        fmt::format("{} is lost: its connection has ended, and the thread that reads it stands still", name_of(number)),
        number, first() ? Outcome::Left : Outcome::Over);
  }
}

void Ranks::watch(std::function<RankProgress()> progress) {
  const std::scoped_lock calling(watched_.mutex);
  watched_.progress = std::move(progress);
}

void Ranks::look_for_standstill(std::optional<RankProgress> own) {
  std::optional<Standstill::Found> found;
  {
    const std::scoped_lock lock(mutex_);
    if (!own) return watched_.standstill.forget(0);
    if (lost_) return;
    watched_.standstill.hear(0, std::move(*own), std::chrono::steady_clock::now());
    found = watched_.standstill.find(int(there_.numbers.size()));
  }
  if (!found) return;
  if (!found->rank) return lose(found->why, 0, Outcome::Over);
  const int rank = *found->rank;
  const std::string message = fmt::format("{} is lost: {}", name_of(rank), found->why);
  lose(message, rank, rank == 0 ? Outcome::Over : Outcome::Left);
  if (rank > 0) connection(rank)->shut_down();
}

std::string Ranks::places() const {
  const std::scoped_lock lock(mutex_);
  std::string text;
  for (const int number : there_.numbers) {
    const std::string place = watched_.standstill.place(number);
    text += fmt::format("  {}: {}\n", name_of(number), place.empty() ? "at nothing that is known" : place);
  }
  return text;
}

// Part of a loss' message: "; it was at forward 3, step 7, for 2 s; rank 0 is at all-reduce gradients 0, step 7, for
// 0.2 s".
std::string Ranks::last_places(int lost) const {
  if (!first()) return "";
  const std::scoped_lock lock(mutex_);
  const std::string there = watched_.standstill.place(lost), here = watched_.standstill.place(0);
  return (there.empty() ? "" : "; it was at " + there) + (here.empty() ? "" : "; rank 0 is at " + here);
}

}  // namespace arbalest
