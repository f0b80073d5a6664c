#pragma once
// Facts about losses and metrics beyond their operators' records: what they compare, and which direction is better, as
// users write it.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "graph/op.h"

namespace arbalest {

// A loss or a metric that compares scores (input 0) with their targets (input 1), one row per sample.
struct Comparison {
  // The content of input 1. Classes: a class number per sample, or a row of floats with a target for each class.
  // Labels: for each score a value from 0 to 1, or missing. Either: classes if there is a row of scores and one number
  // for it, labels otherwise. Numbers: any.
  enum class Target : uint8_t { Classes, Labels, Either, Numbers };

  std::string_view op;  // the qualified name
  Target target = Target::Numbers;
  std::string_view activation;  // that a loss itself applies to its scores: "Softmax", "Sigmoid"; "": none

  bool of_classes() const { return activation == "Softmax"; }  // a loss over one class of several
  bool of_labels() const { return activation == "Sigmoid"; }   // a loss over labels that are decided each by itself
};

// The comparison that an operator of the library makes; nullptr if it compares nothing.
const Comparison* comparison_of(const Op& op);
// Whether the operator is such a loss; false if it is none.
inline bool is_loss_of_classes(const Op& op) {
  const Comparison* comparison = comparison_of(op);
  return comparison && comparison->of_classes();
}
inline bool is_loss_of_labels(const Op& op) {
  const Comparison* comparison = comparison_of(op);
  return comparison && comparison->of_labels();
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
