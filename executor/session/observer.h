// SPDX-License-Identifier: Apache-2.0
#pragma once
// The events that a run reports to its observer. Progress lines and the log are observers.

#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "executor/limit/recomputation.h"
#include "executor/plan/run_end.h"

namespace arbalest {

// Each metric under its own name, fractions as fractions ("accuracy": 0.9125); without the loss. NaN: undefined.
using Metrics = std::vector<std::pair<std::string, double>>;

// How reading kept up. A batch is late if everything else that its way to the device waits for was there before it.
struct InputReport {
  double late = 0;  // share of training's batches
  // Files that host nodes prepare: µs of a thread a sample, by stage; 0: there are none.
  double read = 0, decode = 0, scale = 0;

  // Whether training waits for its input rather than the other way round.
  bool bound() const { return late > 0.5; }
};

// Training is about to begin: the settings of the run.
struct RunStarted {
  std::string graph;                 // the file
  std::vector<std::string> devices;  // "cuda:0", …
  std::vector<std::string> models;   // what each of them is: "NVIDIA H200"; "": unknown
  int learners = 1;                  // per device
  std::string strategy;              // StrategySpec::name
  int64_t batch = 0;                 // per learner
  std::string precision;             // "fp32", "tf32", "bf16"
  uint64_t seed = 0;
  bool deterministic = false;
  std::vector<std::pair<std::string, std::string>> versions;  // "arbalest", "cuda", …
  int64_t parameters = 0;                                     // elements of one replica
  int64_t planned_peak_bytes = 0;                             // of the device that needs most
  int64_t samples_per_epoch = 0;                              // that training consumes, over all learners
  int64_t iterations_per_epoch = 0;                           // rounds: one batch a learner
  int64_t iterations = 0;                                     // in all; 0: unknown
  int64_t epochs = 0;                                         // in all; 0: iterations say
  int64_t classes = 0;                                        // that samples are of; 0: of none
  std::vector<std::string> class_names;                       // of these or of several labels; empty: they are numbers
  bool validates = false;                                     // the graph has a Validate node
  std::string best_metric;      // what the best validation is judged by; "": there is none
  std::string trained;          // the value that Train minimises; "": it is called loss, or no metric is
  std::string better;           // "lower", "higher", or "" if nothing states it, and there is no best
  Recomputation recomputation;  // what a memory limit costs
  double setup_seconds = 0;
  std::string note;                  // what is probably not meant; "": nothing
  std::vector<std::string> changes;  // of the learning rate since the run's start: CheckpointOptions::changes
  std::string resumed;               // the checkpoint that the run goes on from; "": it starts afresh
  int64_t resumed_iteration = 0;     // that it goes on after
  double resumed_seconds = 0;        // of that checkpoint: CheckpointSaved::seconds
};

// Before training begins, samples of a split are brought to the devices that they stay on (Prefetch's `cache`). Told a
// few times a second, and when all are there.
struct SamplesKept {
  std::string split;             // "train"
  int64_t samples = 0, all = 0;  // that are there, and of the split
  int64_t bytes = 0;             // of all, on each device
  double seconds = 0;            // since the first was read
};

// Iterations and epochs count from 1 and say what is complete; seconds count from the start of training.
struct RunProgress {
  int64_t epoch = 0, iteration = 0;
  double epochs = 0;  // of training samples seen, where a whole epoch counts as 1
  double seconds = 0;
  double images_per_second = 0;  // since the progress before the last, and over half a second at least
  double learning_rate = 0;
  double loss = 0;              // mean since the progress before; NaN if no batch has counted, or `loss_undefined`
  bool loss_undefined = false;  // no sample took part: all labels are missing or ignored
  Metrics metrics;              // means since then of Validate's metrics that training computes along with the loss
  InputReport input;            // since the progress before
  int64_t skipped_updates = 0;  // since then, of all learners: their loss or gradients were not finite
  int64_t missed = 0;           // reports before this one that are left out, since observers were slow
};

// An epoch of training has ended.
struct EpochEnded {
  int64_t epoch = 0, iteration = 0;
  double seconds = 0;
  double images_per_second = 0;  // over the epoch
  double loss = 0;               // mean over the epoch; NaN if `loss_undefined`
  bool loss_undefined = false;   // as RunProgress has it
  Metrics metrics;               // means over the epoch of Validate's metrics that training computes
  bool validates = false;        // a validation of the weights after this epoch is to come
};

// A validation has ended.
struct Validated {
  int64_t epoch = 0, iteration = 0;  // of the weights that were validated
  int64_t samples = 0;               // that were measured
  int64_t left_out = 0;              // of the split, since they cannot be read (ExecutionOptions::skip_bad)
  double seconds = 0;
  double loss = 0;              // NaN: not among Validate's metrics, or `loss_undefined`
  bool loss_undefined = false;  // as RunProgress has it
  Metrics metrics;
  Metrics parts;           // what metrics are means of: "auc/edema", or "auc/0" if labels have no names
  double rate_factor = 1;  // that plateaus have multiplied the learning rate with by now
};

// A validation goes on. Told a few times a second.
struct ValidationProgress {
  int64_t epoch = 0;  // of the weights that are validated
  double share = 0;   // of its batches that have been read; or of recalibration's, which come before them
  double seconds = 0;
  bool recalibrates = false;  // whether these are recalibration's
};

// --learners auto has measured a number of learners per device, and goes on with `next`.
struct Tuned {
  int learners = 1, next = 1;
  double images_per_second = 0;  // of `learners`; 0: they could not be had
  std::string reason;
  std::string strategy;  // with `next`
  int64_t epoch = 0, iteration = 0;
  int64_t iterations = 0, iterations_per_epoch = 0;  // of the whole run, about, with that number
  double seconds = 0;
};

// A sample that could not be read (ExecutionOptions::skip_bad). In training the next one that can took its place,
// validations leave it out. Told once of each.
struct SampleSkipped {
  std::string place, fault;  // "photos/cup/7.jpg", what is wrong with it
};

// A model has been saved; or, `whole`, all that the run is, which begins to be written then.
struct CheckpointSaved {
  std::string path;
  int64_t epoch = 0, iteration = 0, bytes = 0;
  double seconds = 0;
  bool whole = false;
  double paused = 0;  // seconds that it was copied in while nothing was trained
};

// The loss was no longer finite, and the run has gone back to a checkpoint (DivergenceOptions).
struct RolledBack {
  std::string reason;                // what was found
  int64_t from_iteration = 0;        // after which
  std::string path;                  // the checkpoint
  int64_t epoch = 0, iteration = 0;  // that the run goes on after
  int64_t times = 0, most = 0;       // rollbacks by now, this one included, and how many there may be
  double rate_factor = 1;            // that rollbacks have multiplied the learning rate with by now
  double seconds = 0;
};

// Processes are lost or have come back, and the run goes on with those that are there (SessionOptions::on_lost).
struct RanksChanged {
  std::string reason;             // what was found
  std::vector<std::string> lost;  // "rank 2 on node07"
  std::vector<std::string> returned;
  int64_t learners = 0;              // that are there, on all devices
  std::vector<std::string> devices;  // of these
  int64_t left_out = 0;  // batches of those that are left: of learners that were behind the one furthest ahead
  int64_t epoch = 0, iteration = 0;  // that the run goes on after
  double paused = 0;                 // seconds from then until training could go on
  double seconds = 0;
};

// A target of the run, and when a validation met it.
struct TargetReached {
  std::string target;   // "accuracy >= 0.94"
  double seconds = -1;  // −1: never
};

// The run has ended well, and its files are written.
struct RunFinished {
  RunEnd reason = RunEnd::Unknown;
  std::string interrupted_by;  // "SIGINT"; "": unknown, or another reason
  int64_t epoch = 0, iteration = 0, images = 0;
  double seconds = 0, setup_seconds = 0;  // set-up: with what SamplesKept tells of
  double images_per_second = 0;           // over all of training
  InputReport input;                      // since the number of learners was last changed
  int64_t taken_bytes = -1;               // Device::taken_bytes() of this process's device that took most
  int64_t skipped_updates = 0;            // of the whole run and all learners
  bool validated = false;                 // whether the next three mean anything
  Validated last;
  Metrics best;            // per metric, over validations
  int64_t best_epoch = 0;  // of the metric that decides, if there is one
  std::string best_metric;
  double best_value = 0;  // of it, in that epoch
  int learners = 1;       // per device, at the end
  bool tuning = false;    // learners were still being tried
  std::vector<TargetReached> targets;
  std::string weights, best_weights, trace;          // files written, or ""
  int64_t weights_epoch = 0, weights_iteration = 0;  // after which `weights` are those of the model
  std::string best_error;                            // why the best weights are not in their file, or ""
  std::string weights_error;                         // why `weights` is another file than was asked for, or ""
  std::string checkpoint;                            // the last of the run's checkpoints, or ""
  std::string checkpoint_error;                      // why it could not be written, or ""
  std::string trace_error;                           // why the trace could not be written, or ""
};

// The run has ended with an error.
struct RunFailed {
  std::string message;                 // whole, as it is shown
  int64_t epoch = -1, iteration = -1;  // −1: unknown or none
  double seconds = 0;
  std::string trace;  // file written, or ""
};

// An event of a run. RunStarted comes first, once set-up is over; RunFinished or RunFailed comes last. If set-up fails,
// RunFailed is the only one.
using RunEvent = std::variant<RunStarted, SamplesKept, RunProgress, EpochEnded, ValidationProgress, Validated, Tuned,
                              SampleSkipped, CheckpointSaved, RolledBack, RanksChanged, RunFinished, RunFailed>;

// Whether the event ends a run.
inline bool is_last(const RunEvent& event) {
  return std::holds_alternative<RunFinished>(event) || std::holds_alternative<RunFailed>(event);
}

// Watches a run; its implementation is passed to run_training(). It overrides the methods of the events that it needs,
// or on() for all of them. Calls come one at a time, from a thread that does nothing else. Training does not wait for
// them: if they take too long, reports of progress are left out (see RunProgress::missed). The last event comes before
// run_training() returns. If a call throws, nothing is called after that. run_training() throws the exception once the
// run has ended and saved its files, unless the run itself failed.
class RunObserver {
 public:
  virtual ~RunObserver() = default;
  // Calls the event's method.
  virtual void on(const RunEvent& event) { std::visit(Call{*this}, event); }

