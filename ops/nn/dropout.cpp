// SPDX-License-Identifier: Apache-2.0

// Dropout: in training, elements are set to 0 at random. Nothing is kept for backward: it draws the same numbers.

#include "ops/nn/dropout.h"

#include <fmt/format.h>

#include "ops/cpu.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

void check_ratio(const InferContext& context) {
  const double ratio = context.number("ratio");
  if (!(ratio >= 0 && ratio < 1)) context.fail(fmt::format("'ratio' is {}; expected 0 to below 1", ratio));
}

bool trains(const InferContext& context) {
  const int64_t mode = context.integer("training_mode");
  if (mode != 0 && mode != 1) context.fail(fmt::format("'training_mode' is {}; expected 0 or 1", mode));
  return mode == 1;
}

void infer_dropout(InferContext& context) {
  TensorType type = floating_input(context, 0);
  check_ratio(context);
  trains(context);
  context.set_output(DropoutOutput::Y, type);
  type.dtype = DataType::Bool;
  context.set_output(DropoutOutput::Mask, type);
}

// f(i, keeps) for each element i.
template <typename F>
void for_each_element(const Dropping& dropping, const StepScalars& scalars, const F& f) {
  parallel_for(dropping.draws(), 64, [&](int64_t begin, int64_t end) {
    for (int64_t draw = begin; draw < end; ++draw) {
      const Random4 words = dropping.draw_of(scalars, draw);
      const int64_t rest = std::min<int64_t>(4, dropping.count - 4 * draw);
      for (int i = 0; i < rest; ++i) f(4 * draw + i, dropping.keeps(words, i));
    }
  });
}

template <typename T>
T scaled(T x, const Dropping& dropping, bool keep) {
  return keep ? narrow<T>(widen(x) * Wide<T>(dropping.scale)) : T(0);
}

std::unique_ptr<Kernel> dropout_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  using Out = DropoutOutput;
  const bool training = int_attribute(request.node, "training_mode") != 0, has_mask = request.has_output(Out::Mask);
  const Dropping dropping(request.node, request.node.name, request.outputs[Out::Y].elements());
  return make_kernel([=](const KernelContext& c) {
    const T* x = input<T>(c, 0);
    T* y = output<T>(c, Out::Y);
    bool* mask = has_mask ? output<bool>(c, Out::Mask) : nullptr;
    if (!training) {
      std::copy(x, x + dropping.count, y);
      if (mask) std::fill(mask, mask + dropping.count, true);
      return;
    }
    for_each_element(dropping, *c.scalars, [&](int64_t i, bool keep) {
      y[i] = scaled(x[i], dropping, keep);
      if (mask) mask[i] = keep;
    });
  });
}

std::unique_ptr<Kernel> dropout_grad_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  const Dropping dropping(request.node, string_attribute(request.node, "node"), request.outputs[0].elements());
  return make_kernel([=](const KernelContext& c) {
    const T* dy = input<T>(c, 0);
    T* dx = output<T>(c, 0);
    for_each_element(dropping, *c.scalars, [&](int64_t i, bool keep) { dx[i] = scaled(dy[i], dropping, keep); });
  });
}

// The gradient's operator drops the same elements of X as of dY, because gradients lie in memory as their values do.
Attributes dropped_by(const Node& node) {
  return {{"ratio", float_attribute(node, "ratio")}, {"seed", int_attribute(node, "seed")}, {"node", node.name}};
}
std::string gradient_of(const Node& node) {
  return "arbalest." + node.op->name + "Grad";
}
bool drops(const Node& node) {
  return node.op->attribute_spec("training_mode") == nullptr || int_attribute(node, "training_mode") != 0;
}

void grad_dropping(GradContext& context) {
  if (!context.needs_gradient(0)) return;
  const Node node = context.node();
  ValueId gradient = context.output_gradient(0);
  if (drops(node)) gradient = context.add(gradient_of(node), "grad_input", {gradient}, 1, dropped_by(node))[0];
  context.set_input_gradient(0, gradient);
}

Repetition dropped_again(const Graph& graph, const Node& node) {
  if (!drops(node)) return {};
  return {&graph.op(gradient_of(node)), {node.inputs[0]}, dropped_by(node), {node.outputs[0]}};
}

bool is_read(const Graph& graph, ValueId value) {
  return std::find(graph.outputs.begin(), graph.outputs.end(), value) != graph.outputs.end() ||
         std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
           return std::find(node.inputs.begin(), node.inputs.end(), value) != node.inputs.end();
         });
}

// Whether somebody reads the mask; exporters name one that nobody reads.
bool masks(const Graph& graph, const Node& node) {
  return node.output(DropoutOutput::Mask) != kNone && is_read(graph, node.output(DropoutOutput::Mask));
}

bool is_identity(const InferContext& context) {
  return (!trains(context) || context.number("ratio") == 0) && !masks(context.graph(), context.node());
}

// ONNX's operator, as it runs in training.
void expand_layer(ExpandContext& context) {
  Attributes attributes = context.node().attributes;
  attributes.set("training_mode", int64_t{1});
  context.replace_output(0, context.add("Dropout", "", {context.input(0)}, 1, attributes)[0]);
}

