// SPDX-License-Identifier: Apache-2.0
#pragma once
// Predictions of what cells do, before they run: the bill of a bench.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "executor/trace/link_model.h"
#include "tools/experiment/answer/summary.h"
#include "tools/experiment/answer/table.h"
#include "tools/experiment/cells/cells.h"
#include "tools/experiment/quote/plan_costs.h"
#include "tools/experiment/trials/cell_command.h"

namespace arbalest {

// The prediction of a cell.
struct Quote {
  std::string cell;                  // BenchCell::id
  std::string basis;                 // hash of graph and options: a quote of others counts no longer
  std::string device;                // the model of the one that was profiled
  std::string links;                 // of hosts and devices; "": the cell has one device
  double images_per_second = 0;      // over all devices; 0: unknown
  double efficiency = 0;             // of that, against as many devices alone; 0: unknown, or the cell has one device
  int64_t memory_bytes = 0;          // of the device that needs most, with workspaces; of a GPU with libraries as well
  double run_seconds = 0;            // of a training run with its validations; 0: none is asked for, or unknown
  double run_images_per_second = 0;  // of such a run, whose validations take time and count no images
  std::string limit;                 // what bounds it, in a sentence (executor/trace/verdict.h); "": unknown
  std::string fault;                 // why nothing is predicted; "": it is
};

// Quotes in a file; none if it does not exist. Throws RunError.
std::vector<Quote> read_quotes(const std::string& path);
void write_quotes(const std::string& path, const std::vector<Quote>& quotes);

// The links of the devices of a host that are assumed unless the file states others. `model`: theirs, if they are GPUs.
Link usual_link(PlanDevice::Kind kind, const std::string& model);

// Runs `arbalest` with the words, for the cell of this name, and returns its error; "": it went well.
using RunProfile = std::function<std::string(const std::string& cell, const std::vector<std::string>& words)>;

// Quote::basis of a cell as it is now. Throws GraphError.
std::string basis_of(Identities& identities, const BenchCell& cell);

// Makes quotes of cells. Profiles, which are traces of a few seconds of training on one device, are kept in a folder.
// For several hosts the plan is that of all, and the part of one of them runs in simulated time.
class Quoter {
 public:
  // `run`: takes a profile.
  Quoter(Identities& identities, std::string folder, const StatedLinks& links, RunProfile run);

  // A cell of this program; one of which nothing can be predicted has a fault. `trains`: whether the needs are those of
  // a training run, whose time is predicted too.
  Quote quote(const BenchCell& cell, const CellNeeds& needs, bool trains);
  // Whether a profile could not be taken.
  bool profile_failed() const;

 private:
  WorldLinks links_of(const BenchCell& cell) const;
  Profile profile_of(const BenchCell& cell, int64_t learners);
  std::string profile_file(const BenchCell& alone, const std::vector<std::string>& words);

  Identities& identities_;
  const std::string folder_;
  const StatedLinks links_;
  const RunProfile run_;
  std::map<std::string, std::string> faults_;  // of profiles that cannot be taken, by their files
};

// Predicted against measured, as far as there are results: images/s, memory, hours, price.
ResultTable quote_table(const BenchFile& file, const std::vector<CellSummary>& summaries,
                        const std::vector<Quote>& quotes);

}  // namespace arbalest
