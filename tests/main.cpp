#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <cstdlib>

// Tests neither rest on what runs have kept nor add to it.
const int nothing_kept = setenv("ARBALEST_CACHE", "", 1);
