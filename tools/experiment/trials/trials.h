// SPDX-License-Identifier: Apache-2.0
#pragma once
// The processes that a bench runs: one for each repetition of each cell.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/experiment/cells/bench_file.h"
#include "tools/experiment/cells/cells.h"
#include "tools/experiment/trials/results.h"

namespace arbalest {

// One repetition of a cell's throughput, or one of its training runs.
struct Trial {
  const BenchCell* cell = nullptr;
  Measure measure = Measure::Throughput;
  int64_t repetition = 0;          // from 0 on; of training its seed
  std::vector<std::string> words;  // of arbalest; a peer's are those of a shell
  Identity identity;
  std::string key;

  std::string name() const;  // "batch 64, learners 2: repetition 3"
};

// The identity of a cell's command line; called once for each. Throws GraphError if the graph is wrong.
using IdentityOf = std::function<Identity(const BenchCell& cell, const std::vector<std::string>& words)>;

// All trials of the cells, in the order in which they run: one repetition of each cell after the other, in each
// repetition in another order, which follows from the keys. So what drifts on a machine is in all cells, and the order
// stays the same when a bench goes on.
std::vector<Trial> trials_of(const BenchFile& file, const BenchCells& cells, const IdentityOf& identity_of);

// The words of a cell's command line without those that differ between its repetitions.
std::vector<std::string> cell_words(const BenchFile& file, const BenchCell& cell, Measure measure);

// The words of `bench scaling` for settings, without the rule that says how it measures.
std::vector<std::string> scaling_words(const Settings& settings);

// A result without what was measured.
TrialResult result_for(const Trial& trial);

// The last line that is not empty, without the program's name; "": there is none.
std::string last_line(const std::string& text);
// The error that lines of JSON have, as `bench scaling` writes it; "": there is none.
std::string error_in(const std::string& output);

// Reads what a trial's process has printed, or of training its log. Throws RunError if that has no result.
void read_throughput(const std::string& output, TrialResult& result);
void read_training(const std::string& log, const AccuracyRule& rule, TrialResult& result);
// `seconds`: how long it ran, for a peer that does not say how long it trained. `rule`: of training; a peer that ends
// beyond a target says when it met it.
void read_peer(const std::string& output, double seconds, const std::optional<AccuracyRule>& rule, TrialResult& result);

}  // namespace arbalest
