// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rule of AdamW (Loshchilov and Hutter, Decoupled Weight Decay Regularization).

#include <cmath>
#include <cstdint>

#include "graph/graph.h"
#include "ops/optim/rule.h"

namespace arbalest {

// m ← β₁m + (1 − β₁)g;  s ← β₂s + (1 − β₂)g²;  w ← w − γλw − γ m̂ / (√ŝ + ε), where update t since the moments were
// zeros has m̂ = m / (1 − β₁ᵗ) and ŝ = s / (1 − β₂ᵗ).
template <typename T>
struct AdamwRule {
  static constexpr int kSlots = 2;
  T beta1, rest1, beta2, rest2;  // rest: 1 − β
  T log1, log2;                  // ln β: 1 − βᵗ is taken from it, as βᵗ in single precision would lose digits
  T epsilon;
  T scale1 = 1, scale2 = 1;  // 1 / (1 − β₁ᵗ) and 1 / √(1 − β₂ᵗ)

  static AdamwRule of(const Node& update) {
    const double beta1 = float_attribute(update, "beta1"), beta2 = float_attribute(update, "beta2");
    return {T(beta1),
            T(1 - beta1),
            T(beta2),
            T(1 - beta2),
            T(std::log(beta1)),
            T(std::log(beta2)),
            T(float_attribute(update, "epsilon"))};
  }
  ARBALEST_HOST_DEVICE AdamwRule at(int32_t updates) const {
    AdamwRule rule = *this;
    const T t = T(updates) + 1;
    rule.scale1 = -1 / std::expm1(t * log1);
    rule.scale2 = 1 / std::sqrt(-std::expm1(t * log2));
    return rule;
  }
  ARBALEST_HOST_DEVICE void operator()(T rate, T decay, T gradient, T& w, T (&slots)[kSlots]) const {
    slots[0] = beta1 * slots[0] + rest1 * gradient;
    slots[1] = beta2 * slots[1] + rest2 * gradient * gradient;
    w -= rate * (decay * w + scale1 * slots[0] / (std::sqrt(slots[1]) * scale2 + epsilon));
  }
};

}  // namespace arbalest
