// SPDX-License-Identifier: Apache-2.0
#include "executor/training/checkpoints.h"

#include <algorithm>
#include <utility>

#include "base/files/atomic_file.h"
#include "executor/segment/whole_state.h"
#include "executor/training/changes.h"
#include "executor/world/agreement.h"
#include "executor/world/part.h"

namespace arbalest {
namespace {

constexpr int64_t kNoRest = SchedulerOptions::kNoRest;

int64_t bytes_of(const Checkpoint& checkpoint) {
  const RunState& state = checkpoint.segment.state;
  size_t bytes = state.frozen.size() + state.moving_average.weights.size() + checkpoint.validated.weights.size() +
                 checkpoint.segment.model.weights.size();
  for (const AverageState& average : state.averages) bytes += average.now.size() + average.before.size();
  for (const LearnerState& learner : state.learners) {
    bytes += learner.weights.size() + learner.statistics.size();
    for (const auto& slot : learner.slots) bytes += slot.size();
  }
  for (const auto& values : checkpoint.segment.kept) {
    for (const auto& value : values) bytes += value.size();
  }
  return int64_t(bytes);
}

}  // namespace

Checkpoints::Checkpoints(const SessionOptions& options, const Prepared& prepared, const Monitor& monitor,
                         EventQueue& events, std::chrono::steady_clock::time_point started)
    : options_(options), events_(events), started_(started), changes_(changes_of(options.checkpoints)) {
  const CheckpointOptions& wanted = options.checkpoints;
  if (!wanted.folder.empty() || wanted.from || options.ranks)
    identity_ = identity_of(prepared, options, monitor.best_metric());
  if (wanted.folder.empty()) return;
  const bool first = !options.ranks || options.ranks->first();
  if (first && !wanted.resume) check_has_none(wanted.folder);
  writer_ = std::make_unique<CheckpointWriter>(
      wanted.held ? wanted.held : std::make_shared<const CheckpointFolder>(wanted.folder, first), wanted.keep,
      [&monitor] { return monitor.best_iteration(); });
}

double Checkpoints::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
}

int64_t Checkpoints::plan_next(const Segment& segment) {
  next_ = kNoRest;
  const CheckpointOptions& wanted = options_.checkpoints;
  if (wanted.folder.empty()) return next_;
  const SegmentTimes& times = segment.clock().times();
  const int64_t done = segment.iterations();
  if (wanted.iterations > 0) {
    next_ = done + wanted.iterations - (times.from.iteration + done) % wanted.iterations;
  } else if (wanted.epochs > 0) {
    const int64_t epochs = done / times.rounds;
    next_ = (epochs + wanted.epochs - (times.from.epoch + epochs) % wanted.epochs) * times.rounds;
  }
  return next_;
}

bool Checkpoints::due() const {
  if (!decides()) return false;
  const CheckpointOptions& wanted = options_.checkpoints;
  const bool timed = wanted.iterations == 0 && wanted.epochs == 0;
  return overdue_ || (timed && seconds() - last_ >= wanted.seconds);
}

bool Checkpoints::wants(int64_t iterations) {
  if (!decides() || (!due() && iterations < next_)) return false;
  overdue_ = writer_->busy();
  return !overdue_;
}

// Keeps what this rank writes of the checkpoint, and adds the list of all ranks' parts. Returns the bytes of all ranks.
int64_t Checkpoints::divide(Checkpoint& taken) const {
  if (!options_.ranks) return bytes_of(taken);
  SegmentSnapshot& segment = taken.segment;
  const CheckpointParts::Part learnt = {segment.first_learner, int64_t(segment.state.learners.size())};
  segment = completed(*options_.ranks, std::move(segment));
  PartWriter mine;
  mine.array(decides() ? unforeseen_digits() : "");
  mine.number(learnt.first_learner);
  mine.number(learnt.learners);
  const auto& averages = segment.state.averages;
  const auto own = std::find_if(averages.begin(), averages.end(), [](const auto& each) { return !each.now.empty(); });
  mine.number(own == averages.end() ? kNone : int32_t(own - averages.begin()));
  mine.number(bytes_of(taken));
  int64_t bytes = 0;
  const Ranks::Parts all = options_.ranks->exchange("checkpoint", std::move(mine.bytes));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    PartReader in(all[rank]);
    const std::string drawn = in.text();
    CheckpointParts::Part part;
    part.first_learner = in.number<int64_t>();
    part.learners = in.number<int64_t>();
    part.host = in.number<int32_t>();
    bytes += in.number<int64_t>();
    if (rank == 0) {
      taken.parts.tag = drawn;  // rank 0's file has its own learners
    } else {
      taken.parts.of_ranks.push_back(part);
    }
  }
  return bytes;
}

