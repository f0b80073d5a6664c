// SPDX-License-Identifier: Apache-2.0
#pragma once
// Names of the few operators that a graph itself is made or settled with. Every registry that graphs are read with has
// them; all else that this room asks about an operator stands in its record (graph/op.h).

#include <string_view>

namespace arbalest::op {

inline constexpr std::string_view AsStated = "arbalest.AsStated", Cast = "Cast", ChangeLayout = "arbalest.ChangeLayout",
                                  Choose = "arbalest.Choose", Expand = "Expand", Flatten = "Flatten",
                                  Identity = "Identity", Reshape = "Reshape", Shape = "Shape", Transpose = "Transpose";

}  // namespace arbalest::op
