// SPDX-License-Identifier: Apache-2.0
#include "graph/layouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "graph/names.h"

namespace arbalest {

ValueId in_layout(Graph& graph, ValueId value, Layout layout, const Node& reader) {
  const TensorType& type = graph.values[value].type;
  if (type.lies_as(layout)) return value;
  const std::string to(name_of(layout));
  const Stage stage = reader.stage;
  const Position where = reader.where;  // `reader` may move
  const NodeId change = graph.add_node(graph.op(op::ChangeLayout), fmt::format("{}.{}", graph.values[value].name, to),
                                       {value}, 1, {{"to", to}});
  graph.nodes[change].stage = stage;
  graph.nodes[change].where = where;
  infer(graph, change);
  return graph.nodes[change].outputs[0];
}

bool keeps_memory(const std::vector<int64_t>& permutation, Layout from, Layout to) {
  if (permutation.size() < 4 || from == to) return false;
  std::vector<int64_t> moved(permutation.size());
  std::iota(moved.begin(), moved.end(), int64_t{0});
  const auto channels = moved.begin() + 1;
  std::rotate(channels, from == Layout::ChannelsLast ? channels + 1 : moved.end() - 1, moved.end());
  return permutation == moved;
}

}  // namespace arbalest
