// SPDX-License-Identifier: Apache-2.0

// Reductions over axes, and their gradients: the lines of ops/reduce/reduce_table.h.

#include "ops/reduce/reduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "ops/math/elementwise.h"
#include "ops/math/elementwise_cpu.h"
#include "ops/reduce/reduce_cpu.h"

namespace arbalest {

ReducedAxes::ReducedAxes(const Node& node, size_t rank) : reduced(rank, false), keep(flag_attribute(node, "keepdims")) {
  const std::vector<int64_t> axes = ints_attribute(node, "axes");
  for (const int64_t axis : axes) reduced[normalized_axis(axis, rank)] = true;
  if (axes.empty() && !flag_attribute(node, "noop_with_empty_axes")) reduced.assign(rank, true);
}

TensorType ReducedAxes::result(const TensorType& x) const {
  TensorType y{x.dtype, {}};
  for (size_t axis = 0; axis < reduced.size(); ++axis) {
    if (!reduced[axis] || keep) y.shape.push_back(reduced[axis] ? 1 : x.shape[axis]);
  }
  return keep ? y.in(x.layout) : y;
}

std::vector<int64_t> ReducedAxes::strides(const TensorType& y) const {
  const std::vector<int64_t> own = memory_strides(y);
  std::vector<int64_t> strides;
  size_t next = 0;
  for (const bool gone : reduced) {
    strides.push_back(gone ? 0 : own[next]);
    if (!gone || keep) ++next;
  }
  return strides;
}

int64_t ReducedAxes::count(const Shape& shape) const {
  int64_t count = 1;
  for (size_t axis = 0; axis < shape.size(); ++axis) count *= reduced[axis] ? shape[axis] : 1;
  return count;
}

Strided reducing_walk(const ReducedAxes& axes, const TensorType& x, const TensorType& y) {
  return Strided(x.shape, {memory_strides(x), axes.strides(y)});
}

namespace {

// The attributes of the internal operators of a reduction: which axes it takes, in full.
Attributes resolved(const ReducedAxes& axes) {
  std::vector<int64_t> list;
  for (size_t axis = 0; axis < axes.reduced.size(); ++axis) {
    if (axes.reduced[axis]) list.push_back(int64_t(axis));
  }
  return {{"axes", list}, {"keepdims", int64_t(axes.keep)}, {"noop_with_empty_axes", int64_t{1}}};
}

}  // namespace

Attributes reduce_gradient_attributes(const ReducedAxes& axes, const TensorType& x) {
  Attributes attributes = resolved(axes);
  attributes.set("shape", x.shape);
  attributes.set("layout", std::string(name_of(x.layout)));
  return attributes;
}

namespace {

using elementwise::GradientRows;
using reductions::Integers;

struct ReduceLine {
  std::string name, doc;
  Integers integers;
  double low, high;
  bool selects;                          // Max and Min: equal elements share the gradient
  bool empty_is_number;                  // the result of no elements
  bool keeps_one;                        // one number is its own reduction
  bool sums, mean;                       // it is a sum, or the mean
  std::optional<GradientRows> gradient;  // none: that of a product
};

// y = the reduction of x for a type of elements.
using ReduceFunction = void (*)(const SumAxes& axes, const void* x, void* y);

std::vector<AttributeSpec> reduce_specs() {
  return {ints_spec("axes", {}, "those to reduce; negative counts from the end; none: all"),
          int_spec("keepdims", 1, "1: a reduced axis stays, with one element"),
          int_spec("noop_with_empty_axes", 0, "1: no axes are none; each element is taken by itself")};
}

bool takes(Integers integers, DataType type) {
  switch (type) {
    case DataType::Int32:
    case DataType::Int64: return integers != Integers::None;
    case DataType::Bool:
    case DataType::Uint8: return integers == Integers::All;
    default: return is_floating(type);
  }
}

void infer_reduction(InferContext& context, Integers integers) {
  const TensorType& x = context.input(0);
  if (!takes(integers, x.dtype)) {
    context.fail(fmt::format("{} is {}; expected float, double{} bfloat16{}", input_name(context, 0), to_string(x),
                             integers == Integers::None ? " or" : ",",
                             integers == Integers::None  ? ""
                             : integers == Integers::All ? ", integers or bool"
                                                         : ", int32 or int64"));
  }
  if (x.shape.size() > Strided::kMaxRank) {
    context.fail(fmt::format("{} is {}; expected a rank of at most {}", input_name(context, 0), to_string(x),
                             Strided::kMaxRank));
  }
  std::vector<bool> named = named_axes(context, int64_t(x.shape.size()));
  const bool none = std::find(named.begin(), named.end(), true) == named.end();
  if (none && !flag_attribute(context.node(), "noop_with_empty_axes")) named.assign(named.size(), true);
  context.set_output(0, ReducedAxes(std::move(named), flag_attribute(context.node(), "keepdims")).result(x));
}

// The reduction of elements of `type`; bool is stored as uint8.
template <typename Reduction>
ReduceFunction reduction_of(DataType type) {
  const auto function = [](auto element) -> ReduceFunction {
    using T = decltype(element);
    return [](const SumAxes& axes, const void* x, void* y) {
      const T* from = static_cast<const T*>(x);
      T* to = static_cast<T*>(y);
      if constexpr (Reduction::kCentred) reduce<reductions::ReduceMax, T, T>(axes, from, nullptr, to);
      reduce<Reduction, T, T>(axes, from, to, to);
    };
  };
  if constexpr (Reduction::kIntegers != Integers::None) {
    if (type == DataType::Int32) return function(int32_t{});
    if (type == DataType::Int64) return function(int64_t{});
  }
  if constexpr (Reduction::kIntegers == Integers::All) {
    if (type == DataType::Uint8 || type == DataType::Bool) return function(uint8_t{});
  }
  return dispatch_floating(type, function);
}

std::unique_ptr<Kernel> reduction_cpu(const KernelRequest& request, ReduceFunction function) {
  const TensorType &x = request.inputs[0], &y = request.outputs[0];
  return make_kernel([function, axes = SumAxes(reducing_walk(ReducedAxes(request.node, x.shape.size()), x, y))](
                         const KernelContext& c) { function(axes, c.inputs[0], c.outputs[0]); });
}

std::unique_ptr<Kernel> ties_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  using In = ReduceTiesInput;
  const TensorType &x = request.inputs[In::X], &y = request.outputs[0];
  return make_kernel(
      [axes = SumAxes(reducing_walk(ReducedAxes(request.node, x.shape.size()), x, y))](const KernelContext& c) {
        reduce<reductions::ReduceTies, T, T>(axes, input<T>(c, In::X), input<T>(c, In::Y), output<T>(c, 0));
      });
}

// The number of elements that made one of the result, by a reduction's gradient.
double terms_of(const Node& node) {
  const Shape shape = ints_attribute(node, "shape");
  return double(ReducedAxes(node, shape.size()).count(shape));
}

std::unique_ptr<Kernel> reduce_gradient_cpu(const KernelRequest& request, const elementwise::TypedRows& rows) {
  return row_kernel(request, rows, {.alpha = terms_of(request.node)}, Strided(elementwise::walked_types(request)));
}

// `value`, a result or its gradient, with all axes, so that it broadcasts to X.
ValueId in_full(GradContext& c, ValueId value, const char* label) {
  const TensorType x = c.type(c.input(0));
  ReducedAxes axes(c.node(), x.shape.size());
  if (axes.keep) return value;
  axes.keep = true;
  return c.add("Reshape", label, {value}, 1, {{"shape", axes.result(x).shape}, {"allowzero", int64_t{1}}})[0];
}

// dY times the product of the others: that of all but zeros divided by X, or 0 where another one is 0.
void add_product_gradient(GradContext& c) {
  if (!c.needs_gradient(0)) return;
  const auto one = [&](const char* op, const char* label, std::vector<ValueId> inputs, Attributes attributes = {}) {
    return c.add(op, label, std::move(inputs), 1, std::move(attributes))[0];
  };
  const ValueId x = c.input(0);
  ReducedAxes axes(c.node(), c.type(x).shape.size());
  axes.keep = true;
  const ValueId zeros = zeros_of(c, x, "zeros"), factors = one("Add", "factors", {x, zeros});
  const ValueId product = one("ReduceProd", "product", {factors}, resolved(axes));
  const ValueId others = one("Sub", "other_zeros", {one("ReduceSum", "zero_count", {zeros}, resolved(axes)), zeros});
  const ValueId scale = one("Mul", "scale", {one("Div", "others", {product, factors}), zeros_of(c, others, "alone")});
  c.set_input_gradient(0, one("Mul", "grad_input", {in_full(c, c.output_gradient(0), "grad_in_full"), scale}));
}

void add_gradient_of(GradContext& c, const ReduceLine& line) {
  if (!c.needs_gradient(0)) return;
  const TensorType x = c.type(c.input(0));
  ReducedAxes axes(c.node(), x.shape.size());
  ValueId dy = c.output_gradient(0);
  if (line.selects) {
    const ValueId ties = c.add("arbalest.ReduceTies", "ties", {c.input(0), c.output(0)}, 1, resolved(axes))[0];
    dy = c.add("Div", "grad_share", {dy, ties}, 1)[0];
  }
  std::vector<ValueId> inputs = {in_full(c, dy, "grad_in_full")};
  if (line.gradient->first) inputs.push_back(c.input(0));
  if (line.gradient->second) inputs.push_back(in_full(c, c.output(0), "in_full"));
  axes.keep = true;
  c.set_input_gradient(
      0, c.add("arbalest." + line.name + "Grad", "grad_input", inputs, 1, reduce_gradient_attributes(axes, x))[0]);
}

void infer_reduce_gradient(InferContext& context) {
  const Layout layout = string_attribute(context.node(), "layout") == name_of(Layout::ChannelsLast)
                            ? Layout::ChannelsLast
                            : Layout::RowMajor;
  const TensorType& dy = floating_input(context, 0);
  const TensorType dx = TensorType{dy.dtype, ints_attribute(context.node(), "shape")}.in(layout);
  const ReducedAxes axes(context.node(), dx.shape.size());
  // Regions take the gradient for a function of elements, whose operands broadcast.
  if (!axes.keep) context.fail("attribute 'keepdims' is 0; expected operands with all axes");
  const TensorType y = axes.result(dx);
  for (size_t i = 0; i < context.input_count(); ++i) {
    // Dims of 1 need not lie as X's do.
    const bool whole = context.node().op->inputs[i].name == "X";
    if (whole || context.input(i).dtype != y.dtype || context.input(i).shape != y.shape) {
      expect_input(context, i, whole ? dx : y, "by the attribute 'shape'");
    }
  }
  context.set_output(0, dx);
}

void infer_ties(InferContext& context) {
  using In = ReduceTiesInput;
  const TensorType& x = floating_input(context, In::X);
  expect_input(context, In::Y, ReducedAxes(context.node(), x.shape.size()).result(x), "the type of the result");
  context.set_output(0, context.input(In::Y));
}

struct ReduceCase {
  TensorType x;
  std::vector<int64_t> axes;
  bool keep = true, none = false;

