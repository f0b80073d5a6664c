// SPDX-License-Identifier: Apache-2.0
#pragma once
// The numbers of Muon (Jordan et al., https://kellerjordan.github.io/posts/muon/) that its kernels on CPUs and GPUs
// share.

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace arbalest {

// A turn of Newton and Schulz: X ← aX + (bA + cA²)X with A = XXᵀ. The numbers are the paper's: five turns bring
// singular values of 0.01 to 1 near 1, if X was divided by its norm + ε before.
struct MuonTurns {
  static constexpr int kCount = 5;
  static constexpr double kA = 3.4445, kB = -4.775, kC = 2.0315, kEpsilon = 1e-7;
};

// A parameter of (rows, columns) whose update is made orthogonal; all others are vectors.
inline bool is_muon_matrix(int64_t rows, int64_t columns) {
  return rows > 1 && columns > 1;
}

// The factor of an orthogonal update: √(outputs / inputs) of the layer, at least 1.
inline double muon_scale(int64_t rows, int64_t columns, bool puts_out_columns) {
  const double ratio = double(rows) / double(columns);
  return std::sqrt(std::max(1.0, puts_out_columns ? 1 / ratio : ratio));
}

}  // namespace arbalest
