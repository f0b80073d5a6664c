// SPDX-License-Identifier: Apache-2.0

// Rank 0 sends a challenge. A rank that comes answers with its number, its host, a challenge of its own, and a slow
// hash of secret and challenge (crypt(3), SHA-256). Rank 0 answers the rank's challenge in the same way. The secret
// itself is never sent. A process that does not know it is sent away, and the error names it if a rank is missing in
// the end. Frames are small until then.

#include "executor/world/rendezvous.h"

#include <crypt.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <future>
#include <list>
#include <stop_token>
#include <system_error>
#include <thread>

#include "base/error.h"
#include "base/plain_message.h"
#include "base/process.h"
#include "base/setting.h"
#include "executor/world/part.h"

namespace arbalest {
namespace {

constexpr uint64_t kSmall = 1 << 20;  // bytes of a frame: the hosts of 65536 ranks
constexpr const char* kProtocol = "arbalest world 1";
constexpr auto kAnswer = std::chrono::milliseconds(3000);  // time for an answer
constexpr const char* kReturns = "returns";                // key of the hosts' frame: the others have begun
constexpr const char* kExpectedAddress =
    "expected one of these, or a name of one, unless something hands connections on";
constexpr auto kTellAfter = std::chrono::milliseconds(2000);

std::string challenge() {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::array<unsigned char, 16> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != ssize_t(bytes.size())) throw RunError("no random numbers");
  std::string text;
  for (const unsigned char byte : bytes) text += kLetters[byte % kLetters.size()];
  return text;
}

// `role` keeps an answer from being used as another.
std::string proof(const std::string& secret, const std::string& role, const std::string& challenge) {
  const bool plain = challenge.size() == 16 && challenge.find_first_of(":$\n") == std::string::npos;
  if (!plain) throw RunError("it sent a challenge that is none");
  auto data = std::make_unique<crypt_data>();
  const std::string words = secret + "|" + role, salt = "$5$rounds=1000$" + challenge;
  const char* made = crypt_r(words.c_str(), salt.c_str(), data.get());
  if (!made || made[0] == '*') throw RunError("crypt(3) has no SHA-256");
  return made;
}

// Whether each host finds itself there.
bool stays_here(const std::string& host) {
  return is_loopback(host) || host == "0.0.0.0" || host == "::";
}

std::string as_lines(const std::vector<std::string>& lines) {
  return fmt::format("{}", fmt::join(lines, "\n"));
}

using Milliseconds = std::chrono::milliseconds;

struct Hello : Visitor {
  std::string proof, challenge;
};

Hello parse_hello(const std::string& text) {
  const std::vector<std::string> lines = lines_of(text);
  Hello hello;
  const auto number = [](const std::string& word, int& value) {
    return std::from_chars(word.data(), word.data() + word.size(), value).ec == std::errc{};
  };
  if (lines.size() != 7 || lines[0] != kProtocol || !number(lines[1], hello.rank) || !number(lines[2], hello.size)) {
    throw RunError("it speaks another protocol");
  }
  hello.host = lines[3];
  hello.process = lines[4];
  hello.proof = lines[5];
  hello.challenge = lines[6];
  return hello;
}

// Rank 0.
class RankZero {
 public:
  explicit RankZero(const WorldSettings& settings)
      : settings_(settings),
        listener_(std::make_unique<Listener>(settings.host, settings.port)),
        began_(std::chrono::steady_clock::now()),
        elsewhere_(not_this_host(settings.host)) {
    if (!elsewhere_.empty()) {  // which may be right: a gateway, or a container's host, hands on what comes there
      warn(fmt::format("rank 0 is to wait at {}:{}, and {}; {}", settings.host, settings.port, elsewhere_,
                       kExpectedAddress));
    }
    met_.connections.resize(size_t(settings.size));
    met_.hosts.resize(size_t(settings.size));
    processes_.resize(size_t(settings.size));
    met_.hosts[0] = settings.own_host;
    processes_[0] = std::to_string(getpid());
  }

  ~RankZero() {  // threads that still wait for an answer
    for (const Greeting& greeting : greetings_) greeting.connection->shut_down();
  }
  RankZero(const RankZero&) = delete;
  RankZero& operator=(const RankZero&) = delete;

