// SPDX-License-Identifier: Apache-2.0

// arbalest.Interleave: an axis dealt out anew, as channel shuffles do. Exporters write a Reshape that cuts the axis in
// two, a Transpose of the two and a Reshape that joins them; this keeps the layout of images.

#include <fmt/format.h>

#include "ops/definition.h"
#include "ops/shape/copy.h"
#include "ops/shape/cut.h"

namespace arbalest {
namespace {

void infer_interleave(InferContext& context) {
  const size_t axis = axis_of(context);
  const TensorType& x = context.input(0);
  const int64_t groups = int_attribute_from(context.node(), "groups", 1);
  if (x.shape[axis] % groups != 0) {
    context.fail(fmt::format("{} is {}; expected a multiple of {} along axis {}", input_name(context, 0), to_string(x),
                             groups, axis));
  }
  context.set_output(0, x);
}

// Dealt out to as many as there were in a group, elements are where they came from.
void interleave_gradient(GradContext& c) {
  const Shape shape = c.type(c.input(0)).shape;
  Attributes back = c.node().attributes;
  back.set("groups", shape[axis_of(c.node(), shape.size())] / int_attribute(c.node(), "groups"));
  c.add_input_gradient("arbalest.Interleave", {}, back);
}

std::vector<Sample> interleave_samples() {
  std::vector<Sample> samples;
  for (const Layout layout : {Layout::RowMajor, Layout::ChannelsLast}) {
    for (const auto& [shape, axis, groups] : {std::tuple{Shape{2, 12, 3, 5}, 1, 2},
                                              {{3, 122, 4, 4}, 1, 61},
                                              {{4, 244, 9, 8}, 1, 2},
                                              {{2, 3, 4, 6}, 3, 3}}) {
      const TensorType x = TensorType{DataType::Float32, shape}.in(layout);
      samples.push_back({.name = fmt::format("{} {}, {} groups", to_string(x), name_of(layout), groups),
                         .inputs = {{.type = x}},
                         .attributes = {{"axis", int64_t{axis}}, {"groups", int64_t{groups}}},
                         .tolerance = 0});
    }
  }
  return samples;
}

}  // namespace

std::vector<Piece> pieces_of_interleave(const Node& node, const Shape& shape) {
  const size_t axis = axis_of(node, shape.size());
  const int64_t groups = int_attribute(node, "groups"), size = groups == 0 ? 0 : shape[axis] / groups;
  std::vector<Piece> pieces;
  // Whole groups, or the elements that come to lie next to each other, whichever are fewer.
  for (int64_t i = 0; i < std::min(groups, size); ++i) {
    Cut run(Shape(shape.size(), 0), Shape(shape.size(), 1), shape), spread = run;
    const bool by_group = groups <= size;
    run.shape[axis] = spread.shape[axis] = by_group ? size : groups;
    run.first[axis] = i * run.shape[axis];
    spread.first[axis] = i;
    spread.step[axis] = by_group ? groups : size;
    pieces.push_back(by_group ? Piece{run, spread} : Piece{spread, run});
  }
  return pieces;
}

Copying copies_of_interleave(const KernelRequest& request) {
  const TensorType& type = request.inputs[0];
  const std::vector<int64_t> strides = memory_strides(type);
  Copying copying;
  for (const Piece& piece : pieces_of_interleave(request.node, type.shape)) {
    copying.boxes.emplace_back(piece.to.shape, piece.to.steps(strides), piece.to.offset(strides),
                               piece.from.steps(strides), piece.from.offset(strides));
  }
  return copying;
}

void add_interleave(OpRegistry& registry) {
  registry.add({.domain = "arbalest",
                .name = "Interleave",
                .doc = "the groups of an axis, dealt out one element of each at a time: a channel shuffle",
                .inputs = {{.name = "X", .lowered = true}},
                .outputs = {{.name = "Y", .lowered = true}},
                .attributes = {int_spec("axis", 1, "which axis"),
                               required_spec("groups", AttributeKind::Int, "groups of neighbours along it")},
                .internal = true,
                .layout = std::nullopt,
                .infer = infer_interleave,
                .grad = interleave_gradient,
                .cost = elementwise_cost(0),
                .samples = interleave_samples});
}

}  // namespace arbalest
