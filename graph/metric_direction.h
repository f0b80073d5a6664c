#pragma once
// Which way a metric is better, in a user's words.

#include <optional>
#include <string>
#include <string_view>

#include "graph/metric.h"

namespace arbalest {

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
