// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "ops/builtin_ops.h"
#include "ops/check/harness.h"

using namespace arbalest;

namespace attention_test {
namespace {

constexpr int64_t kSamples = 2, kHeads = 3, kRows = 9, kKeys = 40, kDepth = 16;

std::vector<double> noise(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(-1, 1);
  std::vector<double> values(static_cast<size_t>(count));
  for (double& value : values) value = uniform(random);
  return values;
}

// A mask of minus infinity, which hides a key, and 0. A row hides all keys before its own number, and each third key.
std::vector<double> mask() {
  std::vector<double> values;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t key = 0; key < kKeys; ++key) values.push_back(key < row || key % 3 == 0 ? -INFINITY : 0);
  }
  return values;
}

std::vector<test::Tensor> run(test::TestDevice& device, const char* name, const std::vector<test::Tensor>& inputs,
                              int outputs, const Attributes& attributes) {
  std::vector<TensorType> types;
  for (const test::Tensor& input : inputs) types.push_back(input.type);
  const test::Case made(builtin_ops().get(name), types, outputs, attributes);
  return test::run_kernel(device, made.get(), made.output_types(), inputs, {}).outputs;
}

// Outputs of the operator, then its gradients.
std::vector<test::Tensor> attend(test::TestDevice& device, DataType type) {
  const DataType wide = type == DataType::Float64 ? type : DataType::Float32;
  const Attributes attributes = {{"head_axes", std::vector<int64_t>{1, 1, 1, 1}}, {"scale", 0.25}};
  const auto rows = [&](int64_t count, unsigned seed) {
    const test::Tensor drawn = test::make_tensor({DataType::Bfloat16, {kSamples, kHeads, count, kDepth}},
                                                 noise(kSamples * kHeads * count * kDepth, seed));
    return test::converted(drawn, type);
  };
  const test::Tensor q = rows(kRows, 1), k = rows(kKeys, 2), v = rows(kKeys, 3), dy = rows(kRows, 4);
  const test::Tensor bias = test::make_tensor({type, {kRows, kKeys}}, mask());
  std::vector<test::Tensor> all = run(device, "arbalest.Attention", {q, k, v, bias}, 2, attributes);
  REQUIRE(all[1].type.dtype == wide);
  const std::vector<test::Tensor> inputs = {q, k, v, all[0], all[1], dy, bias};
  for (test::Tensor& each : run(device, "arbalest.AttentionGrad", inputs, 4, attributes))
    all.push_back(std::move(each));
  return all;
}

void check_masked(test::TestDevice& device, DataType type, double tolerance) {
  const auto cpu = test::make_cpu_device();
  const std::vector<test::Tensor> found = attend(device, type), expected = attend(*cpu, DataType::Float64);
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    CHECK(test::relative_error(found[i], expected[i]) <= tolerance);
  }
  const std::vector<double> hidden = mask(), gradient = test::values_of(found.back());
  for (size_t i = 0; i < hidden.size(); ++i) {
    if (hidden[i] < 0) CHECK(gradient[i] == 0);
  }
}

// Outputs and gradients with a mask that hides all keys after each row, as a bias and as one that may be left unread.
void check_causal(test::TestDevice& device, DataType type, double tolerance) {
  constexpr int64_t kSquare = 96;
  std::vector<double> hidden;
  for (int64_t i = 0; i < kSquare * kSquare; ++i) hidden.push_back(i % kSquare > i / kSquare ? -1e30 : 0);
  const auto attend_rows = [&](test::TestDevice& on, DataType as, int64_t causal) {
    const Attributes attributes = {
        {"head_axes", std::vector<int64_t>{1, 1, 1, 1}}, {"scale", 0.25}, {"causal", causal}};
    std::vector<test::Tensor> inputs;
    for (const unsigned seed : {1, 2, 3, 4}) {
      const test::Tensor drawn = test::make_tensor({DataType::Bfloat16, {kSamples, kHeads, kSquare, kDepth}},
                                                   noise(kSamples * kHeads * kSquare * kDepth, seed));
      inputs.push_back(test::converted(drawn, as));
    }
    const test::Tensor dy = inputs[3], bias = test::make_tensor({as, {kSquare, kSquare}}, hidden);
    inputs[3] = bias;
    std::vector<test::Tensor> all = run(on, "arbalest.Attention", inputs, 2, attributes);
    const std::vector<test::Tensor> given = {inputs[0], inputs[1], inputs[2], all[0], all[1], dy, bias};
    for (test::Tensor& each : run(on, "arbalest.AttentionGrad", given, 3, attributes)) all.push_back(std::move(each));
    return all;
  };
  const auto cpu = test::make_cpu_device();
  const std::vector<test::Tensor> expected = attend_rows(*cpu, DataType::Float64, 0);
  for (const int64_t causal : {0, 1}) {
    const std::vector<test::Tensor> found = attend_rows(device, type, causal);
    for (size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(i);
      CAPTURE(causal);
      CHECK(test::relative_error(found[i], expected[i]) <= tolerance);
    }
  }
}

