// SPDX-License-Identifier: Apache-2.0
#include "graph/measures.h"

#include <utility>

namespace arbalest {
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
