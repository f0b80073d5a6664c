// SPDX-License-Identifier: Apache-2.0

// Ranks show that they live, and how far they are; rank 0 looks which one stands still.

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/process.h"
#include "base/setting.h"
#include "executor/world/part.h"
#include "executor/world/ranks.h"

namespace arbalest {

namespace {

// The lock, if it comes before `most` is over. GCC 12's ThreadSanitizer does not see a std::timed_mutex.
std::unique_lock<std::mutex> lock_soon(std::mutex& mutex, std::chrono::milliseconds most) {
  constexpr std::chrono::milliseconds kLook{5};
  const auto until = std::chrono::steady_clock::now() + most;
  std::unique_lock lock(mutex, std::try_to_lock);
  while (!lock && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(kLook);
    lock.try_lock();
  }
  return lock;
}

}  // namespace

void Ranks::show_life(Connection& connection, const std::optional<RankProgress>& progress) {
  try {
    if (!progress) return connection.show_life();
    PartWriter told;
    told.number(int64_t(progress->under_way));
    told.number(progress->limit);
    told.number(progress->completed);
    told.number(progress->worked);
    if (first()) return connection.show_life(Frame::Kind::Progress, progress->at, told.bytes);
    connection.send(Frame::Kind::Progress, progress->at, told.bytes);
  } catch (const RunError&) {
    connection.shut_down();
  }
}

std::chrono::milliseconds Ranks::silence() const {
  return std::chrono::milliseconds(int64_t(1000 * back_.settings.silence));
}

std::chrono::milliseconds Ranks::alive() const {
  constexpr std::chrono::milliseconds kLeast{1}, kMost{2000};
  return std::clamp(silence() * 2 / 15, kLeast, kMost);
}

std::chrono::milliseconds Ranks::loss_known_after() const {
  return silence() + alive();
}

void Ranks::stay_alive() {
  name_thread("signs of life");
  const auto now = [] { return std::chrono::steady_clock::now(); };
  std::unique_lock lock(mutex_);
  watched_.pauses.begin(now());
  while (!closing_.load()) {
    Connections all = connections_;
    for (const auto& [number, visit] : back_.visits) all.push_back(visit.connection);
    lock.unlock();
    std::optional<RankProgress> own;
    {
      const std::scoped_lock calling(watched_.mutex);
      if (watched_.progress) own = watched_.progress();
    }
    lock.lock();
    watched_.pauses.end(now());  // before it sends, which may wait for a large part, whose bytes show life as well
    lock.unlock();
    for (const auto& connection : all) {
      if (connection) show_life(*connection, own);
    }
    if (first()) look_for_standstill(std::move(own));
    look_for_dead_readers();
    lock.lock();
    watched_.pauses.begin(now());
    changed_.wait_for(lock, alive(), [this] { return closing_.load(); });
  }
}

// A rank that was stopped, or had no processor, finds its connections ended once it runs again, because the others have
// taken it for lost. "": this rank has shown that it lives, all the time.
std::string Ranks::own_silence() const {
  const std::scoped_lock lock(mutex_);
  const SteadyTime::duration pause = watched_.pauses.recent(std::chrono::steady_clock::now());
  if (pause < silence()) return "";
  return fmt::format("{} was itself silent for {:.1f} s, because it was stopped or had no processor",
                     name_of(own_.number), std::chrono::duration<double>(pause).count());
}

// A thread that waits for bytes in vain gives its connection up after silence(), and one whose connection is down tells
// of that. If it does not, it stands still, and this thread tells, which blames the rank that it is of: the connection
// may be fine, and so may be the rank at its other end. A thread may take its time with what it has read.
void Ranks::look_for_dead_readers() {
  const int in_silence = int(silence() / alive()), most_down = in_silence + 2, most_same = 8 * in_silence;
  std::vector<std::pair<int, std::string>> found;
  {
    const std::scoped_lock lock(mutex_);
    for (const int number : there_.numbers) {
      if (size_t(number) >= connections_.size()) continue;  // rank 0 alone has one with each
      const auto& connection = connections_[size_t(number)];
      const bool watched = connection && !losses_.first && !ended_.load(), down = watched && connection->is_down();
      const int64_t bytes = watched ? connection->bytes_read() : 0;
      Reader& reader = watched_.readers[number];
      const bool same = watched && std::exchange(reader.bytes, bytes) == bytes;
      reader.looks_down = down ? reader.looks_down + 1 : 0;
      reader.looks_same = same ? reader.looks_same + 1 : 0;
      if (reader.looks_down == most_down) {
        found.emplace_back(number, "has not seen that their connection has ended");
      } else if (reader.looks_same == most_same) {
        const auto seconds = std::chrono::duration<double>(most_same * alive()).count();
        found.emplace_back(number, fmt::format("has read nothing for {:.0f} s", seconds));
      }
    }
  }
  for (const auto& [number, how] : found) {
    lose({fmt::format("{} stands still in part: its own thread that reads from {} {}", name_of(own_.number),
                      name_of(number), how),
          number, number, first() ? Outcome::Left : Outcome::Over});
    connection(number)->shut_down();
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
    if (losses_.first) return;
    watched_.standstill.hear(0, std::move(*own), std::chrono::steady_clock::now());
    found = watched_.standstill.find(int(there_.numbers.size()));
  }
  if (!found) return;
  if (!found->rank) {
    const std::string raise = arbalest::name_of(SettingKey::DeviceTimeout);
    return lose({found->why + "; if that may take so long, raise " + raise, 0, Loss::kUnknown, Outcome::Over});
  }
  const int rank = *found->rank;
  const std::string message = fmt::format("{} is lost: {}", name_of(rank), found->why);
  lose({message, rank, rank, rank == 0 ? Outcome::Over : Outcome::Left});
  if (rank > 0) connection(rank)->shut_down();
}

std::string Ranks::places() const {
  const std::scoped_lock lock(mutex_);
  std::string text;
  for (const int number : there_.numbers) {
    const std::string place = watched_.standstill.place(number), owed = watched_.standstill.owed(number);
    text += fmt::format("  {}: {}{}{}\n", name_of(number), place.empty() ? "at nothing that is known" : place,
                        owed.empty() ? "" : "; it owes ", owed);
  }
  return text;
}

// Parts of a loss' message. The first comes from the rank that finds it: "; 1.3 s before, it was at forward 3, step 7".
std::string Ranks::last_place(int lost) const {
  const std::scoped_lock lock(mutex_);
  const std::string place = watched_.standstill.last_place(lost, std::chrono::steady_clock::now());
  return place.empty() ? "" : "; " + place;
}

// The second is each rank's own: "; rank 0 has waited for it at all-reduce gradients 0, step 7, for 0.2 s".
std::string Ranks::own_wait(int lost) const {
  if (lost == Loss::kUnknown || lost == own_.number) return "";
  constexpr auto kSoon = std::chrono::milliseconds(500);  // nobody else holds it for long, but a thread may hang
  std::optional<RankProgress> own;
  if (const auto calling = lock_soon(watched_.mutex, kSoon); calling && watched_.progress) own = watched_.progress();
  const auto says = [this](const std::string& at, double seconds) {
    return fmt::format("; rank {} has waited for it at {}, for {:.1f} s", own_.number, at, seconds);
  };
  const std::scoped_lock lock(mutex_);
  const auto place_of = [this](int number) {
    return std::lower_bound(there_.numbers.begin(), there_.numbers.end(), number) - there_.numbers.begin();
  };
  const auto rank = size_t(place_of(lost)), here = size_t(place_of(own_.number));
  for (const RankProgress::Wait& wait : own ? own->waits : std::vector<RankProgress::Wait>()) {
    if (std::find(wait.ranks.begin(), wait.ranks.end(), int(rank)) != wait.ranks.end()) {
      return says(wait.at, wait.seconds);
    }
  }
  for (const auto& [key, all] : waiting_) {
    for (const Waiting& waiting : all) {
      const bool all_known = first() && rank < waiting.here.size();
      if (!waiting.then || (all_known && (waiting.here[rank] || !waiting.here[here]))) continue;
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - waiting.since;
      return says(fmt::format("the exchange '{}'", key), seconds.count());
    }
  }
  const std::string at = own && !own->at.empty() ? " and is at " + own->at : "";
  return fmt::format("; rank {} waits for nothing from it{}", own_.number, at);
}

}  // namespace arbalest
