#pragma once
// Helpers of the operators that are update rules of optimisers. Kernels: update_cpu.h, update.cuh.

#include <string>
#include <vector>

#include "graph/op.h"

namespace arbalest {

// The numbers of each parameter group, from the attributes of an update that has the input `groups`.
struct GroupNumbers {
  std::vector<double> decays, rate_factors;
  explicit GroupNumbers(const Node& update);
};

// The record of an internal operator "arbalest.NAME" (see graph/optimizer.h for its operands) with the attributes
// `rule_attributes` after those that all rules have. The caller adds the kernels.
Op update_op(std::string name, std::string doc, OptimizerSpec optimizer, std::vector<AttributeSpec> rule_attributes);

// Every way in which an update can run, for each of the `rules` (named attributes of the rule). Slot k starts from
// numbers between `slot_lows[k]` and 1.
std::vector<Sample> update_samples(const OptimizerSpec& optimizer,
                                   const std::vector<std::pair<std::string, Attributes>>& rules,
                                   const std::vector<double>& slot_lows);

}  // namespace arbalest
