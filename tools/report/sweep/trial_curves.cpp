// SPDX-License-Identifier: Apache-2.0
#include "tools/report/sweep/trial_curves.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace arbalest {
namespace {

TrialCurve curve_of(const RunLog& points, const RunLog& column) {
  TrialCurve curve;
  for (size_t i = 0; i < column["at"].size(); ++i) {
    const size_t at = column["at"][i];
    curve[points["epochs"][at].get<double>()] = column["value"][i].get<double>();
  }
  return curve;
}

void add_loss(TrialCurve& curve, const RunLog& points) {
  if (!points["values"].contains("loss")) return;
  for (const auto& [epochs, loss] : curve_of(points, points["values"]["loss"])) curve[epochs] = loss;
}

// The curve's values at the ends of steps.
TrialCurve in_steps(const TrialCurve& curve, double width) {
  if (width <= 0) return curve;
  std::map<double, std::pair<double, int64_t>> sums;
  for (const auto& [epochs, value] : curve) {
    auto& [sum, count] = sums[std::ceil(epochs / width - 1e-9) * width];
    sum += value;
    ++count;
  }
  TrialCurve means;
  for (const auto& [epochs, sum] : sums) means[epochs] = sum.first / double(sum.second);
  return means;
}

}  // namespace

TrialCurves curves_of(const std::vector<RunLog>& runs) {
  TrialCurves curves;
  for (const RunLog& run : runs) {
    const RunLog& points = run["validations"];
    for (const auto& [name, column] : points["values"].items()) {
      for (const auto& [epochs, value] : curve_of(points, column)) curves.validation[name][epochs] = value;
    }
    add_loss(curves.epoch_loss, run["epochs"]);
    add_loss(curves.report_loss, run["progress"]);
    const RunLog& start = run["start"];
    if (start.is_object() && start.contains("best_metric") && start["best_metric"].is_string()) {
      curves.metric = start["best_metric"].get<std::string>();
    }
  }
  if (curves.epoch_loss.size() > 1) curves.report_loss.clear();
  return curves;
}

FoldedCurve folded(const std::vector<const TrialCurve*>& curves, double width) {
  std::map<double, std::vector<double>> values;
  for (const TrialCurve* curve : curves) {
    for (const auto& [epochs, value] : in_steps(*curve, width)) values[epochs].push_back(value);
  }
  const size_t every = (values.size() + kMostPlaces - 2) / (kMostPlaces - 1);
  FoldedCurve fold;
  size_t place = 0;
  for (const auto& [epochs, of_place] : values) {
    if (place++ % every != 0 && place != values.size()) continue;
    double sum = 0;
    for (const double value : of_place) sum += value;
    const auto [low, high] = std::minmax_element(of_place.begin(), of_place.end());
    fold.epochs.push_back(epochs);
    fold.mean.push_back(sum / double(of_place.size()));
    fold.low.push_back(*low);
    fold.high.push_back(*high);
    fold.count.push_back(int64_t(of_place.size()));
  }
  return fold;
}

}  // namespace arbalest
