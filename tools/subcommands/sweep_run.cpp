// SPDX-License-Identifier: Apache-2.0
#include "tools/subcommands/sweep_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <stop_token>
#include <utility>

#include "base/process.h"
#include "base/shell_word.h"
#include "base/time/deadlines.h"
#include "executor/console/terminal.h"
#include "executor/plan/make_plan.h"
#include "executor/session/shared_resources.h"
#include "executor/sweep/lane_tuner.h"
#include "tools/command/interrupt.h"
#include "tools/experiment/answer/summary.h"
#include "tools/sweep/leaderboard.h"

namespace arbalest {
namespace {

namespace fs = std::filesystem;

// The lanes while trials run, with what these share.
struct Lanes {
  JobLanes* jobs = nullptr;
  SharedResources* shared = nullptr;
  int devices = 1;

  // Trials that begin from here on have kernels for so many lanes of all devices.
  void expect(int lanes) const { shared->expect((lanes + devices - 1) / devices); }
  void allow(int lanes) const {
    expect(lanes);
    jobs->allow(lanes);
  }
};

// The sweep while it runs: its log, its lines on the terminal, the models that it keeps.
class Sweep {
 public:
  Sweep(const SweepOptions& options, SweepPlan plan, std::optional<SweepRecord> before, SweepLog& log)
      : options_(options),
        schedule_(int(plan.trials.size()), plan.halving, groups_of_trials(plan)),
        log_(log),
        redraws_(can_redraw(stdout)) {
    record_.plan = std::move(plan);
    if (before) known_ = std::move(before->results);
    if (options.retry) std::erase_if(known_, [](const SweepResult& result) { return !result.error.empty(); });
  }

  // Returns false if it was interrupted.
  bool run(SweepSurroundings around, int most) {
    const std::vector<PlanDevice>& devices = around.devices;
    const bool gpus = devices.front().kind == PlanDevice::Kind::Cuda;
    constexpr int kFirstOnGpu = 4;  // learners at once, before more are tried
    const InterruptHandler interrupt("\narbalest: ending; --resume goes on; once more to stop at once\n");
    std::stop_source ending;
    const std::stop_callback interrupted(interrupt.token(), [&] { ending.request_stop(); });
    const double seconds = options_.session.length.seconds;
    const auto end_early = [&] {
      time_is_up_ = true;
      ending.request_stop();
    };
    const TimedLook limit = seconds > 0 ? look_after(std::chrono::duration<double>(seconds), end_early) : TimedLook();
    around.stop = ending.get_token();
    around.progress = [this](const SweepResult& result) { progress(result); };
    around.noted = [this](int trial, const std::string& note) { tell_note(trial, note); };
    JobLanes lanes(schedule_, most, [&](const SweepJob& job, int lane) { return run_job(job, lane, around); },
                   {[this](int left, const std::string& why) { tell_shrunk(left, why); },
                    [this](const SweepJob& job, const std::string& why) { tell_too_large(job, why); }});
    lanes_ = {&lanes, around.shared.get(), int(devices.size())};
    const int first = std::max(1, kFirstOnGpu / std::max(1, int(options_.session.learners.per_device)));
    if (options_.at_once == 0 && gpus) tuner_.emplace(first * int(devices.size()), most);
    if (tuner_) lanes_.allow(tuner_->lanes());
    lanes.run(ending.get_token());
    lanes_ = {};
    const bool over = schedule_.over();
    if (over || !record_.plan.halving) keep_best();
    clear_status();
    if (over) log_.finished(std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count());
    if (over) remove_checkpoints();
    if (!over && time_is_up_) {
      warn(fmt::format(
          "--time-limit ends the sweep; the same command with --resume goes on, as 'arbalest resume {}' does",
          shell_word(options_.out)));
    }
    return over;
  }

  SweepEnd end(bool over) const { return {record_, over}; }

