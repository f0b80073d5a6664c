// SPDX-License-Identifier: Apache-2.0
#include "tools/sweep/check_trials.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "graph/file/graph_file.h"
#include "ops/builtin_ops.h"
#include "tools/command/run_check.h"
#include "tools/command/session_setup.h"
#include "tools/experiment/trials/cell_command.h"

namespace arbalest {
namespace {

// Hashes files that trials read, each once.
class InputHashes {
 public:
  explicit InputHashes(std::map<std::string, std::string>& hashes) : hashes_(hashes) {}

  void add(const RunOptions& options) {
    std::string models = options.graph;
    for (const ModelFile& model : options.models) models += "\n" + model.name + "=" + model.path;
    if (seen_.insert(models).second) {
      std::vector<std::string> files;
      const Graph graph = load_graph(options.graph, builtin_ops(), 0, options.models, &files);
      hashes_.merge(hashes_of_files(graph, files));
    }
    for (const std::string& file : {options.session.files.weights, options.session.files.weights_map}) {
      if (!file.empty() && !hashes_.contains(file)) hashes_[file] = hash_of_file(file);
    }
  }

 private:
  std::map<std::string, std::string>& hashes_;
  std::set<std::string> seen_;
};

}  // namespace

void refuse_found_learners(const RunOptions& options) {
  if (options.session.learners.per_device != 0) return;
  throw GraphError("--learners auto measures while other trials come and go; a sweep needs a number");
}

void check_trials(SweepPlan& plan, const SweepSurroundings& around, TrialWarnings& warnings) {
  check_devices(around.devices);
  InputHashes inputs(plan.inputs);
  std::map<std::string, int64_t> planned;  // trials by their settings; 0: they have been planned
  for (const TrialSettings& settings : plan.trials) ++planned[to_string(settings, false)];
  for (int trial = 0; trial < int(plan.trials.size()); ++trial) {
    const TrialSettings& settings = plan.trials[size_t(trial)];
    try {
      const int64_t epochs = plan.halving ? plan.halving->epochs.front() : 0;
      const int64_t alike = std::exchange(planned[to_string(settings, false)], 0);
      if (alike > 0) warnings.begin_trials(alike);
      const RunOptions options = options_of_job(plan, {trial, 0, epochs}, 0, around);
      refuse_found_learners(options);
      inputs.add(options);
      if (alike == 0) continue;
      SessionOptions session = session_options(options, false);
      session.shared = around.shared;
      checked_plan(load_with_overrides(options), session);
    } catch (const RunError& error) {
      throw RunError(fmt::format("trial {} ({}): {}", trial + 1, to_string(settings), error.what()));
    } catch (const Error& error) {
      throw GraphError(fmt::format("trial {} ({}): {}", trial + 1, to_string(settings), error.what()));
    }
  }
  warnings.tell_gathered(int64_t(plan.trials.size()));
}

}  // namespace arbalest
