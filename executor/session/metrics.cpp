#include "executor/session/metrics.h"

#include <limits>

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

void tell(const std::vector<MeasuredMetric>& metrics, const std::string& loss, const Measurement& measured,
          Validated& event) {
  event.samples = measured.samples;
  event.loss = std::numeric_limits<double>::quiet_NaN();
  for (size_t m = 0; m < metrics.size(); ++m) {
    if (metrics[m].name == loss) {
      event.loss = measured.values[m];
    } else {
      (metrics[m].part ? event.parts : event.metrics).emplace_back(metrics[m].name, measured.values[m]);
    }
  }
}

}  // namespace arbalest
