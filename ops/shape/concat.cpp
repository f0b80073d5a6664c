// SPDX-License-Identifier: Apache-2.0

// Concat and Split: joining tensors along an axis, and splitting them again.

#include <fmt/format.h>

#include <numeric>

#include "ops/definition.h"
#include "ops/shape/copy.h"

namespace arbalest {
namespace {

// The extents of Split's outputs along the axis: as stated, or equal except for the last, which may be smaller.
std::vector<int64_t> split_extents(const Node& node, int64_t extent) {
  std::vector<int64_t> extents = ints_attribute(node, "split");
  if (!extents.empty()) return extents;
  const int64_t parts = int64_t(node.outputs.size()), each = (extent + parts - 1) / parts;
  extents.assign(size_t(parts), each);
  extents.back() = extent - each * (parts - 1);
  return extents;
}

}  // namespace

// Each input into its part of the output.
Copying copies_of_concat(const KernelRequest& request) {
  const TensorType& whole = request.outputs[0];
  const size_t axis = axis_of(request.node, whole.shape.size());
  const std::vector<int64_t> steps = memory_strides(whole);
  Copying copying;
  int64_t place = 0;
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    const TensorType& part = request.inputs[i];
    BoxCopy box(part.shape, steps, place * steps[axis], memory_strides(part), 0);
    box.input = i;
    copying.boxes.push_back(std::move(box));
    place += part.shape[axis];
  }
  return copying;
}

Copying copies_of_split(const KernelRequest& request) {
  const TensorType& whole = request.inputs[0];
  const size_t axis = axis_of(request.node, whole.shape.size());
  const std::vector<int64_t> steps = memory_strides(whole);
  const std::vector<int64_t> extents = split_extents(request.node, whole.shape[axis]);
  Copying copying;
  int64_t place = 0;
  for (size_t i = 0; i < request.outputs.size(); ++i) {
    if (request.has_output(i)) {
      const TensorType& part = request.outputs[i];
      BoxCopy box(part.shape, memory_strides(part), 0, steps, place * steps[axis]);
      box.output = i;
      copying.boxes.push_back(std::move(box));
    }
    place += extents[i];
  }
  return copying;
}

