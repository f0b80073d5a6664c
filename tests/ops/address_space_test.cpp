// SPDX-License-Identifier: Apache-2.0

// Address space that is asked for before libraries take it.

#include "base/memory/address_space.h"

#include <doctest/doctest.h>

#include <string>

#include "base/error.h"

using namespace arbalest;

TEST_CASE("address space: as much as there is can be had again and again, and more is an error that says so") {
  constexpr size_t kMuch = size_t{1} << 40;  // a process has 128 times as much
  for (int i = 0; i < 200; ++i) CHECK_NOTHROW(AddressSpace{kMuch});
  std::string message;
  try {
    const AddressSpace room(size_t{1} << 60);
  } catch (const RunError& error) {
    message = error.what();
  }
  CHECK(message.starts_with("not enough memory on the host: "));
  CHECK(message.find("less than the 1099511627776 MiB of address space") != std::string::npos);
}
