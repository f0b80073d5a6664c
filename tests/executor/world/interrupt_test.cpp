// SPDX-License-Identifier: Apache-2.0

// A rank that is asked to end before all have begun ends the others too, without waiting for anybody.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <latch>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "executor/world/connection.h"
#include "tests/executor/world/ranks_in_threads.h"

using namespace arbalest;
using namespace arbalest::test;

namespace interrupt_test {
namespace {

constexpr double kForEver = 3600;  // seconds of patience: what does not end by the stop hangs

WorldSettings patient(int rank, int size, int port, const std::stop_source& stop) {
  WorldSettings world = settings(rank, size, port);
  world.patience = kForEver;
  world.stop = stop.get_token();
  world.interrupted_by = [] { return std::string("SIGTERM"); };
  return world;
}

std::string told_of(int rank) {
  return fmt::format("rank {} on {} was interrupted by SIGTERM before all ranks had begun", rank, host_name());
}

// The message of the interrupt that ends the meeting.
std::string end_of_meeting(const WorldSettings& settings) {
  try {
    Ranks ranks(settings);
  } catch (const InterruptedError& error) {
    CHECK(int(error.code()) == 130);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a rank that finds no rank 0, and a rank 0 that waits, end when they are asked to") {
  const int port = free_port();
  for (const int rank : {1, 0}) {
    CAPTURE(rank);
    std::stop_source stop;
    auto waiting = std::async(std::launch::async, [&] { return end_of_meeting(patient(rank, 2, port, stop)); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    stop.request_stop();
    CHECK(waiting.get() == told_of(rank));
  }
}

TEST_CASE("a rank that waits for an answer of rank 0 ends when it is asked to, and rank 0 hears of it") {
  const int port = free_port();
  const std::stop_source none;
  std::stop_source stop;
  Listener listener("127.0.0.1", port);
  auto rank = std::async(std::launch::async, [&] { return end_of_meeting(patient(1, 3, port, stop)); });
  const auto connection = listener.accept(std::chrono::milliseconds(60000));
  REQUIRE(connection);
  std::string stranger;
  REQUIRE(greet(patient(0, 3, port, none), *connection, stranger).has_value());
  connection->set_patience(std::chrono::seconds(60));
  stop.request_stop();
  const Frame told = connection->receive(1000);
  CHECK(told.kind == Frame::Kind::Failed);
  CHECK(told.key == Frame::kInterrupt);
  CHECK(told.bytes == told_of(1));
  CHECK(rank.get() == told_of(1));
}

TEST_CASE("an interrupt while ranks meet ends those that are there") {
  const int port = free_port();
  const std::stop_source none;
  auto first = std::async(std::launch::async, [&] { return end_of_meeting(patient(0, 3, port, none)); });
  // Rank 0 hears of it if rank 1 was there already; if not, rank 1 comes once more and stays for longer.
  for (auto stay = std::chrono::milliseconds(50);; stay *= 2) {
    std::stop_source stop;
    auto other = std::async(std::launch::async, [&] { return end_of_meeting(patient(1, 3, port, stop)); });
    std::this_thread::sleep_for(stay);
    stop.request_stop();
    CHECK(other.get() == told_of(1));
    if (first.wait_for(std::chrono::seconds(1)) == std::future_status::ready) break;
  }
  CHECK(first.get() == told_of(1));
}

TEST_CASE("an interrupt while ranks exchange what they are to agree on ends all") {
  for (const int asked : {0, 1}) {
    CAPTURE(asked);
    const int port = free_port();
    std::stop_source stop;
    const std::stop_source none;
    std::latch here(3);
    std::vector<std::function<void()>> functions;
    for (int rank = 0; rank < 3; ++rank) {
      functions.emplace_back([&, rank] {
        Ranks ranks(patient(rank, 3, port, rank == asked ? stop : none));
        here.arrive_and_wait();
        if (rank == asked) stop.request_stop();
        const auto waits = [&] { ranks.exchange("never whole", ""); };
        if (rank < 2) CHECK_THROWS_WITH_AS(waits(), told_of(asked).c_str(), RunError);
        while (!ranks.lost()) std::this_thread::yield();
        CHECK(ranks.interrupted());
        CHECK(ranks.over());
      });
    }
    CHECK(faults(functions) == std::vector<std::string>(3));
  }
}

TEST_CASE("whoever runs something looks for interrupts itself") {
  const int port = free_port();
  std::stop_source stop;
  const auto found = faults({[&] {
                               Ranks ranks(patient(0, 2, port, stop));
                               ranks.watch([] { return RankProgress{}; });
                               ranks.watch({});
                               stop.request_stop();
                               ranks.exchange("goes on", "");
                               CHECK_FALSE(ranks.interrupted());
                               ranks.end();
                             },
                             [&] {
                               Ranks ranks(settings(1, 2, port));
                               ranks.exchange("goes on", "");
                               CHECK_FALSE(ranks.interrupted());
                               ranks.end();
                             }});
  CHECK(found == std::vector<std::string>(2));
}

}  // namespace interrupt_test