void drop_nothing(Graph& graph, NodeId id) {
  Node& node = graph.nodes[id];
  if (masks(graph, node)) {
    if (node.inputs.size() > 2) node.inputs.resize(2);  // the operand would count
    node.attributes.set("training_mode", int64_t{0});
    return;
  }
  node.op = &graph.op("Identity");
  node.attributes = {};
  node.inputs.resize(1);
  node.outputs.resize(1);
}

std::vector<Sample> dropout_samples(const Attributes& others, int outputs) {
  return dropping_samples({Shape{}, Shape{3, 5}, Shape{2, 7, 5, 3}, Shape{64, 40}, Shape{4, 32, 16, 16}},
                          {0.0, 0.3, 0.75}, others, outputs);
}

std::vector<Sample> dropped_samples() {
  std::vector<Sample> all = dropout_samples({{"training_mode", int64_t{1}}}, 1);
  for (const Attributes& mode : {Attributes{{"training_mode", int64_t{1}}, {"seed", int64_t{5}}}, Attributes{}}) {
    for (Sample& sample : dropout_samples(mode, 2)) {
      sample.name += mode.empty() ? ", inference with a mask" : ", with a mask";
      all.push_back(std::move(sample));
    }
  }
  return all;
}

}  // namespace

void register_dropping(OpRegistry& registry, Op op, std::vector<Sample> (*gradient_samples)(),
                       KernelFactory gradient_cpu) {
  op.random = true;
  op.layout = std::nullopt;
  op.grad = grad_dropping;
  op.expand = [](ExpandContext& c) { c.replace_output(0, c.add("Identity", "", {c.input(0)}, 1)[0]); };
  op.again = dropped_again;
  op.cost = elementwise_cost(1);
  registry.add({.domain = "arbalest",
                .name = op.name + "Grad",
                .doc = "the gradient of " + op.name,
                .inputs = {{.name = "dY", .lowered = true}},
                .outputs = {{.name = "dX", .lowered = true}},
                .attributes = {op.attributes[0], op.attributes[1],
                               required_spec("node", AttributeKind::String, "the name of the " + op.name)},
                .internal = true,
                .layout = std::nullopt,
                .infer = [](InferContext& c) { c.set_output(0, floating_input(c, 0)); },
                .cost = elementwise_cost(1),
                .samples = gradient_samples,
                .cpu = std::move(gradient_cpu)});
  registry.add(std::move(op));
}

std::vector<Sample> dropping_samples(std::initializer_list<Shape> shapes, std::initializer_list<double> ratios,
                                     const Attributes& others, int outputs) {
  std::vector<Sample> samples;
  for (const Shape& shape : shapes) {
    for (const double ratio : ratios) {
      Sample sample{.name = fmt::format("{}, ratio {}", to_string(shape), ratio),
                    .inputs = {{{DataType::Float32, shape}}},
                    .output_count = outputs,
                    .attributes = others,
                    .tolerance = 1e-6,
                    .scalars = {.seed = 7, .epoch = 3, .position = 640}};
      sample.attributes.set("ratio", ratio);
      samples.push_back(std::move(sample));
    }
  }
  return samples;
}

void register_nn_dropout(OpRegistry& registry) {
  const std::vector<AttributeSpec> attributes = {
      float_spec("ratio", 0.5, "of the elements that become 0"),
      int_spec("seed", 0,
               "another one draws other elements; the run's seed, the node's name, epoch and batch count too")};
  Op op{
      .domain = "",
      .name = "Dropout",
      .doc = "with training_mode = 1, in training: elements are 0 at random, the others data / (1 − ratio); else data",
      .inputs = {{.name = "data", .lowered = true},
                 {.name = "ratio", .arity = OperandSpec::Optional, .constant = true},
                 {.name = "training_mode", .arity = OperandSpec::Optional, .constant = true}},
      .outputs = {{.name = "output", .lowered = true}, {.name = "mask", .arity = OperandSpec::Optional}},
      .attributes = attributes,
      .infer = infer_dropout,
      .expands = is_identity,
      .for_inference = drop_nothing,
      .samples = dropped_samples,
      .cpu = floating_kernel([](const KernelRequest& r, auto t) { return dropout_cpu(r, t); })};
  op.attributes.push_back(int_spec("training_mode", 0, "1: elements are dropped in training; validation drops none"));
  register_dropping(
      registry, std::move(op),
      [] {
        return dropout_samples({{"node", "dropped"}}, 1);
      },
      floating_kernel([](const KernelRequest& r, auto t) { return dropout_grad_cpu(r, t); }));
  registry.add({.domain = "arbalest",
                .name = "Dropout",
                .doc = "in training: elements are 0 at random, the others X / (1 − ratio); else X",
                .inputs = {{.name = "X", .lowered = true}},
                .outputs = {{.name = "Y", .lowered = true}},
                .attributes = attributes,
                .layout = std::nullopt,
                .infer =
                    [](InferContext& context) {
                      check_ratio(context);
                      context.set_output(0, floating_input(context, 0));
                    },
                .expand = expand_layer});
}

}  // namespace arbalest
