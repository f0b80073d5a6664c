// SPDX-License-Identifier: Apache-2.0
#pragma once
// The page of a bench: one HTML file with its tables, plots of their intervals, its file and where it was measured.

#include <string>
#include <utility>
#include <vector>

#include "tools/experiment/answer/bench_plots.h"
#include "tools/experiment/answer/table.h"
#include "tools/page/html_page.h"

namespace arbalest {

extern const PageParts kBenchParts;  // made of page/ by tools/page/bundle.py when the library is built

struct BenchPage {
  std::string title, file, text;  // of the bench file, and what it holds
  std::vector<ResultTable> tables;
  std::vector<BenchPlot> plots;                                  // of the tables
  std::vector<std::pair<std::string, std::string>> environment;  // "build", "devices", …
};

std::string bench_page(const BenchPage& page);

}  // namespace arbalest
