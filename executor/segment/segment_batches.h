// SPDX-License-Identifier: Apache-2.0
#pragma once
// The batches of a segment: which samples each instance of a fill task reads.

#include <functional>
#include <map>
#include <memory>
#include <stop_token>

#include "executor/run/binding.h"
#include "executor/run/sample_reader.h"
#include "executor/segment/segment_options.h"
#include "executor/segment/segment_state.h"
#include "io/sources/data_order.h"

namespace arbalest {

class BatchFiller;  // executor/run/host_tasks.h

class SegmentBatches {
 public:
  // Keeps the references. `monitor` hears how far validations are.
  SegmentBatches(const Prepared& prepared, const Binding& binding, const SegmentClock& clock, const SegmentState& state,
                 Monitor& monitor);

  // The function of a fill task of the replica.
  std::function<void(int64_t)> fill(LoopRole role, const Replica& replica, TaskId task);
  // Brings samples that stay on the devices there: see Segment::bring_samples().
  bool bring_samples(int threads, const SegmentOptions& options, const std::stop_token& stop);
  std::shared_ptr<const SampleReader> reader_of(const Loop& loop);  // one for all fills of the loop
  const DataOrder& order() const { return order_; }                 // of training

 private:
  using Filler = std::shared_ptr<BatchFiller>;
  const Loop& loop_of(LoopRole role) const { return *prepared_.program.find(role); }
  bool bring_split(bool validation, int threads, const SegmentOptions& options, const std::stop_token& stop);
  std::function<void(int64_t)> fill_training(const Filler& filler, int64_t learner) const;
  std::function<void(int64_t)> fill_validation(const Filler& filler, int64_t place) const;
  std::function<void(int64_t)> fill_recalibration(const Filler& filler, int64_t place) const;
  StepScalars scalars_of(int64_t tick) const;

  const Prepared& prepared_;
  const Binding& binding_;
  const SegmentClock& clock_;
  const SegmentState& state_;
  Monitor& monitor_;
  const DataOrder order_;
  std::map<LoopRole, std::shared_ptr<const SampleReader>> readers_;
};

}  // namespace arbalest
