// SPDX-License-Identifier: Apache-2.0

// One thread asks several GPUs what has ended. No GPU is needed: the calls of CUDA that a poller makes are these here.

#include "executor/devices/cuda_poller.h"

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "executor/devices/call_watch.h"

using namespace arbalest;
using namespace std::chrono_literals;

namespace cuda_poller_test {
namespace {

using Steady = std::chrono::steady_clock;

// Stands for an event.
struct Mark {
  std::atomic<cudaError_t> state{cudaErrorNotReady};
  int device = 0;
};

thread_local int current_device = -1;
std::atomic<int> queries{0}, elsewhere{0};  // the latter: of another device than the current one

cudaEvent_t event_of(Mark& mark) {
  return reinterpret_cast<cudaEvent_t>(&mark);
}

// Lists what it hears, in order: "done 3", "failed 3".
class Told final : public CompletionSink {
 public:
  void completed(TaskId task, int64_t, int64_t, int64_t) override {
    add("done", task);
    held.wait(true);
  }
  void failed(TaskId task, int64_t, std::exception_ptr) override { add("failed", task); }

  std::atomic<bool> held{false};  // keeps the thread that tells

  std::vector<std::string> list() const {
    const std::scoped_lock lock(mutex_);
    return list_;
  }
  // Whether so many come within ten seconds.
  bool waits_for(size_t count) const {
    const Steady::time_point until = Steady::now() + 10s;
    while (list().size() < count && Steady::now() < until) std::this_thread::sleep_for(1ms);
    return list().size() == count;
  }

 private:
  void add(const std::string& what, TaskId task) {
    const std::scoped_lock lock(mutex_);
    list_.push_back(what + " " + std::to_string(int(task)));
  }
  mutable std::mutex mutex_;
  std::vector<std::string> list_;
};

// A lane on some devices, with one instance of a task whose number is `task`.
struct Lane {
  Lane(int task, const std::vector<int>& devices, Told& told, CallWatch& calls,
       const std::shared_ptr<PollingThread>& thread)
      : task(task), marks(devices.size()) {
    std::vector<std::string> names;
    ring.per_instance = devices.size();
    for (size_t i = 0; i < devices.size(); ++i) {
      marks[i].device = devices[i];
      ring.events.push_back(event_of(marks[i]));
      names.push_back("cuda:" + std::to_string(devices[i]));
    }
    poller = std::make_unique<CudaPoller>(names, devices.front(), std::vector{&pending},
                                          CudaPoller::Watched{told, nullptr, calls.add(names), {}}, thread);
  }
  void issue() { poller->push(pending, {TaskId(task), 0, -1, &ring}); }
  void end(cudaError_t state) {
    for (Mark& mark : marks) mark.state.store(state);
  }

  const int task;
  std::vector<Mark> marks;
  CudaEvents::Ring ring;
  CudaPoller::Pending pending;
  std::unique_ptr<CudaPoller> poller;  // last: it uses the others
};

}  // namespace
}  // namespace cuda_poller_test

extern "C" cudaError_t cudaSetDevice(int device) {
  cuda_poller_test::current_device = device;
  return cudaSuccess;
}

extern "C" cudaError_t cudaGetDevice(int* device) {
  *device = cuda_poller_test::current_device;
  return cudaSuccess;
}

extern "C" cudaError_t cudaEventQuery(cudaEvent_t event) {
  const auto& mark = *reinterpret_cast<const cuda_poller_test::Mark*>(event);
  ++cuda_poller_test::queries;
  if (mark.device != cuda_poller_test::current_device) ++cuda_poller_test::elsewhere;
  return mark.state.load();
}

namespace cuda_poller_test {

TEST_CASE("one thread tells what several GPUs complete, and sleeps while nothing is under way") {
  CallWatch calls(20);
  Told told;
  const auto thread = std::make_shared<PollingThread>();
  std::vector<std::unique_ptr<Lane>> lanes;
  for (int device = 0; device < 4; ++device) {
    lanes.push_back(std::make_unique<Lane>(device, std::vector{device}, told, calls, thread));
  }
  queries = elsewhere = 0;
  std::this_thread::sleep_for(20ms);
  CHECK(queries == 0);
  for (const auto& lane : lanes) lane->issue();
  size_t ended = 0;
  for (const int device : {2, 0, 3, 1}) {
    lanes[size_t(device)]->end(cudaSuccess);
    CHECK(told.waits_for(++ended));
  }
  CHECK(told.list() == std::vector<std::string>{"done 2", "done 0", "done 3", "done 1"});
  CHECK(queries > 0);
  CHECK(elsewhere == 0);
  std::this_thread::sleep_for(20ms);  // for a look that is under way
  const int asked = queries;
  std::this_thread::sleep_for(20ms);
  CHECK(queries == asked);
}

TEST_CASE("an error of a collective is the device's own to report, and nothing waits meanwhile") {
  CallWatch calls(20);
  Told told;
  const auto thread = std::make_shared<PollingThread>();
  Lane collective(7, {0, 1}, told, calls, thread), first(0, {0}, told, calls, thread),
      second(1, {1}, told, calls, thread);
  for (Lane* lane : {&collective, &first, &second}) lane->issue();
  told.held = true;
  second.end(cudaSuccess);
  REQUIRE(told.waits_for(1));
  const Steady::time_point began = Steady::now();
  collective.end(cudaErrorLaunchFailure);  // which is looked at before the GPU's own lane
  first.end(cudaErrorLaunchFailure);
  told.held = false;
  told.held.notify_all();
  REQUIRE(told.waits_for(3));
  CHECK(Steady::now() - began >= 50ms);
  CHECK(told.list() == std::vector<std::string>{"done 1", "failed 0", "failed 7"});
}

TEST_CASE("a collective that fails alone is reported as well, also if it is stopped before") {
  for (const bool stopped : {false, true}) {
    CallWatch calls(20);
    Told told;
    Lane collective(7, {0, 1}, told, calls, std::make_shared<PollingThread>());
    collective.issue();
    collective.end(cudaErrorLaunchFailure);
    if (stopped) collective.poller->stop(Steady::now() + 10s);
    CHECK(told.waits_for(1));
    CHECK(told.list() == std::vector<std::string>{"failed 7"});
    CHECK_FALSE(collective.poller->under_way());
  }
}

}  // namespace cuda_poller_test
