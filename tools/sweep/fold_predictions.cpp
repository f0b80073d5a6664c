// SPDX-License-Identifier: Apache-2.0
#include "tools/sweep/fold_predictions.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "executor/session/shared_resources.h"
#include "tools/command/commands.h"

namespace arbalest {
namespace {

namespace fs = std::filesystem;

// The trial's model is asked as its run had it, with its part of the data.
PredictOptions options_of(const SweepPlan& plan, int trial, const SweepSurroundings& around) {
  PredictOptions options;
  static_cast<GraphOptions&>(options) =
      options_of_job(plan, {trial, 0, plan.halving ? plan.halving->epochs.back() : 0}, 0, around);
  options.session.files = {};
  options.session.files.weights = trial_model(around.folder, trial);
  options.session.checkpoints = {};
  options.session.shared = around.shared;  // the source, and what the devices keep
  options.format = LineFormat::Csv;
  return options;
}

void check_models(const SweepRecord& record, const TrialGroup& group, const std::string& folder) {
  if (group.values.size() < group.trials.size()) {
    throw GraphError(fmt::format("{} of the {} trials of the best settings have come to the end, expected all of them",
                                 group.values.size(), group.trials.size()));
  }
  std::error_code unknown;
  for (const int trial : group.trials) {
    const std::string model = trial_model(folder, trial);
    if (!fs::exists(model, unknown)) {
      throw GraphError(fmt::format("{}: expected the model of trial {} ({}), found no such file", model, trial + 1,
                                   to_string(record.plan.trials[size_t(trial)])));
    }
  }
}

}  // namespace

std::string write_fold_predictions(const SweepRecord& record, const TrialGroup& group,
                                   const SweepSurroundings& around) {
  check_models(record, group, around.folder);
  const std::string path = (fs::path(around.folder) / "predictions.csv").string();
  AtomicFile file(path);
  if (around.shared) around.shared->expect(1);  // one model predicts at a time
  for (const int trial : group.trials) {
    PredictOptions options = options_of(record.plan, trial, around);
    PredictionTable& table = options.table.emplace();
    table.write = [&](const std::string& text) { file.write(text); };
    table.head = trial == group.trials.front();
    for (const auto& setting : record.plan.trials[size_t(trial)]) {
      if (is_repetition(setting.first)) table.columns.push_back(setting);
    }
    predict_alone(options);
  }
  file.commit();
  return path;
}

}  // namespace arbalest
