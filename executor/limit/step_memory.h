// SPDX-License-Identifier: Apache-2.0
#pragma once
// The memory that a training step's activations take, and would take if some of its nodes were computed again. It is
// counted from lifetimes, in a fraction of the time that a plan takes, for thousands of choices. A plan packs buffers,
// and may need a little more.

#include <cstdint>
#include <utility>
#include <vector>

#include "executor/plan/make_plan.h"
#include "passes/program.h"
#include "passes/recompute.h"

namespace arbalest {

class StepMemory {
 public:
  // `branch` and `updates`: as MemoryPlacement has them.
  StepMemory(const Loop& loop, bool branch, const std::vector<UpdatePart>& updates);

  struct Need {
    int64_t peak = 0;   // bytes that live at once, at most
    double excess = 0;  // bytes above the limit, summed over the nodes of the step in their order
  };
  // With these nodes computed again: see recompute().
  Need need(const Table<NodeId, bool>& chosen, int64_t limit) const;

  const Repetitions& repetitions() const { return repetitions_; }
  // The base whose memory the value shares, if that is packed with the activations; kNone otherwise.
  ValueId storage(ValueId value) const { return storage_[value]; }
  // Whether the step needs the base's memory after its forward pass.
  bool read_later(ValueId base) const { return read_later_[base]; }

 private:
  struct Operands {
    std::vector<ValueId> inputs, outputs;            // those whose memory is packed
    std::vector<std::pair<ValueId, ValueId>> views;  // (output, input)
  };
  // Gradients that are updated together.
  struct Gradients {
    NodeId first = kNone, last = kNone;
    int64_t bytes = 0;
  };
  struct Life {
    int32_t first = -1, last = -1;
  };
  class Walk;
  Operands packed(const Op& op, const std::vector<ValueId>& inputs, const std::vector<ValueId>& outputs) const;

  const Graph& graph_;
  const Repetitions repetitions_;
  const bool branch_;
  Table<ValueId, ValueId> storage_;
  Table<ValueId, int64_t> bytes_;          // of bases, with what is left free after them
  Table<ValueId, bool> read_later_;        // by base
  Table<NodeId, Operands> nodes_, again_;  // again_ of their repetitions
  Table<NodeId, bool> aside_;
  std::vector<Gradients> gradients_;
};

}  // namespace arbalest
