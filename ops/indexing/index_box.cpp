// SPDX-License-Identifier: Apache-2.0
#include "ops/indexing/index_box.h"

#include <algorithm>
#include <cstring>

#include "graph/constants.h"
#include "graph/op.h"

namespace arbalest {
namespace {

using Ints = std::vector<int64_t>;

// Indices along one axis, which repeat along the others: `shape` broadcasts to the box.
struct Along {
  Ints indices;
  Shape shape;
};

std::optional<Ints> numbers_of(const Graph& graph, ValueId value) {
  const auto content = content_of(graph, value);
  if (!content || graph.values[value].type.dtype != DataType::Int64) return std::nullopt;
  Ints numbers(content->size() / sizeof(int64_t));
  if (!numbers.empty()) std::memcpy(numbers.data(), content->data(), content->size());
  return numbers;
}

const Node* producer_of(const Graph& graph, ValueId value) {
  const NodeId producer = graph.values[value].producer;
  return producer == kNone ? nullptr : &graph.nodes[producer];
}

bool is(const Node* node, std::string_view op) {
  return node && node->op->qualified_name() == op;
}

// Column `axis` of indices whose content is known as a whole.
std::optional<Along> column_of(const Graph& graph, ValueId indices, size_t axis) {
  const std::optional<Ints> all = numbers_of(graph, indices);
  if (!all) return std::nullopt;
  Along along{{}, graph.values[indices].type.shape};
  const auto depth = size_t(along.shape.back());
  along.shape.pop_back();
  for (size_t at = axis; at < all->size(); at += depth) along.indices.push_back((*all)[at]);
  return along;
}

// Column `axis` of indices that are put together from a column for each axis, as exporters do.
std::optional<Along> part_of(const Graph& graph, ValueId indices, size_t axis) {
  const Node* together = producer_of(graph, indices);
  const Shape& shape = graph.values[indices].type.shape;
  if (!is(together, "Concat") || int64_t(together->inputs.size()) != shape.back()) return std::nullopt;
  const int64_t place = int_attribute(*together, "axis");
  if (place != -1 && place != int64_t(shape.size()) - 1) return std::nullopt;
  ValueId part = together->inputs[axis];
  Shape column = graph.values[part].type.shape;
  if (column.back() != 1) return std::nullopt;
  const Node* node = producer_of(graph, part);
  const bool unsqueezed = is(node, "Unsqueeze");
  if (unsqueezed) {
    const Shape& before = graph.values[node->inputs[0]].type.shape;
    if (before != Shape(column.begin(), column.end() - 1)) return std::nullopt;
    column = before;
    part = node->inputs[0], node = producer_of(graph, part);
  }
  if (is(node, "Expand")) {
    part = node->inputs[0];
    const Shape& before = graph.values[part].type.shape;
    if (before.size() > column.size()) return std::nullopt;
    column.assign(column.size() - before.size(), 1);
    column.insert(column.end(), before.begin(), before.end());
  }
  if (!unsqueezed) column.pop_back();
  const std::optional<Ints> numbers = numbers_of(graph, part);
  return numbers ? std::optional<Along>({*numbers, column}) : std::nullopt;
}

// The first of the indices if they go up by one along `axis` and stay along the others.
std::optional<int64_t> first_of(const Along& along, size_t axis, int64_t count, int64_t extent) {
  if (along.indices.empty() || along.shape[axis] != count) return std::nullopt;
  int64_t inner = 1;
  for (size_t i = axis + 1; i < along.shape.size(); ++i) inner *= along.shape[i];
  const int64_t first = along.indices[0] + (along.indices[0] < 0 ? extent : 0);
  if (first < 0 || first > extent - count) return std::nullopt;
  for (size_t i = 0; i < along.indices.size(); ++i) {
    const int64_t index = along.indices[i] + (along.indices[i] < 0 ? extent : 0);
    if (index != first + int64_t(i) / inner % count) return std::nullopt;
  }
  return first;
}

}  // namespace

std::optional<IndexBox> box_of(const Graph& graph, ValueId indices, const Shape& shape) {
  const Shape& found = graph.values[indices].type.shape;
  if (found.size() < 2 || found.back() != int64_t(found.size()) - 1) return std::nullopt;
  const size_t depth = found.size() - 1;
  IndexBox box{{}, {found.begin(), found.end() - 1}};
  for (size_t axis = 0; axis < depth; ++axis) {
    std::optional<Along> along = column_of(graph, indices, axis);
    if (!along) along = part_of(graph, indices, axis);
    const auto first = along ? first_of(*along, axis, box.count[axis], shape[axis]) : std::nullopt;
    if (!first) return std::nullopt;
    box.first.push_back(*first);
  }
  for (size_t axis = depth; axis < shape.size(); ++axis) {
    box.first.push_back(0);
    box.count.push_back(shape[axis]);
  }
  return box;
}

}  // namespace arbalest
