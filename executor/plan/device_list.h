// SPDX-License-Identifier: Apache-2.0
#pragma once
// The value of --devices: "cpu:0-1", "cuda:0,cuda:2-3", "cpu", "auto".

#include <functional>
#include <string_view>
#include <vector>

#include "executor/plan/plan.h"

namespace arbalest {

// A comma-separated list of KIND, KIND:N or KIND:FIRST-LAST, KIND being cpu or cuda. A bare KIND is KIND:0, and a bare
// number or range goes on with the kind before it ("cuda:0,2"). "auto" alone asks `resolve_auto`. Keeps the order
// written; throws GraphError on an empty list, an unknown kind (with the nearest), a range that runs backwards and a
// device named twice.
std::vector<PlanDevice> parse_devices(std::string_view text,
                                      const std::function<std::vector<PlanDevice>()>& resolve_auto);

}  // namespace arbalest
