// Flatten to a matrix in logical order. What is channels-last in memory is brought into row-major order: N·H·W·C
// becomes N·C·H·W.

#include <fmt/format.h>

#include "ops/definition.h"
#include "ops/shape/reorder_cpu.h"

namespace arbalest {
namespace {

void infer_flatten(InferContext& context) {
  const TensorType& x = floating_input(context, 0);
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
  const TensorType &dy = floating_input(context, 0, {2}), &x = context.input(1);
  if (dy.elements() != x.elements()) {
    context.fail(fmt::format("input 'dY' is {}, of {} elements; expected the {} of 'X', {}", to_string(dy),
                             dy.elements(), x.elements(), to_string(x)));
  }
  context.set_output(0, {dy.dtype, x.shape, x.layout});
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

}  // namespace

void register_shape_flatten(OpRegistry& registry) {
  registry.add(
      {.domain = "",
       .name = "Flatten",
       .doc = "X as a matrix: the axes before `axis` by those from it on, in logical (N, C, H, W) order",
       .inputs = {{.name = "X", .lowered = true}},
       .outputs = {{.name = "Y", .lowered = true}},
       .attributes = {int_spec("axis", 1, "the first axis of the second extent; negative counts from the end")},
       .layout = std::nullopt,
       .infer = infer_flatten,
       .grad =
           [](GradContext& c) {
             if (!c.needs_gradient(0)) return;
             c.set_input_gradient(0,
                                  c.add("arbalest.Unflatten", "grad_input", {c.output_gradient(0), c.input(0)}, 1)[0]);
           },
       .cost = elementwise_cost(0),
       .samples = flatten_samples,
       .cpu = [](const KernelRequest& r) { return reorder_cpu(r.inputs[0], Layout::RowMajor); }});
  registry.add({.domain = "arbalest",
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
                }});
}

}  // namespace arbalest
