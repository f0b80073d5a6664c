// SPDX-License-Identifier: Apache-2.0

// Command lines, a word a line, the command first: parsed, and, if they are of a graph, planned for a small one.

#include <variant>
#include <vector>

#include "graph/file/overrides.h"
#include "tests/fuzz/plan.h"
#include "tests/fuzz/small_graph.h"
#include "tools/command/options.h"
#include "tools/command/session_setup.h"

namespace {

using namespace arbalest;
using namespace arbalest::fuzz;

void follow(const Exit& exit) {
  if (exit.status != 0) expect_printable(exit.text);
}

void follow(const GraphOptions& options) {
  accepted([&] {
    constexpr int64_t kMost = 4;  // learners: plans of many take long
    SessionOptions session = session_options(options);
    session.sources = {};
    if (int64_t(session.learners.devices.size()) * session.learners.per_device > kMost) return;
    Graph graph = small_graph();
    for (const std::string& assignment : options.set) apply_override(graph, assignment);
    plan(std::move(graph), session);
  });
}

template <typename... Options>
void follow_one_of(const Command& command) {
  const auto follow_if = [](const auto* options) {
    if (options) follow(*options);
  };
  (follow_if(options_if<Options>(command)), ...);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::string> words = {"arbalest"};
  for (std::string_view rest = text(data, size); !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    words.emplace_back(rest.substr(0, rest.substr(0, end).find('\0')));  // a word holds no zero
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  std::vector<const char*> arguments;
  for (const std::string& word : words) arguments.push_back(word.c_str());
  accepted([&] {
    follow_one_of<Exit, RunOptions, CheckOptions, PlanCommandOptions, ScalingOptions, TracingOptions, ProfileOptions,
                  EvaluateOptions, PredictOptions, ExportCommandOptions>(
        parse_command_line(int(arguments.size()), arguments.data()));
  });
  return 0;
}
