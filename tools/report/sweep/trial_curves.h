// SPDX-License-Identifier: Apache-2.0
#pragma once
// Curves of a sweep's trials over epochs, and of several trials as one.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tools/report/run_log.h"

namespace arbalest {

// Values by epochs with their fraction.
using TrialCurve = std::map<double, double>;

// The curves in a trial's log.
struct TrialCurves {
  std::map<std::string, TrialCurve> validation;  // by metric, "loss" among them
  TrialCurve epoch_loss;                         // of training, the mean of each epoch
  TrialCurve report_loss;                        // of training, of each report; empty if there are two epochs or more
  std::string metric;                            // by which the run judges its models; "": its log does not say
};

// The runs in one log are parts of one trial. Later ones replace earlier ones where both have a value.
TrialCurves curves_of(const std::vector<RunLog>& runs);

// The values of several trials at each place, as columns of one length.
struct FoldedCurve {
  std::vector<double> epochs, mean, low, high;  // low and high: the least and the greatest of the values
  std::vector<int64_t> count;                   // trials that have a value there
};

// Curves whose places differ are folded in steps of `width` epochs, each curve with its mean in a step; 0: places are
// the same. At most kMostPlaces of them are left, with the first and the last.
inline constexpr size_t kMostPlaces = 400;
FoldedCurve folded(const std::vector<const TrialCurve*>& curves, double width);

}  // namespace arbalest
