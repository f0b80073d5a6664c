// SPDX-License-Identifier: Apache-2.0

// arbalest run: train as the graph says.

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

#include "base/plain_message.h"
#include "base/shell_word.h"
#include "executor/console/console_observer.h"
#include "executor/session/output_paths.h"
#include "executor/training/changes.h"
#include "executor/training/checkpoint_folder.h"
#include "tools/command/commands.h"
#include "tools/command/interrupt.h"
#include "tools/command/run_settings.h"
#include "tools/command/session_setup.h"
#include "tools/watch/log.h"
#include "tools/watch/tensorboard_log.h"

namespace arbalest {
namespace {

// Ignores SIGPIPE: without a reader, a write to a pipe then fails instead of ending the process.
void let_pipes_fail() {
  std::signal(SIGPIPE, SIG_IGN);
}

// Throws GraphError if two of the files that the run reads and writes are the same, or if one of them is also the
// folder of checkpoints or of TensorBoard.
void check_paths(const RunOptions& options) {
  const FileOptions& files = options.session.files;
  check_output_name("--log", options.log);
  NamedPaths paths = {{"GRAPH", options.graph},
                      {"--save", files.save},
                      {"--save-best", files.save_best},
                      {"--trace", files.trace},
                      {"--log", options.log}};
  check_distinct_paths(paths);
  for (const auto& folder :
       NamedPaths{{"--checkpoint", options.session.checkpoints.folder}, {"--tensorboard", options.tensorboard}}) {
    paths.push_back(folder);
    check_distinct_paths(paths);
    paths.pop_back();
  }
  check_inputs_kept({{"--weights", files.weights}}, {{"--trace", files.trace}, {"--log", options.log}});
}

// Finds the checkpoint to go on from, and notes what a later run needs to know of this one. Makes the folder of
// checkpoints first, so that other files of the run may lie in it or next to it. Holds the folder before it looks for
// the newest checkpoint, since another run may still write there.
void take_up(CheckpointOptions& checkpoints) {
  if (checkpoints.folder.empty()) return;
  std::error_code unknown;
  checkpoints.working_folder = std::filesystem::current_path(unknown).string();
  if (!checkpoints.resume) check_has_none(checkpoints.folder);
  checkpoints.held = std::make_shared<const CheckpointFolder>(checkpoints.folder);
  if (!checkpoints.resume) return;
  checkpoints.from = newest_checkpoint(checkpoints.folder);
  if (!checkpoints.from)
    warn(fmt::format("{}: no checkpoint to go on from; the run starts afresh", checkpoints.folder));
}

// The words that started a run, as a command that goes on with it.
std::string run_again(const std::vector<std::string>& words, const std::string& folder) {
  std::string command;
  for (size_t i = 0; i < words.size(); ++i) {
    const bool of_folder = i > 0 && words[i - 1] == "--checkpoint";
    command += (i > 0 ? " " : "") + shell_word(i == 0 ? "arbalest" : of_folder ? folder : words[i]);
  }
  const bool resumes = std::find(words.begin(), words.end(), "--resume") != words.end();
  return command + (resumes ? "" : " --resume");
}

}  // namespace

int command_resume(const ResumeOptions& options) {
  std::error_code error;
  if (!std::filesystem::is_directory(options.folder, error)) {
    throw GraphError(fmt::format("{}: found {}, expected the folder of a run's checkpoints", options.folder,
                                 std::filesystem::exists(options.folder, error) ? "no folder" : "nothing"));
  }
  const auto file = newest_checkpoint(options.folder);
  if (!file) throw GraphError(fmt::format("{}: the folder has no checkpoint to go on from", options.folder));
  const std::string folder = std::filesystem::absolute(options.folder, error).string();
  const Checkpoint& checkpoint = file->checkpoint;
  const std::filesystem::path here = std::filesystem::current_path(error);
  std::filesystem::current_path(checkpoint.folder, error);
  if (error) {
    throw RunError(fmt::format(
        "{}: the run's working directory '{}': {}; a project that was moved goes on in its new place by the run's own "
        "command: {}",
        file->path, checkpoint.folder, error.message(), run_again(checkpoint.command, folder)));
  }
  if (here != std::filesystem::current_path(error))
    warn(fmt::format("relative paths are taken from '{}', where the run began", checkpoint.folder));
  std::vector<const char*> words;
  for (const std::string& word : checkpoint.command) words.push_back(word.c_str());
  const Command command = parse_command_line(int(words.size()), words.data());
  const RunOptions* run = std::get_if<RunOptions>(&command);
  if (!run) throw RunError(fmt::format("{}: its command line is none of a run", file->path));
  RunOptions again = *run;
  again.session.checkpoints.folder = folder;
  again.session.checkpoints.resume = true;
  again.session.checkpoints.changes = options.changes;  // those of its own are in the checkpoint
  return command_run(again);
}

int command_run(const RunOptions& options) {
  const FileOptions& files = options.session.files;
  check_paths(options);
  std::vector<std::string> graph_files;
  Graph graph = load_with_overrides(options, &graph_files);
  check_graph_kept(
      graph_files, files,
      {{"--save", files.save}, {"--save-best", files.save_best}, {"--trace", files.trace}, {"--log", options.log}});
  check_kind_kept("--log", options.log, OutputKind::Log);
  SessionOptions session = session_options(options);
  session.execution.interrupted_by = InterruptHandler::signal_name;
  session.files.overrides = options.set;
  session.command = options.command_line;
  take_up(session.checkpoints);
  const bool goes_on = session.checkpoints.from != nullptr;
  Graph changed = graph;  // as it is trained
  apply_changes(changed, changes_of(session.checkpoints));
  const RunSettings settings = run_settings(options, changed);

  std::optional<JsonLog> log;
  std::optional<TensorBoardLog> tensorboard;
  if (!options.tensorboard.empty()) tensorboard.emplace(options.tensorboard, settings, goes_on);
  if (!options.log.empty()) log.emplace(options.log, settings, goes_on);
  ConsoleObserver progress;
  std::vector<RunObserver*> watching = {&progress};
  if (log) watching.push_back(&*log);
  if (tensorboard) watching.push_back(&*tensorboard);
  Observers observers(std::move(watching));

  let_pipes_fail();
  const InterruptHandler interrupt;
  const RunFinished end = run_training(std::move(graph), session, observers, interrupt.token());
  const bool log_failed = (log && log->failed()) || (tensorboard && tensorboard->failed());
  const bool not_written = !end.weights_error.empty() || !end.best_error.empty() || !end.checkpoint_error.empty() ||
                           !end.trace_error.empty();
  if (not_written || log_failed) return kFailed;
  if (end.reason == "interrupted" || end.reason == "time limit") return kInterrupted;
  return !session.rules.targets.empty() && end.reason != "until" ? kNotReached : kDone;
}

}  // namespace arbalest
