#pragma once
// What the plan's host tasks are made of: filling slots with batches, and reading sums back.

#include <vector>

#include "executor/binding.h"
#include "executor/make_plan.h"
#include "io/data_order.h"
#include "io/source.h"

namespace arbalest {

// Fills slots of one reader: a learner's, or validation's.
class BatchFiller {
 public:
  BatchFiller(const Binding& binding, const Task& task, const Loop& loop, const Source& source,
              const BatchLayout& layout);

  // Batch `number` of `epoch` in `order` into the slot of `tick`. Slots of different ticks may be filled at once.
  void fill(int64_t tick, const DataOrder& order, int64_t epoch, int64_t number, StepScalars scalars);

 private:
  const Binding& binding_;
  const BufferId buffer_;
  const Source& source_;
  const BatchLayout layout_;
  const int64_t batch_;
  std::vector<std::vector<int64_t>> samples_;        // one a slot
  std::vector<std::vector<int32_t>> unused_labels_;  // likewise, where the graph has no use for them
};

// Sums that devices keep growing, seen as what came since the last look.
class TallyReader {
 public:
  // The buffers that `task` copies into; `metrics` sums follow that of valid samples.
  TallyReader(const Binding& binding, const std::vector<TaskId>& copies, size_t metrics);
  // Σ valid, Σ metric · valid, … over all buffers, at a tick of the copies' clock.
  std::vector<double> advance(int64_t tick);

 private:
  const Binding& binding_;
  std::vector<BufferId> buffers_;
  std::vector<double> last_;
};

}  // namespace arbalest
