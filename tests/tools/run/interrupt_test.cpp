// SPDX-License-Identifier: Apache-2.0

// Signals: the first asks a command to end, the second ends the process.

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "tests/io/test_folder.h"
#include "tools/command/interrupt.h"

using namespace arbalest;
using namespace arbalest::test;

namespace interrupt_test {

TEST_CASE("the first signal sets the flag, the second kills") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      const InterruptHandler handler;
      if (std::freopen("/dev/null", "w", stderr) == nullptr || InterruptHandler::requested()) _exit(10);
      if (!InterruptHandler::signal_name().empty()) _exit(10);
      raise(signal);
      if (!InterruptHandler::requested()) _exit(11);
      if (InterruptHandler::signal_name() != std::string("SIG") + sigabbrev_np(signal)) _exit(11);
      raise(signal);  // right after: part of the same interrupt
      std::this_thread::sleep_for(std::chrono::milliseconds(600));
      raise(signal);
      _exit(12);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == signal);
  }
}

TEST_CASE("an interrupt is reported in the words of what it ends") {
  const TestFolder folder;
  const std::string path = folder / "told.txt";
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const InterruptHandler handler("ending with what is finished");
    if (std::freopen(path.c_str(), "w", stderr) == nullptr) _exit(10);
    raise(SIGINT);
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  std::ifstream told(path);
  CHECK(std::string(std::istreambuf_iterator<char>(told), {}) == "ending with what is finished");
}

TEST_CASE("past its limit of processor time a process is asked to end every second, and may take longer") {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const InterruptHandler handler;
    raise(SIGXCPU);
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    raise(SIGXCPU);
    _exit(InterruptHandler::requested() && InterruptHandler::signal_name() == "SIGXCPU" ? 0 : 11);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("under nohup a terminal that goes away is no interrupt") {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::signal(SIGHUP, SIG_IGN);
    const InterruptHandler handler;
    raise(SIGHUP);
    _exit(InterruptHandler::requested() ? 11 : 0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

}  // namespace interrupt_test
