// SPDX-License-Identifier: Apache-2.0
#include "passes/fuse/strided_view.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string_view>

#include "graph/constants.h"
#include "graph/op.h"
#include "ops/indexing/gather.h"
#include "ops/math/strided.h"
#include "ops/names.h"
#include "ops/shape/copy.h"
#include "ops/shape/cut.h"
#include "ops/shape/transpose.h"

namespace arbalest {
namespace {

struct Step {
  const Node* node;
  ValueId made;  // of its outputs, the one that the view comes from
};

// The nodes from the nearest value that is wanted to `value`, the last one first; none: there is no such value.
template <typename IsWanted>
std::optional<std::vector<Step>> way_back(const Graph& graph, ValueId value, const IsWanted& is_wanted) {
  std::vector<Step> steps;
  while (!is_wanted(value)) {
    const NodeId producer = graph.values[value].producer;
    if (producer == kNone || !leads_through(graph, graph.nodes[producer])) return std::nullopt;
    steps.push_back({&graph.nodes[producer], value});
    value = steps.back().node->input();
  }
  return steps;
}

// An axis of a view as axes that have one stride each, outermost first, without those of one element.
struct Factor {
  int64_t extent, stride;
};
using Factors = std::vector<Factor>;

// Appends a factor, as one with the last if one stride serves both.
void append(Factors& factors, const Factor& next) {
  const bool one = !factors.empty() && factors.back().stride == next.stride * next.extent;
  if (one) factors.back() = {factors.back().extent * next.extent, next.stride};
  if (!one && next.extent != 1) factors.push_back(next);
}

// The axes of `to`, a reshape of `axes` that keeps the order of elements. None if an axis would begin within a factor.
std::optional<std::vector<Factors>> reshaped(const std::vector<Factors>& axes, const Shape& to) {
  Factors left;
  for (const Factors& axis : axes) {
    for (const Factor& factor : axis) append(left, factor);
  }
  std::vector<Factors> result(to.size());
  for (size_t i = to.size(); i-- > 0;) {
    int64_t wanted = to[i];
    Factors taken;  // innermost first
    while (wanted > 1) {
      Factor& last = left.back();
      const int64_t count = std::gcd(last.extent, wanted);
      if (count == 1 || (count != wanted && count != last.extent)) return std::nullopt;
      taken.push_back({count, last.stride});
      last = {last.extent / count, last.stride * count};
      wanted /= count;
      if (last.extent == 1) left.pop_back();
    }
    for (size_t k = taken.size(); k-- > 0;) append(result[i], taken[k]);
  }
  return result;
}

class Follower {
 public:
  Follower(const Graph& graph, ValueId base) : graph_(graph), base_(base), axes_(shape(base).size()) {
    const std::vector<int64_t> strides = memory_strides(graph.values[base].type);
    for (size_t i = 0; i < axes_.size(); ++i) append(axes_[i], {shape(base)[i], strides[i]});
  }

  // None: an axis has more than one stride.
  std::optional<StridedView> view() const {
    StridedView view{base_, first_, {}};
    for (const Factors& axis : axes_) {
      if (axis.size() > 1) return std::nullopt;
      view.strides.push_back(axis.empty() ? 0 : axis[0].stride);
    }
    return view;
  }

  // The factors of the viewed value as they lie in its own memory.
  Factors in_memory(const TensorType& type) const {
    const std::vector<int64_t> strides = memory_strides(type);
    std::vector<size_t> order(axes_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return strides[a] > strides[b]; });
    Factors all;
    for (const size_t axis : order) {
      for (const Factor& factor : axes_[axis]) append(all, factor);
    }
    return all;
  }

  // Continues the view through a node that reads the viewed value; false if the result has no such view.
  bool follow(const Step& step) {
    const Node& node = *step.node;
    const Shape& from = shape(node.input());
    if (node.is(op::Transpose) || node.is(op::TransposeInPlace)) return turn(node);
    if (node.is(op::ChangeLayout)) return true;
    if (node.is(op::Slice)) return take_cut(slice_of(node, from), from);
    if (node.is(op::Assemble)) return take_cut(pieces_of(node)[0].from, from);
    if (node.is(op::Split)) return take_part(node, step.made, axis_of(node, from.size()));
    if (node.is(op::Gather)) return take_one(node, axis_of(node, from.size()));
    std::optional<std::vector<Factors>> axes = reshaped(axes_, shape(step.made));
    if (axes) axes_ = std::move(*axes);
    return axes.has_value();
  }

 private:
  const Shape& shape(ValueId value) const { return graph_.values[value].type.shape; }

  bool turn(const Node& transpose) {
    std::vector<Factors> turned;
    for (const int64_t axis : permutation_of(transpose, axes_.size())) turned.push_back(axes_[size_t(axis)]);
    axes_ = std::move(turned);
    return true;
  }