  Met wait() {
    const auto until = began_ + std::chrono::duration_cast<std::chrono::milliseconds>(
                                    std::chrono::duration<double>(settings_.patience));
    auto tell_at = began_ + kTellAfter;
    std::string told;  // the ranks that the latest line names
    while (look_at_those_here(), missing().size() > 0) {
      if (settings_.stop.stop_requested()) interrupt_all(interruption(settings_));
      const auto now = std::chrono::steady_clock::now();
      if (now >= until) give_up();
      if (now >= tell_at && named(missing()) != told) {
        tell_at = now + kTellAfter;
        told = named(missing());
        warn(fmt::format("rank 0 waits at {}:{} for {}, as {} says{}", settings_.host, settings_.port, told,
                         settings_.told_by, strangers_));
      }
      take_greeted();
      if (greetings_.size() >= kMostGreetings) {
        std::this_thread::sleep_for(kLook);
      } else {
        take_in(greetings_.empty() ? kPause : kLook);
      }
    }
    met_.own_address = address();
    for (size_t rank = 1; rank < met_.connections.size(); ++rank) {
      try {
        send_hosts(*met_.connections[rank], met_.hosts, met_.own_address, false);
      } catch (const RunError& error) {
        fail_all(fmt::format("rank {} on {} is lost: {}", rank, printable(met_.hosts[rank]), error.what()));
      }
    }
    if (settings_.takes_back) met_.door = std::move(listener_);
    return std::move(met_);
  }

 private:
  // The address of this host by which a rank of another host has come. Ranks of this host may come by one that no other
  // host reaches, which counts if all are of this host.
  std::string address() const {
    std::string found;
    for (size_t rank = 1; rank < met_.connections.size(); ++rank) {
      const Connection& connection = *met_.connections[rank];
      if (!connection.within_host()) return connection.local_address();
      if (found.empty() || is_loopback(found)) found = connection.local_address();
    }
    return found;
  }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int rank = 1; rank < settings_.size; ++rank) {
      if (!met_.connections[size_t(rank)]) ranks.push_back(rank);
    }
    return ranks;
  }

  std::string named(const std::vector<int>& ranks) const {
    constexpr size_t kMost = 16;
    const bool many = ranks.size() > kMost;
    const std::vector<int> some(ranks.begin(), ranks.begin() + int64_t(many ? kMost : ranks.size()));
    return fmt::format("rank{} {}{} of {}", ranks.size() == 1 ? "" : "s", fmt::join(some, ", "),
                       many ? fmt::format(" and {} more", ranks.size() - kMost) : "", settings_.size);
  }

  void tell_all(const std::string& message, std::string_view key = {}) {
    for (const auto& connection : met_.connections) {
      try {
        if (connection) connection->send(Frame::Kind::Failed, key, message);
      } catch (const RunError&) {  // it is gone, too
      }
    }
  }

  [[noreturn]] void fail_all(const std::string& message) {
    tell_all(message);
    throw RunError(message);
  }

  [[noreturn]] void interrupt_all(const std::string& message) {
    tell_all(message, Frame::kInterrupt);
    throw InterruptedError(message);
  }

  [[noreturn]] void give_up() {
    std::string likely = "were all of them started?";
    if (stays_here(settings_.host)) {
      likely = "were all of them started, on this host? Others need another address of it;";
    }
    if (!elsewhere_.empty()) {
      likely = fmt::format("{}; {}, in {};", elsewhere_, kExpectedAddress, name_of(SettingKey::Rendezvous));
    }
    fail_all(fmt::format(
        "{} did not come to rank 0, on {}, at {}:{} within {:g} s; the number is from {}{}; {} {} trains with "
        "one process alone",
        named(missing()), met_.hosts[0], settings_.host, settings_.port, settings_.patience, settings_.told_by,
        strangers_, likely, set_to(SettingKey::WorldSize, "1")));
  }

  void take_in(Milliseconds longest) {
    std::unique_ptr<Connection> connection;
    try {
      connection = listener_->accept(longest);
    } catch (const RunError& error) {  // places of strangers are free again in a moment
      strangers_ = fmt::format("; {}", error.what());
      std::this_thread::sleep_for(kPause);
    }
    if (connection) hear(std::move(connection));
  }

  // One that says nothing keeps nobody waiting.
  void hear(std::unique_ptr<Connection> connection) {
    Greeting& greeting = greetings_.emplace_back();
    greeting.connection = std::move(connection);
    try {
      greeting.visitor = std::async(
          std::launch::async, [this, &greeting] { return greet(settings_, *greeting.connection, greeting.stranger); });
    } catch (const std::system_error& error) {  // without a thread it is sent away, and may come again
      strangers_ = fmt::format("; one that came was sent away: {}", plain_message(error));
      greetings_.pop_back();
    }
  }

  void take_greeted() {
    const auto over = [](const Greeting& each) {
      return each.visitor.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    };
    for (auto each = greetings_.begin(); each != greetings_.end();) {
      if (!over(*each)) {
        ++each;
        continue;
      }
      if (!each->stranger.empty()) strangers_ = each->stranger;
      const std::optional<Visitor> visitor = each->visitor.get();
      std::unique_ptr<Connection> connection = std::move(each->connection);
      each = greetings_.erase(each);
      if (visitor) take(*visitor, std::move(connection));
    }
  }

  // A rank that is gone already is missing again, and may be started anew. One that was asked to end ends all.
  void look_at_those_here() {
    for (auto& connection : met_.connections) {
      if (!connection || connection->silent()) continue;
      try {
        const Frame told = connection->receive(kSmall);
        if (told.kind == Frame::Kind::Failed && told.key == Frame::kInterrupt) interrupt_all(printable(told.bytes));
      } catch (const RunError&) {  // its connection has ended
      }
      connection.reset();
    }
  }

  void take(const Visitor& hello, std::unique_ptr<Connection> connection) {
    look_at_those_here();
    const std::string who = hello.name();
    const auto fail = [&](const std::string& message) {
      try {
        connection->send(Frame::Kind::Failed, {}, message);
      } catch (const RunError&) {  // it is gone
      }
      fail_all(message);
    };
    if (hello.size != settings_.size) {
      fail(fmt::format("{} is of a world of {} ranks, and rank 0 on {} of one of {}", who, hello.size, met_.hosts[0],
                       settings_.size));
    }
    if (hello.rank < 0 || hello.rank >= settings_.size) fail(fmt::format("{}: there is no such rank", who));
    if (hello.rank == 0 || met_.connections[size_t(hello.rank)]) {
      fail(fmt::format("rank {} was started twice: on {} (process {}) and on {} (process {})", hello.rank,
                       printable(met_.hosts[size_t(hello.rank)]), processes_[size_t(hello.rank)], printable(hello.host),
                       printable(hello.process)));
    }
    met_.connections[size_t(hello.rank)] = std::move(connection);
    met_.hosts[size_t(hello.rank)] = hello.host;
    processes_[size_t(hello.rank)] = printable(hello.process);
  }

  struct Greeting {
    std::unique_ptr<Connection> connection;
    std::string stranger;
    std::future<std::optional<Visitor>> visitor;  // the last: its thread uses the others
  };
  static constexpr size_t kMostGreetings = 64;  // at a time; others wait to be accepted
  static constexpr std::chrono::milliseconds kPause{200}, kLook{5};

  const WorldSettings& settings_;
  std::unique_ptr<Listener> listener_;
  const SteadyTime began_;
  const std::string elsewhere_;  // why others may not find this host by that name; "": they may
  Met met_;
  std::vector<std::string> processes_;  // by rank: their numbers
  std::string strangers_;               // for the error
  std::list<Greeting> greetings_;
};

