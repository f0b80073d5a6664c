// SPDX-License-Identifier: Apache-2.0

// Flatten to a matrix in logical order. A tensor that is channels-last in memory is brought into row-major order:
// N·H·W·C becomes N·C·H·W.

#include <fmt/format.h>

#include "ops/definition.h"
#include "ops/names.h"
#include "ops/shape/order/reorder_cpu.h"

namespace arbalest {
namespace {

void infer_flatten(InferContext& context) {
  const TensorType& x = context.input(0);
  const int64_t rank = int64_t(x.shape.size());
  int64_t axis = int_attribute(context.node(), "axis");
  if (axis < -rank || axis > rank) {
    context.fail(
        fmt::format("attribute 'axis' is {}; expected {} to {} for input 'X', {}", axis, -rank, rank, to_string(x)));
  }
  if (axis < 0) axis += rank;
  const Shape outer(x.shape.begin(), x.shape.begin() + axis), inner(x.shape.begin() + axis, x.shape.end());
  context.set_output(0, {x.dtype, {element_count(outer), element_count(inner)}});
}

void infer_unflatten(InferContext& context) {
  const TensorType &dy = floating_input(context, GradByInput::dY, {2}), &x = context.input(GradByInput::X);
  if (dy.elements() != x.elements()) {
    context.fail(fmt::format("input 'dY' is {}, of {} elements; expected the {} of 'X', {}", to_string(dy),
                             dy.elements(), x.elements(), to_string(x)));
  }
  context.set_output(0, {dy.dtype, x.shape, x.layout});
}

void infer_flatten_in_place(InferContext& context) {
  infer_flatten(context);
  if (context.input(0).lies_as(Layout::RowMajor)) return;
  context.fail(fmt::format("input 'X' is {}, whose elements would move", to_string(context.input(0))));
}

std::vector<Sample> flatten_samples() {
  std::vector<Sample> samples;
  for (const Shape& shape : {Shape{1, 1, 1, 1}, Shape{2, 3, 5, 7}, Shape{3, 16, 1, 1}, Shape{2, 1, 4, 5}, Shape{4, 6},
                             Shape{2, 3, 4}, Shape{64, 50, 4, 4}}) {
    const TensorType x{DataType::Float32, shape};
    samples.push_back({.name = to_string(shape), .inputs = {{x}}, .tolerance = 0});
    if (shape.size() < 3) continue;
    samples.push_back(
        {.name = to_string(shape) + ", channels-last", .inputs = {{x.in(Layout::ChannelsLast)}}, .tolerance = 0});
  }
  samples.push_back({.name = "axis 2",
                     .inputs = {{TensorType{DataType::Float32, {2, 3, 5, 4}}.in(Layout::ChannelsLast)}},
                     .attributes = {{"axis", int64_t{2}}},
                     .tolerance = 0});
  samples.push_back({.name = "axis 0",
                     .inputs = {{TensorType{DataType::Float32, {2, 3, 5, 4}}.in(Layout::ChannelsLast)}},
                     .attributes = {{"axis", int64_t{0}}},
                     .tolerance = 0});
  samples.push_back({.name = "flags",
                     .inputs = {{TensorType{DataType::Bool, {2, 3, 5, 4}}.in(Layout::ChannelsLast), 0, 1, false}},
                     .tolerance = 0});
  return samples;
}

std::vector<Sample> unflatten_samples() {
  std::vector<Sample> samples;
  for (const Shape& shape : {Shape{2, 3, 5, 7}, Shape{3, 16, 1, 1}, Shape{2, 1, 4, 5}, Shape{64, 50, 4, 4}}) {
    const Shape flat{shape[0], element_count(shape) / shape[0]};
    for (const Layout layout : {Layout::RowMajor, Layout::ChannelsLast}) {
      const TensorType x = TensorType{DataType::Float32, shape}.in(layout);
      samples.push_back({.name = to_string(shape) + ", " + std::string(name_of(layout)),
                         .inputs = {{{DataType::Float32, flat}}, {x}},
                         .tolerance = 0});
    }
  }
  return samples;
}

// The samples in which the elements of the tensor that is input `image` stay at their places.
std::vector<Sample> in_place(std::vector<Sample> samples, size_t image) {
  std::erase_if(samples, [&](const Sample& s) { return !s.inputs[image].type.lies_as(Layout::RowMajor); });
  return samples;
}

// `unflatten`: the operator that brings what flows back into the shape of the input.
std::function<void(GradContext&)> flatten_gradient(const char* unflatten) {
  return [unflatten](GradContext& c) { c.add_input_gradient(unflatten, {c.input(0)}); };
}

}  // namespace

void register_shape_flatten(OpRegistry& registry) {
  Op flatten = {
      .domain = "",
      .name = "Flatten",
      .doc = "X as a matrix: the axes before `axis` by those from it on, in logical (N, C, H, W) order",
      .inputs = {{.name = "X", .lowered = true}},
      .outputs = {{.name = "Y", .lowered = true}},
      .attributes = {int_spec("axis", 1, "the first axis of the second extent; negative counts from the end")},
      .layout = std::nullopt,
      .infer = infer_flatten,
      .grad = flatten_gradient("arbalest.Unflatten"),
      .cost = elementwise_cost(0),
      .samples = flatten_samples,
      .cpu = [](const KernelRequest& r) { return reorder_cpu(r.inputs[0], Layout::RowMajor); },
      .arithmetic = Arithmetic::Keeps,
      .reshapes = true};
  Op unflatten = {.domain = "arbalest",
                  .name = "Unflatten",
                  .doc = "dY in the shape of X: the inverse of Flatten; X is not read",
                  .inputs = {{.name = "dY", .lowered = true}, {.name = "X", .lowered = true}},
                  .outputs = {{.name = "dX", .lowered = true}},
                  .internal = true,
                  .layout = std::nullopt,
                  .infer = infer_unflatten,
                  .cost = elementwise_cost(0),
                  .samples = unflatten_samples,
                  .cpu = [](const KernelRequest& r) {
                    const TensorType& x = r.outputs[0];
                    return reorder_cpu({x.dtype, x.shape}, x.layout);
                  }};
  registry.add(flatten);
  registry.add(unflatten);
  flatten.domain = "arbalest";
  flatten.name = "FlattenInPlace";
  flatten.doc = "Flatten of a tensor whose elements lie in logical order, and stay where they are in memory";
  flatten.internal = true;
  flatten.infer = infer_flatten_in_place;
  flatten.grad = flatten_gradient("arbalest.UnflattenInPlace");
  flatten.samples = [] { return in_place(flatten_samples(), 0); };
  unflatten.name = "UnflattenInPlace";
  unflatten.doc = "the inverse of FlattenInPlace; X is not read";
  unflatten.samples = [] { return in_place(unflatten_samples(), 1); };
  flatten.aliases = unflatten.aliases = {{0, 0}};
  registry.add(std::move(flatten));
  registry.add(std::move(unflatten));
}

}  // namespace arbalest
