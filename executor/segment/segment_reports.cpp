// SPDX-License-Identifier: Apache-2.0
#include "executor/segment/segment_reports.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "executor/world/part.h"

namespace arbalest {
InputReport InputMeter::since_last(const Look& now, int64_t learners) {
  const Look before = std::exchange(latest_, now);
  return last_ = between(before, now, learners);
}

InputReport InputMeter::between(const Look& from, const Look& to, int64_t learners) const {
  constexpr int64_t kFewest = 4;  // batches of a learner that tell whether training waits, if it has just begun
  InputReport report;
  // The first batches cannot but be late and do not count; some of iterations to come may be counted already.
  const int64_t first = from.iterations == begins_ ? learners : 0;
  const int64_t late = to.late - from.late - first;
  const int64_t batches = (to.iterations - from.iterations) * learners - first;
  const int64_t needed = first > 0 ? kFewest * learners : 1;
  report.late = batches >= needed ? std::clamp(double(late) / double(batches), 0.0, 1.0) : 0;
  const double samples = std::max(1.0, double(to.times.samples - from.times.samples)) * 1e-6;
  report.read = (to.times.read - from.times.read) / samples;
  report.decode = (to.times.decode - from.times.decode) / samples;
  report.scale = (to.times.scale - from.times.scale) / samples;
  return report;
}

SegmentReports::SegmentReports(const Prepared& prepared, const Binding& binding, const SegmentClock& clock,
                               const SegmentState& state, SegmentBatches& batches, Monitor& monitor,
                               const SegmentOptions& options)
    : prepared_(prepared),
      binding_(binding),
      clock_(clock),
      state_(state),
      batches_(batches),
      monitor_(monitor),
      options_(options),
      faults_(prepared, clock, batches.order()),
      trained_(binding, binding.plan().handles.loops.front(), training().sums + (prepared.program.skips ? 2 : 0)) {
  const LoopPlan* planned = binding.plan().handles.find(LoopRole::Validate);
  if (!planned) return;
  const Loop& loop = *prepared.program.find(LoopRole::Validate);
  validated_ = std::make_unique<ValidationReader>(binding, loop, *planned, prepared.validation->size(),
                                                  batches.reader_of(loop)->left_out());
}

std::function<void(int64_t)> SegmentReports::report() {
  return [this, relation = *binding_.plan().relation(binding_.plan().handles.by_report)](int64_t tick) {
    std::string part = part_of_report(trained_.read(tick));
    with_all(binding_.plan().handles.report, tick, std::move(part), [=, this](const Ranks::Parts& parts) {
      const int64_t last = relation.last_of(tick);
      const int64_t before = std::exchange(reported_, last + 1);
      const Sums sums = sums_of(parts);
      const bool finite = report_trained(before, last + 1, clock_.ends_epoch(last), trained_.advance(sums.of_learners));
      const bool ends = finite && options_.on_report && options_.on_report(clock_.position(last + 1), sums.seconds);
      if (!ends) return;
      end_.wanted = true;
      if (!options_.ranks) scheduler_->stop();
    });
  };
}

// The part of a report that is of this process: its time, samples that it could not read, and its learners' sums.
std::string SegmentReports::part_of_report(const std::vector<double>& sums) const {
  PartWriter part;
  part.number(monitor_.seconds());
  const std::vector<BadSample> bad = prepared_.bad->take_found();
  part.number(uint64_t(bad.size()));
  for (const BadSample& sample : bad) {
    for (const std::string* text : {&sample.place, &sample.fault, &sample.number}) part.array(*text);
  }
  part.array(sums);
  return std::move(part.bytes);
}

// The sums in the parts of all. Samples that other processes could not read count here as well: the run ends if all
// have found too many together.
SegmentReports::Sums SegmentReports::sums_of(const Ranks::Parts& parts) const {
  Sums sums;
  for (const std::string& part : parts) {
    PartReader in(part);
    sums.seconds = std::max(sums.seconds, in.number<double>());
    for (auto bad = in.number<uint64_t>(); bad > 0; --bad) {
      BadSample sample;
      for (std::string* text : {&sample.place, &sample.fault, &sample.number}) *text = in.text();
      try {
        prepared_.bad->add_others(sample);
      } catch (const RunError& too_many) {
        throw TaskError(too_many.what(), -1);  // reported unchanged: it is about files
      }
    }
    const std::vector<double> of_rank = in.array<double>();
    sums.of_learners.insert(sums.of_learners.end(), of_rank.begin(), of_rank.end());
  }
  return sums;
}

// Calls `then` with the parts of all processes, by rank. If there are several, that is once all are there, and ends the
// task's instance, which is deferred.
void SegmentReports::with_all(TaskId task, int64_t tick, std::string part,
                              std::function<void(const Ranks::Parts&)> then) {
  if (!options_.ranks) return then({std::move(part)});
  const std::string key = fmt::format("{} {}", binding_.plan().tasks[task].name, tick);
  options_.ranks->exchange(key, std::move(part), [this, task, tick, then = std::move(then)](const Ranks::Parts& parts) {
    try {
      then(parts);
      scheduler_->finish(task, tick);
    } catch (...) {
      scheduler_->fail(task, tick, std::current_exception());
    }
  });
}

std::function<void(int64_t)> SegmentReports::end_validation() {
  return [this, over = std::make_shared<bool>(false)](int64_t tick) {
    // A validation that ends before the stop takes hold counts no more.
    std::string part = *over ? std::string() : validated_->part(tick);
    with_all(binding_.plan().handles.validation_end, tick, std::move(part), [this, over, tick](const auto& parts) {
      if (*over) return;
      *over = end_validation(tick, parts).stop;
      // Several processes come to rest together, which the segment's caller asks for.
      if (*over && !options_.ranks) scheduler_->rest();
    });
  };
}

Monitor::Verdict SegmentReports::end_validation(int64_t tick, const Ranks::Parts& parts) {
  const int64_t iterations = clock_.validated_after(tick);
  Monitor::Verdict verdict;
  if (!watch([&] { verdict = judge(iterations, validated_->read(tick, parts)); })) return {};
  if (options_.on_validated) {
    options_.on_validated(verdict, state_.validated_model(), clock_.position(iterations));
  }
  return verdict;
}

// Removes the counts of updates, which are the last two sums, and returns them; nothing if the program skips no
// updates.
std::optional<UpdateCount> SegmentReports::take_updates(std::vector<double>& sums) const {
  if (!prepared_.program.skips) return std::nullopt;
  const UpdateCount updates{clock_.times().learners, std::llround(sums[sums.size() - 2]), std::llround(sums.back())};
  sums.erase(sums.end() - 2, sums.end());
  return updates;
}

// Reports of training up to iteration `to`. If the samples are why the loss is not finite, the error says so, and not
// that the rate is. If labels are, or are why updates were skipped, nothing helps, and the run ends.
bool SegmentReports::report_trained(int64_t from, int64_t to, bool ends_epoch, std::vector<double> sums) {
  TrainingReport trained{.at = clock_.position(to),
                         .ends_epoch = ends_epoch,
                         .validates = ends_epoch && clock_.validates_after(to - 1),
                         .learning_rate = clock_.rate(to - 1),
                         .updates = take_updates(sums)};
  trained.sums = std::move(sums);
  return watch([&] {
    trained.diverged = diverged_learners();
    trained.input = input_.since_last(look_at_input(to), clock_.times().learners);
    try {
      monitor_.report(trained);
    } catch (const Diverged& error) {
      faults_.explain_training(error, from, to, trained.updates.has_value());
    }
    if (trained.updates && trained.updates->skipped > 0) faults_.check_skipped(from, to);
  });
}

// Judges the validation after so many iterations. Errors are as those of training; metrics other than the loss may be
// nan for good reasons.
Monitor::Verdict SegmentReports::judge(int64_t iterations, const Measurement& measured) {
  Monitor::Verdict verdict;
  try {
    verdict = monitor_.validated(clock_.position(iterations), measured);
  } catch (const Diverged& error) {
    faults_.explain_validation(error, iterations);
  }
  faults_.check_undefined(measured, iterations);
  return verdict;
}

std::optional<Diverged> SegmentReports::diverged() const {
  const std::scoped_lock lock(end_.mutex);
  return end_.diverged;
}

// Whether losses are still finite, which `look` throws if they are not.
bool SegmentReports::watch(const std::function<void()>& look) {
  if (!options_.outlives_divergence) {
    look();
    return true;
  }
  if (diverged()) return false;  // what runs until the segment rests counts no more
  try {
    look();
    return true;
  } catch (const Diverged& error) {
    diverge(error);
    return false;
  }
}

void SegmentReports::diverge(const Diverged& error) {
  const std::scoped_lock lock(end_.mutex);
  if (!end_.diverged) end_.diverged = error;
}

InputMeter::Look SegmentReports::look_at_input(int64_t iterations) const {
  return {iterations, scheduler_->late_batches(), batches_.reader_of(training())->times()};
}

InputReport SegmentReports::input() const {
  if (!scheduler_) return {};
  return input_.since_start(look_at_input(scheduler_->iterations()), clock_.times().learners);
}

void SegmentReports::report_rest() {
  const int64_t done = scheduler_->iterations();
  if (done <= reported_ && !options_.ranks) return;
  const std::string part = part_of_report(trained_.read_end());
  const auto parts = options_.ranks ? options_.ranks->exchange("last report", part) : Ranks::Parts{part};
  const Sums sums = sums_of(parts);
  if (done <= reported_) return;  // what other processes could not read was still to be told
  const int64_t before = std::exchange(reported_, done);
  report_trained(before, done, false, trained_.advance(sums.of_learners));
}

// The learners whose loss was not finite when it was read last; "" if there is one learner only.
std::string SegmentReports::diverged_learners() const {
  if (clock_.times().learners == 1) return "";
  constexpr size_t kMostTold = 8;
  const std::vector<size_t>& which = trained_.not_finite();
  const std::vector<Replica>& learners = binding_.plan().handles.loops.front().replicas;
  std::string told;
  for (size_t i = 0; i < std::min(which.size(), kMostTold); ++i) {
    const bool here = !options_.ranks;  // otherwise some are other processes'
    told +=
        (told.empty() ? "" : ", ") + (here ? state_.name_of(learners[which[i]]) : fmt::format("learner {}", which[i]));
  }
  return told + (which.size() > kMostTold ? fmt::format(" and {} more", which.size() - kMostTold) : "");
}

void SegmentReports::check(const SegmentSnapshot& snapshot) const {
  const LoopPlan* planned = binding_.plan().handles.find(LoopRole::Validate);
  if (!planned) return;
  if (snapshot.tallies.size() != size_t(planned->everywhere)) {
    throw RunError("the checkpoint's validation is not one of such a run");
  }
  const bool same = std::all_of(snapshot.tallies.begin(), snapshot.tallies.end(), [&](const auto& sums) {
    return sums.size() == snapshot.validated.size() && sums.size() == validated_sums();
  });
  if (!same) throw RunError("the checkpoint's validation measures other things than the graph");
}

void SegmentReports::go_on_from(const SegmentSnapshot& snapshot) {
  reported_ = snapshot.reported;
  trained_.go_on_from(snapshot.trained);
  if (validated_) validated_->tally().go_on_from(snapshot.validated);
  input_.start_at(snapshot.at.iterations);
}

void SegmentReports::add_to(SegmentSnapshot& snapshot) const {
  snapshot.reported = reported_;
  snapshot.trained = trained_.last();
  if (validated_) snapshot.validated = validated_->tally().last();
}

}  // namespace arbalest