// Throws the message that rank 0 sent instead of what was expected.
[[noreturn]] void fail_as_told(const WorldSettings& settings, const Frame& frame) {
  const bool interrupted = frame.kind == Frame::Kind::Failed && frame.key == Frame::kInterrupt;
  if (interrupted) throw InterruptedError(printable(frame.bytes));
  if (frame.kind == Frame::Kind::Failed || frame.kind == Frame::Kind::Refused) throw RunError(printable(frame.bytes));
  throw RunError(fmt::format("what waits at {}:{} is no rank 0 of this version", settings.host, settings.port));
}

std::unique_ptr<Connection> find_rank_0(const WorldSettings& settings, Milliseconds patience) {
  try {
    return connect_to(settings.host, settings.port, std::chrono::steady_clock::now() + patience, settings.stop);
  } catch (const RunError& error) {
    if (settings.stop.stop_requested()) throw InterruptedError(interruption(settings));
    const std::string here = fmt::format("; {} is this host itself, {}", settings.host, settings.own_host);
    throw RunError(
        fmt::format("rank {} of {} finds no rank 0 at {}:{} within {:g} s: {}{}; either it was not started, or it "
                    "trains already, without this process",
                    settings.rank, settings.size, settings.host, settings.port, settings.patience, error.what(),
                    stays_here(settings.host) ? here : ""));
  }
}

