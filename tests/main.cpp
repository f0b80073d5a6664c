#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <cstdlib>

// Tests neither rest on what runs have kept nor add to it. ARBALEST_TEST_CACHE: a folder of tests alone; with what a run
// has kept there, one under compute-sanitizer is spared timing every engine.
const char* const kept = std::getenv("ARBALEST_TEST_CACHE");
const int nothing_else_kept = setenv("ARBALEST_CACHE", kept != nullptr ? kept : "", 1);
