// SPDX-License-Identifier: Apache-2.0

// Elementwise operators, beyond what samples express: integers at their limits, NaN, casts out of range, expansions,
// the elements that Dropout drops.

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "ops/builtin_ops.h"
#include "ops/check/harness.h"
#include "passes/passes.h"
#include "tests/ops/vectors/run_graph.h"

using namespace arbalest;
using namespace arbalest::test;

namespace elementwise_test {
namespace {

using Numbers = std::vector<double>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

Tensor tensor(DataType type, const Numbers& values) {
  return make_tensor({type, {int64_t(values.size())}}, values);
}

std::vector<Tensor> run(const char* name, const std::vector<Tensor>& inputs, const Attributes& attributes = {},
                        int outputs = 1, const StepScalars& scalars = {}) {
  std::vector<TensorType> types;
  for (const Tensor& input : inputs) types.push_back(input.type);
  const Case test(builtin_ops().get(name), types, outputs, attributes, "drop");
  const auto device = make_cpu_device();
  Outcome outcome = run_kernel(*device, test.get(), test.output_types(), inputs, {.scalars = scalars});
  CHECK(outcome.fault == "");
  return std::move(outcome.outputs);
}

Numbers values(const char* name, const std::vector<Tensor>& inputs, const Attributes& attributes = {}) {
  return values_of(run(name, inputs, attributes)[0]);
}

Numbers of_integers(const char* name, DataType type, const Numbers& a, const Numbers& b,
                    const Attributes& attributes = {}) {
  return values(name, {tensor(type, a), tensor(type, b)}, attributes);
}

Numbers cast(DataType from, DataType to, const Numbers& x) {
  return values("Cast", {tensor(from, x)}, {{"to", onnx_number(to)}});
}

std::string refusal(const char* name, const std::vector<TensorType>& inputs, const Attributes& attributes = {}) {
  try {
    const Case test(builtin_ops().get(name), inputs, 1, attributes);
  } catch (const GraphError& error) {
    return error.what();
  }
  return "";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The graph of one node and its result, with layers expanded.
Numbers run_expanded(const char* name, const std::vector<Tensor>& inputs, const Attributes& attributes = {}) {
  std::vector<TensorType> types;
  std::map<std::string, Logical> given;
  for (const Tensor& input : inputs) {
    given["input_" + std::to_string(types.size())] = {input.type, values_of(input)};
    types.push_back(input.type);
  }
  Case test(builtin_ops().get(name), types, 1, attributes);
  test.graph.outputs = test.get().outputs;
  make_runnable(test.graph);
  const auto device = make_cpu_device();
  const auto found = run_graph(*device, test.graph, given);
  return found.at(test.graph.values[test.graph.outputs[0]].name).values;
}

}  // namespace

TEST_CASE("CastToNearest takes the nearest number of the type, where Cast wraps around") {
  using enum DataType;
  const Numbers far = {-4294967295.0, -2147483649.0, -2147483648.0, -7, 2147483647.0, 2147483648.0, 4294967299.0};
  CHECK(values("arbalest.CastToNearest", {tensor(Int64, far)}, {{"to", onnx_number(Int32)}}) ==
        Numbers{-2147483648.0, -2147483648.0, -2147483648.0, -7, 2147483647.0, 2147483647.0, 2147483647.0});
  CHECK(values("arbalest.CastToNearest", {tensor(Int32, {-1, 0, 255, 256})}, {{"to", onnx_number(Uint8)}}) ==
        Numbers{0, 0, 255, 255});
  CHECK(cast(Int64, Int32, {4294967299.0}) == Numbers{3});
}

TEST_CASE("arithmetic of integers is defined for all of them: it wraps around, and dividing by 0 gives 0") {
  using enum DataType;
  const double least = -2147483648.0, most = 2147483647.0;
  CHECK(of_integers("Add", Int32, {most, -5}, {1, 3}) == Numbers{least, -2});
  CHECK(of_integers("Sub", Uint8, {3, 200}, {5, 100}) == Numbers{254, 100});
  CHECK(of_integers("Mul", Int32, {65536, -3}, {65536, 7}) == Numbers{0, -21});
  CHECK(of_integers("Div", Int32, {7, -7, 7, -7, 5, least}, {2, 2, -2, -2, 0, -1}) == Numbers{3, -3, -3, 3, 0, least});
  CHECK(of_integers("Mod", Int32, {7, -7, 7, -7, 5, least}, {3, 3, -3, -3, 0, -1}) == Numbers{1, 2, -2, -1, 0, 0});
  CHECK(of_integers("Mod", Int64, {7, -7, 7, -7, 5}, {3, 3, -3, -3, 0}, {{"fmod", int64_t{1}}}) ==
        Numbers{1, -1, 1, -1, 0});
  CHECK(of_integers("Pow", Int64, {3, -2, 2, -1, 1, 0, 7}, {4, 3, -1, -3, -5, -1, 0}) ==
        Numbers{81, -8, 0, -1, 1, 0, 1});
  CHECK(of_integers("Max", Int64, {-3, 4}, {2, -1}) == Numbers{2, 4});
  CHECK(values("Abs", {tensor(Int32, {least, -3, 4})}) == Numbers{least, 3, 4});
  CHECK(values("Neg", {tensor(Int64, {3, -4})}) == Numbers{-3, 4});
  CHECK(values("Sign", {tensor(Int64, {-9, 0, 5})}) == Numbers{-1, 0, 1});
  CHECK(values("Clip", {tensor(Int32, {-9, 0, 5})}, {{"min", -2.0}, {"max", 3.0}}) == Numbers{-2, 0, 3});
  CHECK(values("Clip", {tensor(Int64, {-9, 0, 5})}, {{"max", 3.0}}) == Numbers{-9, 0, 3});
  CHECK(
      has(refusal("Add", {{Bool, {2}}, {Bool, {2}}}), "input 'A' is bool[2]; expected float, double, bfloat16, int32"));
  CHECK(has(refusal("Add", {{Int64, {2}}, {Int32, {2}}}), "input 'B' is int32[2]; expected int64[2]"));
}

TEST_CASE("the remainder of floats has the sign of the divisor, or with fmod of the dividend") {
  const std::vector<Tensor> both = {tensor(DataType::Float32, {5.5, -5.5, 5.5, -6}),
                                    tensor(DataType::Float32, {2, 2, -2, 2})};
  CHECK(values("Mod", both) == Numbers{1.5, 0.5, -0.5, 0});
  CHECK(values("Mod", both, {{"fmod", int64_t{1}}}) == Numbers{1.5, -1.5, 1.5, 0});
  CHECK(has(refusal("Mod", {both[0].type, both[1].type}, {{"fmod", int64_t{2}}}), "'fmod' is 2; expected 0 or 1"));
}

TEST_CASE("comparisons with NaN are false, and infinities are kept apart") {
  const Tensor a = tensor(DataType::Float32, {1, kNan, kNan, -kInf, 2}),
               b = tensor(DataType::Float32, {1, 1, kNan, 0, 1});
  CHECK(values("Equal", {a, b}) == Numbers{1, 0, 0, 0, 0});
  CHECK(values("Less", {a, b}) == Numbers{0, 0, 0, 1, 0});
  CHECK(values("GreaterOrEqual", {a, b}) == Numbers{1, 0, 0, 0, 1});
  CHECK(values("IsNaN", {a}) == Numbers{0, 1, 1, 0, 0});
  CHECK(values("IsInf", {a}) == Numbers{0, 0, 0, 1, 0});
  CHECK(values("IsInf", {a}, {{"detect_negative", int64_t{0}}}) == Numbers{0, 0, 0, 0, 0});
  CHECK(values("Not", {tensor(DataType::Bool, {1, 0})}) == Numbers{0, 1});
  CHECK(has(refusal("And", {{DataType::Int64, {2}}, {DataType::Int64, {2}}}), "input 'A' is int64[2]; expected bool"));
  CHECK(has(refusal("Less", {{DataType::Bool, {2}}, {DataType::Bool, {2}}}), "input 'A' is bool[2]; expected float"));
}

TEST_CASE("Where takes what it does not choose for nothing, and says what its condition is") {
  const Tensor condition = tensor(DataType::Bool, {1, 0}), x = tensor(DataType::Float32, {1, kNan}),
               y = tensor(DataType::Float32, {kNan, 2});
  CHECK(values("Where", {condition, x, y}) == Numbers{1, 2});
  CHECK(values("arbalest.WhereGrad", {condition, x}, {{"branch", int64_t{1}}}) == Numbers{1, 0});
  CHECK(values("arbalest.WhereGrad", {condition, y}, {{"branch", int64_t{0}}}) == Numbers{0, 2});
  CHECK(has(refusal("Where", {x.type, x.type, y.type}), "input 'condition' is float[2]; expected bool"));
}

TEST_CASE("casts cut off fractions and keep to the range of the type") {
  using enum DataType;
  CHECK(cast(Float32, Int32, {1.9, -1.9, 3e9, -3e9, kNan, kInf}) ==
        Numbers{1, -1, 2147483647.0, -2147483648.0, 0, 2147483647.0});
  CHECK(cast(Float64, Uint8, {-1, 0.5, 254.9, 256}) == Numbers{0, 0, 254, 255});
  CHECK(cast(Float32, Bool, {0, -0.0, 0.25, kNan}) == Numbers{0, 0, 1, 1});
  CHECK(cast(Int64, Uint8, {257, -1}) == Numbers{1, 255});
  CHECK(cast(Bool, Int64, {0, 1}) == Numbers{0, 1});
  CHECK(cast(Bfloat16, Float64, {0.5, -3}) == Numbers{0.5, -3});
  CHECK(has(refusal("Cast", {{Float32, {2}}}, {{"to", int64_t{10}}}),
            "attribute 'to' is 10 (float16); expected one of 1 (float), 11 (double), 16 (bfloat16)"));
  CHECK(has(refusal("Cast", {{Float32, {2}}}, {{"to", int64_t{99}}}), "attribute 'to' is 99; expected"));
}

TEST_CASE("what flows back through a cast takes the type of its input; nothing does through integers") {
  for (const auto& [to, back] : {std::pair{DataType::Float64, true}, {DataType::Int32, false}}) {
    Case test(builtin_ops().get("Cast"), {{DataType::Float32, {3}}}, 1, {{"to", onnx_number(to)}});
    const ValueId dy = test.graph.add_value("dy", test.output_types()[0], Role::Input);
    const std::vector<ValueId> flows_back = {dy};
    const std::vector<bool> needed = {true};
    std::vector<ValueId> gradients(1, kNone);
    GradContext context(test.graph, test.node, flows_back, needed, gradients);
    test.get().op->grad(context);
    REQUIRE((gradients[0] != kNone) == back);
    if (back) CHECK(test.graph.values[gradients[0]].type.dtype == DataType::Float32);
  }
}

TEST_CASE("any number of inputs, and exponents of another type, become operators of two inputs") {
  const auto f = [](const Numbers& x) { return tensor(DataType::Float32, x); };
  CHECK(run_expanded("Max", {f({1, 5}), f({4, 2}), f({3})}) == Numbers{4, 5});
  CHECK(run_expanded("Min", {f({1, 5})}) == Numbers{1, 5});
  CHECK(run_expanded("Sum", {f({1}), f({4, 2}), f({3, 3}), f({1, 1})}) == Numbers{9, 7});
  CHECK(run_expanded("Mean", {f({1}), f({4, 2}), f({1, 0})}) == Numbers{2, 1});
  CHECK(run_expanded("Mean", {f({3, 4})}) == Numbers{3, 4});
  CHECK(run_expanded("Pow", {f({2, 3}), tensor(DataType::Int64, {3, 2})}) == Numbers{8, 9});
  CHECK(run_expanded("Pow", {tensor(DataType::Int32, {4, 9}), f({0.5, 0.5})}) == Numbers{2, 3});
  CHECK(run_expanded("CastLike", {f({1.5, -2.5}), tensor(DataType::Int32, {0})}) == Numbers{1, -2});
  CHECK(has(refusal("Sum", {{DataType::Float32, {2}}, {DataType::Float32, {2}}, {DataType::Float32, {3}}}),
            "input 2 ('data') is float[3]; expected a shape that broadcasts with those before it, (2)"));
  CHECK(has(refusal("PRelu", {{DataType::Float32, {3}}, {DataType::Float32, {2, 3}}}),
            "input 'slope' is float[2,3]; expected a shape that broadcasts to 'X', float[3]"));
}

TEST_CASE("Dropout drops the stated part, anew in each batch and epoch, and its gradient drops the same") {
  const int64_t count = 100001;
  const Tensor ones = make_tensor({DataType::Float32, {count}}, Numbers(size_t(count), 1.0));
  const Attributes training = {{"ratio", 0.25}, {"training_mode", int64_t{1}}};
  const auto kept = [&](const StepScalars& scalars, const Attributes& attributes) {
    return values_of(run("Dropout", {ones}, attributes, 1, scalars)[0]);
  };
  const StepScalars scalars{.seed = 5, .epoch = 2, .position = 64};
  const std::vector<Tensor> outputs = run("Dropout", {ones}, training, 2, scalars);
  const Numbers y = values_of(outputs[0]), mask = values_of(outputs[1]);
  double dropped = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    REQUIRE(y[i] == doctest::Approx(mask[i] / 0.75));
    dropped += mask[i] == 0;
  }
  CHECK(dropped / double(count) == doctest::Approx(0.25).epsilon(0.02));  // five deviations are 0.0068
  CHECK(kept(scalars, training) == y);
  for (const StepScalars& other :
       {StepScalars{.seed = 6, .epoch = 2, .position = 64}, StepScalars{.seed = 5, .epoch = 3, .position = 64},
        StepScalars{.seed = 5, .epoch = 2, .position = 65}}) {
    CHECK(kept(other, training) != y);
  }
  Attributes reseeded = training;
  reseeded.set("seed", int64_t{1});
  CHECK(kept(scalars, reseeded) != y);
  CHECK(values_of(run("arbalest.DropoutGrad", {ones}, {{"ratio", 0.25}, {"node", "drop"}}, 1, scalars)[0]) == y);
}

TEST_CASE("Dropout is Identity where nothing is dropped, with a mask that is all true where one is read") {
  const Op& dropout = builtin_ops().get("Dropout");
  const Tensor x = tensor(DataType::Float32, {1, -2, 3});
  CHECK(run_expanded("Dropout", {x}, {{"ratio", 0.5}}) == Numbers{1, -2, 3});
  const std::vector<Tensor> outputs = run("Dropout", {x}, {}, 2);
  CHECK(values_of(outputs[0]) == Numbers{1, -2, 3});
  CHECK(values_of(outputs[1]) == Numbers{1, 1, 1});
  for (const bool read : {false, true}) {
    Case test(dropout, {x.type}, 2, {{"ratio", 0.5}, {"training_mode", int64_t{1}}});
    if (read) test.graph.add_node(builtin_ops().get("Not"), "reader", {test.get().outputs[1]}, 1);
    dropout.for_inference(test.graph, test.node);
    infer(test.graph, test.node);
    CHECK(test.get().op->name == (read ? "Dropout" : "Identity"));
    if (read) CHECK(int_attribute(test.get(), "training_mode") == 0);
  }
  CHECK(has(refusal("Dropout", {x.type}, {{"ratio", 1.0}}), "'ratio' is 1; expected 0 to below 1"));
  CHECK(has(refusal("Dropout", {x.type}, {{"training_mode", int64_t{2}}}), "'training_mode' is 2; expected 0 or 1"));
}

TEST_CASE("StochasticDepth drops whole samples, anew in each batch, and its gradient drops the same") {
  const int64_t count = 20001, length = 3;
  const Tensor ones = make_tensor({DataType::Float32, {count, length}}, Numbers(size_t(count * length), 1.0));
  const StepScalars scalars{.seed = 5, .epoch = 2, .position = 64};
  const auto kept = [&](const StepScalars& at) {
    return values_of(run("arbalest.StochasticDepth", {ones}, {{"ratio", 0.2}}, 1, at)[0]);
  };
  const Numbers y = kept(scalars);
  double dropped = 0;
  for (int64_t sample = 0; sample < count; ++sample) {
    const double first = y[size_t(sample * length)];
    REQUIRE((first == 0 || first == doctest::Approx(1 / 0.8)));
    for (int64_t i = 1; i < length; ++i) REQUIRE(y[size_t(sample * length + i)] == first);
    dropped += first == 0;
  }
  CHECK(dropped / double(count) == doctest::Approx(0.2).epsilon(0.07));  // five deviations are 0.014
  CHECK(kept({.seed = 5, .epoch = 2, .position = 65}) != y);
  CHECK(kept({.seed = 5, .epoch = 3, .position = 64}) != y);
  const Attributes of_node = {{"ratio", 0.2}, {"node", "drop"}};
  CHECK(values_of(run("arbalest.StochasticDepthGrad", {ones}, of_node, 1, scalars)[0]) == y);

  Case test(builtin_ops().get("arbalest.StochasticDepth"), {ones.type}, 1, {{"ratio", 0.2}});
  test.get().op->for_inference(test.graph, test.node);
  infer(test.graph, test.node);
  CHECK(test.get().op->name == "Identity");
  CHECK(has(refusal("arbalest.StochasticDepth", {ones.type}, {{"ratio", 1.0}}),
            "attribute 'ratio' is 1; expected 0 to below 1"));
}

}  // namespace elementwise_test
