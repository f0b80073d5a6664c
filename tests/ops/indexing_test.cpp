// SPDX-License-Identifier: Apache-2.0

// Operators that take, put and find elements by index, and their neighbours of the same models: what samples and ONNX's
// vectors cannot say.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "ops/builtin_ops.h"
#include "ops/check/harness.h"

using namespace arbalest;
using namespace arbalest::test;

namespace indexing_test {
namespace {

using Numbers = std::vector<double>;
using Ints = std::vector<int64_t>;

TensorType type(Shape shape, DataType dtype = DataType::Float32) {
  return {dtype, std::move(shape)};
}
TensorType indices(Shape shape) {
  return type(std::move(shape), DataType::Int64);
}

// Runs an operator on the CPU; returns its outputs' values.
std::vector<Numbers> run(const char* name, const std::vector<Tensor>& inputs, int outputs,
                         const Attributes& attributes = {}) {
  std::vector<TensorType> types;
  for (const Tensor& tensor : inputs) types.push_back(tensor.type);
  const Case test(builtin_ops().get(name), types, outputs, attributes);
  const auto device = make_cpu_device();
  const Outcome outcome = run_kernel(*device, test.get(), test.output_types(), inputs, {});
  CHECK(outcome.fault == "");
  std::vector<Numbers> values;
  for (const Tensor& tensor : outcome.outputs) values.push_back(values_of(tensor));
  return values;
}

// The message with which inference, or the kernel, refuses.
template <typename F>
std::string message_of(const F& f) {
  try {
    f();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "accepted";
}

std::string refusal(const char* op, const std::vector<TensorType>& inputs, const Attributes& attributes = {}) {
  return message_of([&] { Case(builtin_ops().get(op), inputs, 1, attributes, "h1"); });
}

void check(const std::string& message, const std::vector<std::string>& parts) {
  INFO(message);
  for (const std::string& part : parts) {
    INFO("expected: ", part);
    CHECK(message.find(part) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("indices that do not fit the data are refused") {
  const TensorType data = type({4, 3, 2});
  check(refusal("GatherElements", {data, type({4, 3, 2})}), {"'h1'", "'indices' is float[4,3,2]", "int32 or int64"});
  check(refusal("GatherElements", {data, indices({4, 3})}), {"'indices' is int64[4,3]", "the rank", "float[4,3,2]"});
  check(refusal("GatherElements", {data, indices({9, 4, 2})}), {"'indices' is int64[9,4,2]", "but for axis 0"});
  CHECK(refusal("GatherElements", {data, indices({9, 3, 1})}) == "accepted");
  check(refusal("GatherElements", {data, indices({4, 3, 2})}, {{"axis", int64_t{3}}}), {"'axis' is 3", "-3 to 2"});
  check(refusal("GatherND", {data, indices({5, 4})}), {"'indices' is int64[5,4]", "a last axis of 1 to 3"});
  check(refusal("GatherND", {data, indices({5, 0})}), {"a last axis of 1 to 3"});
  check(refusal("GatherND", {data, indices({5, 1})}, {{"batch_dims", int64_t{1}}}),
        {"'indices' is int64[5,1]", "the first 1 extents of input 'data', float[4,3,2]"});
  check(refusal("GatherND", {data, indices({4, 1})}, {{"batch_dims", int64_t{2}}}), {"the 2 of batches"});
  check(refusal("ScatterND", {data, indices({5, 2}), type({5, 3})}), {"'updates' is float[5,3]", "float[5,2]"});
  check(refusal("ScatterND", {data, indices({5, 1}), type({5, 3, 2}, DataType::Int64)}), {"float[5,3,2]"});
  check(refusal("ScatterElements", {data, indices({1, 2, 2}), type({1, 2, 1})}), {"'updates'", "float[1,2,2]"});
  const TensorType flags = type({3}, DataType::Bool);
  check(refusal("ScatterND", {flags, indices({2, 1}), type({2}, DataType::Bool)}, {{"reduction", std::string("max")}}),
        {"'data' is bool[3]", "expected float"});
}

TEST_CASE("operands of TopK, OneHot, CumSum, Trilu and LRN that do not fit are refused") {
  const TensorType x = type({4, 3});
  check(refusal("TopK", {x}), {"'h1'", "'K' is []", "one number"});
  check(refusal("TopK", {x}, {{"K", Ints{4}}}), {"'K' is 4", "0 to 3", "float[4,3], along axis 1"});
  check(refusal("TopK", {type({3}, DataType::Bool)}, {{"K", Ints{1}}}), {"'X' is bool[3]"});
  check(refusal("TopK", {x}, {{"K", Ints{1}}, {"axis", int64_t{2}}}), {"'axis' is 2", "-2 to 1"});
  const TensorType left_out{DataType::Token, {}}, values = type({2});
  const auto one_hot = [&](const TensorType& given, double depth, int64_t axis) {
    return refusal("OneHot", {indices({4}), left_out, given}, {{"depth", depth}, {"axis", axis}});
  };
  check(one_hot(values, 0, -1), {"'depth' is 0", "1 or more"});
  check(one_hot(values, std::nan(""), -1), {"'depth' is nan"});
  check(one_hot(values, 3, 2), {"'axis' is 2", "-2 to 1"});
  check(one_hot(type({3}), 3, -1), {"'values' is float[3]", "float[2]"});
  check(refusal("CumSum", {type({3}, DataType::Uint8)}, {{"axis", int64_t{0}}}), {"'x' is uint8[3]", "int32 or int64"});
  check(refusal("CumSum", {x}, {{"axis", int64_t{-3}}}), {"'axis' is -3", "-2 to 1"});
  check(refusal("Trilu", {type({3})}), {"'input' is float[3]", "a rank of 2 or more"});
  check(refusal("LRN", {x}, {{"size", int64_t{0}}}), {"'size' is 0", "at least 1"});
  check(refusal("LRN", {type({3})}, {{"size", int64_t{1}}}), {"'X' is float[3]", "(N, C, …)"});
}

TEST_CASE("an index out of range is an error on the CPU, and names its place") {
  const Tensor data = make_tensor(type({2, 3}), {1, 2, 3, 4, 5, 6});
  const Tensor updates = make_tensor(type({2}), {7, 8});
  const auto fault = [&](const char* op, const Numbers& values, Shape shape, const Attributes& attributes,
                         const std::vector<Tensor>& rest) {
    std::vector<Tensor> inputs = {data, make_tensor(indices(std::move(shape)), values)};
    inputs.insert(inputs.end(), rest.begin(), rest.end());
    return message_of([&] { run(op, inputs, 1, attributes); });
  };
  check(fault("GatherElements", {0, 2}, {2, 1}, {{"axis", int64_t{0}}}, {}),
        {"(GatherElements): index 1 of 'indices' is 2; expected -2 to 1"});
  check(fault("GatherND", {0, 0, 1, -4}, {2, 2}, {}, {}), {"index 3 of 'indices' is -4; expected -3 to 2"});
  check(fault("ScatterND", {1, 3, 0, 0}, {2, 2}, {}, {updates}), {"index 1 of 'indices' is 3; expected -3 to 2"});
  check(fault("ScatterElements", {0, 5}, {1, 2}, {{"axis", int64_t{1}}}, {make_tensor(type({1, 2}), {7, 8})}),
        {"index 1 of 'indices' is 5; expected -3 to 2"});
}

TEST_CASE("of several updates in one place the last stays on the CPU, and a NaN stays whatever the reduction") {
  const Tensor data = make_tensor(type({3}), {1, 2, 3}), places = make_tensor(indices({3}), {1, 0, -2});
  const Tensor updates = make_tensor(type({3}), {7, 8, 9});
  CHECK(run("ScatterElements", {data, places, updates}, 1)[0] == Numbers{8, 9, 3});
  CHECK(run("ScatterElements", {data, places, updates}, 1, {{"reduction", std::string("mul")}})[0] ==
        Numbers{8, 126, 3});
  const double nan = std::nan("");
  for (const char* reduction : {"max", "min", "add", "mul"}) {
    const Tensor odd = make_tensor(type({3}), {nan, 1, 5});
    const Numbers y = run("ScatterElements", {data, places, odd}, 1, {{"reduction", std::string(reduction)}})[0];
    CHECK(std::isnan(y[1]));
    CHECK(y[2] == 3);
  }
}

TEST_CASE("TopK takes a NaN for the greatest, and older opsets' attribute k") {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  const Tensor x = make_tensor(type({6}), {1, nan, infinity, -infinity, nan, 2});
  const auto indices_of = [&](Attributes attributes) { return run("TopK", {x}, 2, attributes)[1]; };
  CHECK(indices_of({{"K", Ints{4}}}) == Numbers{1, 4, 2, 5});
  CHECK(indices_of({{"K", Ints{6}}, {"largest", int64_t{0}}}) == Numbers{3, 0, 5, 2, 1, 4});
  CHECK(indices_of({{"k", int64_t{3}}}) == Numbers{1, 4, 2});
}

TEST_CASE("sums of integers wrap around") {
  const double most = double(std::numeric_limits<int32_t>::max()), least = double(std::numeric_limits<int32_t>::min());
  const Tensor x = make_tensor(type({3}, DataType::Int32), {most, 1, 1});
  CHECK(run("CumSum", {x}, 1, {{"axis", int64_t{0}}})[0] == Numbers{most, least, least + 1});
}

}  // namespace indexing_test
