// SPDX-License-Identifier: Apache-2.0
#include "executor/world/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "executor/world/part.h"

namespace arbalest {
namespace {

constexpr auto kSilence = std::chrono::seconds(15);  // without a byte of a rank, after which it is lost
constexpr auto kAlive = std::chrono::seconds(2);     // from one sign of life to the next
constexpr uint64_t kMostBytes = uint64_t{1} << 38;   // of a frame
constexpr const char *kEnd = "end", *kClock = "clock";
constexpr const char* kLeft = "left";  // key of a Failed frame: others may go on

std::string packed(const Ranks::Parts& parts) {
  PartWriter all;
  for (const std::string& part : parts) all.array(part);
  return std::move(all.bytes);
}

Ranks::Parts unpacked(const std::string& bytes, size_t count) {
  Ranks::Parts parts;
  PartReader all(bytes);
  while (!all.at_end()) parts.push_back(all.text());
  if (parts.size() != count) throw RunError("it sent parts that are not one of each rank");
  return parts;
}

int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Ranks::Ranks(const WorldSettings& settings) : Ranks(settings.rank, meet(settings)) {}

Ranks::Ranks(int number, Met met)
    : number_(number),
      connections_(std::move(met.connections)),
      hosts_(std::move(met.hosts)),
      own_address_(std::move(met.own_address)) {
  there_.rank = number;
  there_.numbers.resize(hosts_.size());
  std::iota(there_.numbers.begin(), there_.numbers.end(), 0);
  losses_.gone.resize(hosts_.size());
  losses_.ready.resize(hosts_.size());
  for (size_t i = 0; i < connections_.size(); ++i) {
    if (!connections_[i]) continue;
    connections_[i]->set_patience(kSilence);
    threads_.emplace_back([this, i] { receive(i); });
  }
  threads_.emplace_back([this] { stay_alive(); });
}

Ranks::~Ranks() {
  forget();
  listen({});  // a loss that is being passed on goes out before the sign that this rank ends
  {
    const std::scoped_lock lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  for (const auto& connection : connections_) {
    if (connection) send(*connection, Frame::Kind::Bye, {}, {});
  }
  for (const auto& connection : connections_) {
    if (connection) connection->shut_down();
  }
  for (std::thread& thread : threads_) thread.join();
}

std::string Ranks::name_of(int number) const {
  return fmt::format("rank {} on {}", number, printable(hosts_[size_t(number)]));
}

int Ranks::on_this_host() const {
  const auto here = [this](int number) { return hosts_[size_t(number)] == hosts_[size_t(number_)]; };
  return int(std::count_if(there_.numbers.begin(), there_.numbers.end(), here));
}

// A failure is found by the thread that receives.
void Ranks::send(Connection& connection, Frame::Kind kind, std::string_view key, std::string_view bytes) {
  try {
    connection.send(kind, key, bytes);
  } catch (const RunError&) {
    connection.shut_down();
  }
}

void Ranks::stay_alive() {
  std::unique_lock lock(mutex_);
  while (!closing_.load()) {
    lock.unlock();
    for (const auto& connection : connections_) {
      if (!connection) continue;
      try {
        connection->show_life();
      } catch (const RunError&) {
        connection->shut_down();
      }
    }
    lock.lock();
    changed_.wait_for(lock, kAlive, [this] { return closing_.load(); });
  }
}

void Ranks::receive(size_t connection) {
  const int from = first() ? int(connection) : 0;
  try {
    for (;;) {
      Frame frame = connections_[connection]->receive(kMostBytes);
      if (frame.kind == Frame::Kind::Bye) throw RunError("it has ended");
      handle(from, std::move(frame));
    }
  } catch (const std::exception& error) {
    if (closing_.load() || ended_.load()) return;
    connections_[connection]->shut_down();  // what is still sent there fails at once
    lose(fmt::format("{} is lost: {}", name_of(from), error.what()), from, first() ? Outcome::Left : Outcome::Over);
  }
}

void Ranks::handle(int from, Frame frame) {
  switch (frame.kind) {
    case Frame::Kind::Part: {
      const bool whole = !frame.bytes.empty() && frame.bytes.back() == 'w';
      if (frame.bytes.empty()) throw RunError("it sent an empty part");
      frame.bytes.pop_back();
      return take_part(from, frame.key, std::move(frame.bytes), whole, {});
    }
    case Frame::Kind::Whole: {
      if (frame.key == kEnd) ended_ = true;
      const std::scoped_lock calling(calls_.under_way);
      Then then;
      {
        const std::scoped_lock lock(mutex_);
        const auto found = waiting_.find(frame.key);
        if (found == waiting_.end()) return;
        then = std::move(found->second.front().then);
        waiting_.erase(found);
      }
      if (then) then(unpacked(frame.bytes, there_.numbers.size()));
      return;
    }
    case Frame::Kind::Call: {
      int64_t number = 0;
      std::memcpy(&number, frame.bytes.data(), std::min(sizeof number, frame.bytes.size()));
      if (first()) return call(number);
      called_ = std::max(called_.load(), number);
      return;
    }
    case Frame::Kind::Clock: {  // answered at once, as an exchange of which only rank 0 has a part
      Parts parts = {std::to_string(steady_ns())};
      {
        const std::scoped_lock lock(mutex_);
        parts.resize(there_.numbers.size());
      }
      return send(*connections_[size_t(from)], Frame::Kind::Whole, frame.key, packed(parts));
    }
    case Frame::Kind::GoesOn: {
      const std::scoped_lock lock(mutex_);
      losses_.ready[size_t(from)] = true;
      return changed_.notify_all();
    }
    case Frame::Kind::Begin: return begin_again(PartReader(frame.bytes).array<int>());
    case Frame::Kind::Failed:
      return lose(printable(frame.bytes, true), from, frame.key == kLeft ? Outcome::Left : Outcome::Over);
    default: return;  // a sign of life
  }
}

// At rank 0.
void Ranks::take_part(int from, const std::string& key, std::string part, bool whole, Then then) {
  Waiting done;
  {
    const std::scoped_lock lock(mutex_);
    const std::vector<int>& numbers = there_.numbers;
    const auto rank = size_t(std::lower_bound(numbers.begin(), numbers.end(), from) - numbers.begin());
    std::deque<Waiting>& all = waiting_[key];
    auto waiting = std::find_if(all.begin(), all.end(), [&](const Waiting& each) { return !each.here[rank]; });
    if (waiting == all.end()) {
      const size_t count = numbers.size();
      waiting = all.insert(all.end(), {Parts(count), std::vector<bool>(count), count, whole, {}, 0});
    }
    waiting->here[rank] = true;
    waiting->parts[rank] = std::move(part);
    if (from == number_) {
      waiting->then = std::move(then);
      waiting->forgotten = calls_.forgotten;
    }
    if (--waiting->missing > 0) return;
    done = std::move(*waiting);
    all.pop_front();  // no rank's parts overtake each other
    if (all.empty()) waiting_.erase(key);
  }
  finish(key, std::move(done));
}

void Ranks::finish(const std::string& key, Waiting waiting) {
  if (key == kEnd) ended_ = true;
  if (waiting.whole) {
    const std::string bytes = packed(waiting.parts);
    for (const auto& connection : connections_) {
      if (connection) send(*connection, Frame::Kind::Whole, key, bytes);
    }
  }
  const std::scoped_lock calling(calls_.under_way);
  if (waiting.then && waiting.forgotten == calls_.forgotten) waiting.then(waiting.parts);
}

void Ranks::exchange(const std::string& key, std::string part, Then then) {
  if (first()) return take_part(0, key, std::move(part), true, std::move(then));
  {
    const std::scoped_lock lock(mutex_);
    waiting_[key].resize(1);
    waiting_[key].front().then = std::move(then);
  }
  send(*connections_[0], Frame::Kind::Part, key, part + 'w');
}

Ranks::Parts Ranks::wait_for(const std::string& key, std::string part, bool whole) {
  const auto found = std::make_shared<std::optional<Parts>>();
  const Then then = [this, found](const Parts& parts) {
    const std::scoped_lock lock(mutex_);
    *found = parts;
    changed_.notify_all();
  };
  if (first()) {
    take_part(0, key, std::move(part), whole, then);
  } else {
    exchange(key, std::move(part), then);
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return found->has_value() || lost_; });
  if (!*found) throw RunError(*lost_);
  return std::move(**found);
}

Ranks::Parts Ranks::exchange(const std::string& key, std::string part) {
  return wait_for(key, std::move(part), true);
}

Ranks::Parts Ranks::gather(const std::string& key, std::string part) {
  if (first()) return wait_for(key, std::move(part), false);
  if (const std::optional<std::string> why = lost()) throw RunError(*why);
  send(*connections_[0], Frame::Kind::Part, key, part + 'g');
  return {};
}

Ranks::ClockReading Ranks::read_clock() {
  constexpr int kRoundTrips = 50;
  ClockReading best{steady_ns(), 0, std::numeric_limits<int64_t>::max()};
  if (first()) return {best.here, best.here, 0};
  for (int i = 0; i < kRoundTrips; ++i) {
    struct Answer {
      int64_t there = 0, came = 0;  // came: 0 until it is here
    };
    const auto answer = std::make_shared<Answer>();
    std::unique_lock lock(mutex_);
    waiting_[kClock].resize(1);
    waiting_[kClock].front().then = [this, answer](const Parts& parts) {
      const int64_t now = steady_ns();
      const std::scoped_lock lock(mutex_);
      *answer = {std::stoll(parts.front()), now};
      changed_.notify_all();
    };
    lock.unlock();
    const int64_t sent = steady_ns();
    send(*connections_[0], Frame::Kind::Clock, kClock, {});
    lock.lock();
    changed_.wait(lock, [&] { return answer->came > 0 || lost_; });
    if (answer->came == 0) throw RunError(*lost_);
    const int64_t error = (answer->came - sent + 1) / 2;
    if (error < best.error) best = {sent + error, answer->there, error};
  }
  return best;
}

void Ranks::forget() {
  const std::scoped_lock calling(calls_.under_way);
  const std::scoped_lock lock(mutex_);
  ++calls_.forgotten;  // for what finish() has taken out already
  for (auto& [key, all] : waiting_) {
    for (Waiting& waiting : all) waiting.then = {};
  }
}

void Ranks::call(int64_t number) {
  const std::string bytes(reinterpret_cast<const char*>(&number), sizeof number);
  if (!first()) return send(*connections_[0], Frame::Kind::Call, {}, bytes);
  {
    const std::scoped_lock lock(mutex_);
    if (number <= called_.load()) return;
    called_ = number;
  }
  for (const auto& connection : connections_) {
    if (connection) send(*connection, Frame::Kind::Call, {}, bytes);
  }
}

// Only the first loss is reported: others follow from it, as ranks end. Those that wait in go_on() also hear of the
// first after which nobody may go on.
void Ranks::lose(const std::string& message, int from, Outcome outcome) {
  const std::scoped_lock listening(listening_);
  const bool over = outcome == Outcome::Over;
  bool known = false;
  {
    const std::scoped_lock lock(mutex_);
    if (first() && !over) losses_.gone[size_t(from)] = true;
    changed_.notify_all();
    if (lost_ && (!over || losses_.over)) return;
    if (over) losses_.over = message;
    known = lost_.has_value();
    if (!known) lost_ = message;
  }
  for (size_t number = 1; first() && number < connections_.size(); ++number) {
    if (int(number) != from) send(*connections_[number], Frame::Kind::Failed, over ? "" : kLeft, message);
  }
  if (listener_ && !known) listener_(message);
}

void Ranks::go_on() {
  std::unique_lock lock(mutex_);
  losses_.begun = false;
  if (!first()) {
    lock.unlock();
    send(*connections_[0], Frame::Kind::GoesOn, {}, {});
    lock.lock();
    changed_.wait(lock, [this] { return losses_.begun || losses_.over; });
    if (!losses_.begun) throw RunError(*losses_.over);
    return;
  }
  const auto awaited = [this](int number) {
    return number != number_ && !losses_.gone[size_t(number)] && !losses_.ready[size_t(number)];
  };
  changed_.wait(lock,
                [&] { return losses_.over || std::none_of(there_.numbers.begin(), there_.numbers.end(), awaited); });
  lock.unlock();
  // Messages about this loss go out before, and those about another one after.
  const std::scoped_lock listening(listening_);
  std::vector<int> left;
  {
    const std::scoped_lock again(mutex_);
    if (losses_.over) throw RunError(*losses_.over);
    std::copy_if(there_.numbers.begin(), there_.numbers.end(), std::back_inserter(left),
                 [this](int number) { return !losses_.gone[size_t(number)]; });
    std::fill(losses_.ready.begin(), losses_.ready.end(), false);
  }
  PartWriter numbers;
  numbers.array(left);
  begin_again(left);
  for (const int number : left) {
    if (number != number_) send(*connections_[size_t(number)], Frame::Kind::Begin, {}, numbers.bytes);
  }
}

void Ranks::begin_again(std::vector<int> numbers) {
  const std::scoped_lock lock(mutex_);
  const auto own = std::find(numbers.begin(), numbers.end(), number_);
  if (own == numbers.end()) throw RunError("it goes on without this rank");
  there_.rank = int(own - numbers.begin());
  there_.numbers = std::move(numbers);
  waiting_.clear();
  lost_.reset();
  losses_.begun = true;
  changed_.notify_all();
}

void Ranks::listen(std::function<void(const std::string&)> lost) {
  const std::scoped_lock listening(listening_);
  listener_ = std::move(lost);
  if (const std::optional<std::string> why = this->lost(); why && listener_) listener_(*why);
}

std::optional<std::string> Ranks::lost() const {
  const std::scoped_lock lock(mutex_);
  return lost_;
}

bool Ranks::over() const {
  const std::scoped_lock lock(mutex_);
  return losses_.over.has_value();
}

std::optional<std::string> Ranks::find_out() const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kSilence + kAlive, [&] { return lost_ || closing_.load(); });
  return lost_;
}

void Ranks::fail(const std::string& message) {
  {
    const std::scoped_lock lock(mutex_);
    const bool known = lost_ && (losses_.over || message.find(*lost_) != message.npos);
    if (known || ended_.load()) return;
    losses_.over = message;
    if (!lost_) lost_ = message;
    changed_.notify_all();
  }
  for (const auto& connection : connections_) {
    if (connection) send(*connection, Frame::Kind::Failed, {}, fmt::format("{} failed: {}", name_of(number_), message));
  }
}

void Ranks::end() {
  exchange(kEnd, {});
}

}  // namespace arbalest
