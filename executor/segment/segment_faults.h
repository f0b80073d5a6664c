// SPDX-License-Identifier: Apache-2.0
#pragma once
// Why a segment's numbers are not finite: its samples are looked at once more, so that an error names what is wrong
// with the data rather than the learning rate.

#include <optional>
#include <string>
#include <vector>

#include "executor/run/data_faults.h"
#include "executor/run/task_error.h"
#include "executor/segment/segment_clock.h"
#include "executor/session/metrics.h"
#include "io/sources/data_order.h"

namespace arbalest {

class SegmentFaults {
 public:
  // Keeps the references. `order`: of training's samples.
  SegmentFaults(const Prepared& prepared, const SegmentClock& clock, const DataOrder& order)
      : prepared_(prepared), clock_(clock), order_(order) {}

  // Throws `error` of the iterations `from` to `to`, exclusive, with its cause. A label that nothing helps against
  // is a TaskError. `skips`: too many updates have been skipped, rather than that the loss is not finite.
  [[noreturn]] void explain_training(const Diverged& error, int64_t from, int64_t to, bool skips) const;
  // Throws if a label of these iterations is why updates were skipped. Looks at each sample once.
  void check_skipped(int64_t from, int64_t to);
  // Throws `error` of the validation after so many iterations, with its cause.
  [[noreturn]] void explain_validation(const Diverged& error, int64_t iterations) const;
  // Throws if a label is why a metric of that validation is undefined, which may have good reasons as well.
  void check_undefined(const Measurement& measured, int64_t iterations);
  // A cause in the data, to append to an error; "": there is none.
  std::string cause_in_range() const;

 private:
  std::string split_of(std::string_view op) const;
  std::vector<int64_t> samples_trained(int64_t from, int64_t to) const;
  std::optional<DataFault> in_samples(LookFor what, const std::vector<int64_t>& samples) const;
  std::optional<DataFault> in_validation(LookFor what) const;
  std::string text_of(const DataFault& fault, const RunPosition& at) const;
  [[noreturn]] void fail_for(const DataFault& fault, const std::string& what, int64_t iterations) const;

  const Prepared& prepared_;
  const SegmentClock& clock_;
  const DataOrder& order_;
  bool sound_labels_ = false;        // those of the validation's split are known to be
  std::vector<bool> sound_trained_;  // by training's sample; empty: none has been looked at
};

}  // namespace arbalest
