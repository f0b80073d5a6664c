// SPDX-License-Identifier: Apache-2.0

// arbalest run: train as the graph says.

#include <fmt/format.h>

#include <csignal>
#include <optional>
#include <vector>

#include "executor/console/console_observer.h"
#include "tools/command/commands.h"
#include "tools/command/interrupt.h"
#include "tools/command/one_run.h"
#include "tools/command/subcommand.h"
#include "tools/command/world_setup.h"
#include "tools/watch/mlperf_log.h"

namespace arbalest {
namespace {

// Ignores SIGPIPE: without a reader, a write to a pipe then fails instead of ending the process.
void let_pipes_fail() {
  std::signal(SIGPIPE, SIG_IGN);
}

int run(const RunOptions& options, const std::shared_ptr<Ranks>& ranks) {
  ConsoleObserver progress;
  std::optional<InterruptHandler> interrupt;
  const RunSurroundings around{.ranks = ranks, .observers = {&progress}, .begins = [&] {
                                 const bool tells = !ranks || ranks->first();
                                 return interrupt.emplace(tells ? InterruptHandler::kOfTraining : "").token();
                               }};
  const RunOutcome outcome = run_as_told(options, around);
  const RunFinished& end = outcome.end;
  if (!outcome.written) return kFailed;
  if (end.reason == RunEnd::Interrupted || end.reason == RunEnd::TimeLimit) return kInterrupted;
  return !options.session.rules.targets.empty() && end.reason != RunEnd::Until ? kNotReached : kDone;
}

}  // namespace

int command_run(const RunOptions& options) {
  check_paths(options);
  let_pipes_fail();
  const std::shared_ptr<Ranks> ranks = join_world(options.world, options.session.on_lost == OnLost::Continue);
  tell_if_alone(ranks.get(), options.world);
  return run_as_rank(
      ranks.get(), [&] { return run(options, ranks); }, options.session.on_lost);
}

void declare_run(Subcommands& commands) {
  const auto command = commands.add<RunOptions>("run", "train as the graph says", command_run);
  CLI::App& app = command.app;
  RunOptions& options = command.options;
  options.command_line = commands.words();
  bind_training(app, options);
  bind_world(app, options.world);
  bind_on_lost(app, options.session);
  app.add_option("--log", options.log, "write events as JSON lines, for arbalest report")
      ->type_name("FILE")
      ->check(not_empty());
  app.add_option("--tensorboard", options.tensorboard, "write events into this folder, for TensorBoard")
      ->type_name("DIR")
      ->check(not_empty());
  app.add_option("--mllog", options.mllog, "write MLPerf's training log, for the package mlperf-logging")
      ->type_name("FILE")
      ->check(not_empty());
  app.add_option("--mllog-target", options.mllog_target,
                 "end it with success once a validation meets this, as in 'accuracy >= 0.759'; the run goes on")
      ->type_name("TARGET")
      ->check(not_empty());
  app.add_option("--mllog-set", options.mllog_set, "an entry of it, as in submission_benchmark=resnet; repeatable")
      ->type_name("KEY=VALUE")
      ->take_all()
      ->allow_extra_args(false);
  app.footer(
      "Ctrl-C ends the run after the batches already read, without a validation that is under way, and saves: to\n"
      "--save's file, otherwise to GRAPH.interrupted.safetensors in the working directory, or\n"
      "GRAPH.interrupted-1.safetensors and so on where there is one. A second one stops at once, without saving.\n"
      "With --checkpoint it ends with a checkpoint instead, and leaves a validation that is under way to the run\n"
      "that goes on. That one needs the same command line and --resume, or 'arbalest resume DIR'. SIGTERM, SIGHUP,\n"
      "SIGUSR1, SIGUSR2 and SIGXCPU do as Ctrl-C does.");
  command.check = [&app, &options] {
    options.given = option_values(app);
    if (options.session.checkpoints.folder.empty()) {
      for (const char* option : {"--resume", "--checkpoint-every", "--checkpoint-keep"}) {
        if (app.count(option) > 0) throw GraphError(fmt::format("{} needs --checkpoint DIR", option));
      }
      if (options.session.divergence.then == OnDivergence::Rollback) {
        throw GraphError("--on-nan rollback needs --checkpoint DIR");
      }
    }
    if (options.mllog.empty() && !options.mllog_set.empty()) throw GraphError("--mllog-set needs --mllog FILE");
    if (options.mllog.empty() && !options.mllog_target.empty()) throw GraphError("--mllog-target needs --mllog FILE");
    try {
      if (!options.mllog_target.empty()) parse_target(options.mllog_target);
    } catch (const GraphError& error) {
      throw GraphError(fmt::format("--mllog-target: {}", error.what()));
    }
    for (const std::string& entry : options.mllog_set) MlperfLog::entry_of(entry);
    if (app.count("--plateau-factor") > 0 && options.session.rules.plateau == 0) {
      throw GraphError("--plateau-factor needs --plateau N");
    }
    if (!options.session.checkpoints.changes.empty() && !options.session.checkpoints.resume) {
      throw GraphError("--change needs --resume; a run that starts takes --set");
    }
    if (options.session.divergence.then == OnDivergence::Rollback) return;
    for (const char* option : {"--nan-rate-factor", "--nan-rollbacks"}) {
      if (app.count(option) > 0) throw GraphError(fmt::format("{} needs --on-nan rollback", option));
    }
  };
}

}  // namespace arbalest
