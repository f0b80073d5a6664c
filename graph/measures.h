// SPDX-License-Identifier: Apache-2.0
#pragma once
// Questions about losses and metrics that their operators' records answer, and directions as users write them.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "graph/op.h"

namespace arbalest {

// Whether the operator is a loss over one class of several, and whether it is one over labels that are decided each by
// itself.
inline bool is_loss_of_classes(const Op& op) {
  return op.compares && op.compares->activation == Comparison::Activation::Softmax;
}
inline bool is_loss_of_labels(const Op& op) {
  return op.compares && op.compares->activation == Comparison::Activation::Sigmoid;
}

struct MetricDirection {
  std::string metric;
  std::optional<MetricSpec::Better> better;  // none: not stated
};

// "focal:min", "score:max", or a name alone.
MetricDirection parse_direction(std::string_view text);

std::string_view name_of(MetricSpec::Better better);  // "lower" or "higher"
// none: neither word.
std::optional<MetricSpec::Better> parse_better(std::string_view name);

}  // namespace arbalest
