// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <string>

#include "base/error.h"
#include "executor/devices/open_files.h"

using namespace arbalest;

namespace open_files_test {

TEST_CASE("too low a limit on open files is said before a library meets it") {
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const int next = dup(STDIN_FILENO);  // the lowest that is free
  const int after = dup(STDIN_FILENO);
  REQUIRE(after == next + 1);
  close(after);
  close(next);
  const rlimit two = {rlim_t(next + 2), before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &two) == 0);
  std::string refused;
  try {
    expect_open_files(2, "a test");
    expect_open_files(2, "a test");  // the first has left none open
    expect_open_files(3, "a test");
  } catch (const RunError& error) {
    refused = error.what();
  }
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(refused ==
        "a test may need 3 more open files, and found room for 2: Too many open files; expected a higher limit on them "
        "(ulimit -n)");
}

}  // namespace open_files_test
