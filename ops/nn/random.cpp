// SPDX-License-Identifier: Apache-2.0

// ONNX's operators that draw: RandomUniformLike and RandomNormalLike have kernels, the others are made of them. Nothing
// is kept for backward, and nothing flows back through them.

#include "ops/nn/random.h"

#include <fmt/format.h>

#include <bit>

#include "ops/cpu.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

bool is_normal(const Node& node) {
  return node.op->attribute_spec("mean") != nullptr;
}

// The type of elements that are drawn is what attribute `dtype` names, or else `otherwise`.
DataType drawn_type(const InferContext& context, DataType otherwise) {
  const int64_t number = int_attribute(context.node(), "dtype");
  const std::optional<DataType> stated = context.states("dtype") ? type_of_onnx(number) : otherwise;
  if (stated == DataType::Float32 || stated == DataType::Float64) return *stated;
  if (context.states("dtype")) {
    context.fail(
        fmt::format("attribute 'dtype' is {} ({}); expected 1 (float) or 11 (double)", number, onnx_type_name(number)));
  }
  context.fail(fmt::format("{} is {}; expected float or double, or the attribute 'dtype'", input_name(context, 0),
                           to_string(context.input(0))));
}

void check_numbers(const InferContext& context) {
  const Node& node = context.node();
  if (is_normal(node)) {
    const double scale = float_attribute(node, "scale");
    if (!(scale >= 0)) context.fail(fmt::format("attribute 'scale' is {}; expected 0 or more", scale));
    return;
  }
  const double low = float_attribute(node, "low"), high = float_attribute(node, "high");
  if (!(low <= high)) context.fail(fmt::format("attribute 'high' is {}; expected 'low', {}, or more", high, low));
}

void infer_like(InferContext& context) {
  TensorType type = context.input(0);
  type.dtype = drawn_type(context, type.dtype);
  check_numbers(context);
  context.set_output(0, type);
}

void infer_of_shape(InferContext& context) {
  const std::vector<int64_t> shape = ints_attribute(context.node(), "shape");
  for (const int64_t extent : shape) {
    if (extent < 0) context.fail(fmt::format("attribute 'shape' has the extent {}; expected 0 or more", extent));
  }
  check_numbers(context);
  context.set_output(0, {drawn_type(context, DataType::Float32), Shape(shape.begin(), shape.end())});
}

template <typename T>
std::unique_ptr<Kernel> random_kernel(const RandomNumbers& numbers) {
  return make_kernel([=](const KernelContext& c) {
    T* y = output<T>(c, 0);
    parallel_for(numbers.draws(), 64, [&](int64_t begin, int64_t end) {
      for (int64_t draw = begin; draw < end; ++draw) {
        const Random4 words = numbers.draw_of(*c.scalars, draw);
        const int64_t rest = std::min<int64_t>(4, numbers.count - 4 * draw);
        for (int i = 0; i < rest; ++i) y[4 * draw + i] = narrow<T>(Wide<T>(numbers.number(words, i)));
      }
    });
  });
}

std::unique_ptr<Kernel> random_cpu(const KernelRequest& request) {
  const Node& node = request.node;
  const std::string name = node.op->internal ? string_attribute(node, "node") : node.name;
  const RandomNumbers numbers(node, name, request.outputs[0].elements());
  return dispatch_floating(request.outputs[0].dtype,
                           [&](auto element) { return random_kernel<decltype(element)>(numbers); });
}

Repetition drawn_again(const Graph& graph, const Node& node) {
  Attributes attributes = node.attributes;
  attributes.set("node", node.name);
  return {&graph.op("arbalest." + node.op->name + "Again"), node.inputs, attributes, node.outputs};
}

// The node's attributes but for its shape, for what it is made of.
Attributes passed_on(const ExpandContext& context) {
  Attributes attributes = context.node().attributes;
  attributes.erase("shape");
  return attributes;
}

// RandomUniform and RandomNormal: what stands for the shape is a number, expanded.
void expand_of_shape(ExpandContext& context) {
  const std::string like = context.node().op->name + "Like";
  const ValueId zero = context.constant("zero", DataType::Float32, 0);
  const Attributes shape = {{"shape", ints_attribute(context.node(), "shape")}};
  const ValueId zeros = context.add("Expand", "shape", {zero}, 1, shape)[0];
  context.replace_output(0, context.add(like, "", {zeros}, 1, passed_on(context))[0]);
}

void infer_bernoulli(InferContext& context) {
  TensorType type = floating_input(context, 0);
  if (context.states("dtype")) {
    const int64_t number = int_attribute(context.node(), "dtype");
    const std::optional<DataType> stated = type_of_onnx(number);
    if (!stated) {
      context.fail(fmt::format("attribute 'dtype' is {} ({}); expected a type that tensors have here", number,
                               onnx_type_name(number)));
    }
    type.dtype = *stated;
  }
  context.set_output(0, type);
}

void expand_bernoulli(ExpandContext& context) {
  const ValueId p = context.input(0);
  Attributes attributes = passed_on(context);
  attributes.erase("dtype");
  const ValueId numbers = context.add("RandomUniformLike", "numbers", {p}, 1, attributes)[0];
  const ValueId below = context.add("Less", "below", {numbers, p}, 1)[0];
  const DataType type = context.type(context.node().outputs[0]).dtype;
  context.replace_output(0, context.add("Cast", "", {below}, 1, {{"to", onnx_number(type)}})[0]);
}

