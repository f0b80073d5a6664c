// SPDX-License-Identifier: Apache-2.0
#pragma once
// The command line of a cell as this program understands it: what its result depends on, and what it needs.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "executor/plan/plan.h"
#include "executor/session/session.h"
#include "executor/session/target.h"
#include "graph/graph.h"
#include "tools/command/options.h"
#include "tools/experiment/cells/cells.h"
#include "tools/experiment/trials/results.h"

namespace arbalest {

// The devices that a cell names; throws GraphError.
std::vector<PlanDevice> devices_of(const BenchCell& cell);

// The targets of a rule, the one that is met last at the end.
std::vector<Target> targets_of(const AccuracyRule& rule);

// Hashes of the content of a graph's files, by their names: of a text alone that of its graph, so that comments and
// blanks change nothing.
std::map<std::string, std::string> hashes_of_files(const Graph& graph, const std::vector<std::string>& files);
std::string hash_of_file(const std::string& path);

// Identities of cells; graphs are read once each.
class Identities {
 public:
  // `program`: that runs trials, whose content is its build; "": this one.
  explicit Identities(const std::string& program);

  // Throws GraphError, with the cell's name, if the words are no command of `run` or `bench scaling`, or the graph
  // lacks an attribute that they set.
  Identity of(const BenchCell& cell, const std::vector<std::string>& words);

  // The graph file of a cell, and those of the models that it calls. Throws GraphError.
  std::vector<std::string> files_of(const BenchCell& cell);

  // The name of the Train node of a cell's graph; "": it has none. Throws GraphError.
  std::string train_node(const BenchCell& cell);

 private:
  struct Known {
    Graph graph;
    std::string hash;
    std::vector<std::string> files;
  };
  const Known& known(const GraphOptions& options);
  const std::string& hash_of_weights(const std::string& path);

  const std::string build_;
  std::map<std::string, Known> graphs_;         // by the names of their files
  std::map<std::string, std::string> weights_;  // hashes by the names of files
};

// A command line with its plan.
struct PlannedCell {
  Prepared prepared;
  Plan plan;
  int64_t learners = 1;  // per device
};

// Plans the words of `run` or `bench scaling`, for so many hosts with the devices that they name. Throws Error.
PlannedCell plan_of(const std::vector<std::string>& words, int64_t hosts = 1);

// The needs of a cell, from its plan.
struct CellNeeds {
  int64_t bytes = 0;       // planned, of the device that needs most
  double samples = 0;      // that a training run sees
  double validated = 0;    // that its validations see
  std::string fault;       // why it is not tried; "": it is
  bool too_large = false;  // whether that is for want of memory
};

// Plans the cell's command. `hosts`: that have such devices. `gpu_memory`: of each GPU, in bytes; 0: that of those
// which are here. `rule`: of training, whose metric and targets have to be those of the graph's validation; nullptr: of
// throughput.
CellNeeds needs_of(const std::vector<std::string>& words, int64_t hosts, int64_t gpu_memory,
                   const AccuracyRule* rule = nullptr);

}  // namespace arbalest
