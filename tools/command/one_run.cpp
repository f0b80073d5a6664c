// SPDX-License-Identifier: Apache-2.0
#include "tools/command/one_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "base/process.h"
#include "executor/session/output_paths.h"
#include "executor/training/changes.h"
#include "executor/training/checkpoint_folder.h"
#include "executor/world/agreement.h"
#include "executor/world/ranks.h"
#include "ops/names.h"
#include "passes/passes.h"
#include "tools/command/interrupt.h"
#include "tools/command/run_settings.h"
#include "tools/command/session_setup.h"
#include "tools/command/world_setup.h"
#include "tools/watch/log.h"
#include "tools/watch/mlperf_log.h"
#include "tools/watch/tensorboard_log.h"

namespace arbalest {

// Throws GraphError if two of the files that the run reads and writes are the same, or if one of them is also the
// folder of checkpoints or of TensorBoard.
void check_paths(const RunOptions& options) {
  const FileOptions& files = options.session.files;
  check_output_name("--log", options.log);
  check_output_name("--mllog", options.mllog);
  const std::string best = saves_best_or_last(files) ? "" : files.save_best;
  NamedPaths paths = {{"GRAPH", options.graph}, {"--save", files.save}, {"--save-best", best},
                      {"--trace", files.trace}, {"--log", options.log}, {"--mllog", options.mllog}};
  check_distinct_paths(paths);
  for (const auto& folder :
       NamedPaths{{"--checkpoint", options.session.checkpoints.folder}, {"--tensorboard", options.tensorboard}}) {
    paths.push_back(folder);
    check_distinct_paths(paths);
    paths.pop_back();
  }
  check_inputs_kept({{"--weights", files.weights}},
                    {{"--trace", files.trace}, {"--log", options.log}, {"--mllog", options.mllog}});
  const std::string& folder = options.session.checkpoints.folder;
  for (const auto& [option, path] : paths) {
    if (!std::filesystem::path(path).filename().string().starts_with("checkpoint-")) continue;
    const std::filesystem::path file = std::filesystem::absolute(path);
    if (!same_file(file.parent_path().string(), folder)) continue;
    throw GraphError(
        fmt::format("{} {}: the run's own checkpoints have such names in the folder '{}', and older ones "
                    "are removed; expected another name",
                    option, path, folder));
  }
}

namespace {

// A warning if weights are given that are not those that the run began with: the checkpoint has its own.
void tell_of_idle_weights(const CheckpointOptions& checkpoints, const std::string& weights) {
  if (!checkpoints.from || weights.empty()) return;
  const std::vector<std::string>& words = checkpoints.from->checkpoint.command;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--weights=" + weights || (i > 0 && words[i - 1] == "--weights" && words[i] == weights)) return;
  }
  warn(fmt::format("--weights {}: is not read, because the run goes on with the weights of {}", weights,
                   checkpoints.from->path));
}

// Finds the checkpoint to go on from, and notes what a later run needs to know of this one. Makes the folder of
// checkpoints first, so that other files of the run may lie in it or next to it. Holds the folder before it looks for
// the newest checkpoint, since another run may still write there. Rank 0's options count: whether those of others are
// the same is looked at later. `patience`: seconds for which a rank waits until it sees rank 0's folder.
void take_up(CheckpointOptions& checkpoints, Ranks* ranks, double patience) {
  const bool first = !ranks || ranks->first(), given = first && !checkpoints.folder.empty();
  std::error_code unknown;
  checkpoints.working_folder = std::filesystem::current_path(unknown).string();
  if (given && !checkpoints.resume) check_has_none(checkpoints.folder);
  checkpoints.held = open_checkpoints(checkpoints.folder, ranks, std::chrono::seconds(int64_t(patience)));
  if (largest_of(ranks, given && checkpoints.resume ? 1 : 0) == 0) return;
  checkpoints.from = newest_checkpoint(checkpoints.folder, ranks);
  if (first && !checkpoints.from)
    warn(fmt::format("{}: no checkpoint to go on from; the run starts afresh", checkpoints.folder));
}

// Throws GraphError if `validate` does not measure the metric of `target`, or none of its values meets it.
void check_mllog_target(const Graph& graph, const Node& validate, const Target& target) {
  const std::string option = fmt::format("--mllog-target '{}'", to_string(target));
  std::vector<std::string> names;
  for (size_t i = 1; i < validate.inputs.size(); ++i) {
    names.push_back(graph.values[validate.inputs[i]].name);
    if (names.back() != target.metric) continue;
    const MetricSpec metric = metric_of(graph, validate.inputs[i]);
    return check_in_reach(target, metric.least, metric.most, option);
  }
  throw GraphError(fmt::format("{}: validation has no metric '{}'; expected {}{}", option, target.metric,
                               fmt::join(names, ", "), did_you_mean(target.metric, names)));
}

// Throws GraphError if the graph does not go with the run's outputs, or one of these would replace a file of another
// kind. `writes`: whether this process writes them.
void check_outputs(const RunOptions& options, const Graph& graph, const std::vector<std::string>& graph_files,
                   bool writes) {
  const FileOptions& files = options.session.files;
  check_graph_kept(graph_files, files,
                   {{"--save", files.save},
                    {"--save-best", files.save_best},
                    {"--trace", files.trace},
                    {"--log", options.log},
                    {"--mllog", options.mllog}});
  if (writes) check_kind_kept("--log", options.log, OutputKind::Log);
  if (writes) check_kind_kept("--mllog", options.mllog, OutputKind::MlperfLog);
  if (!options.log.empty()) check_metric_names(graph, JsonLog::keys(), "--log");
  const Node* const validate = graph.find_op(op::Validate);
  if (!options.mllog.empty() && !validate) {
    throw GraphError(
        fmt::format("--mllog: the graph '{}' has no arbalest.Validate; MLPerf's log is of accuracies", graph.name));
  }
  if (!options.mllog_target.empty()) check_mllog_target(graph, *validate, parse_target(options.mllog_target));
}

// The run's observers; they live as long as this.
class Watching {
 public:
  Watching(const RunOptions& options, const RunSettings& settings, bool goes_on, std::vector<RunObserver*> others)
      : all_(std::move(others)) {
    if (!options.tensorboard.empty()) all_.push_back(&tensorboard_.emplace(options.tensorboard, settings, goes_on));
    if (!options.log.empty()) all_.push_back(&log_.emplace(options.log, settings, goes_on));
    if (options.mllog.empty()) return;
    std::vector<MlperfLog::Entry> entries;
    for (const std::string& entry : options.mllog_set) entries.push_back(MlperfLog::entry_of(entry));
    std::optional<Target> target;
    if (!options.mllog_target.empty()) target = parse_target(options.mllog_target);
    all_.push_back(&mllog_.emplace(options.mllog, settings, std::move(entries), goes_on, std::move(target)));
  }
  const std::vector<RunObserver*>& all() const { return all_; }
  bool failed() const {
    return (log_ && log_->failed()) || (tensorboard_ && tensorboard_->failed()) || (mllog_ && mllog_->failed());
  }

