// SPDX-License-Identifier: Apache-2.0
#pragma once
// Chooses the nodes of a training step to compute again, so that activations need less memory.

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "executor/limit/recomputation.h"
#include "executor/limit/step_memory.h"

namespace arbalest {

// Choices are made of moves: of all that help, the one that takes most bytes off what is above a limit for its work.
// Work is in bytes that are moved in the same time. The loop has to outlive the search.
class RecomputationSearch {
 public:
  using Choice = Table<NodeId, bool>;  // whether it is computed again

  // `branch` and `updates`: as MemoryPlacement has them.
  RecomputationSearch(const Loop& loop, bool branch, const std::vector<UpdatePart>& updates,
                      double operations_per_byte);

  // Choices for less and less memory: as long as moves help, each for somewhat less than the one before.
  std::vector<Choice> descent();
  // The choice for `limit` at once; packed it needs a little more than lives at once, so that it is made for less until
  // it `fits`. Nothing: it does not come there.
  std::optional<Choice> straight_to(int64_t limit, const std::function<bool(const Choice&)>& fits);
  // A choice without nodes that the limit is met without, those of most work first.
  Choice without_needless(Choice choice, int64_t limit) const;

  Recomputation cost(const Choice& choice) const;  // no limit is in it

 private:
  void find_candidates();
  double work_of(const Node& node) const;
  void start_anew();
  bool reach(int64_t limit);
  std::optional<size_t> best_move(int64_t limit);
  double worth(size_t move, int64_t limit) const;
  double make(size_t move, Choice& choice) const;
  double add_with_others(NodeId node, Choice& choice) const;

  const Graph& graph_;
  const StepMemory step_;
  const double operations_per_byte_;
  const Table<ValueId, std::vector<NodeId>> readers_;
  Table<NodeId, double> work_;  // of its repetition
  double step_work_ = 0;        // of the step as it is
  std::vector<NodeId> candidates_;
  std::vector<double> worth_;  // by move, when it was looked at last
  Choice chosen_;
  StepMemory::Need now_;  // with what is chosen
};

}  // namespace arbalest
