// SPDX-License-Identifier: Apache-2.0

// arbalest ops: what a graph may have in it.

#include <cstdio>

#include "tools/command/commands.h"
#include "tools/command/subcommand.h"
#include "tools/start/describe.h"

namespace arbalest {

int command_ops(const OpsOptions& options) {
  std::fputs(describe_operators(options.name).c_str(), stdout);
  return kDone;
}

void declare_ops(Subcommands& commands) {
  const auto command = commands.add<OpsOptions>("ops", "list operators, or describe one", command_ops);
  command.app
      .add_option("OPERATOR", command.options.name,
                  "as a graph file has it (Relu, arbalest.Train) or another framework (Conv2d), or a word to find")
      ->type_name("")
      ->check(not_empty());
}

}  // namespace arbalest
