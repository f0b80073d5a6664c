#include "ops/ignored_label.h"

#include <fmt/format.h>

#include <limits>

#include "ops/definition.h"

namespace arbalest {

AttributeSpec ignore_spec() {
  return ints_spec("ignore_index", {},
                   "where labels are classes: a label whose samples take no part; none: there is none");
}

IgnoredLabel ignored_label(const Node& node) {
  const std::vector<int64_t> labels = ints_attribute(node, "ignore_index");
  if (labels.empty()) return {};
  const bool fits =
      labels[0] >= std::numeric_limits<int32_t>::min() && labels[0] <= std::numeric_limits<int32_t>::max();
  if (labels.size() > 1 || !fits) {
    fail(node,
         fmt::format("attribute 'ignore_index' is {}; expected one label, an int32", to_string(labels, '[', ']')));
  }
  return {true, int32_t(labels[0])};
}

}  // namespace arbalest
