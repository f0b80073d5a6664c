// SPDX-License-Identifier: Apache-2.0
#pragma once
// The numbers that validations measure.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "executor/session/observer.h"
#include "passes/program.h"

namespace arbalest {

// A number that validations measure: a metric, or a part of one ("auc/edema").
struct MeasuredMetric {
  std::string name;
  std::optional<MetricSpec::Better> better;  // none: nothing states it, and no value is the best
  double least = 0, most = 0;                // its range
  bool part = false;

  bool improves(double value, double before) const {
    if (!better) return false;
    return *better == MetricSpec::Better::Higher ? value > before : value < before;
  }
};

// Whether the metric is made on the host from a row of each sample, not summed on the device.
bool keeps_rows(const LoopMetric& metric);

// Sums of a loop's tally from a checkpoint of before means had weights of their own: samples weighed 1 each. `counts`:
// of updates, after the sums. Others stay as they are.
void add_weights(const std::vector<LoopMetric>& metrics, size_t counts, std::vector<double>& sums);

// In the order of the loop's metrics, each before its parts. Parts are numbered as classes, or labels, are, and called
// like them if these have names.
std::vector<MeasuredMetric> measured_metrics(const Loop& loop, const std::vector<std::string>& class_names);

struct Measurement {
  int64_t samples = 0;                // that count
  std::vector<double> values;         // as measured_metrics() names them
  int64_t left_out = 0;               // samples of the split that cannot be read
  std::vector<bool> weightless = {};  // by value: NaN, since no sample took part; empty: none is
};

// Whether the mean has no value, since samples counted and none of them took part: all labels are missing or ignored.
bool is_weightless(const LoopMetric& metric, const std::vector<double>& sums);

// Whether the values that are means are finite, or weightless.
bool all_means_finite(const Loop& loop, const Measurement& measured);

// Fills in the samples and values of a validation for observers; `loss` is the name of the value that Train is given.
void tell(const std::vector<MeasuredMetric>& metrics, const std::string& loss, const Measurement& measured,
          Validated& event);

}  // namespace arbalest