namespace {

using Ints = std::vector<int64_t>;

void infer_concat(InferContext& context) {
  const size_t axis = axis_of(context);
  TensorType whole = context.input(0);
  for (size_t i = 1; i < context.input_count(); ++i) {
    TensorType like = whole;
    if (context.input(i).shape.size() == whole.shape.size()) like.shape[axis] = context.input(i).shape[axis];
    expect_input(context, i, like, fmt::format("as input 0 but along axis {}", axis));
    whole.shape[axis] += context.input(i).shape[axis];
  }
  context.set_output(0, whole);
}

void grad_concat(GradContext& c) {
  const Shape whole = c.type(c.output(0)).shape;
  const size_t axis = axis_of(c.node(), whole.size());
  int64_t place = 0;
  for (size_t i = 0; i < c.node().inputs.size(); ++i) {
    const int64_t begin = place;
    place += c.type(c.input(i)).shape[axis];
    if (!c.needs_gradient(i)) continue;
    c.set_input_gradient(i, c.add("Slice", fmt::format("grad_{}", i), {c.output_gradient(0)}, 1,
                                  {{"starts", Ints{begin}}, {"ends", Ints{place}}, {"axes", Ints{int64_t(axis)}}})[0]);
  }
}

// The extents of Split's outputs, checked.
Ints checked_extents(const InferContext& context, int64_t extent) {
  const int64_t parts = int64_t(context.output_count());
  if (context.states("split")) {
    const Ints extents = context.ints("split");
    const int64_t sum = std::accumulate(extents.begin(), extents.end(), int64_t{0});
    if (int64_t(extents.size()) != parts || sum != extent) {
      context.fail(fmt::format("'split' is {}; expected {} extents with the sum {}", to_string(extents, '[', ']'),
                               parts, extent));
    }
    return extents;
  }
  const bool counted = context.states("num_outputs");
  if (counted && int_attribute(context.node(), "num_outputs") != parts) {
    context.fail(fmt::format("attribute 'num_outputs' is {} and there are {} outputs",
                             int_attribute(context.node(), "num_outputs"), parts));
  }
  const Ints extents = split_extents(context.node(), extent);
  if (extents.back() < 0 || (!counted && extents.back() != extents.front())) {
    context.fail(
        fmt::format("{} elements along the axis do not make {} equal parts; 'split' states other ones", extent, parts));
  }
  return extents;
}

void infer_split(InferContext& context) {
  const size_t axis = axis_of(context);
  TensorType part = context.input(0);
  const Ints extents = checked_extents(context, part.shape[axis]);
  for (size_t i = 0; i < extents.size(); ++i) {
    part.shape[axis] = extents[i];
    context.set_output(i, part);
  }
}

// An output that has no gradient contributes zeros.
void grad_split(GradContext& c) {
  if (!c.needs_gradient(0)) return;
  const TensorType x = c.type(c.input(0));
  const size_t axis = axis_of(c.node(), x.shape.size());
  std::vector<ValueId> parts;
  for (size_t i = 0; i < c.node().outputs.size(); ++i) {
    if (c.output_gradient(i) != kNone) parts.push_back(c.output_gradient(i));
  }
  if (parts.size() == c.node().outputs.size()) {
    c.set_input_gradient(0, c.add("Concat", "grad_input", parts, 1, {{"axis", int64_t(axis)}})[0]);
    return;
  }
  const Ints extents = split_extents(c.node(), x.shape[axis]);
  ValueId sum = kNone;
  int64_t place = 0;
  for (size_t i = 0; i < extents.size(); ++i) {
    const int64_t begin = place;
    place += extents[i];
    if (c.output_gradient(i) == kNone) continue;
    Attributes attributes = {{"starts", Ints{begin}}, {"ends", Ints{place}}, {"axes", Ints{int64_t(axis)}}};
    set_type(attributes, x);
    const ValueId part =
        c.add("arbalest.SliceGrad", fmt::format("grad_{}", i), {c.output_gradient(i)}, 1, attributes)[0];
    sum = sum == kNone ? part : c.add("Add", fmt::format("grad_sum_{}", i), {sum, part}, 1)[0];
  }
  c.set_input_gradient(0, sum);
}

std::vector<Sample> concat_samples() {
  const auto image = [](Shape shape) {
    return TensorType{DataType::Float32, std::move(shape)}.in(Layout::ChannelsLast);
  };
  const auto plain = [](Shape shape, DataType type = DataType::Float32) { return TensorType{type, std::move(shape)}; };
  const auto sample = [](std::string name, int64_t axis, std::vector<TensorType> types) {
    Sample made{.name = std::move(name), .inputs = {}, .attributes = {{"axis", axis}}, .tolerance = 0};
    for (const TensorType& type : types) made.inputs.push_back({.type = type, .low = 0, .high = 1});
    return made;
  };
  std::vector<TensorType> many;  // in words of 4 to 16 bytes on a GPU, more than one launch takes
  for (const int64_t width : {4, 1, 2}) many.insert(many.end(), 60, plain({3, width}));
  return {sample("vectors", 0, {plain({3}), plain({5}), plain({1})}),
          sample("many", 1, many),
          sample("some", 0, std::vector<TensorType>(11, plain({5, 12}))),
          sample("one", 1, {plain({2, 3})}),
          sample("rows", 0, {plain({2, 8}), plain({3, 8})}),
          sample("columns", -1, {plain({4, 8}), plain({4, 16})}),
          sample("channels", 1, {plain({2, 3, 4, 5}), plain({2, 2, 4, 5})}),
          sample("channels, channels-last", 1, {image({2, 16, 5, 4}), image({2, 8, 5, 4}), image({2, 4, 5, 4})}),
          sample("odd channels, channels-last", 1, {image({2, 3, 5, 4}), image({2, 5, 5, 4})}),
          sample("rows of images, channels-last", 2, {image({2, 3, 5, 4}), image({2, 3, 2, 4})}),
          sample("of two layouts", 1, {image({2, 3, 5, 4}), plain({2, 3, 5, 4})}),
          sample("int64", 0, {plain({2}, DataType::Int64), plain({1}, DataType::Int64)}),
          sample("bool", 1, {plain({2, 3}, DataType::Bool), plain({2, 1}, DataType::Bool)})};
}

std::vector<Sample> split_samples() {
  const auto sample = [](std::string name, TensorType type, int count, Attributes attributes) {
    return Sample{.name = std::move(name),
                  .inputs = {{.type = std::move(type), .low = 0, .high = 1}},
                  .output_count = count,
                  .attributes = std::move(attributes),
                  .tolerance = 0};
  };
  const TensorType image = TensorType{DataType::Float32, {2, 12, 5, 4}}.in(Layout::ChannelsLast);
  return {sample("halves", {DataType::Float32, {6}}, 2, {}),
          sample("uneven", {DataType::Float32, {7, 3}}, 3, {{"num_outputs", int64_t{3}}}),
          sample("given", {DataType::Float32, {2, 9}}, 3, {{"axis", int64_t{-1}}, {"split", Ints{4, 0, 5}}}),
          sample("channels-last", image, 3, {{"axis", int64_t{1}}}),
          sample("one", {DataType::Float32, {3, 2}}, 1, {{"axis", int64_t{1}}}),
          sample("int32", {DataType::Int32, {4, 2}}, 2, {})};
}

}  // namespace

void add_concat_and_split(OpRegistry& registry) {
  registry.add({.domain = "",
                .name = "Concat",
                .doc = "the inputs side by side along `axis`",
                .inputs = {{.name = "inputs", .arity = OperandSpec::Variadic, .lowered = true}},
                .outputs = {{.name = "concat_result", .lowered = true}},
                .attributes = {required_spec("axis", AttributeKind::Int, "negative counts from the end")},
                .layout = std::nullopt,
                .infer = infer_concat,
                .grad = grad_concat,
                .cost = elementwise_cost(0),
                .samples = concat_samples});
  registry.add({.domain = "",
                .name = "Split",
                .doc = "input in parts along `axis`",
                .inputs = {{.name = "input", .lowered = true},
                           {.name = "split", .arity = OperandSpec::Optional, .constant = true}},
                .outputs = {{.name = "outputs", .arity = OperandSpec::Variadic, .lowered = true}},
                .attributes = {int_spec("axis", 0, "negative counts from the end"),
                               ints_spec("split", {}, "the extents of the parts; not given: equal ones"),
                               int_spec("num_outputs", 0, "how many parts there are; the last may be smaller")},
                .layout = std::nullopt,
                .infer = infer_split,
                .grad = grad_split,
                .cost =
                    [](const Graph& graph, const Node& node) {
                      return Cost{0, operand_bytes(graph, node)};
                    },
                .samples = split_samples});
}

}  // namespace arbalest
