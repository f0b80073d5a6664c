// SPDX-License-Identifier: Apache-2.0
#pragma once
// The part that an optimiser writes itself: the update of one element, as a functor that compiles for CPU and CUDA.
//
//   template <typename T>                     // float; double on the CPU
//   struct Rule {
//     static constexpr int kSlots = …;        // as OptimizerSpec::slots has
//     static Rule of(const Node& update);     // from the attributes of the operator
//     ARBALEST_HOST_DEVICE Rule at(int32_t updates) const;  // once a kernel's thread, with StepScalars::updates
//     ARBALEST_HOST_DEVICE void operator()(T rate, T decay, T gradient, T& w, T (&slots)[kSlots]) const;
//   };
//
// A rule whose rate depends on norms over a whole parameter (OptimizerSpec::per_tensor) has besides
//
//     T trust;  // the rate of a parameter is multiplied by trust · ‖w‖ / ‖direction‖
//     ARBALEST_HOST_DEVICE T direction(T decay, T gradient, T w, const T (&slots)[kSlots]) const;
//
// A rule that needs the whole parameter as a matrix (OptimizerSpec::matrices) has, for CPUs, in place of those two
//
//     int64_t workspace(int64_t rows, int64_t columns) const;  // numbers of type T that a parameter needs
//     void operator()(T rate, T decay, ParameterMatrix<T, kSlots> parameter, T* workspace) const;
//
// On CUDA its rule is another class, for one element, which gets directions in place of gradients (update.cuh).
//
// Averaging, restarts, clipping, parameter groups and lowered weights are written once for all: update_cpu.h and
// update.cuh.

#include <array>
#include <cmath>
#include <cstdint>

#include "base/host_device.h"

namespace arbalest {

// A parameter, its gradient and its slots, row by row. A rule changes weights and slots in place; the gradient is to be
// multiplied by `clip`.
template <typename T, int Slots>
struct ParameterMatrix {
  int64_t rows = 0, columns = 0;  // one column: a vector
  bool puts_out_columns = false;  // the layer has an output for each column, not for each row
  const T* gradient = nullptr;
  T clip = 1;
  T* weights = nullptr;
  std::array<T*, Slots> slots = {};
};

template <typename Rule>
concept ByMatrix = requires(const Rule& rule) {
  rule.workspace(int64_t{1}, int64_t{1});
};

template <typename Rule>
concept PerTensor = requires(const Rule& rule) {
  rule.trust;
};

// Factor of a parameter's rate, from the sums of squares of its weights and of their direction. 1 if one of both is 0,
// as for weights that start from zeros, or is not finite.
ARBALEST_HOST_DEVICE inline double trust_ratio(double trust, double weights, double directions) {
  const bool sound = weights > 0 && directions > 0 && std::isfinite(weights) && std::isfinite(directions);
  return sound ? trust * std::sqrt(weights / directions) : 1.0;
}

}  // namespace arbalest
