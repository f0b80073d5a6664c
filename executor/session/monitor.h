#pragma once
// The run's story so far: what the observer is told, what the end needs, and what validation decides.

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "executor/session/metrics.h"
#include "executor/session/observer.h"
#include "executor/session/target.h"
#include "graph/passes/program.h"

namespace arbalest {

// What validation drives.
struct ValidationRules {
  std::vector<Target> targets;  // the run ends once all are met
  std::string metric;           // what "best" means; "": the first metric of Validate that is not the loss
  int64_t patience = 0;         // validations without a new best after which the run ends; 0: never
  int64_t plateau = 0;          // validations without a new best after which the rate is multiplied; 0: never
  double plateau_factor = 0.1;
  int64_t recalibrate = 0;  // training batches before each validation: Validate's attribute; 0: as the graph says
};

// How far training has come. Epochs count from 1, the others say what is complete.
struct RunPosition {
  int64_t epoch = 0, iteration = 0, images = 0;
  double epochs = 0;  // of training samples seen
};

class Monitor {
 public:
  // `class_names`: of classes or labels, what parts of metrics are called; empty: by their numbers. Throws GraphError
  // where a rule names a metric that the program's validation has not, or a value that it cannot reach.
  Monitor(const Program& program, const ValidationRules& rules, RunObserver& observer,
          const std::vector<std::string>& class_names = {});

  struct Verdict {
    bool stop = false;  // targets reached, or patience at its end
    bool best = false;  // no validation before was better
  };

  void begin();  // training's clock starts
  // Σ valid and Σ metric · valid of training's metrics, the loss first, over all learners since the report before.
  // Throws TaskError where the loss is not finite, which names `diverged`, the learners of which that is so; "": the
  // only one. `validates`: the epoch has ended, and its weights are validated.
  void report(const RunPosition& at, bool epoch_ended, bool validates, double learning_rate,
              const std::vector<double>& sums, const std::string& diverged, const InputReport& input);
  // So much of a validation's batches has been read; passed on a few times a second.
  void validating(int64_t epoch, double share);
  // Throws TaskError where the loss is not finite.
  Verdict validated(const RunPosition& at, const Measurement& measured);
  // What the learning rate is multiplied with once `validations` have been made: a function of these alone.
  double rate_factor(int64_t validations) const;
  int64_t rate_drops(int64_t validations) const;  // how often that has fallen by then
  bool all_targets_reached() const;
  bool out_of_patience() const;
  // `trained_seconds`: when training ended, for its throughput.
  RunFinished finish(const RunPosition& at, double trained_seconds, std::string reason) const;
  double seconds() const;

 private:
  const MeasuredMetric& find(const std::string& name, const std::string& option) const;
  void check(const Target& target) const;
  void keep_best(const std::vector<double>& values);
  void judge(const std::vector<double>& values, int64_t epoch, Verdict& verdict);

  const std::vector<MeasuredMetric> metrics_;       // of validations
  const std::vector<std::string> trained_metrics_;  // of training, the loss first
  const ValidationRules rules_;
  RunObserver& observer_;
  std::string best_metric_;

  mutable std::mutex mutex_;
  std::chrono::steady_clock::time_point begun_;
  double last_seconds_ = 0, epoch_began_ = 0, told_validating_ = -1;
  int64_t last_images_ = 0;
  std::vector<double> epoch_sums_;
  bool has_validated_ = false;
  Validated last_;
  Metrics best_;  // of each metric but the loss, by itself
  bool has_best_ = false;
  double best_value_ = 0;  // of best_metric_
  int64_t best_epoch_ = 0;
  int64_t since_best_ = 0, since_drop_ = 0;
  std::vector<double> factors_ = {1};  // by the number of validations made
  std::vector<int64_t> drops_ = {0};   // likewise: how often the factor has fallen
  std::vector<TargetReached> targets_;
};

}  // namespace arbalest
