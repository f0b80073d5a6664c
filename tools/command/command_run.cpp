// arbalest run: train as the graph says.

#include <csignal>
#include <optional>
#include <vector>

#include "executor/session/output_paths.h"
#include "tools/command/commands.h"
#include "tools/command/interrupt.h"
#include "tools/command/run_settings.h"
#include "tools/command/session_setup.h"
#include "tools/watch/log.h"
#include "tools/watch/progress.h"
#include "tools/watch/tensorboard_log.h"

namespace arbalest {
namespace {

// Where the reader of a pipe is gone, or a file reaches its limit of size, the write fails; the signal would end the
// process.
void let_writes_fail() {
  for (const int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
}

}  // namespace

int command_run(const RunOptions& options) {
  const FileOptions& files = options.session.files;
  check_distinct_paths({{"GRAPH", options.graph},
                        {"--save", files.save},
                        {"--save-best", files.save_best},
                        {"--trace", files.trace},
                        {"--log", options.log}});
  check_inputs_kept({{"--weights", files.weights}}, {{"--trace", files.trace}, {"--log", options.log}});
  std::vector<std::string> graph_files;
  Graph graph = load_with_overrides(options, &graph_files);
  check_graph_kept(
      graph_files, files,
      {{"--save", files.save}, {"--save-best", files.save_best}, {"--trace", files.trace}, {"--log", options.log}});
  check_kind_kept("--log", options.log, OutputKind::Log);
  const SessionOptions session = session_options(options);

  std::optional<JsonLog> log;  // opened last: a typo leaves the log of an earlier run as it is
  std::optional<TensorBoardLog> tensorboard;
  if (!options.tensorboard.empty()) tensorboard.emplace(options.tensorboard, run_settings(options, graph));
  if (!options.log.empty()) log.emplace(options.log, run_settings(options, graph));
  ProgressLine progress(stderr);
  std::vector<RunObserver*> watching = {&progress};
  if (log) watching.push_back(&*log);
  if (tensorboard) watching.push_back(&*tensorboard);
  Observers observers(std::move(watching));

  let_writes_fail();
  const InterruptHandler interrupt;
  const RunFinished end = run_training(std::move(graph), session, observers, InterruptHandler::requested());
  const bool log_failed = (log && log->failed()) || (tensorboard && tensorboard->failed());
  if (!end.weights_error.empty() || !end.best_error.empty() || log_failed) return kFailed;
  if (end.reason == "interrupted") return kInterrupted;
  return !session.rules.targets.empty() && end.reason != "until" ? kNotReached : kDone;
}

}  // namespace arbalest
