// SPDX-License-Identifier: Apache-2.0
#include "tools/sweep/trial_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/plain_message.h"
#include "executor/run/binding.h"
#include "executor/session/shared_resources.h"
#include "tools/command/one_run.h"
#include "tools/command/subcommand.h"

namespace arbalest {
namespace {

namespace fs = std::filesystem;

// Notes what a run reports.
class TrialObserver final : public RunObserver {
 public:
  TrialObserver(SweepResult& result, const SweepSurroundings& around) : result_(result), around_(around) {}

  void started(const RunStarted& event) override {
    validates_ = event.validates && !event.best_metric.empty() && !event.better.empty();
    result_.metric = validates_ ? event.best_metric : "loss";
    result_.lower = !validates_ || event.better == "lower";
    images_per_iteration_ = event.batch * event.learners * int64_t(event.devices.size());
    result_.per_epoch = event.iterations_per_epoch;
    resumed_ = event.resumed_iteration;
    if (event.iterations_per_epoch > 0) result_.epochs = resumed_ / event.iterations_per_epoch;
    if (!event.note.empty() && around_.noted) around_.noted(result_.job.trial, event.note);
  }
  void progress(const RunProgress& event) override {
    if (!event.loss_undefined) result_.loss = event.loss;
    result_.images = (event.iteration - resumed_) * images_per_iteration_;
    tell(event.images_per_second, event.seconds);
  }
  void epoch(const EpochEnded& event) override {
    if (!event.loss_undefined) result_.loss = event.loss;
    result_.epochs = event.epoch;
    if (validates_) return;
    result_.value = result_.loss;
    result_.epoch = event.epoch;
    tell(event.images_per_second, event.seconds);
  }
  void validation(const Validated& event) override {
    if (!validates_) return;
    result_.validated = true;
    const auto found = std::find_if(event.metrics.begin(), event.metrics.end(),
                                    [&](const auto& metric) { return metric.first == result_.metric; });
    const double value = found != event.metrics.end() ? found->second : event.loss;
    if (std::isnan(value)) return tell(result_.images_per_second, event.seconds);
    if (!result_.value || (result_.lower ? value < *result_.value : value > *result_.value)) {
      result_.value = value;
      result_.epoch = event.epoch;
    }
    tell(result_.images_per_second, event.seconds);
  }
  void finished(const RunFinished& event) override {
    result_.end = name_of(event.reason);
    result_.epochs = event.epoch;
    result_.iterations = event.iteration;
    result_.validated = event.validated;
    result_.seconds = event.seconds;
    result_.images_per_second = event.images_per_second;
    if (validates_ && event.best_epoch > 0) {  // over all of the trial, also before this job
      result_.value = event.best_value;
      result_.epoch = event.best_epoch;
    }
    if (!result_.value && !validates_) result_.value = result_.loss;
  }

 private:
  void tell(double images_per_second, double seconds) {
    result_.images_per_second = images_per_second;
    result_.seconds = seconds;
    if (around_.progress) around_.progress(result_);
  }

  SweepResult& result_;
  const SweepSurroundings& around_;
  bool validates_ = false;
  int64_t images_per_iteration_ = 0, resumed_ = 0;
};

bool has_checkpoint(const std::string& folder) {
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, none)) {
    if (entry.path().filename().string().starts_with("checkpoint-")) return true;
  }
  return false;
}

// Why the sweep lacks something that the trial should have left; "": it lacks nothing. A checkpoint is for going on,
// and what could not be written of one costs a trial that has come to its end nothing.
std::string why_not_written(const RunOutcome& outcome) {
  for (const std::string& error : {outcome.end.weights_error, outcome.end.best_error}) {
    if (!error.empty()) return error;
  }
  return outcome.logged ? "" : "its log could not be written";
}

