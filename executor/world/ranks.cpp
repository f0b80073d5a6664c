// SPDX-License-Identifier: Apache-2.0
#include "executor/world/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/number.h"
#include "base/process.h"
#include "base/time/deadlines.h"
#include "executor/world/part.h"

namespace arbalest {
namespace {

constexpr uint64_t kMostOfFrame = uint64_t{1} << 38;  // of a frame
constexpr const char *kEnd = "end", *kClock = "clock";
// Words before the number of a lost rank, in the key of a Failed frame: others may go on, or nobody may. Without a key
// the rank that sends it has failed itself.
constexpr const char *kLeft = "left ", *kOver = "over ";

Ranks::Parts unpacked(const std::string& bytes, size_t count) {
  Ranks::Parts parts;
  PartReader all(bytes);
  while (!all.at_end()) parts.push_back(all.text());
  if (parts.size() != count) throw RunError("it sent parts that are not one of each rank");
  return parts;
}

}  // namespace

Ranks::Ranks(const WorldSettings& settings) : Ranks(settings, meet(settings)) {}

Ranks::Ranks(const WorldSettings& settings, Met met)
    : own_{settings.rank, std::move(met.own_address), std::move(met.hosts)},
      connections_(std::make_move_iterator(met.connections.begin()), std::make_move_iterator(met.connections.end())) {
  there_.rank = own_.number;
  there_.numbers.resize(own_.hosts.size());
  std::iota(there_.numbers.begin(), there_.numbers.end(), 0);
  losses_.gone.resize(own_.hosts.size());
  losses_.ready.resize(own_.hosts.size());
  back_.settings = settings;
  back_.door = std::move(met.door);
  back_.returns = met.returns;
  try {
    for (size_t i = 0; i < connections_.size(); ++i) {
      if (!connections_[i]) continue;
      connections_[i]->set_patience(silence());
      threads_.emplace_back([this, i, connection = connections_[i]] { receive(first() ? int(i) : 0, connection); });
    }
    threads_.emplace_back([this] { stay_alive(); });
  } catch (const std::system_error&) {  // the system refuses a thread, and no destructor follows
    end_threads(connections_);
    throw;
  }
}

void Ranks::end_threads(const Connections& connections) {
  {
    const std::scoped_lock lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  for (const auto& connection : connections) {
    if (connection) connection->shut_down();
  }
  for (std::thread& thread : threads_) thread.join();
}

Ranks::~Ranks() {
  // A thread that reads a connection may hang. Sends take up to silence() each.
  const TimedLook last_resort = look_after(2 * silence() + alive(), [this] {
    std::string why = "the run has ended";
    if (const std::unique_lock known(mutex_, std::try_to_lock); known && losses_.first) why = *losses_.first;
    end_process(why + "; a thread that reads a connection has not ended");
  });
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
  end_threads(all);
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
  return fmt::format("rank {} on {}", number, printable(own_.hosts[size_t(number)]));
}

int Ranks::on_this_host() const {
  const auto here = [this](int number) { return own_.hosts[size_t(number)] == own_.hosts[size_t(own_.number)]; };
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

// Whether the rank was declared lost while the thread that reads this connection stood still.
bool Ranks::is_past(int from, const std::shared_ptr<Connection>& connection) const {
  const std::scoped_lock lock(mutex_);
  if (!first()) return false;
  const auto visit = back_.visits.find(from);
  if (visit != back_.visits.end() && visit->second.connection == connection) return false;
  return losses_.gone[size_t(from)] || connections_[size_t(from)] != connection;
}

void Ranks::receive(int from, const std::shared_ptr<Connection>& connection) {
  name_thread(fmt::format("hears rank {}", from));
  try {
    for (;;) {
      Frame frame = connection->receive(kMostOfFrame);
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
    const std::string silent = own_silence();
    if (left) {
      send(*connection, Frame::Kind::Failed, {}, error.what());
    } else if (first() || silent.empty()) {  // rank 0 can go on without it, even if it was silent itself
      lose({fmt::format("{} is lost: {}{}{}{}", name_of(from), error.what(), last_place(from),
                        silent.empty() ? "" : "; ", silent),
            from, from, first() ? Outcome::Left : Outcome::Over});
    } else {
      const std::string told =
          fmt::format("{}; {} has taken it for lost since: {}", silent, name_of(from), error.what());
      lose({told, from, Loss::kUnknown, Outcome::Over});
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
    case Frame::Kind::Failed: {
      const bool left = frame.key.starts_with(kLeft);
      const std::optional<int> lost =
          read_number<int>(frame.key.substr(std::min(std::strlen(kLeft), frame.key.size())));
      std::string told = printable(frame.bytes, true);
      const bool of_own_silence = !lost && told.starts_with(name_of(own_.number));
      if (const std::string silent = own_silence(); of_own_silence && !silent.empty()) told += "; " + silent;
      return lose({told, from, lost.value_or(Loss::kUnknown), left ? Outcome::Left : Outcome::Over});
    }
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
    if (from == own_.number) {
      waiting->then = std::move(then);
      waiting->forgotten = calls_.forgotten;
      waiting->awaited = awaited;
      waiting->since = std::chrono::steady_clock::now();
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
  std::unique_lock listening(listening_.mutex, std::defer_lock);
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
  changed_.wait(lock, [&] { return found->has_value() || losses_.first; });
  if (!*found) throw RunError(*losses_.first);
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
    changed_.wait(lock, [&] { return answer->came > 0 || losses_.first; });
    if (answer->came == 0) throw RunError(*losses_.first);
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
// first after which nobody may go on. Each rank adds to its own message what it waits for.
void Ranks::lose(const Loss& loss) {
  const std::string here = loss.message + own_wait(loss.lost);
  const std::scoped_lock listening(listening_.mutex);
  const bool over = loss.outcome == Outcome::Over;
  const int from = loss.from;
  bool known = false;
  {
    const std::scoped_lock lock(mutex_);
    if (first() && !over) losses_.gone[size_t(from)] = true;
    changed_.notify_all();
    if (losses_.first && (!over || losses_.over)) return;
    if (over) losses_.over = here;
    known = losses_.first.has_value();
    if (!known) losses_.first = here;
  }
  const Connections all = first() ? connections() : Connections();
  for (size_t number = 1; number < all.size(); ++number) {
    if (int(number) == from) continue;
    const std::string key = loss.lost == Loss::kUnknown ? "" : fmt::format("{}{}", over ? kOver : kLeft, loss.lost);
    send(*all[number], Frame::Kind::Failed, key, loss.message);
  }
  // The lost rank may only have been stopped, or stand still in part, and hears why it is alone.
  if (size_t(from) < all.size() && from > 0) all[size_t(from)]->send_last_words(loss.message);
  if (listening_.lost && !known) listening_.lost(here);
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
    return number != own_.number && !losses_.gone[size_t(number)] && !losses_.ready[size_t(number)];
  };
  changed_.wait(lock,
                [&] { return losses_.over || std::none_of(there_.numbers.begin(), there_.numbers.end(), awaited); });
  lock.unlock();
  // Messages about this loss go out before, and those about another one after.
  const std::scoped_lock listening(listening_.mutex);
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
    if (number != own_.number) send(*connection(number), Frame::Kind::Begin, {}, numbers.bytes);
  }
  return back;
}

void Ranks::begin_again(std::vector<int> numbers) {
  const std::scoped_lock lock(mutex_);
  const auto own = std::find(numbers.begin(), numbers.end(), own_.number);
  if (own == numbers.end()) throw RunError("it goes on without this rank");
  there_.rank = int(own - numbers.begin());
  there_.numbers = std::move(numbers);
  ++there_.era;
  waiting_.clear();
  losses_.first.reset();
  watched_.standstill.forget_all();
  watched_.pauses.forget();
  back_.returns = false;
  losses_.begun = true;
  changed_.notify_all();
}

void Ranks::listen(std::function<void(const std::string&)> lost) {
  const std::scoped_lock listening(listening_.mutex);
  listening_.lost = std::move(lost);
  if (const std::optional<std::string> why = this->lost(); why && listening_.lost) listening_.lost(*why);
}

std::optional<std::string> Ranks::lost() const {
  const std::scoped_lock lock(mutex_);
  return losses_.first;
}

bool Ranks::over() const {
  const std::scoped_lock lock(mutex_);
  return losses_.over.has_value();
}

std::optional<std::string> Ranks::find_out(std::optional<std::chrono::milliseconds> longest) const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, longest.value_or(loss_known_after()), [&] { return losses_.first || closing_.load(); });
  return losses_.first;
}

void Ranks::fail(const std::string& message) {
  {
    const std::scoped_lock lock(mutex_);
    const bool known = losses_.first && (losses_.over || message.find(*losses_.first) != message.npos);
    if (known || ended_.load()) return;
    losses_.over = message;
    if (!losses_.first) losses_.first = message;
    changed_.notify_all();
  }
  for (const auto& connection : connections()) {
    if (connection)
      send(*connection, Frame::Kind::Failed, {}, fmt::format("{} failed: {}", name_of(own_.number), message));
  }
}

void Ranks::end() {
  exchange(kEnd, {});
}

}  // namespace arbalest