// The numbers of (samples, rows, heads, depth) for part 0, 1 or 2 of rows of three, drawn at random.
std::vector<double> part(const std::vector<double>& packed, int64_t i) {
  constexpr int64_t kPart = kHeads * kDepth;
  std::vector<double> values;
  for (int64_t row = 0; row < kSamples * kRows; ++row) {
    const auto begin = packed.begin() + (3 * row + i) * kPart;
    values.insert(values.end(), begin, begin + kPart);
  }
  return values;
}

// Both forms of the operator, and of its gradient, on the same numbers.
void check_packed(test::TestDevice& device, DataType type, double tolerance) {
  const Attributes apart = {{"head_axes", std::vector<int64_t>{2, 2, 2, 2}}, {"scale", 0.25}};
  const Attributes packed = {{"heads", kHeads}, {"head_axis", int64_t{2}}, {"scale", 0.25}};
  const TensorType rows{type, {kSamples, kRows, kHeads, kDepth}};
  const test::Tensor qkv = test::make_tensor({type, {kSamples, kRows, 3 * kHeads * kDepth}},
                                             noise(kSamples * kRows * 3 * kHeads * kDepth, 1)),
                     dy = test::make_tensor(rows, noise(rows.elements(), 2)),
                     bias = test::make_tensor({type, {kHeads, kRows, kRows}}, noise(kHeads * kRows * kRows, 3));
  std::vector<test::Tensor> parts;
  for (int64_t i = 0; i < 3; ++i) parts.push_back(test::make_tensor(rows, part(test::values_of(qkv), i)));

  const auto found = run(device, "arbalest.PackedAttention", {qkv, bias}, 2, packed),
             expected = run(device, "arbalest.Attention", {parts[0], parts[1], parts[2], bias}, 2, apart);
  for (size_t i = 0; i < 2; ++i) CHECK(test::relative_error(found[i], expected[i]) <= tolerance);
  const test::Tensor &y = expected[0], &statistics = expected[1];
  const auto gradients = run(device, "arbalest.PackedAttentionGrad", {qkv, y, statistics, dy, bias}, 2, packed),
             of_parts = run(device, "arbalest.AttentionGrad", {parts[0], parts[1], parts[2], y, statistics, dy, bias},
                            4, apart);
  for (int64_t i = 0; i < 3; ++i) {
    CAPTURE(i);
    const test::Tensor gradient = test::make_tensor(rows, part(test::values_of(gradients[0]), i));
    CHECK(test::relative_error(gradient, of_parts[size_t(i)]) <= tolerance);
  }
  CHECK(test::relative_error(gradients[1], of_parts[3]) <= tolerance);
}

}  // namespace

TEST_CASE("keys that a mask hides by minus infinity have no part in attention") {
  const auto cpu = test::make_cpu_device();
  check_masked(*cpu, DataType::Float32, 1e-5);
  check_causal(*cpu, DataType::Float32, 1e-5);
  std::string why_not;
  const auto cuda = test::make_cuda_device(why_not);
  if (!cuda) {
    MESSAGE("SKIP: on CUDA: ", why_not);
    return;
  }
  check_masked(*cuda, DataType::Float32, 1e-5);
  check_masked(*cuda, DataType::Bfloat16, 1e-2);
  check_causal(*cuda, DataType::Float32, 1e-5);
  check_causal(*cuda, DataType::Bfloat16, 1e-2);
}

TEST_CASE("attention of packed operands is that of operands apart") {
  const auto cpu = test::make_cpu_device();
  check_packed(*cpu, DataType::Float64, 0);
  std::string why_not;
  const auto cuda = test::make_cuda_device(why_not);
  if (!cuda) {
    MESSAGE("SKIP: on CUDA: ", why_not);
    return;
  }
  check_packed(*cuda, DataType::Float32, 1e-6);
  check_packed(*cuda, DataType::Bfloat16, 1e-2);
}

TEST_CASE("faults of packed operands of attention are reported") {
  const auto fault = [](const Shape& shape, int64_t heads, int64_t head_axis) {
    const Attributes attributes = {{"heads", heads}, {"head_axis", head_axis}};
    try {
      test::Case(builtin_ops().get("arbalest.PackedAttention"), {{DataType::Float32, shape}}, 2, attributes);
    } catch (const GraphError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto tells = [](const std::string& message, const char* text) {
    INFO(message);
    CHECK(message.find(text) != std::string::npos);
  };
  CHECK(fault({2, 9, 48}, 2, 1).empty());
  tells(fault({2, 9, 48}, 3, 1), "input 'QKV' is float[2,9,48]; expected rows of Q, K and V, each of 3 heads");
  tells(fault({2, 9, 47}, 1, 1), "input 'QKV' is float[2,9,47]; expected rows of Q, K and V, each of 1 heads");
  tells(fault({2, 9, 48}, 0, 1), "attribute 'heads' is 0; expected at least 1");
  tells(fault({2, 9, 48}, 2, 3), "attribute 'head_axis' is 3; expected 1 or 2");
}

}  // namespace attention_test
