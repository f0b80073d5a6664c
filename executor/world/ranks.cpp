// SPDX-License-Identifier: Apache-2.0
#include "executor/world/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>
#include <stop_token>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/process.h"
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

Ranks::Ranks(const WorldSettings& settings) : Ranks(settings, meet(settings)) {}

Ranks::Ranks(const WorldSettings& settings, Met met)
    : number_(settings.rank),
      connections_(std::make_move_iterator(met.connections.begin()), std::make_move_iterator(met.connections.end())),
      hosts_(std::move(met.hosts)),
      own_address_(std::move(met.own_address)) {
  there_.rank = number_;
  there_.numbers.resize(hosts_.size());
  std::iota(there_.numbers.begin(), there_.numbers.end(), 0);
  losses_.gone.resize(hosts_.size());
  losses_.ready.resize(hosts_.size());
  back_.settings = settings;
  back_.door = std::move(met.door);
  back_.returns = met.returns;
  for (size_t i = 0; i < connections_.size(); ++i) {
    if (!connections_[i]) continue;
    connections_[i]->set_patience(kSilence);
    threads_.emplace_back([this, i, connection = connections_[i]] { receive(first() ? int(i) : 0, connection); });
  }
  threads_.emplace_back([this] { stay_alive(); });
}

// A thread that ends the process unless it is stopped in time: one that reads a connection may hang.
std::jthread Ranks::end_process_in_time() const {
  const auto watch = [this](const std::stop_token& ended) {
    std::mutex mutex;
    std::condition_variable_any changed;
    std::unique_lock lock(mutex);
    changed.wait_for(lock, ended, 2 * kSilence + kAlive, [] { return false; });
    if (ended.stop_requested()) return;
    std::string why = "the run has ended";
    if (const std::unique_lock known(mutex_, std::try_to_lock); known && lost_) why = *lost_;
    end_process(why + "; a thread that reads a connection has not ended");
  };
  try {
    return std::jthread(watch);
  } catch (const std::system_error&) {  // without a thread nobody watches
    return {};
  }
}

Ranks::~Ranks() {
  const std::jthread last_resort = end_process_in_time();
  forget();
  listen({});  // a loss that is being passed on goes out before the sign that this rank ends
  {
    const std::scoped_lock lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  if (back_.keeper.joinable()) back_.keeper.join();  // no thread begins after it
  Connections all = connections(), visiting;
  {
    const std::scoped_lock lock(mutex_);
    for (const auto& [number, visit] : back_.visits) visiting.push_back(visit.connection);
  }
  for (const auto& connection : visiting) send(*connection, Frame::Kind::Failed, {}, "the run has ended");
  all.insert(all.end(), visiting.begin(), visiting.end());
  for (const auto& connection : all) {
    if (connection) send(*connection, Frame::Kind::Bye, {}, {});
  }
  for (const auto& connection : all) {
    if (connection) connection->shut_down();
  }
  for (std::thread& thread : threads_) thread.join();
}

Ranks::Connections Ranks::connections() const {
  const std::scoped_lock lock(mutex_);
  return connections_;
}

std::shared_ptr<Connection> Ranks::connection(int number) const {
  const std::scoped_lock lock(mutex_);
  return connections_[size_t(number)];
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

// Whether the rank was declared lost while the thread that reads this connection stood still.
bool Ranks::is_past(int from, const std::shared_ptr<Connection>& connection) const {
  const std::scoped_lock lock(mutex_);
  if (!first()) return false;
  const auto visit = back_.visits.find(from);
  if (visit != back_.visits.end() && visit->second.connection == connection) return false;
  return losses_.gone[size_t(from)] || connections_[size_t(from)] != connection;
}

void Ranks::receive(int from, const std::shared_ptr<Connection>& connection) {
  try {
    for (;;) {
      Frame frame = connection->receive(kMostBytes);
      if (is_past(from, connection)) return;
      if (frame.kind == Frame::Kind::Bye) throw RunError("it has ended");
      if (visits(from)) {
        answer(from, *connection, std::move(frame));
      } else {
        handle(from, *connection, std::move(frame));
      }
    }
  } catch (const std::exception& error) {
    if (closing_.load() || ended_.load() || is_past(from, connection)) return;
    const bool left = leaves(from, error.what());
    if (left) {
      send(*connection, Frame::Kind::Failed, {}, error.what());
    } else {
      lose(fmt::format("{} is lost: {}{}", name_of(from), error.what(), last_places(from)), from,
           first() ? Outcome::Left : Outcome::Over);
    }
    connection->shut_down();  // what is still sent there fails at once
  }
}

void Ranks::handle(int from, Connection& connection, Frame frame) {
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
      return send(connection, Frame::Kind::Whole, frame.key, packed(parts));
    }
    case Frame::Kind::GoesOn: {
      const std::scoped_lock lock(mutex_);
      losses_.ready[size_t(from)] = true;
      return changed_.notify_all();
    }
    case Frame::Kind::Progress: {
      PartReader told(frame.bytes);
      RankProgress progress;
      const int64_t under_way = told.number<int64_t>();
      constexpr int64_t kMost = int64_t(RankProgress::UnderWay::Own);
      if (under_way < 0 || under_way > kMost) throw RunError("it says of its progress what is not known");
      progress.under_way = RankProgress::UnderWay(under_way);
      progress.limit = told.number<double>();
      progress.completed = told.number<int64_t>();
      progress.worked = told.number<int64_t>();
      progress.at = printable(frame.key);
      const std::scoped_lock lock(mutex_);
      return watched_.standstill.hear(from, std::move(progress), std::chrono::steady_clock::now());
    }
    case Frame::Kind::Alive: {
      const std::scoped_lock lock(mutex_);
      return watched_.standstill.forget(from);
    }
    case Frame::Kind::Begin: return begin_again(PartReader(frame.bytes).array<int>());
    case Frame::Kind::Failed:
      return lose(printable(frame.bytes, true), from, frame.key == kLeft ? Outcome::Left : Outcome::Over);
    default: return;
  }
}

