#include "graph/measures.h"

#include <algorithm>
#include <iterator>
#include <utility>

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

using Better = MetricSpec::Better;

MetricDirection parse_direction(std::string_view text) {
  for (const auto& [ending, better] : {std::pair{":min", Better::Lower}, {":max", Better::Higher}}) {
    if (text.ends_with(ending)) return {std::string(text.substr(0, text.rfind(':'))), better};
  }
  return {std::string(text), std::nullopt};
}

std::string_view name_of(Better better) {
  return better == Better::Lower ? "lower" : "higher";
}

std::optional<Better> parse_better(std::string_view name) {
  for (const Better better : {Better::Lower, Better::Higher}) {
    if (name == name_of(better)) return better;
  }
  return std::nullopt;
}

}  // namespace arbalest
