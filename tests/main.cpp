// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <cstdlib>

// Tests neither use what runs have kept nor add to it. ARBALEST_TEST_CACHE names a folder for tests alone: with its
// kept choices a run under compute-sanitizer need not time every engine.
const char* const kept = std::getenv("ARBALEST_TEST_CACHE");
const int nothing_else_kept = setenv("ARBALEST_CACHE", kept != nullptr ? kept : "", 1);
// GPUs are connected as the program connects them.
const int connected_early = setenv("NCCL_RUNTIME_CONNECT", "0", 0);
