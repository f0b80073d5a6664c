#include "graph/layouts.h"

#include <fmt/format.h>

namespace arbalest {

ValueId in_layout(Graph& graph, ValueId value, Layout layout, const Node& reader) {
  const TensorType& type = graph.values[size_t(value)].type;
  if (type.lies_as(layout)) return value;
  const std::string to(name_of(layout));
  const Stage stage = reader.stage;
  const Position where = reader.where;  // `reader` may move
  const NodeId change =
      graph.add_node(builtin_ops().get("arbalest.ChangeLayout"),
                     fmt::format("{}.{}", graph.values[size_t(value)].name, to), {value}, 1, {{"to", to}});
  graph.nodes[size_t(change)].stage = stage;
  graph.nodes[size_t(change)].where = where;
  infer(graph, change);
  return graph.nodes[size_t(change)].outputs[0];
}

}  // namespace arbalest
