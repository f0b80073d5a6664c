// SPDX-License-Identifier: Apache-2.0
#pragma once
// From what devices have summed and kept to the numbers of a validation.

#include <cstdint>
#include <vector>

#include "executor/run/host_tasks.h"
#include "executor/session/metrics.h"

namespace arbalest {

// Reads what each validation has brought to the host.
class ValidationReader {
 public:
  // `samples` are the split's. Keeps the references.
  ValidationReader(const Binding& binding, const Loop& loop, const LoopPlan& planned, int64_t samples,
                   LeftOut& left_out);
  Measurement read(int64_t tick);
  TallyReader& tally() { return tally_; }

 private:
  std::vector<float> rows_of(size_t index, int64_t columns, int64_t tick) const;

  const Binding& binding_;
  const Loop& loop_;
  const int64_t samples_;
  LeftOut& left_out_;
  TallyReader tally_;
  std::vector<std::vector<BufferId>> rows_;  // by device, by metric that keeps rows
};

}  // namespace arbalest
