// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rule of stochastic gradient descent with momentum.

#include <cstdint>

#include "graph/graph.h"
#include "ops/optim/rule.h"

namespace arbalest {

// g ← g + λw;  v ← mv + g;  w ← w − γv, or with Nesterov's momentum w − γ(g + mv).
template <typename T>
struct SgdRule {
  static constexpr int kSlots = 1;
  T momentum;
  bool nesterov;

  static SgdRule of(const Node& update) {
    return {T(float_attribute(update, "momentum")), int_attribute(update, "nesterov") != 0};
  }
  ARBALEST_HOST_DEVICE SgdRule at(int32_t) const { return *this; }
  ARBALEST_HOST_DEVICE void operator()(T rate, T decay, T gradient, T& w, T (&slots)[kSlots]) const {
    const T g = gradient + decay * w;
    slots[0] = momentum * slots[0] + g;
    w -= rate * (nesterov ? g + momentum * slots[0] : slots[0]);
  }
};

}  // namespace arbalest
