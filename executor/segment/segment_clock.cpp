// SPDX-License-Identifier: Apache-2.0
#include "executor/segment/segment_clock.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "executor/session/session.h"
#include "io/sources/data_order.h"

namespace arbalest {
namespace {

std::optional<IterationGroups> groups_of(const Plan& plan, RelationId relation) {
  const ClockRelation* known = plan.relation(relation);
  if (!known) return std::nullopt;
  return IterationGroups{*known, plan.clocks[known->coarse].ticks};
}

}  // namespace

SegmentTimes times_of(const Prepared& prepared, const SessionOptions& options, const Plan& plan, const Cursor& from,
                      const Monitor& monitor) {
  const PlanRequest& request = prepared.request;
  const int64_t learners = int64_t(request.devices.size()) * request.learners;
  return {.from = from,
          .learners = learners,
          .iterations = plan.clocks[0].ticks,
          .rounds = request.rounds,
          .batch = prepared.program.training().batch,
          .samples = prepared.training->size(),
          .accumulate = prepared.program.accumulate,
          .sync = groups_of(plan, plan.handles.by_sync),
          .hosts = groups_of(plan, plan.handles.by_hosts),
          .validations = groups_of(plan, plan.handles.by_validation),
          .schedule = LearningRate(prepared.program.train),
          .total_epochs = prepared.total_epochs,
          .rate_scale = rate_scale(options.learners.rate_scaling, learners),
          .rate_factor = [&monitor](int64_t validations) { return monitor.rate_factor(validations); },
          .rate_drops = [&monitor](int64_t validations) { return monitor.rate_drops(validations); },
          .seed = options.numerics.seed,
          .strategy = request.strategy,
          .can_restart = prepared.program.training().arenas.averaged != kNone};
}

SegmentClock::SegmentClock(SegmentTimes times)
    : times_(std::move(times)),
      strategy_(strategy_named(times_.strategy.name)),
      drops_before_(times_.from.rate_drops.value_or(rate_drops(0))) {}

int64_t SegmentClock::batch_of(int64_t tick, int64_t learner) const {
  return times_.from.batch + batch_number(tick % times_.rounds, learner, times_.learners);
}

bool SegmentClock::validates_after(int64_t tick) const {
  if (!validates()) return false;
  const int64_t validation = times_.validations->of(tick);
  return times_.validations->last_of(validation) == tick && validation < times_.validations->complete;
}

int64_t SegmentClock::validated_after(int64_t validation) const {
  return times_.validations->last_of(validation) + 1;
}

// Samples seen ÷ samples of the split, before iteration `tick`.
double SegmentClock::seen(int64_t tick) const {
  const int64_t batches = times_.from.batch + tick % times_.rounds * times_.learners;
  return epochs_seen(epoch_of(tick), batches, times_.batch, times_.samples);
}

// Validations that the rate of iteration `tick` follows: all that were made before, but the latest may still run.
int64_t SegmentClock::validations_before(int64_t tick) const {
  return times_.from.validations + (times_.validations ? times_.validations->of(tick) : 0) - 1;
}

double SegmentClock::rate(int64_t tick) const {
  return times_.schedule.rate(seen(tick), times_.total_epochs) * times_.rate_scale *
         times_.rate_factor(validations_before(tick));
}

double SegmentClock::rate_share(int64_t tick) const {
  const double greatest = times_.schedule.greatest() * times_.rate_scale;
  return greatest > 0 ? rate(tick) / greatest : 1;
}

// Drops of the rate in steps, before iteration `tick`: if their number grows, averaging starts again.
int64_t SegmentClock::rate_drops(int64_t tick) const {
  return times_.schedule.drops(seen(tick)) + times_.rate_drops(validations_before(tick));
}

// Whether the rate has dropped in a step since the group before.
bool SegmentClock::rate_dropped(int64_t group) const {
  const int64_t before = group > 0 ? rate_drops(times_.sync->first_of(group - 1)) : drops_before_;
  return rate_drops(times_.sync->first_of(group)) > before;
}

// The last group up to `group` that restarts, since the rate has dropped; −1 if there is none. Drops only grow in
// number.
int64_t SegmentClock::last_restart(int64_t group) const {
  const int64_t drops = rate_drops(times_.sync->first_of(group));
  if (drops == drops_before_) return -1;
  int64_t low = 0, high = group;  // the first group of as many drops
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (rate_drops(times_.sync->first_of(middle)) == drops) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

int64_t SegmentClock::updates_before(int64_t tick, int64_t updates) const {
  const int64_t accumulate = times_.accumulate, here = tick / accumulate;
  if (strategy_.facts().restarts && here > 0) {
    const int64_t restarted = last_restart(times_.sync->of(here * accumulate - 1));
    // The first update of that group left zeros.
    if (restarted >= 0) return here - times_.sync->first_of(restarted) / accumulate - 1;
  }
  return updates + here;
}

StepScalars SegmentClock::scalars(int64_t tick, const LearnerStart& learner) const {
  const int64_t accumulate = times_.accumulate, round = tick % times_.rounds;
  StepScalars scalars;
  scalars.seed = times_.seed;
  scalars.iteration = uint64_t(times_.from.iteration + tick);
  scalars.learning_rate = float(rate(tick));
  scalars.accumulated = int32_t(round % accumulate);
  scalars.update = round % accumulate == accumulate - 1;
  scalars.updates = int32_t(updates_before(tick, learner.updates));
  if (!strategy_.facts().corrects || !scalars.update) return scalars;
  // The first update of a group follows the averaging of the group before.
  const int64_t group = times_.sync->of(tick);
  if (tick != times_.sync->first_of(group) + accumulate - 1) return scalars;
  strategy_.begin_group({group, rate_dropped(group), rate_share(tick), learner.correction}, times_.strategy, scalars);
  if (scalars.restart != 0 && !times_.can_restart) {
    throw std::logic_error("averaging starts again, and the program was made for a rate without steps");
  }
  return scalars;
}

int64_t SegmentClock::averagings(int64_t ticks) const {
  return std::min(times_.sync->of(ticks), times_.sync->complete);
}

int64_t SegmentClock::updates_since(const std::optional<IterationGroups>& groups, int64_t ticks) const {
  if (!groups || ticks == 0) return 0;
  const int64_t group = groups->of(ticks - 1);
  const bool complete = groups->last_of(group) == ticks - 1;
  return complete ? 0 : (ticks - groups->first_of(group)) / times_.accumulate;
}

int64_t SegmentClock::unaveraged(int64_t ticks) const {
  return updates_since(times_.sync, ticks);
}

int64_t SegmentClock::apart(int64_t ticks) const {
  return updates_since(times_.hosts ? times_.hosts : times_.sync, ticks);
}

Cursor SegmentClock::cursor(int64_t ticks) const {
  Cursor cursor = after(ticks - ticks % times_.rounds % times_.accumulate);
  cursor.rate_drops = drops_before_;
  if (times_.sync && ticks > 0) cursor.rate_drops = rate_drops(times_.sync->first_of(times_.sync->of(ticks - 1)));
  return cursor;
}

Cursor SegmentClock::after(int64_t ticks) const {
  Cursor cursor = times_.from;
  cursor.iteration += ticks;
  cursor.images += ticks * times_.learners * times_.batch;
  cursor.epoch += ticks / times_.rounds;
  cursor.batch = (ticks < times_.rounds ? times_.from.batch : 0) + ticks % times_.rounds * times_.learners;
  if (times_.validations && ticks > 0) {
    const int64_t latest = times_.validations->of(ticks - 1);
    cursor.validations += latest + (times_.validations->last_of(latest) == ticks - 1);
  }
  return cursor;
}

RunPosition SegmentClock::position(int64_t ticks) const {
  const Cursor cursor = after(ticks);
  const int64_t ended = (ticks + times_.rounds - 1) / times_.rounds;
  // The samples that an epoch leaves out count as seen with its last iteration.
  const double epochs = ticks % times_.rounds == 0 && ticks > 0 ? double(times_.from.epoch + ended) : seen(ticks);
  return {times_.from.epoch + ended, cursor.iteration, cursor.images, epochs};
}

}  // namespace arbalest