// At rank 0.
void Ranks::take_part(int from, const std::string& key, std::string part, bool whole, Then then, bool awaited) {
  Waiting done;
  {
    const std::scoped_lock lock(mutex_);
    const std::vector<int>& numbers = there_.numbers;
    const auto rank = size_t(std::lower_bound(numbers.begin(), numbers.end(), from) - numbers.begin());
    std::deque<Waiting>& all = waiting_[key];
    auto waiting = std::find_if(all.begin(), all.end(), [&](const Waiting& each) { return !each.here[rank]; });
    if (waiting == all.end()) {
      const size_t count = numbers.size();
      waiting = all.insert(all.end(), {Parts(count), std::vector<bool>(count), count, whole, {}});
    }
    waiting->here[rank] = true;
    waiting->parts[rank] = std::move(part);
    if (from == number_) {
      waiting->then = std::move(then);
      waiting->forgotten = calls_.forgotten;
      waiting->awaited = awaited;
    }
    if (--waiting->missing > 0) return;
    done = std::move(*waiting);
    if (back_.door && !back_.begun && done.whole) back_.told[key].push_back(done.parts);
    all.pop_front();  // no rank's parts overtake each other
    if (all.empty()) waiting_.erase(key);
  }
  finish(key, std::move(done));
}

// A loss is heard and passed on after what threads wait for has reached all. A rank that ends because of a value which
// all have is thereby not the reason why others end.
void Ranks::finish(const std::string& key, Waiting waiting) {
  if (key == kEnd) ended_ = true;
  std::unique_lock listening(listening_, std::defer_lock);
  if (waiting.whole) {
    listening.lock();
    const std::string bytes = packed(waiting.parts);
    for (const auto& connection : connections()) {
      if (connection) send(*connection, Frame::Kind::Whole, key, bytes);
    }
  }
  if (waiting.awaited) return waiting.then(waiting.parts);
  if (listening) listening.unlock();
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
  send(*connection(0), Frame::Kind::Part, key, part + 'w');
}

