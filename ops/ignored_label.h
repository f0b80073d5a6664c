#pragma once
// The attribute `ignore_index` of losses and metrics whose labels are classes.

#include <cstdint>

#include "base/host_device.h"
#include "graph/op.h"

namespace arbalest {

// A sample with this label takes no part: it adds neither to a mean nor to what that is divided by.
struct IgnoredLabel {
  bool any = false;
  int32_t label = 0;
  ARBALEST_HOST_DEVICE bool holds(int64_t other) const { return any && other == label; }
};

AttributeSpec ignore_spec();
// Throws GraphError if the attribute holds more than one label, or one that is no int32.
IgnoredLabel ignored_label(const Node& node);

}  // namespace arbalest