// Shows rank 0 that this rank is one of its world, and waits for its answer to all.
Frame introduce(const WorldSettings& settings, Connection& connection) {
  const std::stop_callback interrupt(settings.stop, [&] {
    try {
      connection.send(Frame::Kind::Failed, Frame::kInterrupt, interruption(settings));
    } catch (const RunError&) {  // rank 0 is gone
    }
    connection.shut_down();
  });
  bool answered = false;
  try {
    const Frame asked = connection.receive(kSmall);
    answered = true;
    if (asked.kind != Frame::Kind::Challenge) fail_as_told(settings, asked);
    const std::string ours = challenge();
    const std::string mine = proof(settings.secret, fmt::format("rank {}", settings.rank), asked.bytes);
    connection.send(Frame::Kind::Hello, {},
                    as_lines({kProtocol, std::to_string(settings.rank), std::to_string(settings.size),
                              settings.own_host, std::to_string(getpid()), mine, ours}));
    const Frame answer = connection.receive(kSmall);
    if (answer.kind != Frame::Kind::Welcome) fail_as_told(settings, answer);
    if (answer.bytes != proof(settings.secret, "rank 0", ours)) {
      throw RunError(fmt::format("rank 0 at {}:{} has another secret ({} or {})", settings.host, settings.port,
                                 kSecretVariable, name_of(SettingKey::SecretFile)));
    }
    // Rank 0 gives up first, unless it is gone.
    Frame begin = connection.receive(kSmall);
    if (begin.kind != Frame::Kind::Begin) fail_as_told(settings, begin);
    return begin;
  } catch (const RunError& error) {
    if (settings.stop.stop_requested()) throw InterruptedError(interruption(settings));
    const std::string what = error.what();
    if (what.starts_with("rank 0")) throw;
    if (!answered) {
      throw RunError(
          fmt::format("{}:{} was to be rank 0, and has not answered as such: {}; expected a rank 0 that waits: "
                      "another program may use the port, or the run has begun without this process",
                      settings.host, settings.port, what));
    }
    throw RunError(fmt::format("rank 0 at {}:{}: {}", settings.host, settings.port, what));
  }
}

Met visit(const WorldSettings& settings) {
  const auto patience = std::chrono::duration_cast<Milliseconds>(std::chrono::duration<double>(settings.patience));
  std::unique_ptr<Connection> connection = find_rank_0(settings, patience);
  connection->set_patience(patience + kAnswer);  // rank 0 may have others to hear before
  const Frame begin = introduce(settings, *connection);
  Met met;
  met.returns = begin.key == kReturns;
  met.hosts = lines_of(begin.bytes);
  if (int(met.hosts.size()) != settings.size + 1) throw RunError("rank 0 names other hosts than there are ranks");
  const std::string of_rank_zero = met.hosts.back();
  met.hosts.pop_back();
  met.own_address = connection->local_address();
  if (connection->within_host()) met.own_address = of_rank_zero;
  met.connections.push_back(std::move(connection));
  return met;
}

}  // namespace

std::string Visitor::name() const {
  return fmt::format("rank {} on {} (process {})", rank, printable(host), printable(process));
}

std::string interruption(const WorldSettings& settings) {
  const std::string signal = settings.interrupted_by ? settings.interrupted_by() : "";
  return fmt::format("rank {} on {} was interrupted{} before all ranks had begun", settings.rank,
                     printable(settings.own_host), signal.empty() ? "" : " by " + signal);
}

std::optional<Visitor> greet(const WorldSettings& settings, Connection& connection, std::string& stranger) {
  try {
    const std::string ours = challenge();
    connection.set_patience(kAnswer);
    connection.set_deadline(std::chrono::steady_clock::now() + kAnswer);
    connection.send(Frame::Kind::Challenge, {}, ours);
    const Hello hello = parse_hello(connection.receive(kSmall).bytes);
    connection.set_deadline(std::nullopt);
    if (hello.proof == proof(settings.secret, fmt::format("rank {}", hello.rank), ours)) {
      connection.send(Frame::Kind::Welcome, {}, proof(settings.secret, "rank 0", hello.challenge));
      return hello;
    }
    const bool none = hello.proof == proof("", fmt::format("rank {}", hello.rank), ours);
    const std::string of = fmt::format("({} or {})", kSecretVariable, name_of(SettingKey::SecretFile));
    stranger =
        fmt::format("; a process on {} that says it is rank {} has {} secret {}", printable(hello.host), hello.rank,
                    none                      ? "no"
                    : settings.secret.empty() ? "a"
                                              : "another",
                    of);
    connection.send(Frame::Kind::Refused, {},
                    fmt::format("rank 0, on {}, has {} secret {}", settings.own_host,
                                settings.secret.empty() ? "no"
                                : none                  ? "a"
                                                        : "another",
                                of));
  } catch (const RunError&) {  // not one of ours, or gone already
  }
  return std::nullopt;
}

void send_hosts(Connection& connection, const std::vector<std::string>& hosts, const std::string& address,
                bool returns) {
  std::vector<std::string> lines = hosts;
  lines.push_back(address);
  connection.send(Frame::Kind::Begin, returns ? kReturns : "", as_lines(lines));
}

Met meet(const WorldSettings& settings) {
  if (settings.rank == 0) return RankZero(settings).wait();
  return visit(settings);
}

}  // namespace arbalest
