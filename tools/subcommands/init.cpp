// SPDX-License-Identifier: Apache-2.0

// arbalest init: a graph file to start from.

#include <fmt/format.h>

#include <climits>

#include "base/error.h"
#include "base/process.h"
#include "base/shell_word.h"
#include "graph/file/graph_file.h"
#include "ops/builtin_ops.h"
#include "tools/command/commands.h"
#include "tools/command/run_check.h"
#include "tools/command/subcommand.h"
#include "tools/start/start_graph.h"

namespace arbalest {

namespace {

// As long as it lives, the process warns of nothing.
class Silence {
 public:
  Silence() : before_(set_warning_handler([](const std::string&) {})) {}
  ~Silence() { set_warning_handler(before_); }
  Silence(const Silence&) = delete;
  Silence& operator=(const Silence&) = delete;

 private:
  const MessageHandler before_;
};

// Throws GraphError for a graph that 'arbalest check' would refuse, whatever its samples are. Warnings were given
// before.
void check_made(const std::string& text, const std::string& file) {
  const Silence silence;
  try {
    SessionOptions options;
    options.learners.devices = {{PlanDevice::Kind::Cpu, 0}};
    checked_plan(read_graph_text(text, file, builtin_ops()), options);
  } catch (const Error& error) {
    throw GraphError(
        fmt::format("init: '{}' is not written, since 'arbalest check' would refuse it:\n{}", file, error.what()));
  }
}

}  // namespace

int command_init(const StartOptions& options) {
  const std::string file = write_start_graph(options, check_made);
  const std::string stem = file.substr(0, file.rfind(".onnxtxt"));
  const auto word = [](const std::string& path) { return printable(shell_word(path)); };
  fmt::print("wrote {}; next:\n  arbalest check {}\n  arbalest run {} --save {} --log {}\n", printable(file),
             word(file), word(file), word(stem + ".safetensors"), word(stem + ".jsonl"));
  return kDone;
}

void declare_init(Subcommands& commands) {
  const auto command = commands.add<StartOptions>("init", "write a commented graph file to start from", command_init);
  CLI::App& app = command.app;
  StartOptions& options = command.options;
  app.add_option("NAME", options.name, "lenet, cnn, photos, vectors or finetune")->type_name("");
  app.add_option("FILE", options.file, "the graph file, which is not there yet; otherwise NAME.onnxtxt")
      ->type_name("")
      ->check(not_empty());
  app.add_option("--data", options.data,
                 "a source: what its images and labels need is written into the graph; see 'arbalest sources'")
      ->type_name("SOURCE")
      ->check(not_empty());
  app.add_option("--classes", options.classes, "how many there are; otherwise as --data says")
      ->type_name("K")
      ->check(whole(1, INT_MAX));
  app.add_option("--model", options.model, "finetune: the model that was trained elsewhere (.onnx)")
      ->type_name("FILE")
      ->check(not_empty());
  app.footer(describe_templates());
}

}  // namespace arbalest
