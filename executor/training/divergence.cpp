// SPDX-License-Identifier: Apache-2.0

// Handles a loss that is no longer finite.

#include <fmt/format.h>

#include "executor/trace/trace_recorder.h"
#include "executor/training/training.h"

namespace arbalest {

void Training::check_divergence() const {
  const DivergenceOptions& options = options_.divergence;
  if (options.find && tuner_) throw GraphError("--learners auto depends on measured times; --find-nan excludes it");
  if (options.find && options.then == OnDivergence::Skip) {
    throw GraphError("--find-nan ends a run where --on-nan skip goes on");
  }
  if (options.then != OnDivergence::Rollback) return;
  if (options_.checkpoints.folder.empty()) throw GraphError("--on-nan rollback needs --checkpoint DIR");
  if (!(options.rate_factor > 0 && options.rate_factor <= 1)) {
    throw GraphError(
        fmt::format("--nan-rate-factor {}: expected a number above 0, and no more than 1", options.rate_factor));
  }
}

// At rest, or at the end of a segment: whether all is well. A checkpoint may have found weights or statistics that are
// not finite while the loss was. --find-nan looks at weights and sums each time, and keeps them if they are finite.
bool Training::is_finite() {
  if (writer_ && writer_->found_not_finite() && !segment_->diverged()) {
    const CheckpointWriter::NotFinite found = *writer_->take_not_finite();
    segment_->diverge(
        {fmt::format("'{}' is no longer finite after iteration {}, though the loss is; try a lower learning "
                     "rate{}",
                     found.array, found.iteration, segment_->cause_in_range()),
         found.iteration, Diverged::Of::Training});
  }
  if (!options_.divergence.find || segment_->diverged()) return !segment_->diverged();
  SegmentSnapshot now = segment_->snapshot();
  if (const std::string what = segment_->not_finite(now); !what.empty()) {
    const int64_t at = segment_->position().iteration;
    segment_->diverge(
        {fmt::format("{} are no longer finite after iteration {}", what, at), at, Diverged::Of::Training});
    return false;
  }
  before_ = std::move(now);
  return true;
}

// The error with the node that makes the first value that is not finite, if that is asked for.
Diverged Training::located(const Diverged& error) const {
  // A validation is of weights that were finite. If the run was about to end by itself, iterations may have gone by
  // without a rest.
  const bool known = error.of == Diverged::Of::Training && before_.at.iterations == segment_->iterations() - 1;
  if (!options_.divergence.find || !known) return error;
  return {fmt::format("{}; in iteration {} {}", error.what(), segment_->position().iteration,
                      segment_->first_not_finite(before_)),
          error.iteration, error.of};
}

// Goes back to the newest checkpoint that is finite, or to the one before if that has been of no use, and goes on
// from there with a lower rate. Throws if that is not asked for, if the run has done so often enough, and if
// there is no such checkpoint.
void Training::roll_back(const Diverged& error) {
  const DivergenceOptions& options = options_.divergence;
  if (options.then != OnDivergence::Rollback) throw Diverged(error);
  writer_->wait();
  writer_->take_not_finite();  // of what is given up
  const MonitorState from = monitor_->state();
  if (from.rollbacks >= options.most_rollbacks) {
    throw TaskError(fmt::format("{}; the run has gone back to a checkpoint {} time{} already", error.what(),
                                from.rollbacks, from.rollbacks == 1 ? "" : "s"),
                    error.iteration);
  }
  const std::string& folder = options_.checkpoints.folder;
  auto file = newest_finite_checkpoint(folder, error.iteration);
  // The run has made no other since it began there: that checkpoint may already have been on the way to the divergence.
  if (file && file->checkpoint.position.iteration == gone_back_to_) {
    if (auto earlier = newest_finite_checkpoint(folder, gone_back_to_)) file = std::move(earlier);
  }
  if (!file) {
    throw TaskError(fmt::format("{}; '{}' has no checkpoint to go back to", error.what(), folder), error.iteration);
  }
  trace_.reset();  // it is of the segment
  traced_.begins = "gone back";
  segment_.reset();  // its memory is needed
  set_learners(prepared_, tuner_ ? file->checkpoint.segment.learners : options_.learners.per_device, options_);
  whole_ = prepared_.request;
  validated_ = {};
  resume(*file);
  monitor_->roll_back(from, options.rate_factor);
  overdue_ = false;
  const RunPosition& at = file->checkpoint.position;
  gone_back_to_ = at.iteration;
  remove_after(folder, at.iteration);
  observer_.rolled_back({error.what(), error.iteration, file->path, at.epoch, at.iteration, from.rollbacks + 1,
                         options.most_rollbacks, from.rollback_factor * options.rate_factor, from.seconds});
  take_checkpoint("");  // in the file's place: a run that is killed before the next one goes on with the lower rate too
}

}  // namespace arbalest