  ReducedAxes reduced() const {
    std::vector<bool> reduced(x.shape.size(), axes.empty() && !none);
    for (const int64_t axis : axes) reduced[normalized_axis(axis, x.shape.size())] = true;
    return {reduced, keep};
  }
  std::string name() const {
    return fmt::format("{} over {}{}{}{}", to_string(x.shape), to_string(axes, '[', ']'),
                       x.layout == Layout::ChannelsLast ? ", channels-last" : "", keep ? "" : ", left out",
                       none ? ", none" : "");
  }
  Attributes attributes() const {
    return {{"axes", axes}, {"keepdims", int64_t(keep)}, {"noop_with_empty_axes", int64_t(none)}};
  }
};

std::vector<ReduceCase> reduce_cases() {
  const auto plain = [](Shape shape) { return TensorType{DataType::Float32, std::move(shape)}; };
  const auto image = [&](Shape shape) { return plain(std::move(shape)).in(Layout::ChannelsLast); };
  return {{plain({}), {}},
          {plain({7}), {0}, false},
          {plain({3, 5}), {}},
          {plain({3, 5}), {}, true, true},
          {plain({3, 1, 5}), {1}, false},
          {plain({33, 70}), {-1}},
          {plain({70, 3}), {-1}, false},
          {plain({70, 33}), {0}, false},
          {plain({2, 3, 4, 5}), {2, 3}},
          {plain({2, 3, 4, 5}), {1, -1}, false},
          {plain({4, 600}), {1}},
          {plain({300, 4}), {}},
          {plain({9000, 3}), {0}},
          {image({2, 5, 4, 3}), {2, 3}},
          {image({3, 40, 9, 7}), {2, 3}, false},
          {image({2, 40, 5, 7}), {1}},
          {image({2, 8, 5, 7}), {3}, false},
          {image({2, 3, 5, 4}), {0, 2, 3}},
          {image({1, 3, 70, 60}), {0, 2, 3}, false}};
}

// Some of them are equal to those of another input drawn so, of whatever count.
Sample::Input whole_numbers(const TensorType& type) {
  return {.type = type, .low = 0, .high = double(type.elements()), .distinct = true};
}

std::vector<Sample> reduce_samples(const ReduceLine& line) {
  std::vector<Sample> samples;
  for (const ReduceCase& c : reduce_cases()) {
    samples.push_back({.name = c.name(),
                       .inputs = {{.type = c.x, .low = line.low, .high = line.high, .distinct = line.selects}},
                       .attributes = c.attributes(),
                       .tolerance = 1e-5});
  }
  // Without a result, and of no elements, if that is a number.
  std::vector<Shape> shapes = {{0, 3}};
  if (line.empty_is_number) shapes.push_back({2, 0, 4});
  for (const Shape& shape : shapes) {
    const ReduceCase empty{{DataType::Float32, shape}, {1}};
    samples.push_back({.name = empty.name(),
                       .inputs = {{.type = empty.x, .differentiable = false}},
                       .attributes = empty.attributes()});
  }
  if (line.integers == Integers::None) return samples;
  for (const DataType type : {DataType::Int32, DataType::Int64}) {
    samples.push_back({.name = fmt::format("{}", name_of(type)),
                       .inputs = {{.type = {type, {4, 6}}, .low = -3, .high = 5}},
                       .attributes = {{"axes", std::vector<int64_t>{1}}},
                       .tolerance = 0});
  }
  return samples;
}

std::vector<Sample> reduce_gradient_samples(const ReduceLine& line) {
  std::vector<Sample> samples;
  for (const ReduceCase& c : reduce_cases()) {
    if (!c.keep) continue;
    const TensorType y = c.reduced().result(c.x);
    Sample sample{.name = c.name(), .inputs = {{y}}, .attributes = c.attributes(), .tolerance = 1e-5};
    sample.attributes.set("shape", c.x.shape);
    sample.attributes.set("layout", std::string(name_of(c.x.layout)));
    const auto draw = [&](const TensorType& type) {
      sample.inputs.push_back(line.selects ? whole_numbers(type) : Sample::Input{type, line.low, line.high});
    };
    if (line.gradient->first) draw(c.x);
    if (line.gradient->second) draw(y);
    samples.push_back(std::move(sample));
  }
  return samples;
}

void add_reduce_gradient(OpRegistry& registry, const ReduceLine& line) {
  std::vector<OperandSpec> inputs = {{.name = "dY", .lowered = true}};
  if (line.gradient->first) inputs.push_back({.name = "X", .lowered = true});
  if (line.gradient->second) inputs.push_back({.name = "Y", .lowered = true});
  std::vector<AttributeSpec> attributes = reduce_specs();
  attributes.push_back(required_spec("shape", AttributeKind::Ints, "of dX"));
  attributes.push_back(string_spec("layout", "row_major", "of dX"));
  registry.add({.domain = "arbalest",
                .name = line.name + "Grad",
                .doc = "the gradient of " + line.name,
                .inputs = inputs,
                .outputs = {{.name = "dX", .lowered = true}},
                .attributes = attributes,
                .internal = true,
                .layout = std::nullopt,
                .infer = infer_reduce_gradient,
                .cost = elementwise_cost(1),
                .samples = [line] { return reduce_gradient_samples(line); },
                .cpu = [rows = line.gradient->rows](const KernelRequest& r) { return reduce_gradient_cpu(r, rows); },
                .element = line.gradient->element});
}

Cost cost_of(const Graph& graph, const Node& node) {
  return {double(input_type(graph, node, 0).elements()), operand_bytes(graph, node)};
}

void add_reduction(OpRegistry& registry, const ReduceLine& line, ReduceFunction (*of)(DataType)) {
  Op op{
      .domain = "",
      .name = line.name,
      .doc = line.doc + " over `axes`",
      .inputs = {{.name = "data", .lowered = true}, {.name = "axes", .arity = OperandSpec::Optional, .constant = true}},
      .outputs = {{.name = "reduced", .lowered = true}},
      .attributes = reduce_specs(),
      .layout = std::nullopt,
      .infer = [integers = line.integers](InferContext& c) { infer_reduction(c, integers); },
      .cost = cost_of,
      .samples = [line] { return reduce_samples(line); },
      .cpu = [of](const KernelRequest& r) { return reduction_cpu(r, of(r.inputs[0].dtype)); }};
  if (line.keeps_one) op.arithmetic = Arithmetic::Keeps;
  if (line.sums || line.mean) {
    op.sum = [mean = line.mean](const Node& node, const TensorType& x, const TensorType& y) {
      return AxisSum{ReducedAxes(node, x.shape.size()).strides(y),
                     mean ? double(y.elements()) / double(x.elements()) : 1};
    };
  }
  if (line.gradient) {
    op.grad = [line](GradContext& c) { add_gradient_of(c, line); };
    add_reduce_gradient(registry, line);
  } else {
    op.grad = add_product_gradient;
  }
  registry.add(std::move(op));
}

template <typename Reduction>
void add_line(OpRegistry& registry, const char* name, const char* doc, double low, double high) {
  using Combination = typename Reduction::Combination;
  const double empty = Reduction::value(Combination::template empty<double, double>(), 0.0, 0.0);
  const bool selects = std::is_same_v<Combination, reductions::Max> || std::is_same_v<Combination, reductions::Min>;
  const bool sums = Reduction::kKeepsOne && std::is_same_v<Combination, reductions::Sum>;
  ReduceLine line{.name = name,
                  .doc = doc,
                  .integers = Reduction::kIntegers,
                  .low = low,
                  .high = high,
                  .selects = selects,
                  .empty_is_number = std::isfinite(empty),
                  .keeps_one = Reduction::kKeepsOne,
                  .sums = sums,
                  .mean = Reduction::kMean,
                  .gradient = {}};
  if constexpr (Reduction::kGradient) {
    line.gradient = elementwise::gradient_rows<typename Reduction::Grad, false>();
    line.gradient->element.numbers = [](const Node& node) { return std::array{terms_of(node), 0.0}; };
  }
  add_reduction(registry, line, reduction_of<Reduction>);
}

void add_ties(OpRegistry& registry) {
  registry.add({.domain = "arbalest",
                .name = "ReduceTies",
                .doc = "over `axes`, how many elements of X are equal to Y's, the greatest or the least of them",
                .inputs = {{.name = "X", .lowered = true}, {.name = "Y", .lowered = true}},
                .outputs = {{.name = "ties", .lowered = true}},
                .attributes = reduce_specs(),
                .internal = true,
                .layout = std::nullopt,
                .infer = infer_ties,
                .cost = cost_of,
                .samples =
                    [] {
                      std::vector<Sample> samples;
                      for (const ReduceCase& c : reduce_cases()) {
                        samples.push_back({.name = c.name(),
                                           .inputs = {whole_numbers(c.x), whole_numbers(c.reduced().result(c.x))},
                                           .attributes = c.attributes()});
                      }
                      return samples;
                    },
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return ties_cpu(r, t); })});
}

}  // namespace

void register_reduce_reduce(OpRegistry& registry) {
#define ARBALEST_ADD(Name, doc, combination, integers, low, high, term, value, gradient) \
  add_line<reductions::Name>(registry, #Name, doc, low, high);
  ARBALEST_REDUCTIONS(ARBALEST_ADD)
#undef ARBALEST_ADD
  add_ties(registry);
}

}  // namespace arbalest