 protected:
  virtual void started(const RunStarted&) {}             // set-up is over
  virtual void kept(const SamplesKept&) {}               // samples are brought to devices
  virtual void progress(const RunProgress&) {}           // a few times a second
  virtual void epoch(const EpochEnded&) {}               // each
  virtual void validating(const ValidationProgress&) {}  // a few times a second
  virtual void validation(const Validated&) {}           // each
  virtual void tuned(const Tuned&) {}                    // another number of learners
  virtual void skipped(const SampleSkipped&) {}          // once a sample
  virtual void checkpoint(const CheckpointSaved&) {}     // each file
  virtual void rolled_back(const RolledBack&) {}         // after divergence
  virtual void ranks_changed(const RanksChanged&) {}     // the run goes on with other ranks
  virtual void finished(const RunFinished&) {}           // last, if all went well
  virtual void failed(const RunFailed&) {}               // last, otherwise

 private:
  struct Call {
    RunObserver& to;
    void operator()(const RunStarted& event) const { to.started(event); }
    void operator()(const SamplesKept& event) const { to.kept(event); }
    void operator()(const RunProgress& event) const { to.progress(event); }
    void operator()(const EpochEnded& event) const { to.epoch(event); }
    void operator()(const ValidationProgress& event) const { to.validating(event); }
    void operator()(const Validated& event) const { to.validation(event); }
    void operator()(const Tuned& event) const { to.tuned(event); }
    void operator()(const SampleSkipped& event) const { to.skipped(event); }
    void operator()(const CheckpointSaved& event) const { to.checkpoint(event); }
    void operator()(const RolledBack& event) const { to.rolled_back(event); }
    void operator()(const RanksChanged& event) const { to.ranks_changed(event); }
    void operator()(const RunFinished& event) const { to.finished(event); }
    void operator()(const RunFailed& event) const { to.failed(event); }
  };
};

// Hears nothing: the observer of programs that pass none.
inline RunObserver& no_observer() {
  static RunObserver none;
  return none;
}

// Passes events on to several observers, one event at a time, from any thread. An observer that throws is not called
// again, and the others get all events. The first exception is rethrown once the last event has been passed on.
class Observers final : public RunObserver {
 public:
  explicit Observers(std::vector<RunObserver*> all) : all_(std::move(all)) {}
  void on(const RunEvent& event) override {
    const std::scoped_lock lock(mutex_);
    for (RunObserver*& observer : all_) {
      try {
        if (observer != nullptr) observer->on(event);
      } catch (...) {
        observer = nullptr;
        if (!error_) error_ = std::current_exception();
      }
    }
    if (error_ && is_last(event)) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  std::vector<RunObserver*> all_;  // nullptr: it has thrown
  std::exception_ptr error_;
  std::mutex mutex_;
};

}  // namespace arbalest
