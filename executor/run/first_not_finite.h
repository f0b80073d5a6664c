// SPDX-License-Identifier: Apache-2.0
#pragma once
// Finds where a step's numbers go wrong: runs the step once more, node by node.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "executor/run/binding.h"

namespace arbalest {

// The range of a tensor's elements, and how many are not finite.
struct ValueRange {
  std::string name;
  TensorType type;
  double least = 0, most = 0;           // of its finite elements; least > most: it has none
  int64_t infinite = 0, undefined = 0;  // elements that are infinite, and not a number
  int64_t first = -1;                   // index in memory of the first of these; −1: there is none

  bool finite() const { return infinite + undefined == 0; }
};

// The first value that is not finite.
struct NotFinite {
  int64_t part = 0;  // of the step
  int64_t learner = 0;
  std::string device;  // "cuda:0"
  std::string node, op;
  ValueRange value;  // an output of the node, or, if `made` is false, an input that nothing of the step has made
  bool made = true;
  std::vector<ValueRange> inputs;  // of the node, those with elements of a floating type
};

// Runs the steps of all learners for iteration `tick` of the plan again, from the state and the batches that are in
// place, and looks at every output. Infinities that come from constants or states, such as masks, and pass through
// nodes are not what is looked for; what becomes not a number is. After a run; what steps write is of no use
// afterwards. Averages between learners are not made again: nodes after them read what the run has left there. Nothing
// if all values are finite.
std::optional<NotFinite> first_not_finite(const Binding& binding, int64_t tick);

// "node 'c' (Conv) of learner 0 on cuda:0 makes 'c', float[4,8]: -1 to 2; 3 of 32 elements are nan, the first at
// [0, 1]", then a line for each input with its range; or, of what nothing of the step has made, "... reads 'x', ...".
std::string to_string(const NotFinite& found);

}  // namespace arbalest
