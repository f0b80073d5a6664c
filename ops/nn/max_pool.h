// SPDX-License-Identifier: Apache-2.0
#pragma once
// The positions of operands of MaxPool and of its gradients. The pass keep_maxima replaces MaxPool and MaxPoolGrad.

#include <cstddef>

namespace arbalest {

struct MaxPoolOutput {
  enum : size_t { Y, Indices };
};
struct MaxPoolTapsOutput {  // arbalest.MaxPoolTaps
  enum : size_t { Y, Taps };
};
struct MaxPoolGradInput {  // arbalest.MaxPoolGrad
  enum : size_t { dY, X, Y };
};
struct MaxPoolTapsGradInput {  // arbalest.MaxPoolTapsGrad
  enum : size_t { dY, Taps };
};

}  // namespace arbalest
