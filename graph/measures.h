#pragma once
// What losses and metrics say beside their operators' records: what they compare, and which way is better in a user's
// words.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "graph/op.h"

namespace arbalest {

// A loss or a metric that compares scores with what these should be: input 0 with input 1, a row for each sample.
struct Comparison {
  // What input 1 holds. Classes: a class number a sample, or a row of floats, a target for each class. Labels: for each
  // score 0 to 1, or missing. Either: classes where there is a row of scores and one number for it, labels otherwise.
  // Numbers: any.
  enum class Target : uint8_t { Classes, Labels, Either, Numbers };

  std::string_view op;  // the qualified name
  Target target = Target::Numbers;
  std::string_view activation;  // that a loss applies to its scores itself: "Softmax", "Sigmoid"; "": none

  bool of_classes() const { return activation == "Softmax"; }  // a loss over one class of several
  bool of_labels() const { return activation == "Sigmoid"; }   // a loss over labels that are decided each by itself
};

// Of an operator of the library; nullptr: it compares nothing.
const Comparison* comparison_of(const Op& op);
// The losses among them, as comparison_of() has them: false where the operator is none.
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
