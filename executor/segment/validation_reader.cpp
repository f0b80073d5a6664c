// SPDX-License-Identifier: Apache-2.0
#include "executor/segment/validation_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "executor/world/part.h"

namespace arbalest {
ValidationReader::ValidationReader(const Binding& binding, const Loop& loop, const LoopPlan& planned, int64_t samples,
                                   LeftOut& left_out)
    : binding_(binding), loop_(loop), samples_(samples), left_out_(left_out), tally_(binding, planned, loop.sums) {
  for (const Replica& replica : planned.replicas) rows_.push_back(replica.rows);
}

std::string ValidationReader::part(int64_t tick) const {
  PartWriter part;
  part.array(left_out_.among(uint64_t(tick), 0, samples_));
  const auto put = [&](const void* from, size_t count) { part.bytes.append(static_cast<const char*>(from), count); };
  const std::vector<double> tallies = tally_.read(tick);
  put(tallies.data(), tallies.size() * sizeof(double));
  const Plan& plan = binding_.plan();
  for (const std::vector<BufferId>& replica : rows_) {
    for (const BufferId rows : replica) put(binding_.address(rows, tick), size_t(plan.buffers[rows].bytes));
  }
  return std::move(part.bytes);
}

// Replicas are all alike, so the length of a part says how many it has.
ValidationReader::Parts ValidationReader::take_apart(int64_t tick, const std::vector<std::string>& parts) {
  const size_t sums = loop_.sums;
  std::vector<size_t> sizes;  // of a replica's rows, by metric, in bytes
  size_t of_replica = sums * sizeof(double);
  for (const BufferId rows : rows_.front()) {
    sizes.push_back(size_t(binding_.plan().buffers[rows].bytes));
    of_replica += sizes.back();
  }
  Parts apart;
  for (const std::string& whole : parts) {
    PartReader in(whole);
    for (const int64_t position : in.array<int64_t>()) left_out_.add(uint64_t(tick), position);
    const std::span<const char> part = in.left();
    if (part.size() % of_replica != 0) throw RunError("a rank measures other things than this one");
    const size_t replicas = part.size() / of_replica;
    const auto* tallies = reinterpret_cast<const double*>(part.data());
    apart.tallies.insert(apart.tallies.end(), tallies, tallies + replicas * sums);
    const char* at = part.data() + replicas * sums * sizeof(double);
    for (size_t replica = 0; replica < replicas; ++replica) {
      auto& rows = apart.rows.emplace_back();
      for (const size_t bytes : sizes) {
        rows.push_back(reinterpret_cast<const float*>(at));
        at += bytes;
      }
    }
  }
  return apart;
}

int64_t ValidationReader::columns_of(const LoopMetric& metric) const {
  return loop_.graph.values[metric.rows].type.shape[1];
}

// Batch b of the split is batch b / devices of device b mod devices. What is left out of a batch has no row.
std::vector<float> ValidationReader::rows_of(const Parts& parts, size_t index, int64_t columns, int64_t tick) const {
  const auto devices = int64_t(parts.rows.size());
  std::vector<float> rows;
  rows.reserve(size_t(samples_ * columns));
  for (int64_t first = 0; first < samples_; first += loop_.batch) {
    const int64_t batch = first / loop_.batch,
                  left_out = int64_t(left_out_.among(uint64_t(tick), first, loop_.batch).size());
    const int64_t valid = std::min(loop_.batch, samples_ - first) - left_out;
    const float* from = parts.rows[size_t(batch % devices)][index] + batch / devices * loop_.batch * columns;
    rows.insert(rows.end(), from, from + valid * columns);
  }
  return rows;
}

Measurement ValidationReader::read(int64_t tick, const std::vector<std::string>& parts) {
  const Parts apart = take_apart(tick, parts);
  const std::vector<double> sums = tally_.advance(apart.tallies);
  // The sums that the validation began with may come from a checkpoint, so the count of samples is checked.
  if (!(sums[0] >= 0 && sums[0] < double(samples_) + 0.5)) {
    throw RunError(fmt::format("a validation of {} samples has counted {}: what it began with is not of such a run",
                               samples_, sums[0]));
  }
  Measurement result;
  result.samples = int64_t(sums[0] + 0.5);
  result.left_out = samples_ - result.samples;
  size_t row = 0;
  for (const LoopMetric& metric : loop_.metrics) {
    if (!keeps_rows(metric)) {
      result.values.push_back(mean_of(metric, sums));
      result.weightless.resize(result.values.size());
      result.weightless.back() = is_weightless(metric, sums);
      continue;
    }
    const int64_t columns = columns_of(metric);
    const std::vector<float> rows = rows_of(apart, row++, columns, tick);
    const std::vector<double> values = metric.spec.finish(metric.node, metric.inputs, {rows, columns});
    const size_t expected = 1 + (metric.spec.parts ? metric.spec.parts(metric.node, metric.inputs).size() : 0);
    if (values.size() != expected) {
      throw RunError(fmt::format("metric '{}': its operator made {} numbers of the rows, and names {}", metric.name,
                                 values.size(), expected));
    }
    result.values.insert(result.values.end(), values.begin(), values.end());
  }
  left_out_.forget(uint64_t(tick));
  return result;
}

}  // namespace arbalest
