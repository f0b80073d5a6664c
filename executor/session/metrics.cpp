#include "executor/session/metrics.h"

namespace arbalest {

bool keeps_rows(const LoopMetric& metric) {
  return metric.spec.keeps == MetricSpec::Keeps::Rows;
}

std::vector<MeasuredMetric> measured_metrics(const Loop& loop) {
  std::vector<MeasuredMetric> all;
  for (const LoopMetric& metric : loop.metrics) {
    const MetricSpec& spec = metric.spec;
    all.push_back({metric.name, spec.better, spec.least, spec.most, false});
    if (!keeps_rows(metric) || !spec.parts) continue;
    for (const std::string& part : spec.parts(metric.node, metric.inputs)) {
      all.push_back({metric.name + "/" + part, spec.better, spec.least, spec.most, true});
    }
  }
  return all;
}

}  // namespace arbalest
