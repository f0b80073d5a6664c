// SPDX-License-Identifier: Apache-2.0
#pragma once
// The position of a run in its data, and the part of the run that is left from there.

#include <cstdint>
#include <optional>

#include "executor/plan/make_plan.h"

namespace arbalest {

// The position at which a plan's part of a run begins: the start of an epoch, or a batch within an epoch if the part
// before ended there.
struct Cursor {
  int64_t epoch = 0;
  int64_t batch = 0;  // batches of this epoch that are trained already, by all learners
  int64_t iteration = 0, images = 0, validations = 0;
  std::optional<int64_t> rate_drops;  // by the first iteration of the last group before; none: there was no group
};

// Turns a request for a whole run into one for the part that is left from `from` on, as far as one plan can go. That is
// the rest of an epoch by itself, or whole epochs, until another strategy holds or validations are in step with the
// run's epochs again. If too little of an epoch is left for a round of the request's learners, `from` moves on to the
// next epoch. Returns false if nothing is left.
bool take_rest(PlanRequest& request, Cursor& from, const Program& program);

// The epochs that are seen when `batches` of one are trained, of a split of `size` samples. The quotient is rounded
// once, as the milestones of a schedule are, so that it reaches them.
double epochs_seen(int64_t epoch, int64_t batches, int64_t batch, int64_t size);

// Iterations that are left of the cursor's epoch with the request's learners; 0 at the beginning of an epoch.
int64_t rounds_left(const PlanRequest& request, const Cursor& from, const Program& program);

}  // namespace arbalest