  // Leaves `count` elements of the axis, each `by` after the one before it; false if it has more than one stride.
  bool take(size_t axis, int64_t first, int64_t by, int64_t count) {
    Factors& factors = axes_[axis];
    if (factors.size() > 1) return false;
    const int64_t stride = factors.empty() ? 0 : factors[0].stride;
    first_ += first * stride;
    factors.clear();
    append(factors, {count, stride * by});
    return true;
  }

  bool take_part(const Node& split, ValueId part, size_t axis) {
    int64_t first = 0;
    for (const ValueId each : split.outputs) {
      if (each == part) return take(axis, first, 1, shape(each)[axis]);
      if (each == kNone) return false;  // a part that is left out
      first += shape(each)[axis];
    }
    return false;
  }

  Cut slice_of(const Node& slice, const Shape& from) const {
    const auto bounds = [&](std::string_view name) {
      const auto operand = constant_operand(slice, name);
      return operand ? std::get<std::vector<int64_t>>(content_as(graph_, slice, *operand, AttributeKind::Ints))
                     : ints_attribute(slice, name);
    };
    return Cut(from, bounds("starts"), bounds("ends"), bounds("axes"), bounds("steps"));
  }

  bool take_cut(const Cut& cut, const Shape& from) {
    for (size_t axis = 0; axis < from.size(); ++axis) {
      const bool whole = cut.shape[axis] == from[axis] && cut.step[axis] == 1;
      if (!whole && !take(axis, cut.first[axis], cut.step[axis], cut.shape[axis])) return false;
    }
    return true;
  }

  bool take_one(const Node& gather, size_t axis) {
    const int64_t extent = shape(gather.input(IndexedInput::Data))[axis];
    const auto index = std::get<int64_t>(content_as(graph_, gather, IndexedInput::Indices, AttributeKind::Int));
    if (index < -extent || index >= extent || !take(axis, index < 0 ? index + extent : index, 1, 1)) return false;
    axes_.erase(axes_.begin() + int64_t(axis));
    axes_.insert(axes_.begin() + int64_t(axis), shape(gather.input(IndexedInput::Indices)).size(), Factors());
    return true;
  }

  const Graph& graph_;
  const ValueId base_;
  int64_t first_ = 0;
  std::vector<Factors> axes_;
};

template <typename IsWanted>
std::optional<StridedView> view_back(const Graph& graph, ValueId value, const IsWanted& is_wanted) {
  if (graph.values[value].type.elements() == 0) return std::nullopt;
  const auto steps = way_back(graph, value, is_wanted);
  if (!steps) return std::nullopt;
  Follower follower(graph, steps->empty() ? value : steps->back().node->input());
  for (size_t i = steps->size(); i-- > 0;) {
    if (!follower.follow((*steps)[i])) return std::nullopt;
  }
  return follower.view();
}

}  // namespace

bool leads_through(const Graph& graph, const Node& node) {
  if (node.op->reshapes) return true;
  static const std::set<std::string_view> names = {op::Identity,         op::Slice,           op::Split, op::Transpose,
                                                   op::TransposeInPlace, op::UnflattenInPlace};
  if (node.is(op::Assemble)) {  // a box of one tensor, as several slices leave it
    return node.inputs.size() == 1 && pieces_of(node)[0].to.shape == graph.values[node.output()].type.shape;
  }
  if (!node.is(op::Gather)) return names.contains(node.op->qualified_name());
  const ValueId index = node.input(IndexedInput::Indices);
  if (!ints_attribute(node, "padding_index").empty()) return false;
  return graph.values[index].type.elements() == 1 && content_of(graph, index) != nullptr;
}

std::optional<StridedView> view_in(const Graph& graph, ValueId value, const Shape& whole) {
  return view_back(graph, value, [&](ValueId found) { return graph.values[found].type.shape == whole; });
}

std::optional<StridedView> view_in(const Graph& graph, ValueId value, ValueId base) {
  return view_back(graph, value, [&](ValueId found) { return found == base; });
}

std::optional<Rearrangement> rearrangement(const Graph& graph, const std::vector<NodeId>& nodes) {
  Follower follower(graph, graph.nodes[nodes.front()].input());
  const TensorType* last = nullptr;
  for (const NodeId id : nodes) {
    const Node& node = graph.nodes[id];
    if (!follower.follow({&node, node.output()})) return std::nullopt;
    last = &graph.values[node.output()].type;
  }
  const Factors to = follower.in_memory(*last);
  std::vector<int64_t> from(to.size());  // the factors as the base has them
  std::iota(from.begin(), from.end(), int64_t{0});
  std::sort(from.begin(), from.end(),
            [&](int64_t a, int64_t b) { return to[size_t(a)].stride > to[size_t(b)].stride; });
  Rearrangement found{{}, std::vector<int64_t>(to.size())};
  for (size_t place = 0; place < from.size(); ++place) {
    found.extents.push_back(to[size_t(from[place])].extent);
    found.turns[size_t(from[place])] = int64_t(place);
  }
  if (element_count(found.extents) != last->elements()) return std::nullopt;
  return found;
}

}  // namespace arbalest
