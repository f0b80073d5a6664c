// SPDX-License-Identifier: Apache-2.0
#pragma once
// The record that makes an operator an optimiser's update rule.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace arbalest {

struct Node;  // graph/graph.h

// `name` is its value of arbalest.Train's attribute `optimizer`. A slot is state that the optimiser keeps per element
// of a parameter in addition to the weight (velocity; first and second moment). Each slot is one flat float array per
// replica and starts from zeros.
struct OptimizerSpec {
  std::string name = {};
  std::vector<std::string> slots = {};
  // An element's update depends on all of its parameter: there is the operand `tensors`. If it does not, plans may
  // update the elements in any parts.
  bool per_tensor = false;
  bool matrices = false;  // with per_tensor, and on the parameter's shape: there is the attribute `matrices`
  // The operator's attributes that are the optimiser's own. arbalest.Train has them too, with the same defaults.
  std::vector<std::string> attributes = {};
  // Throws GraphError if arbalest.Train, which names this optimiser, has numbers out of range for these attributes.
  std::function<void(const Node& train)> check = nullptr;
  // Whether updates follow the gradient alone, without a momentum; none: they do not.
  std::function<bool(const Node& train)> plain = nullptr;
  // With `matrices`, two of `attributes`: the names of parameters that are vectors whatever their shape, and a factor
  // of the rates of all vectors; "": there are none.
  std::string vectors = {}, vector_factor = {};
};

// Parameters begin at multiples of so many elements in the flat arrays: 256 bytes in float, 128 in bfloat16.
inline constexpr int64_t kParameterAlignment = 64;

// Groups of parameters with a weight decay or a rate of their own, at most: the CUDA kernels take their numbers as an
// argument.
inline constexpr size_t kMostGroups = 64;

// Operand positions of an operator that has an OptimizerSpec. All operands are flat arrays of a replica's P elements,
// except `tensors` and the last two inputs. Those marked ? may be left out.
//   inputs:  gradients, weights, the slots,
//            tensors (only with OptimizerSpec::per_tensor; T, 2: the first block of 64 elements of each parameter, in
//            ascending order, and 1 if norms leave its rate alone. With OptimizerSpec::matrices the attribute
//            `matrices` has three numbers for each: rows and columns, which are its first extent and the product of
//            the others, one column for a vector; and 1 if columns, not rows, are what its layer puts out), average?,
//            averaged?, clip? (1: a factor of the gradients; below 0: the update is skipped), groups? (P / 64, rounded
//            up: the parameter group of 64 elements each)
//   outputs: new_weights, the new slots, lowered_weights? (bfloat16), restarted?
class UpdateOperands {
 public:
  explicit UpdateOperands(const OptimizerSpec& optimizer)
      : slots_(optimizer.slots.size()), own_(slots_ + (optimizer.per_tensor ? 1 : 0)) {}
  static constexpr size_t kGradients = 0, kWeights = 1, kFirstSlot = 2;
  size_t tensors() const { return slots_ + 2; }
  size_t average() const { return own_ + 2; }
  size_t averaged() const { return own_ + 3; }
  size_t clip() const { return own_ + 4; }
  size_t groups() const { return own_ + 5; }
  size_t inputs() const { return own_ + 6; }

  static constexpr size_t kNewWeights = 0, kFirstNewSlot = 1;
  size_t lowered() const { return slots_ + 1; }
  size_t restarted() const { return slots_ + 2; }
  size_t outputs() const { return slots_ + 3; }

 private:
  size_t slots_, own_;  // own: the slots, and `tensors`
};

}  // namespace arbalest