 private:
  JobEnd run_job(const SweepJob& job, int lane, const SweepSurroundings& around) {
    // The latest: one that failed may have run once more.
    const auto found =
        std::find_if(known_.rbegin(), known_.rend(), [&](const SweepResult& result) { return result.job == job; });
    if (found != known_.rend()) {
      const std::scoped_lock lock(mutex_);
      record_.results.push_back(*found);
      return {JobEnd::Kind::Judged, found->score(), {}};
    }
    {
      const std::scoped_lock lock(mutex_);
      log_.started(job, lane, to_string(around.devices[size_t(lane) % around.devices.size()]));
      under_way_[job.trial] = {};
    }
    TrialEnd trial = run_trial(record_.plan, job, lane, around);
    const std::scoped_lock lock(mutex_);
    ended_images_ += under_way_[job.trial].images;
    under_way_.erase(job.trial);
    if (trial.end.kind != JobEnd::Kind::Judged) return trial.end;
    log_.result(trial.result);
    record_.results.push_back(trial.result);
    tell_result(trial.result);
    // Trials that a search promotes later need their checkpoints, and models of epochs that may remain their best.
    if (record_.plan.halving) return trial.end;
    if (trial.result.error.empty()) remove_checkpoints_of(job.trial);
    keep_best();
    return trial.end;
  }

  void tell_result(const SweepResult& result) {
    clear_status();
    const auto all = record_.plan.trials.size();
    const std::string settings = to_string(record_.plan.trials[size_t(result.job.trial)]);
    std::string text = "no value";
    if (!result.error.empty()) {
      text = "failed: " + result.error;
    } else if (result.value) {
      text = fmt::format("{} {:.5g}", result.metric, *result.value);
      if (result.metric != "loss") text += fmt::format(" in epoch {}", result.epoch);
    } else if (result.loss && !result.validated) {
      text = fmt::format("loss of training {:.5g}", *result.loss);
    }
    const bool within = result.ended_within_epoch();
    const int64_t length = within ? result.iterations : result.epochs;
    fmt::print("{}\n", printable(fmt::format("trial {:>{}}/{}  {}  {}, {} {}{} in {:.1f} s", result.job.trial + 1,
                                             std::to_string(all).size(), all, settings, text, length,
                                             within ? "iteration" : "epoch", length == 1 ? "" : "s", result.seconds)));
    show_status();
    std::fflush(stdout);
  }

  void progress(const SweepResult& result) {
    const std::scoped_lock lock(mutex_);
    under_way_[result.job.trial] = result;
    tune();
    clear_status();
    show_status();
  }

  void tell_shrunk(int at_once, const std::string& why) {
    const std::scoped_lock lock(mutex_);
    clear_status();
    tuner_.reset();  // memory decides
    lanes_.expect(at_once);
    log_.lanes(at_once, why);
    warn(fmt::format("{} from here on, since there is no memory for more: {}",
                     at_once == 1 ? "one trial trains at a time" : fmt::format("{} trials train at once", at_once),
                     why.substr(0, why.find('\n'))));
  }

  void tell_too_large(const SweepJob& job, const std::string& why) {
    const std::scoped_lock lock(mutex_);
    SweepResult result;
    result.job = job;
    result.error = why;
    log_.result(result);
    record_.results.push_back(result);
    tell_result(result);
  }

