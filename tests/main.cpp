// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>

#include "tests/made_cases.h"

// Tests neither use what runs have kept nor add to it. ARBALEST_TEST_CACHE names a folder for tests alone: with its
// kept choices a run under compute-sanitizer need not time every engine.
const char* const kept = std::getenv("ARBALEST_TEST_CACHE");
const int nothing_else_kept = setenv("ARBALEST_CACHE", kept != nullptr ? kept : "", 1);
// GPUs are connected as the program connects them.
const int connected_early = setenv("NCCL_RUNTIME_CONNECT", "0", 0);

int main(int argc, char** argv) {
  for (void (*make)() : arbalest::test::MadeCases::all()) make();
  return doctest::Context(argc, argv).run();
}
