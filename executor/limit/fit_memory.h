// SPDX-License-Identifier: Apache-2.0
#pragma once
// A plan for less memory: values of the forward pass that the backward pass needs are computed again there, rather than
// kept, as many as a limit asks for.

#include <cstdint>
#include <string>

#include "executor/limit/recomputation.h"
#include "executor/plan/make_plan.h"

namespace arbalest {

struct MemoryLimit {
  int64_t bytes = 0;      // of each device
  int64_t workspace = 0;  // what kernels need of them, which no plan knows
  // Additions and multiplications that take as long as moving a byte: what work is weighed by.
  double operations_per_byte = 10;
  bool check = true;  // the graph that comes out: see ProgramOptions
};

// A device that cannot do with as much memory as it may have, whatever is computed again.
class LimitTooLow : public GraphError {
 public:
  LimitTooLow(const std::string& sentence, const std::string& parts, int64_t bytes)
      : GraphError(sentence + parts), brief(sentence), least(bytes) {}
  std::string brief;  // without what takes the memory
  int64_t least;      // bytes of the device that needs most
};

// Computes nodes of the program's training step again (passes/recompute.h) such that the plan that the request
// asks for needs no more than the limit on any device. Nodes that save most for their work come first, and no more of
// them than it takes. A program that fits is left as it is. Throws LimitTooLow, which says what the least is, and what
// takes it.
Recomputation fit_memory(Program& program, const PlanRequest& request, const MemoryLimit& limit);

}  // namespace arbalest
