// SPDX-License-Identifier: Apache-2.0
#pragma once
// The results of a bench, cell by cell, and their tables.

#include <optional>
#include <string>
#include <vector>

#include "tools/experiment/answer/statistics.h"
#include "tools/experiment/answer/table.h"
#include "tools/experiment/cells/cells.h"
#include "tools/experiment/trials/results.h"

namespace arbalest {

// A cell with its trials' results.
struct CellSummary {
  const BenchCell* cell = nullptr;
  const CellSummary* baseline = nullptr;   // that it is compared with; nullptr: there is none, or it is one itself
  std::vector<double> rates;               // images/s, one a repetition
  std::vector<double> run_rates;           // images/s of training runs
  std::vector<std::vector<double>> times;  // s to each target, one a run; infinite: the run failed or did not get there
  std::vector<std::vector<double>> epochs;  // as `times`, in epochs; of another program's runs they are unknown
  std::vector<double> setups, commands;     // TrialResult::setup_seconds and command_seconds, as far as they are known
  std::vector<double> joules;               // of training runs, as far as they are known
  std::vector<double> joules_per_image;     // one a repetition, as far as they are known
  std::vector<double> late;                 // TrialResult::late_batches of repetitions, as far as they are known
  std::vector<double> run_late;             // and of training runs
  std::vector<double> busy;                 // TrialResult::gpu_busy, as far as it is known
  std::vector<double> finals;               // the metric at the end of each run
  size_t failed = 0;                        // training runs without an end
  size_t unsettled = 0;                     // repetitions whose warm-up ended before rates agreed
  int64_t peak_bytes = 0;                   // planned, of the device that needs most
  int64_t taken_bytes = -1;                 // of the GPU that took most; −1: unknown
  std::string fault;                        // why there is nothing to show; "": there is
};

// The summaries in the order of the cells.
std::vector<CellSummary> summarize(const BenchFile& file, const BenchCells& cells,
                                   const std::vector<TrialResult>& results);

// Seconds from the first touch of data until the metric met the target; infinite if it never did.
double time_to(const TrialResult& run, double target, bool lower);
// Epochs that were trained until then: how well a batch is used, apart from how fast.
double epochs_to(const TrialResult& run, double target, bool lower);

// Throughput, time to accuracy and cost, as far as the file asks for them.
std::vector<ResultTable> tables_of(const BenchFile& file, const std::vector<CellSummary>& summaries);

// "1234", "56.7", "0.123"
std::string shown(double number);
// The unit that a time, or the longest of several, is read in.
struct TimeUnit {
  const char* name;
  double seconds;
};
TimeUnit unit_of(double seconds);
// "12.3 s", "45.0 min", "7.500 h"
std::string shown_time(double seconds);
// "12.3 (11.9–13.0)"
std::string shown(const Estimate& estimate);
// An estimate for a table, with more text after it.
TableValue value_of(const Estimate& estimate, const std::string& more = "");

}  // namespace arbalest
