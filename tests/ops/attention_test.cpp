#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "ops/check/harness.h"

using namespace arbalest;

namespace {

constexpr int64_t kSamples = 2, kHeads = 3, kRows = 9, kKeys = 40, kDepth = 16;

std::vector<double> noise(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(-1, 1);
  std::vector<double> values(static_cast<size_t>(count));
  for (double& value : values) value = uniform(random);
  return values;
}

// Hides a key by minus infinity or adds nothing: of each row all keys before its own number, and each third.
std::vector<double> mask() {
  std::vector<double> values;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t key = 0; key < kKeys; ++key) values.push_back(key < row || key % 3 == 0 ? -INFINITY : 0);
  }
  return values;
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
  const auto run = [&](const char* name, const std::vector<test::Tensor>& inputs, int outputs) {
    const Op& op = builtin_ops().get(name);
    std::vector<TensorType> types;
    for (const test::Tensor& input : inputs) types.push_back(input.type);
    const test::Case made(op, types, outputs, attributes);
    std::vector<TensorType> output_types = made.output_types();
    return test::run_kernel(device, made.get(), output_types, inputs, {}).outputs;
  };
  const test::Tensor q = rows(kRows, 1), k = rows(kKeys, 2), v = rows(kKeys, 3), dy = rows(kRows, 4);
  const test::Tensor bias = test::make_tensor({type, {kRows, kKeys}}, mask());
  std::vector<test::Tensor> all = run("arbalest.Attention", {q, k, v, bias}, 2);
  REQUIRE(all[1].type.dtype == wide);
  for (test::Tensor& each : run("arbalest.AttentionGrad", {q, k, v, all[0], all[1], dy, bias}, 4))
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

}  // namespace

TEST_CASE("keys that a mask hides by minus infinity have no part in attention") {
  const auto cpu = test::make_cpu_device();
  check_masked(*cpu, DataType::Float32, 1e-5);
  std::string why_not;
  const auto cuda = test::make_cuda_device(why_not);
  if (!cuda) {
    MESSAGE("SKIP: on CUDA: ", why_not);
    return;
  }
  check_masked(*cuda, DataType::Float32, 1e-5);
  check_masked(*cuda, DataType::Bfloat16, 1e-2);
}
