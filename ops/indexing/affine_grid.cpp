// SPDX-License-Identifier: Apache-2.0

// AffineGrid, ONNX's: the places at which GridSample takes what an affine map, one for each sample, brings to a regular
// grid. It becomes the product of that grid's coordinates and the maps.

#include <fmt/format.h>

#include "graph/constants.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

using Ints = std::vector<int64_t>;

// Extents of the grid: `size`, (N, C, …), after the first two.
Ints extents_of(const Node& node) {
  const Ints size = ints_attribute(node, "size");
  if (size.size() < 4 || size.size() > 5 || element_count({size.begin() + 2, size.end()}) < 1) {
    fail(node,
         fmt::format("'size' is {}; expected (samples, channels, …) of images or volumes", to_string(size, '[', ']')));
  }
  return {size.begin() + 2, size.end()};
}

void infer_affine_grid(InferContext& context) {
  const TensorType& theta = floating_input(context, 0, {3});
  Node node = context.node();
  take_operands(context.graph(), node);
  const Ints extents = extents_of(node);
  const auto axes = int64_t(extents.size());
  flag_attribute(node, "align_corners");
  expect_input(context, 0, {theta.dtype, {theta.shape[0], axes, axes + 1}}, "a map for each sample");
  Shape shape = extents;
  shape.insert(shape.begin(), theta.shape[0]);
  shape.push_back(axes);
  context.set_output(0, {theta.dtype, shape});
}

// (x, y[, z], 1) of each place: a row for each, the innermost axis last among places and first among coordinates.
std::vector<double> coordinates(const Ints& extents, bool corners) {
  std::vector<double> rows;
  const auto axes = int64_t(extents.size());
  for (int64_t place = 0, places = element_count(extents); place < places; ++place) {
    int64_t rest = place;
    for (int64_t axis = axes - 1; axis >= 0; --axis) {
      const int64_t extent = extents[size_t(axis)], at = rest % extent;
      rest /= extent;
      const double ends = double(corners ? extent - 1 : extent);
      rows.push_back(ends > 0 ? (2 * double(at) + (corners ? 0 : 1)) / ends - 1 : 0);
    }
    rows.push_back(1);
  }
  return rows;
}

void expand_affine_grid(ExpandContext& c) {
  const Ints extents = extents_of(c.node());
  const DataType type = c.type(c.input(0)).dtype;
  const auto axes = int64_t(extents.size());
  const auto shaped = [&](const char* label, ValueId value, const Shape& shape) {
    return c.add("Reshape", label, {value}, 1, {{"shape", shape}})[0];
  };
  const std::vector<double> rows = coordinates(extents, flag_attribute(c.node(), "align_corners"));
  const ValueId base = shaped("base", c.constant("places", type, rows), {element_count(extents), axes + 1});
  const ValueId maps = c.add("Transpose", "maps", {c.input(0)}, 1, {{"perm", Ints{0, 2, 1}}})[0];
  Shape shape = extents;
  shape.insert(shape.begin(), 0);  // as many samples as there are
  shape.push_back(axes);
  c.replace_output(0, shaped("", c.add("MatMul", "moved", {base, maps}, 1)[0], shape));
}

}  // namespace

void register_indexing_affine_grid(OpRegistry& registry) {
  registry.add({.domain = "",
                .name = "AffineGrid",
                .doc = "the grid of an affine map for each sample, as GridSample takes it",
                .inputs = {{.name = "theta"}, {.name = "size", .arity = OperandSpec::Optional, .constant = true}},
                .outputs = {{.name = "grid"}},
                .attributes = {ints_spec("size", {}, "(N, C, …) of what is sampled"),
                               int_spec("align_corners", 0, "as GridSample has it")},
                .infer = infer_affine_grid,
                .expand = expand_affine_grid});
}

}  // namespace arbalest
