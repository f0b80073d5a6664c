// SPDX-License-Identifier: Apache-2.0

// Tests the scheduler when the system fails it: no threads, no memory, devices that must be aborted.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <cstdlib>
#include <fstream>
#include <new>
#include <sstream>
#include <system_error>
#include <thread>
#include <vector>

#include "base/plain_message.h"
#include "executor/devices/threads.h"
#include "tests/executor/run/child_process.h"
#include "tests/executor/run/passing_device.h"
#include "tests/executor/run/scheduler_harness.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace scheduler_failure_test {
namespace {

// Counts how often the scheduler gives up.
struct Watched : PassingDevice {
  Watched(std::unique_ptr<Device> inner, std::atomic<int>& aborts) : PassingDevice(std::move(inner)), aborts(aborts) {}

  void abort() override {
    ++aborts;
    PassingDevice::abort();
  }

  std::atomic<int>& aborts;
};

// Meets an error as GPUs do: of a task that ran, and which is not known. What it does then may never end.
struct Failing final : Watched {
  Failing(std::unique_ptr<Device> inner, std::atomic<int>& aborts, bool hangs)
      : Watched(std::move(inner), aborts), hangs(hangs) {}

  void start(const Plan& plan, const Table<TaskId, BoundTask>& tasks, CompletionSink& to,
             TraceRecorder* trace) override {
    sink = &to;
    Watched::start(plan, tasks, to, trace);
  }
  void issue(const BoundTask& task, int64_t instance) override {
    if (task.id != 0 && instance == 2 && !failed.exchange(true)) {
      sink->failed(task.id, 2, std::make_exception_ptr(DeviceError("cpu:0: broken", {{0, 3}, {task.id, 1}})));
    }
    Watched::issue(task, instance);
  }
  bool under_way() const override { return hangs; }

  const bool hangs;
  CompletionSink* sink = nullptr;
  std::atomic<bool> failed{false};
};

Harness failing_harness(std::atomic<int>& aborts, bool hangs) {
  return Harness(epochs(on_cpus(), 2), true, [&aborts, hangs](std::unique_ptr<Device> device, CallWatch&) {
    return std::make_unique<Failing>(std::move(device), aborts, hangs);
  });
}

// A system that gives `left` threads.
ThreadStarter limited(int& left) {
  return [&left](std::function<void()> work) {
    if (left-- > 0) return start_std_thread(std::move(work));
    throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
  };
}

}  // namespace

TEST_CASE("after an error devices are aborted once, after a good run never") {
  for (const bool fails : {false, true}) {
    std::atomic<int> aborts{0};
    Harness harness(epochs(on_cpus(), 2), true, [&](std::unique_ptr<Device> device, CallWatch&) {
      return std::make_unique<Watched>(std::move(device), aborts);
    });
    if (fails) harness.host[harness.task("report")] = [](int64_t) { throw RunError("broken"); };
    CHECK((harness.run() == "") == !fails);
    CHECK(aborts == (fails ? 1 : 0));
  }
}

TEST_CASE("an error that a device met while it did several tasks names all of them") {
  std::atomic<int> aborts{0};
  Harness harness = failing_harness(aborts, false);
  const std::string told = harness.run();
  INFO(told);
  const std::string& first = harness.plan.tasks[0].name;
  const size_t besides = told.find(": cpu:0: broken; or met by: " + first);
  REQUIRE(besides != std::string::npos);
  const std::string place = told.substr(0, besides);  // "step, device cpu:0, learner 0, iteration 2"
  CHECK(contains(place, ", device cpu:0, "));
  REQUIRE(place.ends_with(" 2"));
  CHECK(told.ends_with("; " + place.substr(0, place.size() - 1) + "1"));
}

// Run by the next test, in a process of its own.
TEST_CASE("child: a run on a device that hangs" * doctest::skip()) {
  std::atomic<int> aborts{0};
  SchedulerOptions options;
  options.process_ends = [](const std::string& message) { std::fprintf(stderr, "told: %s\n", message.c_str()); };
  failing_harness(aborts, true).run(std::move(options));
}

TEST_CASE("where what a device does never ends the process does, with the error, after telling observers") {
  const ChildProcess child = run_child("child: a run on a device that hangs");
  INFO(child.said);
  CHECK(child.status == 1);
  const size_t told = child.said.find("told: "), shown = child.said.find("arbalest: ");
  REQUIRE(told != std::string::npos);
  REQUIRE(shown != std::string::npos);
  CHECK(told < shown);
  CHECK(child.said.find("cpu:0: broken", shown) != std::string::npos);
}

