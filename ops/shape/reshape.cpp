// SPDX-License-Identifier: Apache-2.0

// Operators that give the same elements, in the same row-major order, another name or shape: Identity, Reshape, Squeeze
// and Unsqueeze. Their output may share the input's memory, and then there is nothing to do.

#include <fmt/format.h>

#include <algorithm>

#include "ops/cpu.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

std::unique_ptr<Kernel> reshape_cpu(const KernelRequest& request) {
  const int64_t bytes = request.outputs[0].bytes();
  return make_kernel([bytes](const KernelContext& context) {
    if (bytes > 0 && context.outputs[0] != context.inputs[0]) {
      std::memcpy(context.outputs[0], context.inputs[0], size_t(bytes));
    }
  });
}

void infer_reshape(InferContext& context) {
  const TensorType& x = context.input(0);
  const std::vector<int64_t> wanted = context.ints("shape");
  const bool zero_extents = flag_attribute(context.node(), "allowzero");
  const auto refuse = [&](std::string_view why) {
    context.fail(fmt::format("'shape' is {}, {}; input 'data' is {}", to_string(Shape(wanted)), why, to_string(x)));
  };
  Shape shape = wanted;
  if (std::count(shape.begin(), shape.end(), -1) > 1) refuse("with more than one -1");
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] < -1) refuse("with a negative extent");
    if (shape[i] != 0 || zero_extents) continue;
    if (i >= x.shape.size()) refuse(fmt::format("whose 0 at {} stands for an extent of 'data' that is not there", i));
    shape[i] = x.shape[i];
  }
  if (const auto open = std::find(shape.begin(), shape.end(), -1); open != shape.end()) {
    *open = 1;
    const int64_t others = element_count(shape);
    if (others == 0 || x.elements() % others != 0)
      refuse(fmt::format("and {} elements are no multiple of {}", x.elements(), others));
    *open = x.elements() / others;
  }
  if (element_count(shape) != x.elements()) refuse(fmt::format("of {} elements", element_count(shape)));
  context.set_output(0, {x.dtype, shape});
}

void infer_squeeze(InferContext& context) {
  const TensorType& x = context.input(0);
  const bool all = !context.states("axes");
  const std::vector<bool> named = named_axes(context, int64_t(x.shape.size()));
  Shape shape;
  for (size_t i = 0; i < x.shape.size(); ++i) {
    const bool one = x.shape[i] == 1;
    if (named[i] && !one) context.fail(fmt::format("axis {} of input 'data', {}, is not 1", i, to_string(x)));
    if (!(all ? one : named[i])) shape.push_back(x.shape[i]);
  }
  context.set_output(0, {x.dtype, shape});
}

void infer_unsqueeze(InferContext& context) {
  const TensorType& x = context.input(0);
  const int64_t rank = int64_t(x.shape.size() + context.ints("axes").size());
  Shape shape;
  auto next = x.shape.begin();
  for (const bool added : named_axes(context, rank)) shape.push_back(added ? 1 : *next++);
  context.set_output(0, {x.dtype, shape});
}

// The gradient has the elements of what flows back in the shape of the input.
void grad_reshape(GradContext& context) {
  const Shape shape = context.type(context.input(0)).shape;
  context.add_input_gradient("Reshape", {}, {{"shape", shape}, {"allowzero", int64_t{1}}});
}

Sample sample(std::string name, Shape shape, Attributes attributes) {
  return {.name = std::move(name),
          .inputs = {{{DataType::Float32, std::move(shape)}}},
          .attributes = std::move(attributes),
          .tolerance = 0};
}

using Ints = std::vector<int64_t>;

Op reshaping(std::string name, std::string doc, std::vector<AttributeSpec> attributes) {
  Op op{.domain = "",
        .name = std::move(name),
        .doc = std::move(doc),
        .inputs = {{.name = "data", .lowered = true}},
        .outputs = {{.name = "reshaped", .lowered = true}},
        .attributes = std::move(attributes),
        .grad = grad_reshape,
        .cost = elementwise_cost(0),
        .aliases = {{0, 0}},
        .cpu = reshape_cpu,
        .arithmetic = Arithmetic::Keeps,
        .reshapes = true};
  op.inputs.push_back({.name = op.attributes[0].name, .arity = OperandSpec::Optional, .constant = true});
  return op;
}

