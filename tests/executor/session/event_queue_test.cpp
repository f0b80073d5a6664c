// SPDX-License-Identifier: Apache-2.0

// Events between training and its observer: order, slow observers, and observers that fail.

#include "executor/session/event_queue.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace arbalest;

namespace event_queue_test {
namespace {

// Records events as text; the first call waits for `gate` if there is one.
class Teller final : public RunObserver {
 public:
  explicit Teller(std::shared_future<void> gate = {}) : gate_(std::move(gate)) {}

  void started(const RunStarted&) override { tell("start"); }
  void progress(const RunProgress& event) override {
    missed += event.missed;
    tell("p" + std::to_string(event.iteration));
  }
  void epoch(const EpochEnded& event) override { tell("E" + std::to_string(event.epoch)); }
  void validation(const Validated& event) override { tell("V" + std::to_string(event.epoch)); }
  void checkpoint(const CheckpointSaved& event) override { tell(event.path); }
  void finished(const RunFinished&) override { tell("end"); }
  void failed(const RunFailed&) override { tell("failed"); }

  std::vector<std::string> told;
  int64_t missed = 0;

 private:
  void tell(std::string text) {
    if (gate_.valid()) gate_.wait();
    told.push_back(std::move(text));
  }

  const std::shared_future<void> gate_;
};

RunProgress progress(int64_t iteration) {
  RunProgress event;
  event.iteration = iteration;
  return event;
}

EpochEnded epoch(int64_t number, bool validates) {
  EpochEnded event;
  event.epoch = number;
  event.validates = validates;
  return event;
}

Validated validation(int64_t number) {
  Validated event;
  event.epoch = number;
  return event;
}

template <typename... Calls>
std::vector<std::string> told_of(const Calls&... calls) {
  Teller teller;
  {
    EventQueue queue(teller);
    (calls(queue), ...);
  }
  return teller.told;
}

using Lines = std::vector<std::string>;

auto end_of(int64_t number, bool validates = true) {
  return [=](EventQueue& queue) { queue.on(epoch(number, validates)); };
}

auto validated(int64_t number) {
  return [=](EventQueue& queue) { queue.on(validation(number)); };
}

void finish(EventQueue& queue) {
  queue.on(RunFinished{});
}

}  // namespace

TEST_CASE("a slow observer holds up nobody, misses reports alone, and learns of it") {
  std::promise<void> gate;
  Teller teller(gate.get_future().share());
  constexpr int64_t kReports = 1000, kMost = 16;
  EventQueue queue(teller, kMost);
  queue.on(RunStarted{});
  const auto began = std::chrono::steady_clock::now();
  for (int64_t i = 1; i <= kReports; ++i) {
    queue.on(progress(i));
    if (i % 250 == 0) queue.on(CheckpointSaved{"saved " + std::to_string(i), 0, 0, 0, 0});
  }
  queue.on(epoch(1, true));
  queue.on(validation(1));
  queue.on(RunFinished{});
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(10));  // and it is not released yet
  CHECK(teller.told.empty());
  gate.set_value();
  queue.drain();

  Lines others;
  std::vector<int64_t> iterations;
  for (const std::string& text : teller.told) {
    if (text[0] == 'p') {
      iterations.push_back(std::stoll(text.substr(1)));
    } else {
      others.push_back(text);
    }
  }
  CHECK(others == Lines{"start", "saved 250", "saved 500", "saved 750", "saved 1000", "E1", "V1", "end"});
  CHECK(int64_t(iterations.size()) == kMost);
  CHECK(std::is_sorted(iterations.begin(), iterations.end()));
  CHECK(iterations.back() == kReports);
  CHECK(teller.missed + int64_t(iterations.size()) == kReports);
}

TEST_CASE("an observer that keeps up misses nothing") {
  Teller teller;
  EventQueue queue(teller, 4);
  for (int64_t i = 1; i <= 50; ++i) {
    queue.on(progress(i));
    queue.drain();
  }
  CHECK(teller.told.size() == 50);
  CHECK(teller.missed == 0);
}

TEST_CASE("lines of epochs come in the order of epochs, training before validation") {
  // Validation takes longer than an epoch.
  CHECK(told_of(end_of(1), end_of(2), validated(1), validated(2), finish) == Lines{"E1", "V1", "E2", "V2", "end"});
  // It is done before the epoch's last report is.
  CHECK(told_of(validated(1), end_of(1), end_of(2), validated(2), finish) == Lines{"E1", "V1", "E2", "V2", "end"});
  // Every other epoch is validated.
  CHECK(told_of(end_of(1, false), end_of(2), end_of(3, false), end_of(4), validated(2), validated(4), finish) ==
        Lines{"E1", "E2", "V2", "E3", "E4", "V4", "end"});
  // A validation that never comes holds up nothing at the end, and one that was not announced is passed on at once.
  CHECK(told_of(end_of(1), end_of(2), finish) == Lines{"E1", "E2", "end"});
  CHECK(told_of(end_of(1), end_of(2), [](EventQueue& queue) { queue.on(RunFailed{}); }) == Lines{"E1", "E2", "failed"});
  CHECK(told_of(end_of(1, false), validated(1), end_of(2, false), finish) == Lines{"E1", "V1", "E2", "end"});
  // Reports are not held back.
  CHECK(told_of(
            end_of(1), [](EventQueue& queue) { queue.on(progress(7)); }, end_of(2), validated(1), finish) ==
        Lines{"E1", "p7", "V1", "E2", "end"});
}

TEST_CASE("what an observer throws is thrown once, and it is called no more") {
  class Throwing final : public RunObserver {
   public:
    void progress(const RunProgress&) override {
      ++calls;
      throw std::runtime_error("no paper");
    }
    void finished(const RunFinished&) override { ++calls; }
    int calls = 0;
  };
  Throwing observer;
  EventQueue queue(observer);
  queue.on(progress(1));
  queue.on(progress(2));
  queue.on(RunFinished{});
  CHECK_THROWS_WITH(queue.drain(), "no paper");
  CHECK(observer.calls == 1);
}

TEST_CASE("an observer that throws leaves the others their events, and what it threw comes last") {
  class Throwing final : public RunObserver {
   public:
    void progress(const RunProgress&) override {
      ++calls;
      throw std::runtime_error("no paper");
    }
    int calls = 0;
  };
  Throwing first, last;
  Teller between;
  Observers observers({&first, &between, &last});
  EventQueue queue(observers);
  queue.on(progress(1));
  queue.on(progress(2));
  queue.on(RunFinished{});
  CHECK_THROWS_WITH(queue.drain(), "no paper");
  CHECK(between.told == std::vector<std::string>{"p1", "p2", "end"});
  CHECK(first.calls == 1);
  CHECK(last.calls == 1);
  CHECK_NOTHROW(observers.on(RunFailed{}));  // the exception is thrown only once
}

}  // namespace event_queue_test
