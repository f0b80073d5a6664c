// SPDX-License-Identifier: Apache-2.0
#pragma once
// The learning rate's schedule; the executor writes its value into StepScalars::learning_rate.

#include <cstdint>
#include <vector>

#include "graph/graph.h"

namespace arbalest {

// The rate of an arbalest.Train node once `epochs_seen` (samples seen ÷ samples of an epoch) have been trained. If the
// attribute `epochs` is 0, schedules that end do so at `total_epochs`, the run's.
class LearningRate {
 public:
  explicit LearningRate(const Node& train);
  double rate(double epochs_seen, double total_epochs) const;
  double greatest() const { return end_ > rate_ && ends() ? end_ : rate_; }  // of all rates
  // How often the rate has dropped in a step by then; 0 unless the schedule drops in steps, others change smoothly.
  int64_t drops(double epochs_seen) const;
  // Whether it ends after `epochs`, or with the run, so that it depends on how long that is.
  bool ends() const {
    return schedule_ == Schedule::Cosine || schedule_ == Schedule::Linear || schedule_ == Schedule::Polynomial ||
           schedule_ == Schedule::OneCycle;
  }
  bool drops_in_steps() const { return schedule_ == Schedule::Step || schedule_ == Schedule::Multistep; }

 private:
  enum class Schedule : uint8_t { Constant, Step, Multistep, Cosine, Linear, Polynomial, Exponential, OneCycle };
  double one_cycle(double passed) const;  // once this fraction of its length, 0 to 1, has passed

  Schedule schedule_ = Schedule::Constant;
  double rate_ = 0, end_ = 0, gamma_ = 0, step_size_ = 0, power_ = 1;
  double rise_ = 0, start_divisor_ = 1, end_divisor_ = 1;  // of one cycle
  bool anneals_linearly_ = false;
  double warmup_ = 0, warmup_from_ = 0, epochs_ = 0;
  std::vector<double> milestones_;
};

}  // namespace arbalest
