// SPDX-License-Identifier: Apache-2.0
#pragma once
// The error about an option that a command does not have.

#include <string>
#include <vector>

namespace arbalest {

// The words of a command: its name, "run" or "bench compare", and its options, "--epochs".
struct CommandOptions {
  std::string command;
  std::vector<std::string> options;
};

// "unknown option '--lr'; the graph says that: --set train.lr=0.1". `word`: as given, perhaps with "=VALUE"; `next`:
// the word after it; `others`: the commands besides `asked`.
std::string unknown_option(const std::string& word, const std::string& next, const CommandOptions& asked,
                           const std::vector<CommandOptions>& others);

}  // namespace arbalest
