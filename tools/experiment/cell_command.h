// SPDX-License-Identifier: Apache-2.0
#pragma once
// The command line of a cell as this program understands it: what its result depends on, and what it needs.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "executor/plan/plan.h"
#include "graph/graph.h"
#include "tools/experiment/cells.h"
#include "tools/experiment/results.h"

namespace arbalest {

// The devices that a cell names; throws GraphError.
std::vector<PlanDevice> devices_of(const BenchCell& cell);

// Identities of cells; graphs are read once each.
class Identities {
 public:
  // `program`: that runs trials, whose content is its build; "": this one.
  explicit Identities(const std::string& program);

  // Throws GraphError, with the cell's name, if the words are no command of `run` or `bench scaling`, or the graph
  // lacks an attribute that they set.
  Identity of(const BenchCell& cell, const std::vector<std::string>& words);

 private:
  struct Known {
    Graph graph;
    std::string hash;
  };
  const std::string& hash_of_weights(const std::string& path);

  const std::string build_;
  std::map<std::string, Known> graphs_;         // by the names of their files
  std::map<std::string, std::string> weights_;  // hashes by the names of files
};

// The needs of a cell, from its plan.
struct CellNeeds {
  int64_t bytes = 0;       // planned, of the device that needs most
  double samples = 0;      // that a training run sees
  std::string fault;       // why it is not tried; "": it is
  bool too_large = false;  // whether that is for want of memory
};

// Plans the cell's command. `gpu_memory`: of each GPU, in bytes; 0: that of those which are here.
CellNeeds needs_of(const std::vector<std::string>& words, int64_t gpu_memory);

}  // namespace arbalest
