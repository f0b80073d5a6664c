// SPDX-License-Identifier: Apache-2.0
#include "tools/sweep/check_trials.h"

#include <fmt/format.h>

#include <set>

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

void check_trials(SweepPlan& plan, const SweepSurroundings& around) {
  check_devices(around.devices);
  InputHashes inputs(plan.inputs);
  std::set<std::string> planned;
  for (int trial = 0; trial < int(plan.trials.size()); ++trial) {
    const TrialSettings& settings = plan.trials[size_t(trial)];
    try {
      const int64_t epochs = plan.halving ? plan.halving->epochs.front() : 0;
      const RunOptions options = options_of_job(plan, {trial, 0, epochs}, 0, around);
      inputs.add(options);
      if (!planned.insert(to_string(settings, false)).second) continue;
      SessionOptions session = session_options(options, false);
      session.shared = around.shared;
      checked_plan(load_with_overrides(options), session);
    } catch (const RunError& error) {
      throw RunError(fmt::format("trial {} ({}): {}", trial + 1, to_string(settings), error.what()));
    } catch (const Error& error) {
      throw GraphError(fmt::format("trial {} ({}): {}", trial + 1, to_string(settings), error.what()));
    }
  }
}

}  // namespace arbalest
