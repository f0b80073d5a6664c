// SPDX-License-Identifier: Apache-2.0
#pragma once
// Gives every value of a replica its memory: arenas of its own, a slot of batches, memory elsewhere, or, for values of
// one iteration, a place among the activations.

#include <string>
#include <utility>
#include <vector>

#include "executor/plan/make_plan.h"

namespace arbalest {

// Values that have memory elsewhere already.
using GivenMemory = std::vector<std::pair<ValueId, Operand>>;

class MemoryPlacement {
 public:
  // Keeps the references. `prefix` names the replica's arenas and buffers: "cuda:0/learner 0". `branch`: the lane has a
  // branch, so values that launches aside read, gradients of `updates` included, stay longer. The gradients of each
  // part of `updates` are packed with the activations for as long as they are needed.
  MemoryPlacement(Plan& plan, const Loop& loop, std::string prefix, bool branch = false,
                  const std::vector<UpdatePart>& updates = {});

  void put(const GivenMemory& given);
  void put_batch(BufferId slots, const BatchLayout& layout);  // the fields
  // Adds arenas and buffers of all other values to the plan.
  Placement place(int32_t device);

 private:
  ArenaId add_arena(const char* what, int32_t device);
  void find_lifetimes();
  void find_gradients();
  size_t part_of(ValueId value) const;
  std::vector<ValueId> place_state(ArenaId state);
  Operand add_packed(const std::string& name, size_t index, ArenaId activations, const Packing& packing);

  Plan& plan_;
  const Loop& loop_;
  const Graph& graph_;
  const std::string prefix_;
  const bool branch_;
  const std::vector<UpdatePart> updates_;
  const ValueId gradients_;  // that are updated in parts; kNone: none are
  const Table<ValueId, View> storage_;
  Table<ValueId, Operand> home_;          // of bases
  Table<ValueId, int32_t> first_, last_;  // nodes that touch a base
  std::vector<Lifetime> lifetimes_;       // of gradients by part, then of activations
};

}  // namespace arbalest