void Checkpoints::take(const RunParts& run, RunEnd ended) {
  if (!writer_) return;
  const double began = seconds();
  overdue_ = true;  // if a rank is lost before it is under way
  Checkpoint taken;
  taken.position = run.segment.position();
  taken.segment = run.segment.own_snapshot();
  if (decides()) add_run(run, ended, taken);
  const int64_t bytes = divide(taken);
  const RunPosition at = taken.position;
  latest_ = writer_->path_of(at.iteration);
  last_ = seconds();
  std::function<void()> told;
  if (decides()) {
    events_.on(CheckpointSaved{latest_, at.epoch, at.iteration, bytes, taken.monitor.seconds, true, last_ - began});
    // A checkpoint that can be gone on from has its line in the log, after which a run that goes on adds its own.
    constexpr auto kLongest = std::chrono::seconds(5);
    told = [this, handed_on = events_.handed_on(), kLongest] { events_.wait_for(handed_on, kLongest); };
  }
  const std::shared_ptr<Ranks>& ranks = options_.ranks;
  const int rank = ranks ? ranks->rank() : 0;
  writer_->write({layout_, std::move(taken), told, ranks, rank, ranks ? ranks->name(rank) : ""});
  overdue_ = false;
}

void Checkpoints::wait_after_loss() {
  if (!decides()) return;
  writer_->wait();  // no part comes any more
  if (!writer_->error().empty()) overdue_ = true;
}

// Adds all that is not the segment's.
void Checkpoints::add_run(const RunParts& run, RunEnd ended, Checkpoint& taken) const {
  taken.identity = identity_;
  taken.changes = changes_;
  taken.command = options_.command;
  taken.folder = options_.checkpoints.working_folder;
  taken.strategy = run.prepared.request.strategy;
  taken.next = run.segment.cursor();
  taken.total_epochs = run.prepared.total_epochs;
  taken.ended = ended;
  taken.monitor = run.monitor.state();
  taken.held = events_.held_back();
  if (run.search) taken.tuner = run.search->state();
  taken.keeps_validated = !run.files.validated().model.weights.empty();
  if (!taken.keeps_validated) return;
  taken.validated = run.files.validated().model;
  taken.validated_at = run.files.validated().at;
}

void Checkpoints::finish(const RunParts& run, RunFinished& end, bool takes) {
  if (takes) take(run, end.reason);
  if (!writer_) return;
  writer_->wait();
  end.checkpoint = latest_;
  end.checkpoint_error = writer_->error();
}

std::optional<CheckpointWriter::NotFinite> Checkpoints::take_not_finite() {
  if (!writer_) return std::nullopt;
  PartWriter mine;
  if (const auto found = writer_->take_not_finite()) {
    mine.number(found->iteration);
    mine.array(found->array);
  }
  const std::string found = first_of(options_.ranks.get(), std::move(mine.bytes));
  if (found.empty()) return std::nullopt;
  PartReader in(found);
  const auto iteration = in.number<int64_t>();
  return CheckpointWriter::NotFinite{in.text(), iteration};
}

void Checkpoints::go_back() {
  if (!writer_) return;
  writer_->wait();
  writer_->take_not_finite();  // of what is given up
  overdue_ = false;
}

}  // namespace arbalest
