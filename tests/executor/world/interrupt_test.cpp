// SPDX-License-Identifier: Apache-2.0

// A rank that is asked to end while ranks meet ends the others too, without waiting for anybody.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <chrono>
#include <future>
#include <stop_token>
#include <string>
#include <thread>

#include "base/process.h"
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
  static std::promise<void> met;  // once the third rank alone is missing
  const MessageHandler before = set_warning_handler([](const std::string& message) {
    if (message.find(" for rank 2 of 3") != message.npos) met.set_value();
  });
  std::stop_source stop, last_resort;
  auto first = std::async(std::launch::async, [&] { return end_of_meeting(patient(0, 3, port, last_resort)); });
  auto other = std::async(std::launch::async, [&] { return end_of_meeting(patient(1, 3, port, stop)); });
  CHECK(met.get_future().wait_for(std::chrono::seconds(120)) == std::future_status::ready);
  stop.request_stop();
  CHECK(other.get() == told_of(1));
  if (first.wait_for(std::chrono::seconds(120)) != std::future_status::ready) last_resort.request_stop();
  CHECK(first.get() == told_of(1));
  set_warning_handler(before);
}

}  // namespace interrupt_test