  // Lets more trials train at once as long as that raises the throughput of all.
  void tune() {
    if (!tuner_ || tuner_->done()) return;
    int64_t images = ended_images_;
    int training = 0;
    for (const auto& [trial, result] : under_way_) {
      images += result.images;
      training += result.images > 0;
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
    if (!tuner_->look(seconds, images, training >= tuner_->lanes())) return;
    lanes_.allow(tuner_->lanes());
    if (tuner_->done()) log_.lanes(tuner_->lanes(), "more at once do not train faster");
  }

  // A note of one trial holds for others, too.
  void tell_note(int trial, const std::string& note) {
    const std::scoped_lock lock(mutex_);
    const bool of_other = !noted_.empty() && noted_.begin()->first != trial;
    if (record_.plan.finds_rate || of_other || !noted_.emplace(trial, note).second) return;
    clear_status();
    warn(note);
  }

  // One line that later ones replace; nothing unless standard output is a terminal.
  void show_status() {
    if (!redraws_) return;
    double rate = 0;
    for (const auto& [trial, result] : under_way_) rate += result.images_per_second;
    std::set<int> under_way;
    for (const auto& [trial, result] : under_way_) under_way.insert(trial);
    const size_t ended = ended_trials(record_, under_way), all = record_.plan.trials.size();
    std::string text =
        fmt::format("{} of {} trials ended, {} under way, {:.0f} images/s", ended, all, under_way_.size(), rate);
    if (const double left = seconds_left(ended); left > 0) text += fmt::format(", about {} left", shown_time(left));
    fmt::print("{}", first_columns(text, terminal_width(stdout) - 1));
    std::fflush(stdout);
    shown_ = true;
  }
  // If others take as long as those that have ended; 0: none has, or a search decides how far they train.
  double seconds_left(size_t ended) const {
    if (record_.plan.halving || ended == 0 || under_way_.empty()) return 0;
    double took = 0, begun = 0;
    for (size_t trial = 0; trial < record_.plan.trials.size(); ++trial) {
      const SweepResult* last = last_result(record_, int(trial));
      if (last != nullptr && !under_way_.contains(int(trial))) took += last->seconds;
    }
    for (const auto& [trial, result] : under_way_) begun += result.seconds;
    const double left = took / double(ended) * double(record_.plan.trials.size() - ended) - begun;
    return left / double(under_way_.size());
  }
  void clear_status() {
    if (std::exchange(shown_, false)) fmt::print("\r\x1b[K");
  }

  // Removes the models of trials that are no longer among the best. Those under way may be better than they were. Folds
  // of the same settings stay or go together, those of the best at least until they have predicted what they held out.
  void keep_best() {
    if (options_.keep == "all") return;
    auto most = size_t(std::stoll(options_.keep));
    std::vector<std::vector<int>> ranked;
    if (!tells_predictions(record_.plan)) {
      if (record_.plan.finds_rate) most = 0;
      for (const int trial : ranked_trials(record_)) ranked.push_back({trial});
    } else {
      most = std::max<size_t>(most, 1);
      const Leaderboard board = leaderboard_of(record_);
      for (const TrialGroup* group : ranked_whole_groups(board, record_)) ranked.push_back(group->trials);
    }
    std::error_code ignored;
    for (size_t place = most; place < ranked.size(); ++place) {
      for (const int trial : ranked[place]) {
        if (!under_way_.contains(trial)) fs::remove(trial_model(options_.out, trial), ignored);
      }
    }
  }

  // Nobody goes on from them, unless the log lacks what they led to.
  void remove_checkpoints_of(int trial) const {
    std::error_code ignored;
    if (!log_.failed()) fs::remove_all(trial_checkpoints(options_.out, trial), ignored);
  }
  void remove_checkpoints() const {
    for (int trial = 0; trial < int(record_.plan.trials.size()); ++trial) {
      const SweepResult* last = last_result(record_, trial);
      if (last && last->error.empty()) remove_checkpoints_of(trial);  // --retry goes on from those of others
    }
  }

  const SweepOptions& options_;
  SweepSchedule schedule_;
  SweepLog& log_;
  const bool redraws_;
  SweepRecord record_;
  std::vector<SweepResult> known_;        // of the sweep that this one goes on with
  std::mutex mutex_;                      // of what follows, the log, the record, and standard output
  std::map<int, SweepResult> under_way_;  // by trial
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  Lanes lanes_;
  std::optional<LaneTuner> tuner_;
  int64_t ended_images_ = 0;                     // of jobs that have ended
  std::set<std::pair<int, std::string>> noted_;  // what has been told of the trial whose notes are
  bool shown_ = false;                           // the status line
  std::atomic<bool> time_is_up_ = false;
};

}  // namespace

bool tells_predictions(const SweepPlan& plan) {
  return !plan.fold.empty() && !plan.finds_rate;
}

SweepEnd run_sweep(const SweepOptions& options, SweepPlan plan, std::optional<SweepRecord> before,
                   const SweepSurroundings& around, int most, SweepLog& log) {
  Sweep sweep(options, std::move(plan), std::move(before), log);
  const bool over = sweep.run(around, most);
  return sweep.end(over);
}

}  // namespace arbalest
