// SPDX-License-Identifier: Apache-2.0

// Outputs that one process writes at a time.

#include "base/files/output_lock.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include "base/files/atomic_file.h"
#include "base/files/file.h"
#include "tests/io/test_folder.h"

using namespace arbalest;

TEST_CASE("output lock: one at a time, whatever the name, and nothing is left") {
  const TestFolder folder;
  folder.write("weights", std::string("old"));
  std::filesystem::create_symlink("weights", folder / "link");
  const std::string longest(255, 'n'), other = std::string(254, 'n') + 'm';
  {
    const OutputLock weights(folder / "weights"), of_a_new_file(folder / "new"), of_a_long_name(folder / longest);
    // Some file systems state another device to programs than in /proc/locks.
    const std::string known = fmt::format("process {} writes this file", getpid()),
                      unknown = "another process writes this file";
    for (const std::string& name : {std::string("weights"), std::string("link"), std::string("new"), longest}) {
      const std::string path = folder / name;
      const std::string refusal = message_of<OutputInUse>([&] { OutputLock again(path); });
      CHECK((refusal == path + ": " + known || refusal == path + ": " + unknown));
    }
    const OutputLock of_another_long_name(folder / other);
    AtomicFile file(folder / "weights");  // the lock's own process writes meanwhile
    file.write("new");
    file.commit();
    CHECK_THROWS_AS(OutputLock(folder / "weights"), OutputInUse);
  }
  CHECK(folder.names().size() == 2);
  const OutputLock again(folder / "weights");
  CHECK_THROWS_AS(OutputLock(folder / "none/weights"), RunError);
}

TEST_CASE("output lock: what a killed process left is in nobody's way") {
  const TestFolder folder;
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const OutputLock held(folder / "file");
    raise(SIGKILL);
  }
  REQUIRE(waitpid(child, nullptr, 0) == child);
  REQUIRE(folder.names().size() == 1);
  { const OutputLock held(folder / "file"); }
  CHECK(folder.names().empty());
}

TEST_CASE("output lock: of processes that take turns never two have it") {
  const TestFolder folder;
  constexpr int kProcesses = 4, kTurns = 200;
  std::vector<pid_t> children;
  for (int c = 0; c < kProcesses; ++c) {
    children.push_back(fork());
    REQUIRE(children.back() >= 0);
    if (children.back() != 0) continue;
    for (int turns = 0; turns < kTurns;) {
      try {
        const OutputLock held(folder / "file");
        if (mkdir((folder / "alone").c_str(), 0700) != 0) _exit(1);
        rmdir((folder / "alone").c_str());
        ++turns;
      } catch (const OutputInUse&) {
      }
    }
    _exit(0);
  }
  for (const pid_t child : children) {
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
}

TEST_CASE("output lock: a device has any number of writers, and takes what replaces a file") {
  const OutputLock first("/dev/null"), second("/dev/null");
  AtomicFile file("/dev/null");
  file.write("gone");
  file.commit();
  CHECK(std::filesystem::is_character_file("/dev/null"));
}
