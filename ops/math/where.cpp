// SPDX-License-Identifier: Apache-2.0

// The operator Where: elements of one tensor or another, by a condition.

#include <fmt/format.h>

#include "ops/math/elementwise.h"
#include "ops/math/elementwise_cpu.h"
#include "ops/names.h"
#include "ops/words.h"

namespace arbalest {
namespace {

struct Choose {
  template <typename W>
  W operator()(bool condition, W x, W y) const {
    return condition ? x : y;
  }
};

struct Keep {
  bool branch;
  template <typename W>
  W operator()(bool condition, W x) const {
    return condition == branch ? x : W(0);
  }
};

// In regions, conditions are numbers like the others.
template <typename T>
void choose_row(const void*, int64_t count, void* out, const void* const* in, int) {
  const T *condition = static_cast<const T*>(in[0]), *x = static_cast<const T*>(in[1]),
          *y = static_cast<const T*>(in[2]);
  for (int64_t i = 0; i < count; ++i) static_cast<T*>(out)[i] = condition[i] != 0 ? x[i] : y[i];
}

template <typename T>
void keep_row(const void* numbers, int64_t count, void* out, const void* const* in, int) {
  const bool branch = *static_cast<const double*>(numbers) != 0;
  const T *condition = static_cast<const T*>(in[0]), *x = static_cast<const T*>(in[1]);
  for (int64_t i = 0; i < count; ++i) static_cast<T*>(out)[i] = (condition[i] != 0) == branch ? x[i] : T(0);
}

std::unique_ptr<Kernel> where_cpu(const KernelRequest& request) {
  using In = WhereInput;
  const int64_t count = request.outputs[0].elements();
  return with_word(request.outputs[0].dtype, [&](auto element) {
    using T = decltype(element);
    return make_kernel([walk = Strided(elementwise::walked_types(request)), count](const KernelContext& c) {
      map_strided(walk, count, Choose{}, output<T>(c, 0), input<bool>(c, In::Condition), input<T>(c, In::X),
                  input<T>(c, In::Y));
    });
  });
}

std::unique_ptr<Kernel> where_grad_cpu(const KernelRequest& request) {
  const int64_t count = request.outputs[0].elements();
  const Keep keep{int_attribute(request.node, "branch") != 0};
  return with_word(request.outputs[0].dtype, [&](auto element) {
    using T = decltype(element);
    return make_kernel([walk = Strided(elementwise::walked_types(request)), keep, count](const KernelContext& c) {
      map_strided(walk, count, keep, output<T>(c, 0), input<bool>(c, WhereGradInput::Condition),
                  input<T>(c, WhereGradInput::dY));
    });
  });
}

void expect_condition(const InferContext& context) {
  const TensorType& type = context.input(0);
  if (type.dtype != DataType::Bool) {
    context.fail(fmt::format("input 'condition' is {}; expected bool", to_string(type)));
  }
}

void infer_where(InferContext& context) {
  using In = WhereInput;
  expect_condition(context);
  const DataType dtype = context.input(In::X).dtype;
  expect_input(context, In::Y, {dtype, context.input(In::Y).shape}, "elements of the type of 'X'");
  context.set_output(0, elementwise::broadcast_type(context, {1, 2, 0}, dtype));
}

void infer_where_grad(InferContext& context) {
  expect_condition(context);
  flag_attribute(context.node(), "branch");
  const TensorType& dy = context.input(WhereGradInput::dY);
  if (elementwise::broadcast_shape(context, 1, 0) != dy.shape) {
    context.fail(fmt::format("input 'condition' is {}; expected a shape that broadcasts to 'dY', {}",
                             to_string(context.input(WhereGradInput::Condition)), to_string(dy)));
  }
  context.set_output(0, dy);
}

// The gradient goes to X where the condition is true and to Y where it is false.
void grad_where(GradContext& context) {
  for (size_t i = 1; i < 3; ++i) {
    if (!context.needs_gradient(i)) continue;
    const std::string operand = i == 1 ? "x" : "y";
    ValueId gradient = context.add("arbalest.WhereGrad", "grad_" + operand,
                                   {context.input(0), context.output_gradient(0)}, 1, {{"branch", int64_t(i == 1)}})[0];
    if (context.type(context.input(i)).shape != context.type(context.output(0)).shape) {
      gradient = context.add("arbalest.SumTo", "sum_" + operand, {gradient, context.input(i)}, 1)[0];
    }
    context.set_input_gradient(i, gradient);
  }
}

struct WhereShapes {
  Shape condition, x, y;
};

std::vector<Sample> where_samples() {
  std::vector<Sample> samples;
  const auto add = [&](const WhereShapes& s, DataType type) {
    samples.push_back(
        {.name = fmt::format("{} {}, {} and {}", name_of(type), to_string(s.condition), to_string(s.x), to_string(s.y)),
         .inputs = {{{DataType::Bool, s.condition}, 0, 1}, {{type, s.x}, 0, 100}, {{type, s.y}, 0, 100}},
         .tolerance = 0});
  };
  for (const WhereShapes& s : {WhereShapes{{3, 5}, {3, 5}, {3, 5}},
                               {{4, 32, 16, 16}, {4, 32, 16, 16}, {4, 32, 16, 16}},
                               {{2, 7, 5, 3}, {2, 7, 5, 3}, {}},
                               {{5, 1}, {1, 4}, {3, 1, 1}},
                               {{1, 1, 6, 6}, {2, 3, 6, 6}, {}},
                               {{2, 1, 5, 3}, {1, 7, 1, 1}, {2, 7, 5, 3}},
                               {{2, 0}, {1, 1}, {2, 0}}}) {
    add(s, DataType::Float32);
  }
  for (const DataType type : {DataType::Bool, DataType::Uint8, DataType::Int32, DataType::Int64}) {
    add({{3, 1}, {3, 5}, {5}}, type);
    if (type == DataType::Bool)
      samples.back().inputs[WhereInput::X].high = samples.back().inputs[WhereInput::Y].high = 1;
  }
  return samples;
}

std::vector<Sample> where_grad_samples() {
  std::vector<Sample> samples;
  for (const int64_t branch : {0, 1}) {
    for (const auto& [condition, dy] : {std::pair<Shape, Shape>{{3, 5}, {3, 5}},
                                        {{6, 6}, {2, 3, 6, 6}},
                                        {{2, 7, 5, 3}, {2, 7, 5, 3}},
                                        {{2, 1, 5, 1}, {2, 7, 5, 3}}}) {
      samples.push_back({.name = fmt::format("{} of {}, branch {}", to_string(condition), to_string(dy), branch),
                         .inputs = {{{DataType::Bool, condition}, 0, 1}, {{DataType::Float32, dy}}},
                         .attributes = {{"branch", branch}},
                         .tolerance = 0});
    }
  }
  return samples;
}

}  // namespace

void register_math_where(OpRegistry& registry) {
  registry.add({.domain = "",
                .name = "Where",
                .doc = "X where condition is true, else Y, broadcast",
                .inputs = {{.name = "condition"}, {.name = "X", .lowered = true}, {.name = "Y", .lowered = true}},
                .outputs = {{.name = "output", .lowered = true}},
                .layout = std::nullopt,
                .infer = infer_where,
                .grad = grad_where,
                .cost = elementwise_cost(0),
                .samples = where_samples,
                .cpu = where_cpu,
                .element = ElementFunction{.text = "condition != 0 ? x : y",
                                           .arguments = {"condition", "x", "y"},
                                           .floats = choose_row<float>,
                                           .doubles = choose_row<double>}});
  registry.add({.domain = "arbalest",
                .name = "WhereGrad",
                .doc = "the gradient of Where's X (branch 1) or Y (branch 0), before it is summed over broadcast axes",
                .inputs = {{.name = "condition"}, {.name = "dY", .lowered = true}},
                .outputs = {{.name = "dX", .lowered = true}},
                .attributes = {required_spec("branch", AttributeKind::Int, "1: X, 0: Y")},
                .internal = true,
                .layout = std::nullopt,
                .infer = infer_where_grad,
                .cost = elementwise_cost(0),
                .samples = where_grad_samples,
                .cpu = where_grad_cpu,
                .element = ElementFunction{.text = "(condition != 0) == (alpha != 0) ? dy : W(0)",
                                           .arguments = {"condition", "dy"},
                                           .floats = keep_row<float>,
                                           .doubles = keep_row<double>,
                                           .numbers = [](const Node& node) {
                                             return std::array{double(int_attribute(node, "branch")), 0.0};
                                           }}});
}

}  // namespace arbalest
