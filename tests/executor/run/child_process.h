// SPDX-License-Identifier: Apache-2.0
#pragma once
// Test cases that end their process, run in one of their own.

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <string>

namespace arbalest::test {

struct ChildProcess {
  int status = -1;   // exit status; −1: it ended by a signal
  std::string said;  // on both streams
};

// Runs a test case of this program that is skipped otherwise. Its name has no quotes.
inline ChildProcess run_child(const std::string& test_case) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  FILE* const pipe = popen(fmt::format("{} --no-skip -tc='{}' 2>&1", program, test_case).c_str(), "r");
  REQUIRE(pipe);
  ChildProcess child;
  for (char part[256]; std::fgets(part, sizeof part, pipe);) child.said += part;
  const int status = pclose(pipe);
  if (WIFEXITED(status)) child.status = WEXITSTATUS(status);
  return child;
}

}  // namespace arbalest::test
