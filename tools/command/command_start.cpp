// arbalest ops, sources and init: what a graph may have in it, and one to start from.

#include <fmt/format.h>

#include <cstdio>

#include "graph/error.h"
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
  const std::string file = printable(write_start_graph(options));
  const std::string stem = file.substr(0, file.rfind(".onnxtxt"));
  fmt::print("wrote {0}; next:\n  arbalest check {0}\n  arbalest run {0} --save {1}.safetensors --log {1}.jsonl\n",
             file, stem);
  return kDone;
}

}  // namespace arbalest