// The words of `arbalest run` that the job of a trial is: those of the sweep, the trial's settings, how far it trains,
// and its files in the sweep's folder. It goes on from checkpoints that are there.
std::vector<std::string> words_of_job(const SweepPlan& plan, const SweepJob& job, const std::string& folder) {
  std::vector<std::string> words = plan.words;
  for (const auto& [name, value] : plan.trials[size_t(job.trial)]) {
    if (name == "fold") {
      words.insert(words.end(), {"--set", plan.fold + value});
    } else if (name.find('.') != name.npos) {
      words.insert(words.end(), {"--set", fmt::format("{}={}", name, value)});
    } else {
      words.push_back(fmt::format("--{}={}", name, value));
    }
  }
  if (plan.halving) {
    words.push_back(fmt::format("--epochs={}", job.epochs));
    words.push_back(fmt::format("--schedule-epochs={}", plan.halving->epochs.back()));
  }
  // The model that is kept is the one that the leaderboard ranks.
  for (const char* option : {"--save=", "--save-best="}) words.push_back(option + trial_model(folder, job.trial));
  const std::string checkpoints = trial_checkpoints(folder, job.trial);
  words.push_back("--log=" + (fs::path(trial_folder(folder, job.trial)) / "log.jsonl").string());
  words.push_back("--checkpoint=" + checkpoints);
  if (has_checkpoint(checkpoints)) words.emplace_back("--resume");
  return words;
}

// The options that the words of a run stand for. Throws GraphError as the command line does.
RunOptions options_of_run(const std::vector<std::string>& words) {
  std::vector<const char*> all = {"arbalest", "run"};
  for (const std::string& word : words) all.push_back(word.c_str());
  const Command command = parse_command_line(int(all.size()), all.data());
  if (const Exit* exit = options_if<Exit>(command)) {
    const std::string prefix = "arbalest: ";
    throw GraphError(exit->text.starts_with(prefix) ? exit->text.substr(prefix.size()) : exit->text);
  }
  RunOptions options = *options_if<RunOptions>(command);
  options.tells_of_set = false;           // the sweep has told of its own
  options.session.files.rescues = false;  // the sweep's folder has checkpoints to go on from
  return options;
}

}  // namespace

std::string trial_model(const std::string& folder, int trial) {
  return (fs::path(trial_folder(folder, trial)) / "model.safetensors").string();
}

std::string trial_checkpoints(const std::string& folder, int trial) {
  return (fs::path(trial_folder(folder, trial)) / "checkpoints").string();
}

RunOptions options_of_job(const SweepPlan& plan, const SweepJob& job, int lane, const SweepSurroundings& around) {
  RunOptions options = options_of_run(words_of_job(plan, job, around.folder));
  options.devices = to_string(around.devices[size_t(lane) % around.devices.size()]);
  options.session.execution.threads = around.threads;
  if (around.keeps_samples) options.set.emplace_back("prefetch.cache=host");
  return options;
}

TrialEnd run_trial(const SweepPlan& plan, const SweepJob& job, int lane, const SweepSurroundings& around) {
  TrialEnd trial;
  SweepResult& result = trial.result;
  result.job = job;
  if (job.rung > 0) result.epochs = plan.halving->epochs[size_t(job.rung) - 1];  // if it fails before it begins
  TrialObserver observer(result, around);
  try {
    std::error_code exists;
    fs::create_directories(trial_folder(around.folder, job.trial), exists);
    const RunOptions options = options_of_job(plan, job, lane, around);
    const RunOutcome outcome = run_as_told(
        options, {.shared = around.shared, .observers = {&observer}, .begins = [&] { return around.stop; }});
    const RunEnd reason = outcome.end.reason;
    if (reason == RunEnd::Interrupted || reason == RunEnd::TimeLimit) trial.end.kind = JobEnd::Kind::Stopped;
    result.error = why_not_written(outcome);
  } catch (const LacksMemory& error) {
    trial.end = {JobEnd::Kind::LacksMemory, {}, error.what()};
  } catch (const std::exception& error) {
    result.error = plain_message(error);
  }
  if (plan.finds_rate) {  // whatever was validated: all rates have a loss
    result.metric = "loss";
    result.lower = true;
    result.value = result.loss;
  }
  trial.end.score = result.score();
  return trial;
}

}  // namespace arbalest
