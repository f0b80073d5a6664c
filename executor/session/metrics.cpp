// SPDX-License-Identifier: Apache-2.0
#include "executor/session/metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/number.h"

namespace arbalest {

namespace {

std::string called(const std::string& part, const std::vector<std::string>& class_names) {
  const auto number = read_number<size_t>(part);
  return number && *number < class_names.size() ? class_names[*number] : part;
}

}  // namespace

bool keeps_rows(const LoopMetric& metric) {
  return metric.spec.keeps == MetricSpec::Keeps::Rows;
}

void add_weights(const std::vector<LoopMetric>& metrics, size_t counts, std::vector<double>& sums) {
  size_t means = 0, weights = 0;
  for (const LoopMetric& metric : metrics) {
    means += metric.means.size();
    weights += size_t(std::count_if(metric.means.begin(), metric.means.end(), [](auto& m) { return m.weight > 0; }));
  }
  if (weights == 0 || sums.size() != 1 + means + counts) return;
  sums.insert(sums.end() - int64_t(counts), weights, sums[0]);
}

std::vector<MeasuredMetric> measured_metrics(const Loop& loop, const std::vector<std::string>& class_names) {
  std::vector<MeasuredMetric> all;
  for (const LoopMetric& metric : loop.metrics) {
    const MetricSpec& spec = metric.spec;
    all.push_back({metric.name, metric.better, spec.least, spec.most, false});
    if (!keeps_rows(metric) || !spec.parts) continue;
    for (const std::string& part : spec.parts(metric.node, metric.inputs)) {
      all.push_back({metric.name + "/" + called(part, class_names), metric.better, spec.least, spec.most, true});
    }
  }
  return all;
}

bool is_weightless(const LoopMetric& metric, const std::vector<double>& sums) {
  return sums[0] > 0 && std::any_of(metric.means.begin(), metric.means.end(),
                                    [&](const LoopMean& mean) { return sums[mean.weight] == 0; });
}

bool all_means_finite(const Loop& loop, const Measurement& measured) {
  const std::vector<MeasuredMetric> metrics = measured_metrics(loop, {});
  for (size_t m = 0; m < metrics.size(); ++m) {
    const auto is_it = [&](const LoopMetric& metric) { return !keeps_rows(metric) && metric.name == metrics[m].name; };
    const bool mean = std::any_of(loop.metrics.begin(), loop.metrics.end(), is_it);
    const bool weightless = m < measured.weightless.size() && measured.weightless[m];
    if (mean && !weightless && !std::isfinite(measured.values[m])) return false;
  }
  return true;
}

void tell(const std::vector<MeasuredMetric>& metrics, const std::string& loss, const Measurement& measured,
          Validated& event) {
  event.samples = measured.samples;
  event.left_out = measured.left_out;
  event.loss = std::numeric_limits<double>::quiet_NaN();
  for (size_t m = 0; m < metrics.size(); ++m) {
    if (metrics[m].name == loss) {
      event.loss = measured.values[m];
      event.loss_undefined = m < measured.weightless.size() && measured.weightless[m];
    } else {
      (metrics[m].part ? event.parts : event.metrics).emplace_back(metrics[m].name, measured.values[m]);
    }
  }
}

}  // namespace arbalest
