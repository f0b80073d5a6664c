// SPDX-License-Identifier: Apache-2.0

// Ranks that come back to a run that goes on without them: see Ranks::begin().

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/plain_message.h"
#include "base/process.h"
#include "executor/world/part.h"
#include "executor/world/ranks.h"

namespace arbalest {

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
    std::shared_ptr<Connection> connection;
    try {
      connection = back_.door->accept(kLook);
    } catch (const RunError&) {  // a later look may have a place for it
      std::this_thread::sleep_for(kLook);
    }
    if (!connection) continue;
    if (const auto visitor = greet(back_.settings, *connection, stranger)) let_in(*visitor, connection);
  }
}

// Why a rank is not let in; "": it is.
std::string Ranks::why_not(const Visitor& visitor) const {
  const int number = visitor.rank, size = int(own_.hosts.size());
  if (visitor.size != size)
    return fmt::format("is of a world of {} ranks, and the run of one of {}", visitor.size, size);
  if (number < 0 || number >= size) return "there is no such rank";
  if (number == 0 || !losses_.gone[size_t(number)] || back_.visits.contains(number)) {
    return fmt::format("{} is there, and would be there twice", name_of(number));
  }
  if (visitor.host == own_.hosts[size_t(number)]) return "";
  return fmt::format("was on {} before; expected the same host, by its name or {}",
                     printable(own_.hosts[size_t(number)]), kHostVariable);
}

void Ranks::let_in(const Visitor& visitor, const std::shared_ptr<Connection>& connection) {
  constexpr auto kKnown = std::chrono::seconds(2);  // until the loss of a rank that was killed is known
  const int number = visitor.rank;
  const bool counts = number > 0 && number < int(own_.hosts.size());
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
  connection->set_patience(silence());
  try {
    send_hosts(*connection, own_.hosts, own_.address, true);  // nothing may come before it, no sign of life either
  } catch (const RunError& error) {                           // it is gone already
    return warn(fmt::format("{} does not come back: {}", name_of(number), error.what()));
  }
  {
    const std::scoped_lock lock(mutex_);
    back_.visits[number].connection = connection;
  }
  try {
    threads_.emplace_back([this, number, connection] { receive(number, connection); });
  } catch (const std::system_error& error) {
    leaves(number, plain_message(error));
    connection->shut_down();
  }
}

bool Ranks::visits(int number) const {
  const std::scoped_lock lock(mutex_);
  return back_.visits.contains(number);
}

// Answers a rank that comes back with what all had told before they began.
void Ranks::answer(int visitor, Connection& connection, Frame frame) {
  Parts parts(own_.hosts.size());
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

}  // namespace arbalest
