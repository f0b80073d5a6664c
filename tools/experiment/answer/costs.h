// SPDX-License-Identifier: Apache-2.0
#pragma once
// Prices of cells, on demand and on spot machines.

#include <string>
#include <vector>

#include "tools/experiment/answer/summary.h"
#include "tools/experiment/answer/table.h"
#include "tools/experiment/cells/bench_file.h"

namespace arbalest {

// Machines that a cell's work can be done on.
struct MachinePrice {
  bool spot = false;
  double per_hour = 0;  // of the clock
  double stretch = 1;   // hours of the clock that an hour's work takes, with what interruptions lose
};

// On demand, and after it on spot machines if they have a price. Throws GraphError for an expression that is wrong.
std::vector<MachinePrice> machine_prices(const BenchPrice& price, const BenchCell& cell);

// A way to do a cell's work.
struct CellCost {
  const CellSummary* summary = nullptr;
  MachinePrice machine;
  double seconds = 0, money = 0;  // of the whole work on such a machine
};

// All ways to do work that takes so many seconds without interruptions, in the order of machine_prices().
std::vector<CellCost> ways_of(const BenchPrice& price, const CellSummary& summary, double seconds);

// The cheapest way within BenchPrice::by_seconds, as a note: "cheapest within 2.000 h: batch 64 on spot, 1.50 EUR".
std::string cheapest_in_time(const BenchPrice& price, const std::vector<CellCost>& ways);

// Images and the last target that a cell meets, with their prices.
ResultTable cost_table(const BenchFile& file, const std::vector<CellSummary>& all);

}  // namespace arbalest