TEST_CASE("memory that runs out is reported in words") {
  const auto told = [](const std::function<void(int64_t)>& report) {
    Harness harness(epochs(on_cpus(), 2));
    harness.host[harness.task("report")] = report;
    return harness.run();
  };
  CHECK(told([](int64_t) { throw std::bad_alloc(); }) == "report, report 0: not enough memory on the host");
  CHECK(told([](int64_t) { throw std::length_error("vector::reserve"); }) ==
        "report, report 0: a size exceeds what memory can address");
}

TEST_CASE("where threads for host tasks cannot be had, that is said before anything runs") {
  Harness harness(epochs(on_cpus(), 2));
  for (int threads = 0; threads < 4; ++threads) {
    int left = threads;
    SchedulerOptions options;
    options.threads = 4;
    options.thread_starter = limited(left);
    const std::string message =
        message_of([&] { Scheduler scheduler(*harness.binding, harness.host, std::move(options)); });
    CHECK(contains(message, "no thread could be started for host tasks (4 of them)"));
    CHECK(contains(message, "ulimit -u"));
  }
}

// Bytes of this process's address space that are in use: its libraries, CUDA's among them, may take gigabytes.
size_t address_space() {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * size_t(sysconf(_SC_PAGESIZE));
}

TEST_CASE("child: threads that allocate in a limited address space" * doctest::skip()) {
  const size_t most = address_space() + (size_t{2} << 30);
  const rlimit memory{most, most};
  REQUIRE(setrlimit(RLIMIT_AS, &memory) == 0);
  constexpr int kThreads = 4;
  expect_threads(kThreads, "tests");
  std::barrier all(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.push_back(start_thread("a test", [&all] {
      const std::string text(100, ' ');
      all.arrive_and_wait();
    }));
  }
  for (std::thread& thread : threads) thread.join();
  malloc_info(0, stderr);
}

TEST_CASE("where address space is limited threads have no arena of the allocator each") {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  MESSAGE("SKIP: sanitizers have allocators of their own");
  return;
#endif
  const ChildProcess child = run_child("child: threads that allocate in a limited address space");
  INFO(child.said);
  CHECK(child.status == 0);
  CHECK(contains(child.said, "<heap nr=\"0\">"));
  CHECK_FALSE(contains(child.said, "<heap nr=\"1\">"));
}

TEST_CASE("child: a run of this process" * doctest::skip()) {
  const char* room = std::getenv("ARBALEST_CHILD_ROOM");  // MiB
  REQUIRE(room != nullptr);
  const size_t most = address_space() + (std::stoul(room) << 20);
  const rlimit memory{most, most};
  REQUIRE(setrlimit(RLIMIT_AS, &memory) == 0);
  SessionOptions options = on_cpus();
  options.execution.threads = 64;
  options.length.iterations = 3;
  std::string message;
  try {
    run(tiny({}), options);
  } catch (const std::exception& error) {
    message = plain_message(error);  // as the command tells it: which thread is refused depends on the machine
  }
  if (const char* file = std::getenv("ARBALEST_CHILD_SAYS")) std::ofstream(file, std::ios::app) << message << "\n";
}

// Run in a process of its own: a limit cannot be raised again.
TEST_CASE("with little address space for its threads a run ends well or with an error, and in time") {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  MESSAGE("SKIP: sanitizers themselves need the address space that is kept from the run");
  return;
#endif
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  // MiB for none, some or all of the 64 host threads and the 64 of kernels, each of which takes 8 MiB of stack.
  for (const int room : {45, 300, 700, 1100, 1400, 1700}) {
    CAPTURE(room);
    const TestFolder folder;
    const std::string said = (folder / "said").string();
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      const rlimit stack{size_t{8} << 20, size_t{8} << 20};
      setrlimit(RLIMIT_STACK, &stack);
      setenv("ARBALEST_CHILD_SAYS", said.c_str(), 1);
      setenv("ARBALEST_CHILD_ROOM", std::to_string(room).c_str(), 1);
      dup2(open(said.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600), STDERR_FILENO);
      alarm(60);
      execl(program.c_str(), program.c_str(), "-tc=child: a run of this process", "-ns", "-m", nullptr);
      _exit(99);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK_MESSAGE(!WIFSIGNALED(status), "ended by signal ", WTERMSIG(status));
    std::ostringstream text;
    text << std::ifstream(said).rdbuf();
    INFO(text.str());
    const bool ran = text.str() == "\n" && room > 1024;
    CHECK((ran || contains(text.str(), "no thread could be started") || contains(text.str(), "not enough memory")));
    CHECK_FALSE(contains(text.str(), "libgomp"));  // which ends the process itself
  }
}

TEST_CASE("docs say how long a queue has to end what it was given") {
  const char* source = std::getenv("ARBALEST_SOURCE");
  std::ostringstream text;
  text << std::ifstream(std::filesystem::path(source ? source : ".") / "docs/design.md").rdbuf();
  CHECK(contains(text.str(), fmt::format("Each GPU gets {} s to finish", kDrainTime.count())));
}

}  // namespace scheduler_failure_test
