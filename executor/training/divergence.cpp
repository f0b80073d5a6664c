// What a run does once its loss is no longer finite.

#include <fmt/format.h>

#include "executor/trace/trace_recorder.h"
#include "executor/training/training.h"

namespace arbalest {

void Training::check_divergence() const {
  const DivergenceOptions& options = options_.divergence;
  if (options.then != OnDivergence::Rollback) return;
  if (options_.checkpoints.folder.empty()) throw GraphError("--on-nan rollback needs --checkpoint DIR");
  if (!(options.rate_factor > 0 && options.rate_factor <= 1)) {
    throw GraphError(
        fmt::format("--nan-rate-factor {}: expected a number above 0, and no more than 1", options.rate_factor));
  }
}

// Goes back to the newest checkpoint that is finite, and goes on from there with a lower rate. Throws where the run has
// done so often enough, and where there is no such checkpoint.
void Training::roll_back(const Diverged& error) {
  const DivergenceOptions& options = options_.divergence;
  writer_->wait();
  const MonitorState from = monitor_->state();
  if (from.rollbacks >= options.most_rollbacks) {
    throw TaskError(fmt::format("{}; the run has gone back to a checkpoint {} time{} already", error.what(),
                                from.rollbacks, from.rollbacks == 1 ? "" : "s"),
                    error.iteration);
  }
  const auto file = newest_finite_checkpoint(options_.checkpoints.folder, error.iteration);
  if (!file) {
    throw TaskError(fmt::format("{}; '{}' has no checkpoint to go back to", error.what(), options_.checkpoints.folder),
                    error.iteration);
  }
  trace_.reset();    // it is of the segment
  segment_.reset();  // its memory is needed
  set_learners(prepared_, tuner_ ? file->checkpoint.segment.learners : options_.learners.per_device, options_);
  whole_ = prepared_.request;
  validated_ = {};
  resume(*file);
  monitor_->roll_back(from, options.rate_factor);
  overdue_ = false;
  last_checkpoint_ = seconds_since_start();
  const RunPosition& at = file->checkpoint.position;
  observer_.rolled_back({error.what(), error.iteration, file->path, at.epoch, at.iteration, from.rollbacks + 1,
                         options.most_rollbacks, from.rollback_factor * options.rate_factor, from.seconds});
}

}  // namespace arbalest
