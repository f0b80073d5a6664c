// SPDX-License-Identifier: Apache-2.0

// Cast between element types, and CastLike. The precision pass inserts casts.

#include "ops/math/convert.h"

#include <fmt/format.h>

#include <cstring>

#include "graph/constants.h"
#include "ops/cpu.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

struct CastLikeInput {
  enum : size_t { X, Like };
};

// The type that attribute `to` names.
DataType cast_type(const Node& node) {
  const int64_t to = int_attribute(node, "to");
  if (const auto type = type_of_onnx(to)) return *type;
  std::string expected;
  for (const DataType type : kElementTypes) {
    expected += fmt::format("{}{} ({})", expected.empty() ? "" : ", ", onnx_number(type), name_of(type));
  }
  const std::string_view name = onnx_type_name(to);
  fail(node, fmt::format("attribute 'to' is {}{}; expected one of {}", to,
                         name.empty() ? "" : fmt::format(" ({})", name), expected));
}

void infer_cast(InferContext& context) {
  TensorType type = context.input(0);
  type.dtype = cast_type(context.node());
  context.set_output(0, type);
}

template <bool nearest, typename From, typename To>
std::unique_ptr<Kernel> cast_kernel(int64_t count) {
  return make_kernel([count](const KernelContext& context) {
    const From* x = input<From>(context, 0);
    To* y = output<To>(context, 0);
    parallel_for(count, 1, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto value = widen(x[i]);
        y[i] = narrow<To>(nearest ? nearest_number<Wide<To>>(value) : convert_number<Wide<To>>(value));
      }
    });
  });
}

template <bool nearest>
std::unique_ptr<Kernel> cast_cpu(const KernelRequest& request) {
  const int64_t count = request.outputs[0].elements();
  return dispatch_element(request.inputs[0].dtype, [&](auto from) {
    return dispatch_element(request.outputs[0].dtype,
                            [&](auto to) { return cast_kernel<nearest, decltype(from), decltype(to)>(count); });
  });
}

// Casts the gradient back if both input and output are floating; other casts have none.
void grad_cast(GradContext& context) {
  const DataType from = context.type(context.input(0)).dtype;
  if (!context.needs_gradient(0) || !is_floating(from) || !is_floating(context.type(context.output(0)).dtype)) return;
  const ValueId gradient = context.output_gradient(0);
  context.set_input_gradient(0, context.add("Cast", "grad_input", {gradient}, 1, {{"to", onnx_number(from)}})[0]);
}

// Nothing is differentiated: results in float are too coarse for finite differences.
std::vector<Sample> cast_samples() {
  std::vector<Sample> samples;
  const auto add = [&](const Shape& shape, DataType from, DataType to, double low, double high, double tolerance = 0) {
    samples.push_back({.name = fmt::format("{} {} to {}", to_string(shape), name_of(from), name_of(to)),
                       .inputs = {{{from, shape}, low, high, false}},
                       .attributes = {{"to", onnx_number(to)}},
                       .tolerance = tolerance});
  };
  using enum DataType;
  for (const Shape& shape : {Shape{}, Shape{3, 5}, Shape{2, 7, 5, 3}, Shape{4, 32, 16, 16}}) {
    add(shape, Float32, Bfloat16, -1, 1, 4e-3);
    add(shape, Bfloat16, Float32, -1, 1);
  }
  for (const DataType whole : {Uint8, Int32, Int64}) {
    add({3, 70}, Float32, whole, 0, 200);
    add({3, 70}, whole, Float32, 0, 200);
    add({3, 70}, whole, Bfloat16, 0, 200);
    add({3, 70}, whole, Bool, 0, 2);
  }
  add({300}, Float32, Uint8, -100, 400);
  add({300}, Float32, Int32, -3e9, 3e9);
  add({300}, Float32, Int64, -2e19, 2e19);
  add({300}, Bool, Float32, 0, 1);
  add({300}, Int64, Uint8, -1000, 1000);
  add({0, 4}, Float32, Int32, 0, 1);
  return samples;
}

std::vector<Sample> nearest_samples() {
  std::vector<Sample> samples;
  using enum DataType;
  const std::pair<DataType, DataType> types[] = {{Int64, Int32}, {Int64, Uint8}, {Int32, Uint8}, {Uint8, Int32}};
  for (const auto& [from, to] : types) {
    for (const int64_t count : {0, 1, 300}) {
      const double far = from == Int64 ? 9e9 : from == Int32 ? 600 : 0;
      samples.push_back({.name = fmt::format("{} {} to {}", count, name_of(from), name_of(to)),
                         .inputs = {{{from, {count}}, -far, far + 200, false}},
                         .attributes = {{"to", onnx_number(to)}}});
    }
  }
  return samples;
}

