// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rule of LAMB (You et al., Large Batch Optimization for Deep Learning: Training BERT in 76 minutes).

#include <cmath>
#include <cstdint>

#include "graph/graph.h"
#include "ops/optim/adamw.h"
#include "ops/optim/rule.h"

namespace arbalest {

// AdamW's moments; u = m̂ / (√ŝ + ε) + λw;  w ← w − γru, where a parameter has r = ‖w‖ / ‖u‖. `rate` is γr.
template <typename T>
struct LambRule {
  static constexpr int kSlots = 2;
  AdamwRule<T> adam;
  T trust = 1;

  static LambRule of(const Node& update) { return {AdamwRule<T>::of(update)}; }
  ARBALEST_HOST_DEVICE LambRule at(int32_t updates) const { return {adam.at(updates)}; }
  ARBALEST_HOST_DEVICE T direction(T decay, T gradient, T w, const T (&slots)[kSlots]) const {
    T moments[kSlots] = {slots[0], slots[1]}, moved = 0;
    adam(T(-1), T(0), gradient, moved, moments);
    return moved + decay * w;
  }
  ARBALEST_HOST_DEVICE void operator()(T rate, T decay, T gradient, T& w, T (&slots)[kSlots]) const {
    adam(rate, decay, gradient, w, slots);
  }
};

}  // namespace arbalest
