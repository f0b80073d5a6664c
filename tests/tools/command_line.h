// SPDX-License-Identifier: Apache-2.0
#pragma once
// Parses command lines for tests.

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tools/command/commands.h"
#include "tools/command/options.h"

namespace arbalest::test {

inline Command parse(std::vector<const char*> words) {
  words.insert(words.begin(), "arbalest");
  return parse_command_line(int(words.size()), words.data());
}

// The options of a command line that names the subcommand with such.
template <typename Options>
Options options_of(const Command& command) {
  const Options* options = options_if<Options>(command);
  REQUIRE(options != nullptr);
  return *options;
}

// The message of a command line that is refused.
inline std::string fault(const std::vector<const char*>& words) {
  const Command command = parse(words);
  const Exit* exit = options_if<Exit>(command);
  REQUIRE(exit != nullptr);
  CHECK(exit->status == kWrong);
  return exit->text;
}

}  // namespace arbalest::test
