// SPDX-License-Identifier: Apache-2.0
#pragma once
// A part of what a test checks, for tests that take long in one process: on GPUs, and under compute-sanitizer. It is
// every Nth check from the Kth on with ARBALEST_PART=K/N in the environment, all without it.

#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>

namespace arbalest::test {

class Part {
 public:
  Part() {
    const char* given = std::getenv("ARBALEST_PART");
    if (given == nullptr) return;
    REQUIRE(std::sscanf(given, "%zu/%zu", &part_, &parts_) == 2);
    REQUIRE(part_ < parts_);
  }

  // True if this part has the next check.
  bool is_whole() const { return parts_ == 1; }
  bool has_next() { return next_++ % parts_ == part_; }

 private:
  size_t part_ = 0, parts_ = 1, next_ = 0;
};

}  // namespace arbalest::test
