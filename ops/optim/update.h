// SPDX-License-Identifier: Apache-2.0
#pragma once
// Helpers of the operators that are update rules of optimisers. Kernels: update_cpu.h, update.cuh.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/op.h"

namespace arbalest {

// The numbers of each parameter group, from the attributes of an update that has the input `groups`.
struct GroupNumbers {
  std::vector<double> decays, rate_factors;
  explicit GroupNumbers(const Node& update);
};

// Checks of a node's numbers. Each throws GraphError, with the place, unless the attribute is as the name says.
void check_at_least(const Node& node, std::string_view attribute, double least);
void check_at_most(const Node& node, std::string_view attribute, double most);
void check_below(const Node& node, std::string_view attribute, double limit);
void check_above_0(const Node& node, std::string_view attribute);
void check_share(const Node& node, std::string_view attribute);  // at least 0 and below 1
// Those of several optimisers: momentum and nesterov; beta1, beta2 and epsilon.
void check_momentum(const Node& train);
void check_moments(const Node& train);

// The attributes of arbalest.Train: its own, and those of the optimisers among `ops`. Throws GraphError if two
// optimisers have one name, or attributes of one name that differ in kind or default.
std::vector<AttributeSpec> train_attributes(const std::vector<std::reference_wrapper<const Op>>& ops);

// The record of an internal operator "arbalest.NAME" (see graph/optimizer.h for its operands) with the attributes
// `rule_attributes`, which are the optimiser's own, before those that all rules have. The caller adds the kernels.
Op update_op(std::string name, std::string doc, OptimizerSpec optimizer, std::vector<AttributeSpec> rule_attributes);

// Every way in which an update can run, for each of the `rules` (named attributes of the rule). Slot k starts from
// numbers between `slot_lows[k]` and 1.
std::vector<Sample> update_samples(const OptimizerSpec& optimizer,
                                   const std::vector<std::pair<std::string, Attributes>>& rules,
                                   const std::vector<double>& slot_lows);

}  // namespace arbalest
