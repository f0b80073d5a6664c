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
  const size_t rank = permutation.size();
  if (rank < 4 || from == to) return false;
  return permutation == (from == Layout::ChannelsLast ? channels_to_last(rank) : channels_from_last(rank));
}

std::vector<int64_t> channels_to_last(size_t rank) {
  std::vector<int64_t> axes(rank);
  std::iota(axes.begin(), axes.end(), int64_t{0});
  std::rotate(axes.begin() + 1, axes.begin() + 2, axes.end());
  return axes;
}

std::vector<int64_t> channels_from_last(size_t rank) {
  std::vector<int64_t> axes(rank);
  std::iota(axes.begin(), axes.end(), int64_t{0});
  std::rotate(axes.begin() + 1, axes.end() - 1, axes.end());
  return axes;
}

Shape with_channels_last(const Shape& image) {
  Shape made = image;
  std::rotate(made.begin() + 1, made.begin() + 2, made.end());
  return made;
}

std::vector<int64_t> rows_as_columns(size_t rank) {
  std::vector<int64_t> axes(rank);
  std::iota(axes.begin(), axes.end(), int64_t{0});
  std::swap(axes[rank - 1], axes[rank - 2]);
  return axes;
}

bool merges_pixels(const Shape& image, const Shape& merged) {
  return image.size() > 3 && merged.size() == 3 && image[0] == merged[0] && image[1] == merged[1];
}

}  // namespace arbalest
