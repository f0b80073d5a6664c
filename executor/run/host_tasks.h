// SPDX-License-Identifier: Apache-2.0
#pragma once
// The work of the plan's host tasks: filling slots with batches, and reading sums back.

#include <memory>
#include <span>
#include <vector>

#include "executor/plan/make_plan.h"
#include "executor/run/binding.h"
#include "executor/run/sample_reader.h"
#include "io/sources/data_order.h"
#include "io/sources/source.h"

namespace arbalest {

// Bits of StepScalars::epoch by which draws in validation and inference, and those in recalibration, are others than
// those of training and of each other. Samples of recalibration have its bit as well (SampleRef::epoch), for sources
// and host nodes that draw. In validation host nodes draw nothing.
constexpr int64_t kDrawsApart = int64_t{1} << 62, kDrawsOfRecalibration = int64_t{1} << 61;

// Does the work of one Fill task: batches of a learner or of validation, or one part of each of them, into its slots.
class BatchFiller {
 public:
  BatchFiller(const Binding& binding, const Task& task, const BatchLayout& layout,
              std::shared_ptr<const SampleReader> reader);

  // Whether this part writes the batch's scalars too: the first part does.
  bool has_scalars() const { return first_ == 0; }
  // For batch `number` of `epoch` in `order`, into the slot of `tick`; adds what follows from the batch. Outside of
  // training the epoch has one of the bits above.
  void put_scalars(int64_t tick, const DataOrder& order, int64_t epoch, int64_t number, StepScalars scalars) const;
  // The part's samples of that batch. Slots of different ticks may be filled at once. The last part of a batch takes
  // out of it what the reader leaves out: the other samples stand together, in their order, and so many are valid.
  void fill(int64_t tick, const DataOrder& order, int64_t epoch, int64_t number);

 private:
  void name_samples(std::byte* slot, int64_t epoch, int64_t number, std::span<SampleRef> samples) const;
  void take_out(std::byte* slot, int64_t epoch, int64_t number) const;

  const Binding& binding_;
  const BufferId buffer_;
  const std::shared_ptr<const SampleReader> reader_;
  const BatchLayout layout_;
  const int64_t batch_;
  const int parts_of_batch_;
  const int64_t first_, count_;  // samples of the batch that are the part
  struct Part {                  // what a fill works with
    std::vector<int64_t> order;
    std::vector<SampleRef> samples;
    std::vector<std::byte*> fields;
  };
  std::vector<Part> parts_;  // one a slot
};

// Sums that devices keep growing, seen as what came since the last look.
class TallyReader {
 public:
  // The sums of all replicas of the loop; `sums` is their number in its tally.
  TallyReader(const Binding& binding, const LoopPlan& loop, size_t sums);
  // The sums of each replica of this process (add_tally() in passes/passes.h), one after the other, at a tick of the
  // clock that reads them back.
  std::vector<double> read(int64_t tick) const;
  // The same once the run has ended, from the sums as the devices hold them.
  std::vector<double> read_end() const;
  // The sums over all replicas of all processes, of which these are the sums, since the last look.
  std::vector<double> advance(const std::vector<double>& tallies);
  // The sums at the last look, and a reader that goes on from such.
  const std::vector<double>& last() const { return last_; }
  void go_on_from(const std::vector<double>& last) { last_ = last; }
  // Replicas, by their place in the loop of all processes, whose first metric was not finite in the sums read last.
  const std::vector<size_t>& not_finite() const { return not_finite_; }

 private:
  const Binding& binding_;
  std::vector<Operand> sums_;      // on the devices
  std::vector<BufferId> buffers_;  // what they are copied into
  std::vector<double> last_;
  std::vector<size_t> not_finite_;
};

}  // namespace arbalest
