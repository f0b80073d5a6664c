// SPDX-License-Identifier: Apache-2.0
#include "passes/fuse/strided_view.h"

#include <set>
#include <string_view>

#include "graph/constants.h"
#include "graph/op.h"

namespace arbalest {
namespace {

struct Step {
  const Node* node;
  ValueId made;  // of its outputs, the one that the view comes from
};

bool moves(const Graph& graph, const Node& node) {
  static const std::set<std::string_view> names = {"Flatten", "Gather",  "Identity",  "Reshape",
                                                   "Split",   "Squeeze", "Transpose", "Unsqueeze"};
  if (node.op->qualified_name() != "Gather") return node.op->domain.empty() && names.contains(node.op->name);
  const ValueId index = node.inputs[1];
  return graph.values[size_t(index)].type.elements() == 1 && content_of(graph, index) != nullptr;
}

// The nodes from the nearest value of the shape `whole` to `value`, the last one first; none: there is no such value.
std::optional<std::vector<Step>> way_back(const Graph& graph, ValueId value, const Shape& whole) {
  std::vector<Step> steps;
  while (graph.values[size_t(value)].type.shape != whole) {
    const NodeId producer = graph.values[size_t(value)].producer;
    if (producer == kNone || !moves(graph, graph.nodes[size_t(producer)])) return std::nullopt;
    steps.push_back({&graph.nodes[size_t(producer)], value});
    value = steps.back().node->inputs[0];
  }
  return steps;
}

size_t axis_of(const Node& node, size_t rank) {
  const int64_t axis = int_attribute(node, "axis");
  return size_t(axis < 0 ? axis + int64_t(rank) : axis);
}

Shape turned(const Node& node, const Shape& strides) {
  const std::vector<int64_t> permutation = ints_attribute(node, "perm");
  if (permutation.empty()) return {strides.rbegin(), strides.rend()};
  Shape result;
  for (const int64_t axis : permutation) result.push_back(strides[size_t(axis)]);
  return result;
}

// Strides of the axes of `to`, a reshape of `from` that keeps the order of elements. None if an axis would need two
// strides.
std::optional<Shape> reshaped(const Shape& from, const Shape& strides, const Shape& to) {
  Shape result(to.size(), 0);
  size_t axis = from.size();      // of `from`: those before it are left
  int64_t count = 1, stride = 0;  // elements of the axes after it that are not assigned yet, and their distance
  for (size_t i = to.size(); i-- > 0;) {
    if (to[i] == 1) continue;
    while (count % to[i] != 0) {
      --axis;
      if (from[axis] == 1) continue;
      if (count > 1 && strides[axis] != stride * count) return std::nullopt;
      if (count == 1) stride = strides[axis];
      count *= from[axis];
    }
    result[i] = stride;
    stride *= to[i];
    count /= to[i];
  }
  return result;
}

class Follower {
 public:
  Follower(const Graph& graph, ValueId base) : graph_(graph), view_{base, 0, Shape(shape(base).size(), 0)} {
    int64_t step = 1;
    for (size_t i = view_.strides.size(); i-- > 0; step *= shape(base)[i]) view_.strides[i] = step;
    drop_single(base);
  }

  const StridedView& view() const { return view_; }

  // Continues the view through a node that reads the viewed value; false if the result has no such view.
  bool follow(const Step& step) {
    const Node& node = *step.node;
    const Shape& from = shape(node.inputs[0]);
    const std::string& op = node.op->name;
    if (op == "Transpose") {
      view_.strides = turned(node, view_.strides);
    } else if (op == "Split") {
      if (!take_part(node, step.made, axis_of(node, from.size()))) return false;
    } else if (op == "Gather") {
      if (!take_one(node, axis_of(node, from.size()))) return false;
    } else {
      std::optional<Shape> strides = reshaped(from, view_.strides, shape(step.made));
      if (!strides) return false;
      view_.strides = std::move(*strides);
    }
    drop_single(step.made);
    return true;
  }

 private:
  const Shape& shape(ValueId value) const { return graph_.values[size_t(value)].type.shape; }

  void drop_single(ValueId value) {
    for (size_t i = 0; i < view_.strides.size(); ++i) {
      if (shape(value)[i] == 1) view_.strides[i] = 0;
    }
  }

  bool take_part(const Node& split, ValueId part, size_t axis) {
    for (const ValueId each : split.outputs) {
      if (each == part) return true;
      if (each == kNone) return false;  // a part that is left out
      view_.first += shape(each)[axis] * view_.strides[axis];
    }
    return false;
  }

  bool take_one(const Node& gather, size_t axis) {
    const int64_t extent = shape(gather.inputs[0])[axis];
    const auto index = std::get<int64_t>(content_as(graph_, gather, 1, AttributeKind::Int));
    if (index < -extent || index >= extent) return false;
    view_.first += (index < 0 ? index + extent : index) * view_.strides[axis];
    view_.strides.erase(view_.strides.begin() + int64_t(axis));
    view_.strides.insert(view_.strides.begin() + int64_t(axis), shape(gather.inputs[1]).size(), 0);
    return true;
  }

  const Graph& graph_;
  StridedView view_;
};

}  // namespace

std::optional<StridedView> view_in(const Graph& graph, ValueId value, const Shape& whole) {
  if (graph.values[size_t(value)].type.elements() == 0) return std::nullopt;
  const auto steps = way_back(graph, value, whole);
  if (!steps) return std::nullopt;
  Follower follower(graph, steps->empty() ? value : steps->back().node->inputs[0]);
  for (size_t i = steps->size(); i-- > 0;) {
    if (!follower.follow((*steps)[i])) return std::nullopt;
  }
  return follower.view();
}

}  // namespace arbalest
