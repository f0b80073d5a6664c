// SPDX-License-Identifier: Apache-2.0

// arbalest ops, sources and init: what a graph may have in it, and one to start from.

#include <fmt/format.h>

#include <cstdio>

#include "base/error.h"
#include "base/shell_word.h"
#include "tools/command/commands.h"
#include "tools/start/describe.h"

namespace arbalest {

int command_ops(const OpsOptions& options) {
  std::fputs(describe_operators(options.name).c_str(), stdout);
  return kDone;
}

int command_sources(const SourcesOptions& options) {
  std::fputs(describe_sources(options.name).c_str(), stdout);
  return kDone;
}

int command_init(const StartOptions& options) {
  const std::string file = write_start_graph(options);
  const std::string stem = file.substr(0, file.rfind(".onnxtxt"));
  const auto word = [](const std::string& path) { return printable(shell_word(path)); };
  fmt::print("wrote {}; next:\n  arbalest check {}\n  arbalest run {} --save {} --log {}\n", printable(file),
             word(file), word(file), word(stem + ".safetensors"), word(stem + ".jsonl"));
  return kDone;
}

}  // namespace arbalest