Ranks::Parts Ranks::wait_for(const std::string& key, std::string part, bool whole) {
  const auto found = std::make_shared<std::optional<Parts>>();
  const Then then = [this, found](const Parts& parts) {
    const std::scoped_lock lock(mutex_);
    *found = parts;
    changed_.notify_all();
  };
  if (first()) {
    take_part(0, key, std::move(part), whole, then, true);
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
  send(*connection(0), Frame::Kind::Part, key, part + 'g');
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
    send(*connection(0), Frame::Kind::Clock, kClock, {});
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
    for (Waiting& waiting : all) {
      if (!waiting.awaited) waiting.then = {};
    }
  }
}

void Ranks::call(int64_t number) {
  const std::string bytes(reinterpret_cast<const char*>(&number), sizeof number);
  if (!first()) return send(*connection(0), Frame::Kind::Call, {}, bytes);
  {
    const std::scoped_lock lock(mutex_);
    if (number <= called_.load()) return;
    called_ = number;
  }
  for (const auto& connection : connections()) {
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
  const Connections all = first() ? connections() : Connections();
  for (size_t number = 1; number < all.size(); ++number) {
    if (int(number) != from) send(*all[number], Frame::Kind::Failed, over ? "" : kLeft, message);
  }
  // The lost rank may only have been stopped, or stand still in part, and hears why it is alone.
  if (size_t(from) < all.size() && from > 0) all[size_t(from)]->send_last_words(message);
  if (listener_ && !known) listener_(message);
}

std::vector<int> Ranks::go_on(bool take_back) {
  std::unique_lock lock(mutex_);
  losses_.begun = false;
  if (!first()) {
    lock.unlock();
    send(*connection(0), Frame::Kind::GoesOn, {}, {});
    lock.lock();
    changed_.wait(lock, [this] { return losses_.begun || losses_.over; });
    if (!losses_.begun) throw RunError(*losses_.over);
    return {};
  }
  const auto awaited = [this](int number) {
    return number != number_ && !losses_.gone[size_t(number)] && !losses_.ready[size_t(number)];
  };
  changed_.wait(lock,
                [&] { return losses_.over || std::none_of(there_.numbers.begin(), there_.numbers.end(), awaited); });
  lock.unlock();
  // Messages about this loss go out before, and those about another one after.
  const std::scoped_lock listening(listening_);
  std::vector<int> left, back;
  {
    const std::scoped_lock again(mutex_);
    if (losses_.over) throw RunError(*losses_.over);
    std::copy_if(there_.numbers.begin(), there_.numbers.end(), std::back_inserter(left),
                 [this](int number) { return !losses_.gone[size_t(number)]; });
    std::fill(losses_.ready.begin(), losses_.ready.end(), false);
    for (const auto& [number, visit] : back_.visits) {
      if (!take_back || !visit.ready) continue;
      back.push_back(number);
      connections_[size_t(number)] = visit.connection;
      losses_.gone[size_t(number)] = false;
    }
    for (const int number : back) back_.visits.erase(number);
  }
  left.insert(left.end(), back.begin(), back.end());
  std::sort(left.begin(), left.end());
  PartWriter numbers;
  numbers.array(left);
  begin_again(left);
  for (const int number : left) {
    if (number != number_) send(*connection(number), Frame::Kind::Begin, {}, numbers.bytes);
  }
  return back;
}

void Ranks::begin_again(std::vector<int> numbers) {
  const std::scoped_lock lock(mutex_);
  const auto own = std::find(numbers.begin(), numbers.end(), number_);
  if (own == numbers.end()) throw RunError("it goes on without this rank");
  there_.rank = int(own - numbers.begin());
  there_.numbers = std::move(numbers);
  ++there_.era;
  waiting_.clear();
  lost_.reset();
  watched_.standstill.forget_all();
  back_.returns = false;
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
  for (const auto& connection : connections()) {
    if (connection) send(*connection, Frame::Kind::Failed, {}, fmt::format("{} failed: {}", name_of(number_), message));
  }
}

void Ranks::begin() {
  if (!back_.door) return;
  {
    const std::scoped_lock lock(mutex_);
    back_.begun = true;
  }
  back_.keeper = std::thread([this] { keep_door(); });
}

void Ranks::keep_door() {
  constexpr auto kLook = std::chrono::milliseconds(100);  // from one look to the next at whether this rank ends
  std::string stranger;                                   // not used: its process has an answer
  while (!closing_.load()) {
    std::shared_ptr<Connection> connection = back_.door->accept(kLook);
    if (!connection) continue;
    if (const auto visitor = greet(back_.settings, *connection, stranger)) let_in(*visitor, connection);
  }
}

// Why a rank is not let in; "": it is.
std::string Ranks::why_not(const Visitor& visitor) const {
  const int number = visitor.rank, size = int(hosts_.size());
  if (visitor.size != size)
    return fmt::format("is of a world of {} ranks, and the run of one of {}", visitor.size, size);
  if (number < 0 || number >= size) return "there is no such rank";
  if (number == 0 || !losses_.gone[size_t(number)] || back_.visits.contains(number)) {
    return fmt::format("{} is there, and would be there twice", name_of(number));
  }
  if (visitor.host == hosts_[size_t(number)]) return "";
  return fmt::format("was on {} before; expected the same host, by its name or {}", printable(hosts_[size_t(number)]),
                     kHostVariable);
}

void Ranks::let_in(const Visitor& visitor, const std::shared_ptr<Connection>& connection) {
  constexpr auto kKnown = std::chrono::seconds(2);  // until the loss of a rank that was killed is known
  const int number = visitor.rank;
  const bool counts = number > 0 && number < int(hosts_.size());
  std::string refused;
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kKnown, [&] { return !counts || losses_.gone[size_t(number)] || closing_.load(); });
    refused = why_not(visitor);
  }
  if (!refused.empty()) {
    refused = fmt::format("{}: {}", visitor.name(), refused);
    warn(refused);
    return send(*connection, Frame::Kind::Failed, {}, refused);
  }
  connection->set_patience(kSilence);
  try {
    send_hosts(*connection, hosts_, own_address_, true);  // nothing may come before it, no sign of life either
  } catch (const RunError& error) {                       // it is gone already
    return warn(fmt::format("{} does not come back: {}", name_of(number), error.what()));
  }
  {
    const std::scoped_lock lock(mutex_);
    back_.visits[number].connection = connection;
  }
  threads_.emplace_back([this, number, connection] { receive(number, connection); });
}