 private:
  std::optional<JsonLog> log_;
  std::optional<TensorBoardLog> tensorboard_;
  std::optional<MlperfLog> mllog_;
  std::vector<RunObserver*> all_;
};

}  // namespace

RunOutcome run_as_told(const RunOptions& options, const RunSurroundings& around) {
  const std::shared_ptr<Ranks>& ranks = around.ranks;
  const FileOptions& files = options.session.files;
  std::vector<std::string> graph_files;
  Graph graph = load_with_overrides(options, &graph_files);
  const bool writes = !ranks || ranks->first();
  check_outputs(options, graph, graph_files, writes);
  SessionOptions session = session_options(options, around.shared == nullptr);
  session.shared = around.shared;
  session.execution.interrupted_by = InterruptHandler::signal_name;
  session.files.overrides = options.set;
  session.command = options.command_line;
  if (ranks) share_session(ranks, options.devices, session);
  take_up(session.checkpoints, ranks.get(), options.world.patience);
  if (writes) tell_of_idle_weights(session.checkpoints, files.weights);
  const bool goes_on = session.checkpoints.from != nullptr;
  Graph changed = graph;  // as it is trained
  apply_changes(changed, changes_of(session.checkpoints));

  std::optional<Watching> watching;
  if (writes) watching.emplace(options, run_settings(options, changed), goes_on, around.observers);
  Observers observers(watching ? watching->all() : std::vector<RunObserver*>());
  const std::stop_token stop = around.begins();
  RunOutcome outcome{run_training(std::move(graph), session, observers, stop)};
  const RunFinished& end = outcome.end;
  const bool not_written = !end.weights_error.empty() || !end.best_error.empty() || !end.checkpoint_error.empty() ||
                           !end.trace_error.empty();
  outcome.logged = !(watching && watching->failed());
  outcome.written = outcome.logged && !not_written;
  return outcome;
}

}  // namespace arbalest
