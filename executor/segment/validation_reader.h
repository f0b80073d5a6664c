// SPDX-License-Identifier: Apache-2.0
#pragma once
// From what devices have summed and kept to the numbers of a validation.

#include <cstdint>
#include <string>
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
  // The measurements of this process's replicas, as bytes: the positions of samples that they left out, their sums,
  // then the rows that each keeps of each metric.
  std::string part(int64_t tick) const;
  // The measurement over the replicas of all processes, of which these are the parts, by rank.
  Measurement read(int64_t tick, const std::vector<std::string>& parts);
  Measurement read(int64_t tick) { return read(tick, {part(tick)}); }  // the only process's
  TallyReader& tally() { return tally_; }

 private:
  struct Parts {
    std::vector<double> tallies;
    std::vector<std::vector<const float*>> rows;  // by replica of all processes, by metric that keeps rows
  };
  Parts take_apart(int64_t tick, const std::vector<std::string>& parts);
  int64_t columns_of(const LoopMetric& metric) const;
  std::vector<float> rows_of(const Parts& parts, size_t index, int64_t columns, int64_t tick) const;

  const Binding& binding_;
  const Loop& loop_;
  const int64_t samples_;
  LeftOut& left_out_;
  TallyReader tally_;
  std::vector<std::vector<BufferId>> rows_;  // by device, by metric that keeps rows
};

}  // namespace arbalest
