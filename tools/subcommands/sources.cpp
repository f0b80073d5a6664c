// SPDX-License-Identifier: Apache-2.0

// arbalest sources: kinds of data sets.

#include <cstdio>

#include "tools/command/commands.h"
#include "tools/command/subcommand.h"
#include "tools/start/describe.h"

namespace arbalest {

int command_sources(const SourcesOptions& options) {
  std::fputs(describe_sources(options.name).c_str(), stdout);
  return kDone;
}

void declare_sources(Subcommands& commands) {
  const auto command = commands.add<SourcesOptions>(
      "sources", "list kinds of data sets, or describe one with its options", command_sources);
  command.app.add_option("NAME", command.options.name, "as it begins: csv")->type_name("")->check(not_empty());
}

}  // namespace arbalest
