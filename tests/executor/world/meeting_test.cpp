// SPDX-License-Identifier: Apache-2.0

// Ranks meet, or say who is missing; strangers keep nobody from it.

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/process.h"
#include "executor/world/connection.h"
#include "tests/executor/world/ranks_in_threads.h"

using namespace arbalest;
using namespace arbalest::test;

namespace meeting_test {
namespace {

// Sends the beginning of a frame byte by byte, until the others have met or it is sent away.
void trickle(int port, std::promise<void>& visited, const std::atomic<bool>& met) {
  const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(uint16_t(port));
  REQUIRE(connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  visited.set_value();
  // A header that announces a body of 4096 bytes.
  std::string frame = {'\xb5', '\xa6', 1, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0};
  frame.resize(frame.size() + 4096, 'x');
  for (const char& byte : frame) {
    if (met || send(descriptor, &byte, 1, MSG_NOSIGNAL) != 1) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  while (!met) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  close(descriptor);
}

}  // namespace

TEST_CASE("ranks that do not come are named, with the variable that counts them") {
  const int port = free_port();
  const auto found = faults({[&] {
                               WorldSettings first = settings(0, 4, port);
                               first.patience = 1;
                               Ranks ranks(first);
                             },
                             [&] { Ranks ranks(settings(2, 4, port)); }});
  for (const std::string& message : found) {
    has(message, "ranks 1, 3 of 4 did not come to rank 0, on " + host_name());
    has(message, "SIZE=4");
  }
}

TEST_CASE("without rank 0 the others say where they looked") {
  const int port = free_port();
  const auto found = faults({[&] {
    WorldSettings other = settings(1, 2, port);
    other.patience = 0.5;
    Ranks ranks(other);
  }});
  has(found[0], "rank 1 of 2 finds no rank 0 at 127.0.0.1:" + std::to_string(port));
  has(found[0], "; 127.0.0.1 is this host itself, " + host_name());
}

TEST_CASE("a rank that was started twice, or is of another world, ends all") {
  const int port = free_port();
  auto found = faults({[&] { Ranks ranks(settings(0, 3, port)); }, [&] { Ranks ranks(settings(1, 3, port)); },
                       [&] { Ranks ranks(settings(1, 3, port)); }});
  for (const std::string& message : found) {
    has(message, "rank 1 was started twice: on " + host_name());
    has(message, "process " + std::to_string(getpid()));
  }
  const int other = free_port();
  found = faults({[&] { Ranks ranks(settings(0, 2, other)); }, [&] { Ranks ranks(settings(1, 3, other)); }});
  for (const std::string& message : found) has(message, "is of a world of 3 ranks, and rank 0 on");
  const int taken = free_port();
  const Listener listener("127.0.0.1", taken);
  found = faults({[&] { Ranks ranks(settings(0, 2, taken)); }});
  has(found[0], "rank 0 cannot wait for the others at 127.0.0.1:" + std::to_string(taken));
  has(found[0], "Address already in use; expected a free port: is rank 0 running already?");
}

TEST_CASE("a rank with another secret, or without one, is sent away, and named where a rank is missing") {
  const auto meet = [](const std::string& first_secret, const std::string& other_secret) {
    const int port = free_port();
    WorldSettings first = settings(0, 2, port), other = settings(1, 2, port);
    first.patience = 1;
    first.secret = first_secret;
    other.secret = other_secret;
    return faults({[&] { Ranks ranks(first); }, [&] { Ranks ranks(other); }});
  };
  const std::string of = " secret (ARBALEST_SECRET or --secret-file)";
  const std::string stranger = "a process on " + host_name() + " that says it is rank 1 has ";
  const std::string host = "rank 0, on " + host_name() + ", has ";
  auto found = meet("one", "another");
  has(found[0], stranger + "another" + of);
  has(found[1], host + "another" + of);
  found = meet("one", "");
  has(found[0], stranger + "no" + of);
  has(found[1], host + "a" + of);
  found = meet("", "one");
  has(found[0], stranger + "a" + of);
  has(found[1], host + "no" + of);
}

TEST_CASE("many that connect and say nothing keep nobody from meeting") {
  const int port = free_port();
  std::vector<int> silent;
  WorldSettings first = settings(0, 2, port), second = settings(1, 2, port);
  first.patience = second.patience = 10;
  auto rank_zero = std::async(std::launch::async, [&] {
    return faults({[&] {
      Ranks ranks(first);
      ranks.end();
    }});
  });
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(uint16_t(port));
  while (silent.size() < 20) {
    const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
      silent.push_back(descriptor);
    } else {
      close(descriptor);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  CHECK(faults({[&] {
          Ranks ranks(second);
          ranks.end();
        }}) == std::vector<std::string>(1));
  CHECK(rank_zero.get() == std::vector<std::string>(1));
  for (const int descriptor : silent) close(descriptor);
}

TEST_CASE("a rank for which the limit on open files leaves no place may come in once there is one") {
  const int port = free_port();
  constexpr auto kLong = std::chrono::milliseconds(60000);
  Listener listener("127.0.0.1", port);
  const auto rank = connect_to("127.0.0.1", port, std::chrono::steady_clock::now() + kLong);
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const int next = dup(STDIN_FILENO);
  close(next);
  const rlimit none = {rlim_t(next), before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  std::string refused;
  try {
    listener.accept(kLong);
  } catch (const RunError& error) {
    refused = error.what();
  }
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(refused ==
        "no more connections can be taken in: Too many open files; expected a higher limit on them (ulimit -n)");
  CHECK(listener.accept(kLong) != nullptr);
}

TEST_CASE("something else at rank 0's port is named with the place") {
  const int port = free_port();
  Listener mute("127.0.0.1", port);
  WorldSettings lone = settings(1, 2, port);
  lone.patience = 0.2;
  const auto found = faults({[&] { Ranks ranks(lone); }});
  has(found.at(0), "127.0.0.1:" + std::to_string(port) +
                       " was to be rank 0, and has not answered as such: nothing was heard of it for ");
  has(found.at(0), "another program may use the port, or the run has begun without this process");
}

TEST_CASE("strangers that say nothing, or anything, keep nobody from meeting") {
  const int port = free_port();
  std::promise<void> visited;
  const std::future<void> after = visited.get_future();
  std::atomic<bool> met{false};
  const auto found = faults({[&] {
                               Ranks ranks(settings(0, 2, port));
                               met = true;
                               ranks.end();
                             },
                             [&] {
                               const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
                               const auto silent = connect_to("127.0.0.1", port, until);
                               const auto loud = connect_to("127.0.0.1", port, until);
                               loud->send(Frame::Kind::Hello, "k", std::string(1000, '\xff'));
                               const auto large = connect_to("127.0.0.1", port, until);
                               try {
                                 large->send(Frame::Kind::Hello, "k", std::string(8 << 20, 'x'));
                               } catch (const RunError&) {  // rank 0 reads no more of it
                               }
                               trickle(port, visited, met);
                             },
                             [&] {
                               after.wait();
                               Ranks ranks(settings(1, 2, port));
                               ranks.end();
                             }});
  CHECK(found == std::vector<std::string>(3));
}

TEST_CASE("rank 0 that other hosts reach is found at addresses of either kind") {
  const int port = free_port();
  Listener listener("a-host-of-others", port);
  const auto soon = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  CHECK_NOTHROW(connect_to("127.0.0.1", port, soon));
  const int six = socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 own{};
  own.sin6_family = AF_INET6;
  own.sin6_addr = in6addr_loopback;
  const bool here = six >= 0 && bind(six, reinterpret_cast<sockaddr*>(&own), sizeof own) == 0;
  if (six >= 0) close(six);
  if (!here) {
    MESSAGE("SKIP: this machine has no IPv6");
    return;
  }
  CHECK_NOTHROW(connect_to("::1", port, soon));
}

TEST_CASE("rank 0 waits at lists of addresses, with loopback ones among them") {
  const auto soon = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  for (const char* list : {"127.0.0.1,10.0.0.1", "127.0.0.1,localhost", "localhost,127.0.0.1"}) {
    CAPTURE(list);
    const int port = free_port();
    std::optional<Listener> listener;
    REQUIRE_NOTHROW(listener.emplace(list, port));
    CHECK_NOTHROW(connect_to(list, port, soon));
  }
}

TEST_CASE("rank 0 says at once that others may not find its host by the address that it was given") {
  const std::string elsewhere = "198.51.100.7";  // of no host: kept for examples
  CHECK(not_this_host("localhost") == "");
  CHECK(not_this_host("0.0.0.0") == "");
  CHECK(not_this_host(elsewhere + ",127.0.0.1") == "");
  has(not_this_host(elsewhere), elsewhere + " is no address of this host, which has ");
  has(not_this_host("no-such-name.invalid"), "no-such-name.invalid: ");
  static std::vector<std::string> warnings;
  const MessageHandler before = set_warning_handler([](const std::string& message) { warnings.push_back(message); });
  const auto found = faults({[&] {
    WorldSettings first = settings(0, 2, free_port());
    first.host = elsewhere;
    first.patience = 0.2;
    Ranks ranks(first);
  }});
  set_warning_handler(before);
  REQUIRE(warnings.size() == 1);
  has(warnings[0], "and " + elsewhere + " is no address of this host, which has ");
  has(found[0], "rank 1 of 2 did not come to rank 0");
  has(found[0], "; " + elsewhere + " is no address of this host, which has ");
}

}  // namespace meeting_test
