// SPDX-License-Identifier: Apache-2.0
#pragma once
// Keeps the history of a run: events for the observer, results for the end, and decisions of validation.

#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "executor/session/metrics.h"
#include "executor/session/observer.h"
#include "executor/session/target.h"
#include "passes/program.h"

namespace arbalest {

// Rules by which the results of validations control a run.
struct ValidationRules {
  std::vector<Target> targets = {};  // the run ends once all are met
  // The metric that decides which validation is best: its name, optionally with the direction as "NAME:min" or
  // "NAME:max". "": the first metric of Validate that is not the loss.
  std::string metric = {};
  int64_t patience = 0;  // validations without a new best after which the run ends; 0: never
  int64_t plateau = 0;   // validations without a new best after which the rate is multiplied; 0: never
  double plateau_factor = 0.1;
  int64_t recalibrate = 0;  // training batches before each validation: Validate's attribute; 0: as the graph says
};

// The position of a run. Epochs count from 1; the other numbers say what is complete.
struct RunPosition {
  int64_t epoch = 0, iteration = 0, images = 0;
  double epochs = 0;  // of training samples seen
};

// Updates of all learners since the previous report.
struct UpdateCount {
  int64_t learners = 1;
  int64_t due = 0, skipped = 0;
};

// Training since the report before.
struct TrainingReport {
  RunPosition at;
  bool ends_epoch = false;
  bool validates = false;  // the epoch has ended, and its weights are validated
  double learning_rate = 0;
  // Σ valid, Σ metric · weight of training's metrics, the loss first, and the weights (add_tally() in passes/passes.h),
  // over all learners.
  std::vector<double> sums;
  std::optional<UpdateCount> updates;  // if they may be skipped; the sums are then of batches whose loss was finite
  std::string diverged;                // the learners whose loss is not finite; "": the only one
  InputReport input;
};

// The state of a monitor, which a checkpoint keeps.
struct MonitorState {
  double seconds = 0;  // since training began
  double last_seconds = 0, epoch_began = 0;
  int64_t last_images = 0;
  std::vector<double> epoch_sums;
  bool has_validated = false;
  Validated last;
  Metrics best;  // the best value of each metric but the loss
  bool has_best = false;
  double best_value = 0;  // of the metric that decides
  std::optional<MetricSpec::Better>
      better;  // which way it was judged; none: unknown, of a version that did not keep it
  int64_t best_epoch = 0, best_iteration = 0;
  int64_t since_best = 0, since_drop = 0;
  std::vector<double> factors = {1};  // by the number of validations made
  std::vector<int64_t> drops = {0};   // the same: how often the factor has fallen
  std::vector<TargetReached> targets;
  int64_t rollbacks = 0;         // that the run has made
  double rollback_factor = 1;    // what they have multiplied the rate with
  int64_t skipped = 0;           // updates of all learners
  int64_t skipped_in_a_row = 0;  // by the last reports: updates of each learner
};

class Monitor {
 public:
  // `class_names`: of classes or labels, what parts of metrics are called; empty: by their numbers. Throws GraphError
  // if a rule names a metric that the program's validation has not, or a value that it cannot reach. Throws it also if
  // a rule needs the best of a metric and nothing states which way it is better.
  Monitor(const Program& program, const ValidationRules& rules, RunObserver& observer,
          const std::vector<std::string>& class_names = {});

  struct Verdict {
    bool stop = false;  // targets reached, or patience at its end
    bool best = false;  // no validation before was better
  };

  static constexpr int64_t kMostSkipped = 100;

  void begin();  // training's clock starts, or goes on
  // state() returns what is known by now, and restore() goes on from it. The targets are those of this run; targets
  // that the state has as reached stay reached.
  MonitorState state() const;
  void restore(MonitorState state);
  // After restore(): tells the monitor that the run, which was at `from`, has gone back to the restored state.
  // Training's clock goes on, and the best validation stays the best.
  void roll_back(const MonitorState& from, double rate_factor);
  int64_t best_iteration() const;                                       // of the best validation; 0: there was none
  const std::string& best_metric() const { return best_metric_; }       // what it is judged by
  std::optional<MetricSpec::Better> better() const { return better_; }  // none: nothing states it, and there is no best
  // Throws GraphError if nothing states which way the metric is better, which `option` needs.
  void require_better(const std::string& option) const;
  // Throws Diverged if the loss is not finite, which names the learners of which that is so, or if the last
  // kMostSkipped updates of each learner, by whole reports, have been skipped.
  void report(const TrainingReport& trained);
  // So much of a validation's batches has been read; passed on a few times a second.
  void validating(int64_t epoch, double share, bool recalibrates = false);
  // Throws Diverged if the loss is not finite, TaskError if no sample could be measured.
  Verdict validated(const RunPosition& at, const Measurement& measured);
  // Factor of the learning rate after `validations` validations. It depends on these and on the rollbacks before this
  // segment alone.
  double rate_factor(int64_t validations) const;
  int64_t rate_drops(int64_t validations) const;  // how often the factor has fallen by then
  bool all_targets_reached() const;
  bool out_of_patience() const;
  // `trained_seconds`: when training ended, for its throughput.
  RunFinished finish(const RunPosition& at, double trained_seconds, RunEnd reason) const;
  double seconds() const;

 private:
  void choose_best();
  MeasuredMetric& find(const std::string& name, const std::string& option);
  void check(const Target& target);
  void check_loss(const RunProgress& progress, bool skipped, const std::string& diverged) const;
  void keep_best(const std::vector<double>& values);
  void judge(const std::vector<double>& values, const RunPosition& at, Verdict& verdict);
  double recent_rate(double now, int64_t images);

  std::vector<MeasuredMetric> metrics_;            // of validations
  const std::vector<LoopMetric> trained_metrics_;  // of training, the loss first
  const int64_t accumulate_;                       // batches of an update
  const ValidationRules rules_;
  RunObserver& observer_;
  std::string best_metric_;
  std::optional<MetricSpec::Better> better_;  // of best_metric_

  mutable std::mutex mutex_;
  std::chrono::steady_clock::time_point begun_;  // less the seconds of earlier processes of the run
  double told_validating_ = -1;
  // Totals at earlier reports, over which images per second are counted. A restored run begins with the state's last
  // report.
  struct Mark {
    double seconds = 0;
    int64_t images = 0;
  };
  std::deque<Mark> marks_;
  MonitorState state_;
};

}  // namespace arbalest