std::vector<Sample> random_samples(const Attributes& others) {
  std::vector<Sample> samples;
  for (const Shape& shape : {Shape{}, Shape{3, 5}, Shape{2, 7, 5, 3}, Shape{4, 32, 16, 16}}) {
    samples.push_back({.name = to_string(shape),
                       .inputs = {{{DataType::Float32, shape}, -1, 1, false}},
                       .attributes = others,
                       .tolerance = 1e-6,
                       .scalars = {.seed = 7, .epoch = 3, .position = 640}});
  }
  return samples;
}

// No attribute of ONNX's, and validation drops nothing.
void leave_out_mode(Graph& graph, NodeId id) {
  graph.nodes[id].attributes.erase("training_mode");
}

AttributeSpec seed_spec() {
  return float_spec("seed", 0,
                    "another one draws other numbers; the run's seed, the node's name, epoch and batch count too");
}
AttributeSpec mode_spec() {
  return int_spec("training_mode", 1, "0: a dropout that is made of these numbers drops nothing in training either");
}

// ONNX's operator like an input, the same once more for backward, and the one of a shape.
void register_random(OpRegistry& registry, const std::string& name, const std::string& numbers,
                     const std::vector<AttributeSpec>& attributes, const Attributes& sampled) {
  Op like{.domain = "",
          .name = name + "Like",
          .doc = fmt::format("{}, one for each element of input, drawn anew for each batch, in validation as well",
                             numbers),
          .inputs = {{.name = "input"}},
          .outputs = {{.name = "output"}},
          .attributes = {int_spec("dtype", 0, "1 for float, 11 for double; not given: input's")},
          .random = true,
          .layout = std::nullopt,
          .infer = infer_like,
          .for_inference = leave_out_mode,
          .again = drawn_again,
          .cost = elementwise_cost(1),
          .samples = [=] { return random_samples(sampled); },
          .cpu = random_cpu};
  like.attributes.insert(like.attributes.end(), attributes.begin(), attributes.end());
  Op again = like;
  again.domain = "arbalest";
  again.name += "Again";
  again.doc = fmt::format("what {} drew", like.name);
  again.attributes.push_back(required_spec("node", AttributeKind::String, "the name of the node that drew it"));
  again.internal = true;
  again.again = nullptr;
  again.samples = [=] {
    Attributes attributes = sampled;
    attributes.set("node", "drawn");
    return random_samples(attributes);
  };
  Op of_shape{
      .domain = "",
      .name = name,
      .doc = fmt::format("{}, in a tensor of this shape, drawn anew for each batch, in validation as well", numbers),
      .outputs = {{.name = "output"}},
      .attributes = like.attributes,
      .infer = infer_of_shape,
      .expand = expand_of_shape,
      .for_inference = leave_out_mode};
  of_shape.attributes[0] = int_spec("dtype", 1, "1 for float, 11 for double");
  of_shape.attributes.push_back(required_spec("shape", AttributeKind::Ints, "of the output"));
  registry.add(std::move(again));
  registry.add(std::move(like));
  registry.add(std::move(of_shape));
}

}  // namespace

RandomNumbers::RandomNumbers(const Node& node, std::string_view name, int64_t elements)
    : Drawing{elements, hash_name(name)}, normal(is_normal(node)) {
  const double seed = float_attribute(node, "seed"), low = normal ? 0 : float_attribute(node, "low");
  const double high = normal ? HUGE_VAL : float_attribute(node, "high");
  if (seed != 0) stream += std::bit_cast<uint64_t>(seed);
  offset = float(normal ? float_attribute(node, "mean") : low);
  scale = float(normal ? float_attribute(node, "scale") : high - low);
  most = normal ? HUGE_VALF : std::nextafter(float(high), offset);
}

void register_nn_random(OpRegistry& registry) {
  register_random(registry, "RandomUniform", "uniform numbers from low to below high",
                  {float_spec("low", 0, "the least number"), float_spec("high", 1, "more than any number"), seed_spec(),
                   mode_spec()},
                  {{"low", -1.5}, {"high", 2.0}, {"seed", 5.0}});
  register_random(registry, "RandomNormal", "normally distributed numbers",
                  {float_spec("mean", 0, "the mean"), float_spec("scale", 1, "the standard deviation"), seed_spec()},
                  {{"mean", 0.5}, {"scale", 2.0}});
  registry.add({.domain = "",
                .name = "Bernoulli",
                .doc = "1 with the probability that input gives for the element, else 0; drawn anew for each batch, in "
                       "validation as well",
                .inputs = {{.name = "input"}},
                .outputs = {{.name = "output"}},
                .attributes = {int_spec("dtype", 0, "ONNX's number of the element type; not given: input's"),
                               seed_spec(), mode_spec()},
                .layout = std::nullopt,
                .infer = infer_bernoulli,
                .expand = expand_bernoulli,
                .for_inference = leave_out_mode});
}

}  // namespace arbalest
