#pragma once
// What the plan's host tasks do: fill slots with batches, read metrics back, tell the observer.

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "executor/binding.h"
#include "executor/make_plan.h"
#include "executor/observer.h"
#include "executor/target.h"
#include "io/data_order.h"
#include "io/source.h"
#include "ops/train.h"

namespace arbalest {

struct RunFacts {
  uint64_t seed = 1;
  int64_t rounds = 0;    // iterations per epoch
  int64_t learners = 0;  // in all
  double epochs = 0;     // of the run, for schedules
  std::vector<Target> targets;
  LearningRate schedule;
};

// Fills slots of one reader: a learner's, or validation's.
class BatchFiller {
 public:
  BatchFiller(const Binding& binding, const Task& task, const Loop& loop, const Source& source,
              const BatchLayout& layout);

  // Batch `number` of `epoch` in `order` into the slot of `tick`. Slots of different ticks may be filled at once.
  void fill(int64_t tick, const DataOrder& order, int64_t epoch, int64_t number, StepScalars scalars);

 private:
  const Binding& binding_;
  const BufferId buffer_;
  const Source& source_;
  const BatchLayout layout_;
  const int64_t batch_;
  std::vector<std::vector<int64_t>> samples_;  // one a slot
};

// Sums that a device keeps growing, seen as what came since the last look.
class TallyReader {
 public:
  explicit TallyReader(size_t metrics) : last_(metrics + 1, 0) {}
  // `tally` is Σ valid, Σ metric · valid, …
  std::vector<double> advance(const double* tally);

 private:
  std::vector<double> last_;
};

// The run's story so far: what the observer is told, and what the end needs.
class Monitor {
 public:
  Monitor(const Program& program, const RunFacts& facts, RunObserver& observer);

  void begin();                                                           // training's clock starts
  void report(int64_t iterations_done, const std::vector<double>& sums);  // Σ valid, Σ loss · valid over all learners
  void validated(int64_t iterations_done, const std::vector<double>& sums);
  bool all_targets_reached() const;
  RunFinished finish(int64_t iterations, std::string reason) const;
  double seconds() const;

 private:
  int64_t epoch_of(int64_t iterations_done) const { return (iterations_done + facts_.rounds - 1) / facts_.rounds; }

  const Program& program_;
  const RunFacts& facts_;
  RunObserver& observer_;
  mutable std::mutex mutex_;
  std::chrono::steady_clock::time_point begun_;
  double last_seconds_ = 0, epoch_began_ = 0;
  int64_t last_iterations_ = 0;
  double epoch_samples_ = 0, epoch_loss_ = 0;
  bool has_validated_ = false;
  Validated last_;
  Metrics best_;
  std::vector<TargetReached> targets_;
};

}  // namespace arbalest
