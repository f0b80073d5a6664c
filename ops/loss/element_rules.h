// SPDX-License-Identifier: Apache-2.0
#pragma once
// Losses that are means over elements: where the elements lie, the loss of one and its gradient, for the CPU and for
// CUDA. Here x is the prediction, t the target and p the weight of the element's label.

#include <cmath>
#include <limits>

#include "base/host_device.h"
#include "graph/types.h"

namespace arbalest {

// The label and the target of each element of predictions (N, labels, …), in the order in which they lie. Predictions
// and targets may be channels-last.
struct ElementPlaces {
  int64_t rows = 0, labels = 1, inner = 1;  // inner: elements of a sample's label
  bool last = false, apart = false;         // the predictions are channels-last; targets lie otherwise

  ElementPlaces(const TensorType& predictions, const TensorType& targets)
      : rows(predictions.shape[0]),
        last(!predictions.lies_as(Layout::RowMajor)),
        apart(last == targets.lies_as(Layout::RowMajor)) {
    for (size_t axis = 1; axis < predictions.shape.size(); ++axis) {
      (axis == 1 ? labels : inner) *= predictions.shape[axis];
    }
    if (labels == 1 || inner == 1) apart = false;  // both orders are one
  }
  int64_t count() const { return rows * per_row(); }
  ARBALEST_HOST_DEVICE int64_t per_row() const { return labels * inner; }
  ARBALEST_HOST_DEVICE int64_t label(int64_t i) const { return last ? i % labels : i / inner % labels; }
  ARBALEST_HOST_DEVICE int64_t target(int64_t i) const {
    if (!apart) return i;
    const int64_t row = i / per_row(), at = i - row * per_row(), own = last ? labels : inner,
                  other = last ? inner : labels;
    return row * per_row() + at % own * other + at / own;
  }
};

// −p t log σ(x) − (1 − t) log(1 − σ(x)). Targets of −1 and NaN are missing; others outside of 0 to 1 give NaN.
template <typename W>
struct SigmoidRule {
  ARBALEST_HOST_DEVICE static bool takes_part(W t) { return t == t && t != W(-1); }
  ARBALEST_HOST_DEVICE static bool is_sound(W t) { return t >= 0 && t <= 1; }
  ARBALEST_HOST_DEVICE static W loss(W x, W t, W p) {
    if (!is_sound(t)) return std::numeric_limits<W>::quiet_NaN();
    const W tail = std::log1p(std::exp(-std::fabs(x)));
    const W positive = x < 0 ? tail - x : tail, negative = x > 0 ? tail + x : tail;
    return p * t * positive + (1 - t) * negative;
  }
  ARBALEST_HOST_DEVICE static W gradient(W x, W t, W p) {
    if (!is_sound(t)) return std::numeric_limits<W>::quiet_NaN();
    const W e = std::exp(-std::fabs(x)), near = 1 / (1 + e), far = e / (1 + e);  // σ(|x|) and σ(−|x|)
    return (1 - t) * (x >= 0 ? near : far) - p * t * (x >= 0 ? far : near);
  }
};

// (x − t)²
template <typename W>
struct SquareRule {
  ARBALEST_HOST_DEVICE static bool takes_part(W) { return true; }
  ARBALEST_HOST_DEVICE static W loss(W x, W t, W) { return (x - t) * (x - t); }
  ARBALEST_HOST_DEVICE static W gradient(W x, W t, W) { return 2 * (x - t); }
};

// |x − t|, whose gradient is 0 if they are equal.
template <typename W>
struct AbsoluteRule {
  ARBALEST_HOST_DEVICE static bool takes_part(W) { return true; }
  ARBALEST_HOST_DEVICE static W loss(W x, W t, W) { return std::fabs(x - t); }
  ARBALEST_HOST_DEVICE static W gradient(W x, W t, W) {
    const W d = x - t;
    return d > 0 ? W(1) : d < 0 ? W(-1) : d;  // NaN stays NaN
  }
};

}  // namespace arbalest