// Known if the input is, whatever holds the type. Empty: not known.
std::vector<std::byte> content_of_cast_like(const InferContext& context) {
  using In = CastLikeInput;
  const auto content = content_of(context.graph(), context.node().inputs[In::X]);
  const TensorType from = context.input(In::X);
  if (!content || from.layout != Layout::RowMajor || from.bytes() > kMostContentBytes) return {};
  std::vector<std::byte> results(size_t(from.elements()) * size_of(context.input(In::Like).dtype));
  dispatch_element(from.dtype, [&](auto x) {
    dispatch_element(context.input(In::Like).dtype, [&](auto y) {
      for (size_t i = 0; i < size_t(from.elements()); ++i) {
        std::memcpy(&x, content->data() + i * sizeof x, sizeof x);
        y = narrow<decltype(y)>(convert_number<Wide<decltype(y)>>(widen(x)));
        std::memcpy(results.data() + i * sizeof y, &y, sizeof y);
      }
    });
  });
  return results;
}

// Becomes a Cast, because the type is known when the graph is read.
void expand_cast_like(ExpandContext& context) {
  const int64_t to = onnx_number(context.type(context.input(CastLikeInput::Like)).dtype);
  context.replace_output(0, context.add("Cast", "", {context.input(CastLikeInput::X)}, 1, {{"to", to}})[0]);
}

// The type that a model's file states for an operand. A number with a fraction would lose it, so that it stays what it
// is, and the operator that reads it says what it expects.
DataType stated_type(DataType given, const Node& node) {
  const DataType stated = cast_type(node);
  return is_floating(given) && stated != DataType::Bool ? given : stated;
}

Op as_stated() {
  return {.domain = "arbalest",
          .name = "AsStated",
          .doc = "an operand of a model's call, as whole numbers or flags of the type that the model's file states",
          .inputs = {{.name = "input"}},
          .outputs = {{.name = "output"}},
          .attributes = {required_spec("to", AttributeKind::Int, "the stated type's number in ONNX")},
          .internal = true,
          .layout = std::nullopt,
          .infer =
              [](InferContext& c) {
                TensorType type = c.input(0);
                type.dtype = stated_type(type.dtype, c.node());
                c.set_output(0, type);
              },
          .expand =
              [](ExpandContext& c) {
                const DataType given = c.type(c.input(0)).dtype, stated = stated_type(given, c.node());
                const Attributes to = {{"to", onnx_number(stated)}};
                c.replace_output(0, given == stated ? c.input(0) : c.add("Cast", "", {c.input(0)}, 1, to)[0]);
              }};
}

// Between floating types a cast is the number itself, in the type of arithmetic.
template <typename T>
void copy_row(const void*, int64_t count, void* out, const void* const* in, int) {
  std::memcpy(out, in[0], size_t(count) * sizeof(T));
}

}  // namespace

void register_math_cast(OpRegistry& registry) {
  // Attributes for rounding to 8-bit floating types, which are not supported here.
  const std::vector<AttributeSpec> rounding = {int_spec("saturate", 1, "of 8-bit floating types only"),
                                               string_spec("round_mode", "up", "of 8-bit floating types only")};
  Op cast{.domain = "",
          .name = "Cast",
          .doc = "input with elements of another type: rounded to the nearest even, as integers cut off towards 0",
          .inputs = {{.name = "input"}},
          .outputs = {{.name = "output"}},
          .attributes = {required_spec("to", AttributeKind::Int, "the type's number in ONNX: 1 is float, 7 int64")},
          .layout = std::nullopt,
          .infer = infer_cast,
          .grad = grad_cast,
          .expand = [](ExpandContext& context) { context.replace_output(0, context.input(0)); },
          .expands = [](const InferContext& context) { return context.input(0).dtype == cast_type(context.node()); },
          .cost = elementwise_cost(0),
          .samples = cast_samples,
          .cpu = cast_cpu<false>,
          .element =
              ElementFunction{.text = "x", .arguments = {"x"}, .floats = copy_row<float>, .doubles = copy_row<double>},
          .arithmetic = Arithmetic::Keeps};
  cast.attributes.insert(cast.attributes.end(), rounding.begin(), rounding.end());
  registry.add(std::move(cast));
  registry.add(
      {.domain = "arbalest",
       .name = "CastToNearest",
       .doc = "Cast, but whole numbers that the type cannot hold become its nearest instead of wrapping around",
       .inputs = {{.name = "input"}},
       .outputs = {{.name = "output"}},
       .attributes = {required_spec("to", AttributeKind::Int, "the type's number in ONNX")},
       .internal = true,
       .layout = std::nullopt,
       .infer = infer_cast,
       .cost = elementwise_cost(0),
       .samples = nearest_samples,
       .cpu = cast_cpu<true>});
  registry.add(as_stated());
  registry.add({.domain = "",
                .name = "CastLike",
                .doc = "input with elements of the type of target_type",
                .inputs = {{.name = "input"}, {.name = "target_type"}},
                .outputs = {{.name = "output"}},
                .attributes = rounding,
                .layout = std::nullopt,
                .infer =
                    [](InferContext& c) {
                      TensorType type = c.input(0);
                      type.dtype = c.input(CastLikeInput::Like).dtype;
                      c.set_output(0, type);
                    },
                .content = content_of_cast_like,
                .expand = expand_cast_like});
}

}  // namespace arbalest
