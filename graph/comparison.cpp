#include "graph/comparison.h"

#include <algorithm>
#include <iterator>

namespace arbalest {
namespace {

using Target = Comparison::Target;

constexpr Comparison kComparisons[] = {
    {"arbalest.SoftmaxCrossEntropy", Target::Classes, "Softmax"},
    {"arbalest.SigmoidCrossEntropy", Target::Labels, "Sigmoid"},
    {"arbalest.L1Loss", Target::Numbers, ""},
    {"arbalest.MeanSquaredError", Target::Numbers, ""},
    {"arbalest.Accuracy", Target::Classes, ""},
    {"arbalest.AUC", Target::Either, ""},
    {"arbalest.F1", Target::Either, ""},
    {"arbalest.Precision", Target::Either, ""},
    {"arbalest.Recall", Target::Either, ""},
};

}  // namespace

const Comparison* comparison_of(const Op& op) {
  const std::string name = op.qualified_name();
  const auto* const found = std::find_if(std::begin(kComparisons), std::end(kComparisons),
                                         [&](const Comparison& each) { return each.op == name; });
  return found == std::end(kComparisons) ? nullptr : found;
}

}  // namespace arbalest
