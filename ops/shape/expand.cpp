// SPDX-License-Identifier: Apache-2.0

// Expand and Tile: elements repeated along axes.

#include <fmt/format.h>

#include <algorithm>

#include "ops/definition.h"
#include "ops/shape/copy.h"

namespace arbalest {

using Ints = std::vector<int64_t>;

// The source stands still along axes that it is broadcast along.
Copying copies_of_expand(const KernelRequest& request) {
  const TensorType &x = request.inputs[0], &y = request.outputs[0];
  const Ints strides = memory_strides(x);
  Ints from(y.shape.size(), 0);
  const size_t missing = from.size() - strides.size();
  for (size_t axis = 0; axis < strides.size(); ++axis) from[missing + axis] = x.shape[axis] == 1 ? 0 : strides[axis];
  return {.boxes = {BoxCopy(y.shape, memory_strides(y), 0, from, 0)}};
}

// Each axis is two: the repeats, along which the source stands still, and the elements.
Copying copies_of_tile(const KernelRequest& request) {
  const TensorType &x = request.inputs[0], &y = request.outputs[0];
  const Ints from = memory_strides(x), to = memory_strides(y), repeats = ints_attribute(request.node, "repeats");
  Shape box;
  Ints from_steps, to_steps;
  const auto add = [&](int64_t extent, int64_t to_step, int64_t from_step) {
    box.push_back(extent);
    to_steps.push_back(to_step);
    from_steps.push_back(from_step);
  };
  for (size_t axis = 0; axis < x.shape.size(); ++axis) {
    add(repeats[axis], to[axis] * x.shape[axis], 0);
    add(x.shape[axis], to[axis], from[axis]);
  }
  return {.boxes = {BoxCopy(box, to_steps, 0, from_steps, 0)}};
}

namespace {

void infer_expand(InferContext& context) {
  const TensorType& x = context.input(0);
  const Shape wanted = context.ints("shape");
  Shape shape(std::max(x.shape.size(), wanted.size()));
  bool fits = shape.size() <= Strided::kMaxRank;
  for (size_t back = 1; back <= shape.size() && fits; ++back) {
    const int64_t own = back <= x.shape.size() ? x.shape[x.shape.size() - back] : 1;
    const int64_t other = back <= wanted.size() ? wanted[wanted.size() - back] : 1;
    fits = own == other || own == 1 || other == 1;
    shape[shape.size() - back] = own == 1 ? other : own;
  }
  if (!fits) {
    context.fail(fmt::format("'shape' is {} and {} is {}; expected shapes that broadcast, of at most {} axes",
                             to_string(wanted), input_name(context, 0), to_string(x), Strided::kMaxRank));
  }
  const bool same_rank = shape.size() == x.shape.size();
  context.set_output(0, TensorType{x.dtype, shape}.in(same_rank ? x.layout : Layout::RowMajor));
}

void grad_expand(GradContext& c) {
  if (!c.needs_gradient(0)) return;
  ValueId gradient = c.output_gradient(0);
  if (c.type(c.input(0)).shape != c.type(c.output(0)).shape) {
    gradient = c.add("arbalest.SumTo", "grad_input", {gradient, c.input(0)}, 1)[0];
  }
  c.set_input_gradient(0, gradient);
}

void infer_tile(InferContext& context) {
  const TensorType& x = context.input(0);
  const Ints repeats = context.ints("repeats");
  const bool counts = repeats.size() == x.shape.size() &&
                      std::none_of(repeats.begin(), repeats.end(), [](int64_t count) { return count < 0; });
  if (!counts) {
    context.fail(fmt::format("'repeats' is {}; expected a count of at least 0 for each axis of {}, {}",
                             to_string(repeats, '[', ']'), input_name(context, 0), to_string(x)));
  }
  TensorType y = x;
  size_t axes = 0;
  for (size_t axis = 0; axis < repeats.size(); ++axis) {
    if (repeats[axis] > 1 && x.shape[axis] > (int64_t{1} << 47) / repeats[axis]) {
      context.fail(fmt::format("'repeats' is {}: more than any memory holds", to_string(repeats, '[', ']')));
    }
    y.shape[axis] *= repeats[axis];
    axes += size_t(repeats[axis] != 1) + size_t(x.shape[axis] != 1);
  }
  if (axes > Strided::kMaxRank) {
    context.fail(
        fmt::format("{} is {}, repeated {} times: axes of more than one element and repeats are {}; expected "
                    "at most {} of both",
                    input_name(context, 0), to_string(x), to_string(repeats, '[', ']'), axes, Strided::kMaxRank));
  }
  context.set_output(0, y);
}

// A sum over the repeats, which Reshape makes axes of their own.
void grad_tile(GradContext& c) {
  if (!c.needs_gradient(0)) return;
  const Shape x = c.type(c.input(0)).shape;
  const Ints repeats = ints_attribute(c.node(), "repeats");
  Shape apart;
  Ints summed;
  for (size_t axis = 0; axis < x.size(); ++axis) {
    if (repeats[axis] != 1) {
      summed.push_back(int64_t(apart.size()));
      apart.push_back(repeats[axis]);
    }
    apart.push_back(x[axis]);
  }
  ValueId gradient = c.output_gradient(0);
  if (!summed.empty()) {
    gradient = c.add("Reshape", "grad_repeats", {gradient}, 1, {{"shape", apart}, {"allowzero", int64_t{1}}})[0];
    gradient = c.add("ReduceSum", "grad_input", {gradient}, 1, {{"axes", summed}, {"keepdims", int64_t{0}}})[0];
  }
  c.set_input_gradient(0, gradient);
}

TensorType image(Shape shape) {
  return TensorType{DataType::Float32, std::move(shape)}.in(Layout::ChannelsLast);
}

std::vector<Sample> repeated_samples(const char* attribute, const std::vector<std::pair<TensorType, Ints>>& cases) {
  std::vector<Sample> samples;
  for (const auto& [type, list] : cases) {
    samples.push_back(
        {.name = fmt::format("{}{}, {}", to_string(type), type.layout == Layout::ChannelsLast ? " channels-last" : "",
                             to_string(list, '[', ']')),
         .inputs = {{.type = type, .low = 0, .high = 1, .differentiable = type.elements() > 0}},
         .attributes = {{attribute, list}},
         .tolerance = 1e-6});
  }
  return samples;
}

std::vector<Sample> expand_samples() {
  const DataType f = DataType::Float32;
  return repeated_samples("shape", {{{f, {}}, {3, 5}},
                                    {{f, {3, 1}}, {2, 1, 6}},
                                    {{f, {1, 8}}, {5, 1}},
                                    {{f, {2, 3}}, {2, 3}},
                                    {{f, {2, 1}}, {1, 0}},
                                    {image({2, 8, 1, 1}), {2, 8, 5, 3}},
                                    {{f, {2, 3, 1, 1}}, {2, 3, 4, 5}},
                                    {{DataType::Int64, {3, 1}}, {3, 4}},
                                    {{DataType::Bool, {1, 3}}, {2, 3}}});
}

std::vector<Sample> tile_samples() {
  const DataType f = DataType::Float32;
  return repeated_samples("repeats", {{{f, {3}}, {4}},
                                      {{f, {2, 8}}, {3, 2}},
                                      {{f, {2, 3, 5}}, {1, 2, 1}},
                                      {{f, {2, 3}}, {1, 0}},
                                      {image({2, 4, 3, 5}), {1, 2, 2, 1}},
                                      {image({1, 3, 3, 5}), {2, 1, 2, 3}},
                                      {{DataType::Int32, {2, 2}}, {2, 2}}});
}

}  // namespace

void add_expand_and_tile(OpRegistry& registry) {
  Op expand{.domain = "",
            .name = "Expand",
            .doc = "input broadcast with `shape`",
            .inputs = {{.name = "input", .lowered = true},
                       {.name = "shape", .arity = OperandSpec::Optional, .constant = true}},
            .outputs = {{.name = "output", .lowered = true}},
            .attributes = {required_spec("shape", AttributeKind::Ints, "broadcast with that of input")},
            .layout = std::nullopt,
            .infer = infer_expand,
            .grad = grad_expand,
            .cost = elementwise_cost(0),
            .samples = expand_samples,
            .arithmetic = Arithmetic::Keeps};
  registry.add(std::move(expand));
  registry.add({.domain = "",
                .name = "Tile",
                .doc = "input side by side with itself, `repeats` times along each axis",
                .inputs = {{.name = "input", .lowered = true},
                           {.name = "repeats", .arity = OperandSpec::Optional, .constant = true}},
                .outputs = {{.name = "output", .lowered = true}},
                .attributes = {required_spec("repeats", AttributeKind::Ints, "one count an axis")},
                .layout = std::nullopt,
                .infer = infer_tile,
                .grad = grad_tile,
                .cost = elementwise_cost(0),
                .samples = tile_samples});
}

}  // namespace arbalest
