// SPDX-License-Identifier: Apache-2.0

// Shape and Size: what they give follows from types, so it is known before a graph runs and no kernel computes it.

#include <algorithm>

#include "graph/constants.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

// The axes from `start` to before `end`, both cut to those that there are.
Shape chosen_extents(const InferContext& context) {
  const Shape& shape = context.input(0).shape;
  const int64_t rank = int64_t(shape.size());
  const auto cut = [&](int64_t axis) { return std::clamp<int64_t>(axis < 0 ? axis + rank : axis, 0, rank); };
  const int64_t start = cut(int_attribute(context.node(), "start"));
  const int64_t end = context.states("end") ? cut(int_attribute(context.node(), "end")) : rank;
  return start < end ? Shape(shape.begin() + start, shape.begin() + end) : Shape{};
}

}  // namespace

void register_shape_shape_of(OpRegistry& registry) {
  registry.add({.domain = "",
                .name = "Shape",
                .doc = "the extents of data from axis `start` to before `end`",
                .inputs = {{.name = "data"}},
                .outputs = {{.name = "shape"}},
                .attributes = {int_spec("start", 0, "the first axis; negative counts from the end"),
                               int_spec("end", 0, "the axis after the last; not given: all")},
                .layout = std::nullopt,
                .infer =
                    [](InferContext& c) {
                      c.set_output(0, {DataType::Int64, {int64_t(chosen_extents(c).size())}});
                    },
                .content = [](const InferContext& c) { return bytes_of(chosen_extents(c)); }});
  registry.add({.domain = "",
                .name = "Size",
                .doc = "the number of elements of data",
                .inputs = {{.name = "data"}},
                .outputs = {{.name = "size"}},
                .layout = std::nullopt,
                .infer =
                    [](InferContext& c) {
                      c.set_output(0, {DataType::Int64, {}});
                    },
                .content = [](const InferContext& c) { return bytes_of(Shape{c.input(0).elements()}); }});
}

}  // namespace arbalest
