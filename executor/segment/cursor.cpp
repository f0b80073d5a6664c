// SPDX-License-Identifier: Apache-2.0
#include "executor/segment/cursor.h"

#include <algorithm>

namespace arbalest {

double epochs_seen(int64_t epoch, int64_t batches, int64_t batch, int64_t size) {
  return double(epoch * size + batches * batch) / double(size);
}

int64_t rounds_left(const PlanRequest& request, const Cursor& from, const Program& program) {
  if (from.batch == 0) return 0;
  const int64_t learners = int64_t(request.devices.size()) * request.learners;
  const int64_t batches = request.training_samples / program.training().batch - from.batch;
  return batches / (learners * program.accumulate) * program.accumulate;
}

bool take_rest(PlanRequest& request, Cursor& from, const Program& program) {
  const int64_t rest = rounds_left(request, from, program);
  if (from.batch > 0 && rest == 0) {
    ++from.epoch;
    from.batch = 0;
  }
  const bool counted = request.iterations > 0;  // by iterations, not by epochs
  const int64_t epochs_left = request.epochs - from.epoch, iterations_left = request.iterations - from.iteration;
  if (counted ? iterations_left <= 0 : epochs_left <= 0) return false;

  const int64_t every = program.validate_every, to_validation = every - from.epoch % every;  // epochs
  const bool within = from.batch > 0, in_step = !within && to_validation == every;
  const bool last = counted ? iterations_left <= rest : epochs_left == 1;
  if (within) request.rounds = rest;
  if (within && to_validation > 1 && !last) request.validates = false;
  const int64_t of_strategy = request.strategy_until - from.epoch;  // epochs
  const int64_t epochs = within ? 1 : in_step ? of_strategy : std::min(to_validation, of_strategy);
  request.epochs = std::min(epochs, epochs_left);
  if (counted) {
    const bool all = iterations_left / request.rounds < epochs;
    request.iterations = all ? iterations_left : epochs * request.rounds;
  }
  return true;
}

}  // namespace arbalest