// Gradients are added before: only the value is left of it then.
void become_identity(Graph& graph, NodeId id) {
  graph.nodes[id].op = &graph.op("Identity");
}

void register_stop_gradient(OpRegistry& registry) {
  registry.add(
      {.domain = "arbalest",
       .name = "StopGradient",
       .doc = "X, unchanged, as a constant of the backward pass: what X is computed of gets no gradient from Y",
       .inputs = {{.name = "X", .lowered = true}},
       .outputs = {{.name = "Y", .lowered = true}},
       .layout = std::nullopt,
       .infer = [](InferContext& c) { c.set_output(0, c.input(0)); },
       .for_inference = become_identity,
       .cost = elementwise_cost(0),
       .samples =
           [] {
             Sample kept = sample("matrix", {5, 7}, {});
             kept.inputs[0].differentiable = false;
             return std::vector{kept};
           },
       .aliases = {{0, 0}},
       .cpu = reshape_cpu,
       .arithmetic = Arithmetic::Keeps});
}

void register_identity(OpRegistry& registry) {
  registry.add({.domain = "",
                .name = "Identity",
                .doc = "X, unchanged",
                .inputs = {{.name = "X", .lowered = true}},
                .outputs = {{.name = "Y", .lowered = true}},
                .layout = std::nullopt,
                .infer = [](InferContext& c) { c.set_output(0, c.input(0)); },
                .grad =
                    [](GradContext& c) {
                      if (c.needs_gradient(0)) c.set_input_gradient(0, c.output_gradient(0));
                    },
                .cost = elementwise_cost(0),
                .samples =
                    [] {
                      return std::vector{sample("matrix", {5, 7}, {}), sample("image", {2, 3, 5, 4}, {})};
                    },
                .aliases = {{0, 0}},
                .cpu = reshape_cpu,
                .arithmetic = Arithmetic::Keeps});
}

}  // namespace

void register_shape_reshape(OpRegistry& registry) {
  register_identity(registry);
  register_stop_gradient(registry);
  Op reshape = reshaping(
      "Reshape", "the elements of data in another shape; 0 keeps an extent, one -1 takes what is left",
      {required_spec("shape", AttributeKind::Ints, "the extents"), int_spec("allowzero", 0, "1: an extent of 0 is 0")});
  reshape.infer = infer_reshape;
  reshape.samples = [] {
    return std::vector{sample("split an axis", {4, 6}, {{"shape", Ints{0, 2, -1}}}),
                       sample("of an image", {2, 3, 4, 5}, {{"shape", Ints{2, 12, 5}}}),
                       sample("to a scalar", {1, 1}, {{"shape", Ints{}}})};
  };
  registry.add(std::move(reshape));
  Op squeeze = reshaping("Squeeze", "data without axes of extent 1",
                         {ints_spec("axes", {}, "those to leave out; negative counts from the end; not given: all")});
  squeeze.infer = infer_squeeze;
  squeeze.samples = [] {
    return std::vector{sample("all", {1, 3, 1, 5}, {}), sample("the last", {1, 3, 1}, {{"axes", Ints{-1}}})};
  };
  registry.add(std::move(squeeze));
  Op unsqueeze = reshaping(
      "Unsqueeze", "data with axes of extent 1 put in",
      {required_spec("axes", AttributeKind::Ints, "where the result has them; negative counts from the end")});
  unsqueeze.infer = infer_unsqueeze;
  unsqueeze.samples = [] {
    return std::vector{sample("around", {3, 4}, {{"axes", Ints{0, -1}}}),
                       sample("within", {3, 4}, {{"axes", Ints{1}}})};
  };
  registry.add(std::move(unsqueeze));
}

}  // namespace arbalest
