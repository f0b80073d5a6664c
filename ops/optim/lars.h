// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rule of LARS (You, Gitman and Ginsburg, Large Batch Training of Convolutional Networks).

#include <cstdint>

#include "graph/graph.h"
#include "ops/optim/rule.h"

namespace arbalest {

// u = g + λw;  v ← mv + γru;  w ← w − v, or with Nesterov's momentum w − (γru + mv), where a parameter has
// r = η‖w‖ / ‖u‖, as in Optax. The paper has ‖g‖ + λ‖w‖ in place of ‖u‖. `rate` is γr.
template <typename T>
struct LarsRule {
  static constexpr int kSlots = 1;
  T trust, momentum;
  bool nesterov;

  static LarsRule of(const Node& update) {
    return {T(float_attribute(update, "trust_coefficient")), T(float_attribute(update, "momentum")),
            int_attribute(update, "nesterov") != 0};
  }
  ARBALEST_HOST_DEVICE LarsRule at(int32_t) const { return *this; }
  ARBALEST_HOST_DEVICE T direction(T decay, T gradient, T w, const T (&)[kSlots]) const { return gradient + decay * w; }
  ARBALEST_HOST_DEVICE void operator()(T rate, T decay, T gradient, T& w, T (&slots)[kSlots]) const {
    const T step = rate * (gradient + decay * w);
    slots[0] = momentum * slots[0] + step;
    w -= nesterov ? step + momentum * slots[0] : slots[0];
  }
};

}  // namespace arbalest
