// SPDX-License-Identifier: Apache-2.0

// Relu within convolutions, beyond what their samples express.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "ops/builtin_ops.h"
#include "ops/check/harness.h"

using namespace arbalest;
using namespace arbalest::test;

namespace relu_test {
namespace {

Sample::Input drawn(const Shape& shape) {
  return {{DataType::Float32, shape}};
}

// Checks that a NaN in one element of `operand` reaches the result, and that other elements of the result are at least
// 0.
void check_nan(TestDevice& device, const char* name, const Sample& sample, size_t operand) {
  const Op& op = builtin_ops().get(name);
  for (const DataType type : {DataType::Float32, DataType::Bfloat16}) {
    for (const bool deterministic : {false, true}) {
      INFO(fmt::format("{}, {}, {}{}: NaN in input {}", name, sample.name, name_of(type),
                       deterministic ? ", deterministic" : "", operand));
      std::vector<Tensor> inputs = draw_inputs(op, sample, type, 1);
      std::vector<double> values = values_of(inputs[operand]);
      values[values.size() / 2] = std::numeric_limits<double>::quiet_NaN();
      inputs[operand] = make_tensor(inputs[operand].type, values);
      std::vector<TensorType> types;
      for (const Tensor& input : inputs) types.push_back(input.type);
      const Case test(op, types, 1, sample.attributes);
      const Outcome outcome =
          run_kernel(device, test.get(), test.output_types(), inputs, {.deterministic = deterministic});
      REQUIRE(outcome.fault == "");
      int64_t undefined = 0, positive = 0, negative = 0;
      for (const double y : values_of(outcome.outputs[0])) {
        undefined += int64_t(std::isnan(y));
        positive += int64_t(y > 0);
        negative += int64_t(y < 0);
      }
      CHECK(undefined > 0);
      CHECK(positive > 0);
      CHECK(negative == 0);
    }
  }
}

struct Convolution {
  const char* name;
  Shape x, w;
  Attributes attributes;
};

void check_convolution(TestDevice& device, const Convolution& c) {
  const Sample plain{.name = c.name, .inputs = {drawn(c.x), drawn(c.w)}, .attributes = c.attributes};
  Sample biased = plain;
  biased.inputs.push_back(drawn({c.w[0]}));
  check_nan(device, "arbalest.ConvRelu", plain, 0);
  check_nan(device, "arbalest.ConvRelu", biased, 0);
  check_nan(device, "arbalest.ConvRelu", biased, 2);
}

const Attributes kPadded{{"pads", std::vector<int64_t>{1, 1, 1, 1}}};

void check_device(TestDevice& device) {
  for (const Convolution& c :
       {Convolution{"16 channels", {2, 16, 12, 12}, {16, 16, 3, 3}, kPadded},
        Convolution{"3 channels", {2, 3, 12, 12}, {24, 3, 3, 3}, kPadded},
        Convolution{"13 channels", {2, 13, 9, 7}, {11, 13, 3, 3}, kPadded},
        Convolution{"depthwise", {2, 16, 9, 9}, {16, 1, 3, 3}, {{"group", int64_t{16}}}},
        Convolution{"1-D", {2, 8, 30}, {16, 8, 3}, {}}, Convolution{"3-D", {2, 8, 6, 6, 6}, {8, 8, 3, 3, 3}, {}}}) {
    check_convolution(device, c);
  }
}

}  // namespace

TEST_CASE("Relu within convolutions lets NaN through: a loss of NaN is how a run is seen to diverge") {
  check_device(*make_cpu_device());
}

TEST_CASE("Relu within convolutions on a CUDA device lets NaN through") {
  std::string why_not;
  const auto device = make_cuda_device(why_not);
  if (!device) {
    MESSAGE("SKIP: " << why_not);
    return;
  }
  check_device(*device);
  // Enough for Hopper's kernel for 3 × 3, which deterministic runs take then by rule.
  check_convolution(*device, {"many channels and pixels", {64, 64, 28, 28}, {128, 64, 3, 3}, kPadded});
}

}  // namespace relu_test
