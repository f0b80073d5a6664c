// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rule of RMSprop (Hinton), as PyTorch has it.

#include <cmath>
#include <cstdint>

#include "graph/graph.h"
#include "ops/optim/rule.h"

namespace arbalest {

// g ← g + λw;  s ← αs + (1 − α)g²;  v ← mv + g / (√s + ε);  w ← w − γv. Centered: a ← αa + (1 − α)g, and s − a² in
// place of s; otherwise a stays zeros.
template <typename T>
struct RmspropRule {
  static constexpr int kSlots = 3;
  T alpha, rest, epsilon, momentum;  // rest: 1 − α
  bool centered;

  static RmspropRule of(const Node& update) {
    const double alpha = float_attribute(update, "alpha");
    return {T(alpha), T(1 - alpha), T(float_attribute(update, "epsilon")), T(float_attribute(update, "momentum")),
            int_attribute(update, "centered") != 0};
  }
  ARBALEST_HOST_DEVICE RmspropRule at(int32_t) const { return *this; }
  ARBALEST_HOST_DEVICE void operator()(T rate, T decay, T gradient, T& w, T (&slots)[kSlots]) const {
    const T g = gradient + decay * w;
    slots[0] = alpha * slots[0] + rest * g * g;
    T square = slots[0];
    if (centered) {
      slots[2] = alpha * slots[2] + rest * g;
      const T variance = square - slots[2] * slots[2];
      square = variance < 0 ? T(0) : variance;  // below 0 by rounding alone
    }
    slots[1] = momentum * slots[1] + g / (std::sqrt(square) + epsilon);
    w -= rate * slots[1];
  }
};

}  // namespace arbalest
