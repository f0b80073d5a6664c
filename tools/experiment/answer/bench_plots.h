// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tables of a bench as pictures: each column of numbers with its intervals, times and epochs against targets, and
// prices against times.

#include <string>
#include <vector>

#include "tools/experiment/answer/table.h"

namespace arbalest {

struct BenchPlot {
  std::string table;  // its title
  std::string title;
  std::string file;  // a name that no other plot has, "throughput-images-s.svg"
  std::string svg;
};

// The plots in the order of the tables. Columns of counts have none, and neither has what fewer than two rows have.
std::vector<BenchPlot> bench_plots(const std::vector<ResultTable>& tables);

}  // namespace arbalest
