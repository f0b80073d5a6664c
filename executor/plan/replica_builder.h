// SPDX-License-Identifier: Apache-2.0
#pragma once
// Builds one replica of a loop: the way of a batch to its device, its memory, the step, and the tally's way back.

#include <string>
#include <vector>

#include "executor/plan/memory_placement.h"
#include "executor/plan/phases.h"

namespace arbalest {

class ReplicaBuilder {
 public:
  Replica replica;

  // Keeps the references. `start` has the device, the lane and the learner.
  ReplicaBuilder(PlanBuilder& builder, const PlanInputs& in, const Lanes& lanes, const Loop& loop, std::string prefix,
                 Replica start);

  // Adds the path source → fill (host) → pinned slots → copy → device slots: the replica's fills, copy and slots. Reuse
  // edges provide double buffering and read-ahead; with a depth of 0 the step frees the pinned slot, not the copy. For
  // samples that lie on the device, the copy task runs a node that gathers them.
  void add_reader(ClockId clock);
  void place(const GivenMemory& given = {}, bool branch = false, const std::vector<UpdatePart>& updates = {});
  // Runs nodes [begin, end) of the loop's graph on a device slot, as the next part of the replica's step. `name`: after
  // the prefix. `placement`: another than the replica's.
  void add_part(const std::string& name, NodeId begin, NodeId end, const Placement* placement = nullptr);
  // The same nodes as a further piece of the latest part.
  void add_launches(NodeId begin, NodeId end, const Placement* placement = nullptr);
  // Ties the parts of the step to each other and to their batch. None is added later.
  void close_step();
  // Adds the copy of the tally and rows to the host at each tick of `clock`, which is coarser than the step's.
  void add_read_back(ClockId clock);
  // Adds the copy of the loop's outputs to the host for each batch, and the task that hands them out.
  void add_hand_out();

  NodeId nodes() const { return loop_.graph.nodes.end_id(); }
  const std::string& prefix() const { return prefix_; }

 private:
  SamplesOnDevice& samples();
  void add_taking(BufferId from, const std::string& name);

  PlanBuilder& builder_;
  const PlanInputs& in_;
  const Lanes& lanes_;
  const Loop& loop_;
  const std::string prefix_;
  const BatchOrigin origin_;
  const BatchLayout layout_;
  Table<NodeId, bool> aside_;  // nodes_aside(), once launches have been added that may be
};

}  // namespace arbalest
