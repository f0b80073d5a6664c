// SPDX-License-Identifier: Apache-2.0
#pragma once
// Parameters chosen by name: patterns in attributes of Train.

#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace arbalest {

// Whether the whole of `name` fits `pattern`, in which each * stands for any characters, also none.
bool fits(std::string_view name, std::string_view pattern);

// The patterns that `node` has in the attribute, which holds strings. Throws GraphError at the node if one of them
// fits none of `names`: it tells the nearest name or part of one.
std::vector<std::string> name_patterns(const Node& node, std::string_view attribute,
                                       const std::vector<std::string>& names);

// The index of the first of the patterns that the name fits; their number if there is none.
size_t first_fit(std::string_view name, const std::vector<std::string>& patterns);

}  // namespace arbalest
