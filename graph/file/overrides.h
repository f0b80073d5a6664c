// SPDX-License-Identifier: Apache-2.0
#pragma once
// Changing attributes of a graph from the command line: --set X.attribute=value.

#include <string>
#include <string_view>
#include <vector>

#include "base/setting.h"
#include "graph/graph.h"

namespace arbalest {

// Assigns to an attribute, "X.attribute=value". X is a node's first output, or its operator in snake_case if only one
// node applies it: "train.lr=0.05", "prefetch.source=mnist:data", "h1/c1.filters=32", "train.milestones=[80, 120]". Or
// X is a function's call in the file, "h1.filters=32", and all nodes change that take the attribute from it; if a node
// X has the attribute and does not take it from the call, the node is meant. The value is read as the attribute's kind:
// text needs no quotes, lists no brackets. Runs before verify(), which checks the rest. Throws GraphError with the
// nearest node or attribute, or the candidates if X names several. Returns the reason why the assignment, or one before
// it, has no effect; "" if both have. Messages begin with the `option`.
std::string apply_override(Graph& graph, std::string_view assignment,
                           std::string_view option = name_of(SettingKey::Set));

// A node and its attribute that an assignment changes.
struct OverrideTarget {
  NodeId node = kNone;
  std::string attribute;
  bool operator==(const OverrideTarget&) const = default;
};
// The targets of an assignment, at least one: several if it is to a call. Throws GraphError as apply_override() does.
std::vector<OverrideTarget> override_targets(const Graph& graph, std::string_view assignment,
                                             std::string_view option = name_of(SettingKey::Set));

// An assignment, and what messages call it: "--vary train.lr".
struct NamedAssignment {
  std::string name, assignment;
};
// Throws GraphError if two of the assignments change one attribute: an attribute may have two names.
void refuse_two_names(const Graph& graph, const std::vector<NamedAssignment>& assignments,
                      std::string_view option = name_of(SettingKey::Set));

// Whether apply_override() has set the attribute.
bool is_override(const NamedAttribute& attribute);

// The X that names each node: its operator if that is unambiguous.
Table<NodeId, std::string> override_names(const Graph& graph);

}  // namespace arbalest
