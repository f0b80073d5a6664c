// SPDX-License-Identifier: Apache-2.0
#pragma once
// The places of operands of arbalest.KeepStatistics and arbalest.RestoreStatistics, which alone has a factor.

#include <cstddef>

namespace arbalest {

struct SkipInput {
  enum : size_t { Statistics, Kept, Factor };
};

}  // namespace arbalest
