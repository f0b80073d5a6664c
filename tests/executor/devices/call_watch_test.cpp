// SPDX-License-Identifier: Apache-2.0

// Tests calls that do not return, or return late: which listener is called, and how a run ends.

#include "executor/devices/call_watch.h"

#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <optional>

#include "base/process.h"
#include "tests/executor/run/child_process.h"
#include "tests/executor/run/passing_device.h"
#include "tests/executor/run/scheduler_harness.h"

using namespace arbalest;
using namespace arbalest::test;
using namespace std::chrono_literals;

namespace call_watch_test {
namespace {

template <typename Condition>
bool within(std::chrono::milliseconds time, const Condition& condition) {
  const auto until = std::chrono::steady_clock::now() + time;
  while (!condition() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(1ms);
  return condition();
}

// The call for the third instance of a task does not return before the run is aborted, if it ever does.
struct Keeping final : PassingDevice {
  Keeping(std::unique_ptr<Device> inner, CallWatch& calls, bool returns)
      : PassingDevice(std::move(inner)), caller(calls.add({"cpu:0"})), returns(returns) {}

  void issue(const BoundTask& task, int64_t instance) override {
    if (instance == 2 && !kept.exchange(true)) {
      const CallWatch::Call call(caller, task.id, instance);
      while (!aborted.load() || !returns) std::this_thread::sleep_for(1ms);
    }
    PassingDevice::issue(task, instance);
  }
  void abort() override {
    PassingDevice::abort();
    aborted = true;
  }

  CallWatch::Caller& caller;
  const bool returns;
  std::atomic<bool> kept{false}, aborted{false};
};

Harness keeping_harness(bool returns) {
  const auto wrap = [returns](std::unique_ptr<Device> device, CallWatch& calls) {
    return std::make_unique<Keeping>(std::move(device), calls, returns);
  };
  return Harness(epochs(on_cpus(), 2), true, wrap, 0.2);
}

constexpr const char* kMessage =
    ": a call of the driver for cpu:0 has not returned for 0.2 s; where it may take so long, raise --device-timeout";

}  // namespace

TEST_CASE("a call that takes longer than it may is reported once, with what it is for, and others are not") {
  std::mutex mutex;
  std::vector<CallWatch::Late> told;
  CallWatch calls(0.5);  // long enough for the other calls on a busy machine
  CHECK_FALSE(calls
                  .listen({[&](const CallWatch::Late& late) {
                             const std::scoped_lock lock(mutex);
                             told.push_back(late);
                           },
                           {}})
                  .late);
  const auto count = [&] {
    const std::scoped_lock lock(mutex);
    return told.size();
  };
  CallWatch::Caller &caller = calls.add({"cuda:0"}), &other = calls.add({"cuda:1"});
  std::atomic<bool> over{false};
  std::thread busy([&] {  // by call after call, each of which returns
    while (!over.load()) {
      const CallWatch::Call call(other, 1, 2);
      std::this_thread::sleep_for(1ms);
    }
  });
  {
    const CallWatch::Call call(caller);
    caller.about(3, 7);
    CHECK(within(10s, [&] { return count() > 0; }));
    std::this_thread::sleep_for(200ms);
  }
  CHECK(count() == 1);
  {
    const CallWatch::Call call(caller, 4, 8);
    CHECK(within(10s, [&] { return count() > 1; }));
  }
  over = true;
  busy.join();
  const CallWatch::Listener before = calls.listen({});
  CHECK(before.late);
  REQUIRE(told.size() == 2);
  CHECK(told[0].message.starts_with("a call of the driver for cuda:0 has not returned for 0.5 s; "));
  CHECK(told[0].task == TaskId(3));
  CHECK(told[0].instance == 7);
  CHECK(told[1].task == TaskId(4));
  CHECK(told[1].instance == 8);
}

TEST_CASE("while modules are loaded for a device, all calls for it may take ten times as long, and no others") {
  std::atomic<int> own{0}, of_both{0}, of_other{0};
  CallWatch calls(0.2, 1h);
  calls.listen({[&](const CallWatch::Late& late) {
                  ++(late.task == 1 ? own : late.task == 2 ? of_both : of_other);
                },
                {}});
  CallWatch::Caller &issuing = calls.add({"cuda:0"}), &looking = calls.add({"cuda:0"});
  CallWatch::Caller &both = calls.add({"cuda:0", "cuda:1"}), &other = calls.add({"cuda:1"});
  const auto began = std::chrono::steady_clock::now();
  const CallWatch::Loading loading(issuing);
  const CallWatch::Call first(looking, 1, 2), second(both, 2, 2), third(other, 3, 2);
  REQUIRE(within(10s, [&] { return of_other > 0; }));
  CHECK(own == 0);
  CHECK(of_both == 0);
  CHECK(within(30s, [&] { return own > 0 && of_both > 0; }));
  CHECK(std::chrono::steady_clock::now() - began > 1900ms);
  CHECK(of_other == 1);
}

TEST_CASE("a call that has waited for modules is not late as soon as they are loaded" * doctest::test_suite("alone")) {
  std::atomic<int> told{0};
  CallWatch calls(1);
  calls.listen({[&](const CallWatch::Late&) { ++told; }, {}});
  CallWatch::Caller& caller = calls.add({"cuda:0"});
  std::optional<CallWatch::Loading> loading(std::in_place, caller);
  const CallWatch::Call call(caller, 1, 2);
  std::this_thread::sleep_for(1500ms);
  loading.reset();
  std::this_thread::sleep_for(200ms);
  CHECK(told == 0);
  CHECK(within(10s, [&] { return told > 0; }));
}

TEST_CASE("a run ends with an error where a call returns only once it is aborted") {
  const std::string told = keeping_harness(true).run();
  INFO(told);
  CHECK(contains(told, ", device cpu:0, "));
  CHECK(told.ends_with(std::string(" 2") + kMessage));
}

// Run by the next test, in a process of its own.
TEST_CASE("child: a run with a call that never returns" * doctest::skip()) {
  SchedulerOptions options;
  options.process_ends = [](const std::string& message) { std::fprintf(stderr, "told: %s\n", message.c_str()); };
  keeping_harness(false).run(std::move(options));
}

TEST_CASE("where a call never returns the process ends, with the task that it is for, after telling observers") {
  const auto began = std::chrono::steady_clock::now();
  const ChildProcess child = run_child("child: a run with a call that never returns");
  INFO(child.said);
  CHECK(std::chrono::steady_clock::now() - began < 30s);
  CHECK(child.status == 1);
  const size_t told = child.said.find("told: "), shown = child.said.find("arbalest: ");
  REQUIRE(told != std::string::npos);
  REQUIRE(shown != std::string::npos);
  CHECK(told < shown);
  CHECK(child.said.find(std::string(" 2") + kMessage, shown) != std::string::npos);
  CHECK(child.said.find("arbalest: ", shown + 1) == std::string::npos);
}

// Run by the next test, in a process of its own.
TEST_CASE("child: calls of no run that never return" * doctest::skip()) {
  CallWatch calls(0.2, CallWatch::Seconds(0.2));
  CallWatch::Caller &driver = calls.add({"cuda:0"}), &abort = calls.add({"cuda:1"}, "NCCL's abort");
  calls.add({"cuda:2"});
  const CallWatch::Call first(driver), second(abort);
  for (;;) std::this_thread::sleep_for(1s);
}

TEST_CASE("where calls never return that belong to no run the process ends as well, and names all of them") {
  const ChildProcess child = run_child("child: calls of no run that never return");
  INFO(child.said);
  CHECK(child.status == 1);
  CHECK(contains(child.said,
                 "arbalest: a call of the driver for cuda:0, NCCL's abort for cuda:1 have not returned for "));
}

// Run by the next test, in a process of its own.
TEST_CASE("child: a program that ends itself" * doctest::skip()) {
  set_warning_handler([](const std::string& message) { std::fprintf(stderr, "warned: %s\n", message.c_str()); });
  set_end_handler([](const std::string& message) {
    warn("the process ends");
    std::fprintf(stderr, "ends: %s\n", message.c_str());
    std::_Exit(7);
  });
  CallWatch calls(0.05, CallWatch::Seconds(0.05));
  const CallWatch::Call call(calls.add({"cuda:0"}));
  for (;;) std::this_thread::sleep_for(1s);
}

TEST_CASE("a program decides what becomes of warnings and how its process ends") {
  const ChildProcess child = run_child("child: a program that ends itself");
  INFO(child.said);
  CHECK(child.status == 7);
  CHECK(contains(child.said, "warned: the process ends\nends: a call of the driver for cuda:0 has not returned"));
  CHECK(!contains(child.said, "arbalest: "));
}

TEST_CASE("setting a handler returns the former one, and none restores the default") {
  const MessageHandler mine = [](const std::string&) {};
  const MessageHandler before = set_warning_handler(mine);
  CHECK((set_warning_handler(nullptr) == mine));
  CHECK((set_warning_handler(before) == before));
}

}  // namespace call_watch_test
