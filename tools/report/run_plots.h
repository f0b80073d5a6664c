// SPDX-License-Identifier: Apache-2.0
#pragma once
// The plots of `arbalest report --plot`: how throughput scales, and how fast a metric is reached.

#include <string>
#include <vector>

#include "tools/report/line_plot.h"
#include "tools/report/run_log.h"

namespace arbalest {

// A metric of each run's validations over seconds of training, and what targets it reached when. Throws GraphError
// if no run has a validation.
LinePlot accuracy_plot(const std::vector<RunLog>& runs);

// Images/s of the cells that `bench scaling --json` has written into these files. They are over the devices if their
// number differs, with a line for each number of learners; otherwise over the learners, with a line for each file.
// Dashed: what as many times the first would be. Throws RunError if a file cannot be read, GraphError if it holds no
// cells.
LinePlot scaling_plot(const std::vector<std::string>& files);

}  // namespace arbalest
