// arbalest run: train as the graph says.

#include <csignal>
#include <optional>
#include <vector>

#include "executor/output_paths.h"
#include "tools/commands.h"
#include "tools/interrupt.h"
#include "tools/log.h"
#include "tools/progress.h"
#include "tools/session_setup.h"

namespace arbalest {
namespace {

// The log's reader that is gone, or a limit on a file's size, fails the write that meets it, not the training.
void let_writes_fail() {
  for (const int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
}

}  // namespace

int command_run(const RunOptions& options) {
  check_distinct_paths({{"GRAPH", options.graph},
                        {"--save", options.save},
                        {"--save-best", options.save_best},
                        {"--trace", options.trace},
                        {"--log", options.log}});
  Graph graph = load_with_overrides(options);
  SessionOptions session = session_options(options);
  session.report_every = options.log_every;
  session.rules = options.rules;
  session.rate_scaling = options.scale_lr;
  session.collective_timeout = options.collective_timeout;
  session.save_best = options.save_best;
  session.weights = options.weights;
  session.save = options.save;
  session.trace = options.trace;

  std::optional<JsonLog> log;  // opened once the graph is read: a typo leaves the log of an earlier run as it is
  if (!options.log.empty()) log.emplace(options.log);
  ProgressLine progress(stderr);
  std::vector<RunObserver*> watching = {&progress};
  if (log) watching.push_back(&*log);
  Observers observers(std::move(watching));

  let_writes_fail();
  const InterruptHandler interrupt;
  const RunFinished end = train(std::move(graph), session, observers, InterruptHandler::requested());
  if (end.reason == "interrupted") return kInterrupted;
  if (!end.best_error.empty()) return kFailed;
  return !options.rules.targets.empty() && end.reason != "until" ? kNotReached : kDone;
}

}  // namespace arbalest