bool Ranks::visits(int number) const {
  const std::scoped_lock lock(mutex_);
  return back_.visits.contains(number);
}

// Answers a rank that comes back with what all had told before they began.
void Ranks::answer(int visitor, Connection& connection, Frame frame) {
  Parts parts(hosts_.size());
  switch (frame.kind) {
    case Frame::Kind::Part: {
      const bool whole = !frame.bytes.empty() && frame.bytes.back() == 'w';
      if (!whole) return;
      frame.bytes.pop_back();
      const std::scoped_lock lock(mutex_);
      const std::vector<Parts>& told = back_.told[frame.key];
      const size_t place = back_.visits.at(visitor).heard[frame.key]++;
      if (place >= told.size()) throw RunError(fmt::format("it asks for '{}' once more than the others", frame.key));
      parts = told[place];
      parts[size_t(visitor)] = std::move(frame.bytes);
      break;
    }
    case Frame::Kind::Clock: parts.front() = std::to_string(steady_ns()); break;
    case Frame::Kind::GoesOn: {
      const std::scoped_lock lock(mutex_);
      back_.visits.at(visitor).ready = true;
      return;
    }
    case Frame::Kind::Failed: throw RunError(printable(frame.bytes, true));
    default: return;  // a sign of life
  }
  send(connection, Frame::Kind::Whole, frame.key, packed(parts));
}

// A rank that came back is gone before it was taken in. False: it is none of these.
bool Ranks::leaves(int visitor, const std::string& why) {
  {
    const std::scoped_lock lock(mutex_);
    if (back_.visits.erase(visitor) == 0) return false;
  }
  warn(fmt::format("{} does not come back: {}", name_of(visitor), why));
  return true;
}

bool Ranks::returns() const {
  const std::scoped_lock lock(mutex_);
  return back_.returns;
}

bool Ranks::awaited() const {
  const std::scoped_lock lock(mutex_);
  return std::any_of(back_.visits.begin(), back_.visits.end(), [](const auto& visit) { return visit.second.ready; });
}

void Ranks::end() {
  exchange(kEnd, {});
}

}  // namespace arbalest
