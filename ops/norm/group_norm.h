// SPDX-License-Identifier: Apache-2.0
#pragma once
// Norms of groups of channels: names of the operators that passes look for, and the positions of their operands.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "graph/op.h"

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

// The groups of all samples of (N, C, 1, …), whose channels lie one after the other.
struct ChannelGroups {
  int64_t count, channels;  // of each

  explicit ChannelGroups(const KernelRequest& request) {
    const Shape& shape = request.inputs[0].shape;
    channels = shape[1] / int_attribute(request.node, "groups");
    count = channels == 0 ? 0 : shape[0] * shape[1] / channels;
  }
};

}  // namespace arbalest
