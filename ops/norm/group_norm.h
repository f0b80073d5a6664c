// SPDX-License-Identifier: Apache-2.0
#pragma once
// Norms of groups of channels: names of the operators that passes look for, and the positions of their operands.

#include <cstddef>
#include <string_view>

namespace arbalest {

inline constexpr std::string_view kNormalizeGroups = "arbalest.NormalizeGroups",
                                  kNormalizeGroupsGrad = "arbalest.NormalizeGroupsGrad",
                                  kGroupMoments = "arbalest.GroupMoments", kGroupMean = "arbalest.GroupMean";

struct NormalizeGroupsOutput {
  enum : size_t { Y, Mean, InvStd };
};
struct NormalizeGroupsGradInput {
  enum : size_t { dY, X, Mean, InvStd };
};
// One tensor or two.
struct GroupMeanOperand {
  enum : size_t { A, B };
};
struct GroupMomentsInput {
  enum : size_t { Squares, Means };
};
struct GroupMomentsOutput {
  enum : size_t { InvStd, Mean };
};

}  // namespace arbalest
