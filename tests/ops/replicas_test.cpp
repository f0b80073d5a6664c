// SPDX-License-Identifier: Apache-2.0

// The operators that learners agree by, where samples do not reach: outputs in the memory of inputs, arrays that are
// not aligned, operands left out, and what each is for.

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "ops/builtin_ops.h"
#include "ops/check/harness.h"

using namespace arbalest;
using namespace arbalest::test;

namespace replicas_test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Tensor floats(const std::vector<double>& values) {
  return make_tensor({DataType::Float32, {int64_t(values.size())}}, values);
}
Tensor doubles(const std::vector<double>& values) {
  return make_tensor({DataType::Float64, {int64_t(values.size())}}, values);
}

std::vector<TensorType> types_of(const std::vector<Tensor>& tensors) {
  std::vector<TensorType> types;
  for (const Tensor& tensor : tensors) types.push_back(tensor.type);
  return types;
}

// f(device) on the CPU, and on a GPU if there is one.
template <typename F>
void on_each_device(const F& f) {
  {
    INFO("on the CPU");
    f(*make_cpu_device());
  }
  std::string why_not;
  if (const auto device = make_cuda_device(why_not)) {
    INFO("on a GPU");
    f(*device);
  }
}

struct Placement {
  std::vector<int> in_place;     // for each output the input whose memory it is, or −1
  size_t offset = 0;             // elements from an aligned address to each array
  std::vector<size_t> left_out;  // outputs not asked for
};

// Runs an operator; outputs with memory of their own hold NaN before. Those left out come back empty.
std::vector<Tensor> run(TestDevice& device, const char* name, const std::vector<Tensor>& inputs,
                        const Attributes& attributes, const Placement& placement, const StepScalars& scalars = {}) {
  Case test(builtin_ops().get(name), types_of(inputs), int(placement.in_place.size()), attributes);
  std::vector<TensorType> output_types = test.output_types();
  for (const size_t output : placement.left_out) {
    test.graph.nodes[test.node].outputs[output] = kNone;
    output_types[output] = {DataType::Token, {}};
  }
  const auto kernel = device.factory(*test.get().op)(
      {.node = test.get(), .inputs = types_of(inputs), .outputs = output_types, .device = device.context()});

  std::vector<void*> memory, in, out;
  const auto place = [&](const TensorType& type, const std::vector<std::byte>& content) {
    const size_t offset = placement.offset * size_of(type.dtype);
    memory.push_back(device.allocate(offset + content.size() + 1));
    void* array = static_cast<std::byte*>(memory.back()) + offset;
    device.upload(array, content.data(), content.size());
    return array;
  };
  for (const Tensor& input : inputs) in.push_back(place(input.type, input.bytes));
  for (size_t i = 0; i < output_types.size(); ++i) {
    const std::vector<std::byte> poison(size_t(output_types[i].bytes()), std::byte{0xff});
    const int shared = placement.in_place[i];
    const bool none = output_types[i].dtype == DataType::Token;
    out.push_back(none ? nullptr : shared >= 0 ? in[size_t(shared)] : place(output_types[i], poison));
  }
  memory.push_back(device.allocate(sizeof(StepScalars)));
  device.upload(memory.back(), &scalars, sizeof(StepScalars));
  device.run(*kernel, {.stream = device.stream(),
                       .inputs = in.data(),
                       .outputs = out.data(),
                       .scalars = static_cast<const StepScalars*>(memory.back())});

  std::vector<Tensor> outputs;
  for (size_t i = 0; i < out.size(); ++i) {
    outputs.push_back({output_types[i], std::vector<std::byte>(size_t(output_types[i].bytes()))});
    if (out[i] != nullptr) device.download(outputs.back().bytes.data(), out[i], outputs.back().bytes.size());
  }
  for (void* block : memory) device.release(block);
  return outputs;
}

std::vector<double> ramp(size_t count, double from, double step) {
  std::vector<double> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = from + step * double(i);
  return values;
}

void check_values(const Tensor& found, const std::vector<double>& expected, double tolerance = 1e-6) {
  REQUIRE(found.type.elements() == int64_t(expected.size()));
  CHECK(relative_error(found, doubles(expected)) <= tolerance);
}

constexpr double kBfloat16Tolerance = 4e-3;

}  // namespace

TEST_CASE("a combination is written over its terms, and to arrays that are not aligned") {
  const size_t count = 1003;
  const std::vector<double> z = ramp(count, 1, 0.01), before = ramp(count, -2, 0.003), w = ramp(count, 5, -0.02);
  std::vector<double> expected(count);
  for (size_t i = 0; i < count; ++i) expected[i] = 1.5 * z[i] - 0.5 * before[i] + 0.25 * w[i];
  const Attributes attributes{{"coefficients", std::vector<double>{1.5, -0.5, 0.25}}, {"lowered", int64_t{1}}};
  on_each_device([&](TestDevice& device) {
    for (const size_t offset : {0, 1, 2, 3}) {
      CAPTURE(offset);
      const auto out = run(device, "arbalest.Combine", {floats(z), floats(before), floats(w)}, attributes,
                           {.in_place = {2, 0, 1, -1, -1}, .offset = offset});
      for (size_t i = 0; i < 4; ++i) check_values(out[i], expected);
      CHECK(out[4].type.dtype == DataType::Bfloat16);
      check_values(out[4], expected, kBfloat16Tolerance);
    }
  });
}

TEST_CASE("a combination takes 256 arrays, and gives 256 in full and 256 in lower precision") {
  const std::vector<double> one = {1, 2, 3, 4, 5}, mean = one;
  const Attributes attributes{{"coefficients", std::vector<double>(256, 1.0 / 256)}, {"lowered", int64_t{256}}};
  on_each_device([&](TestDevice& device) {
    const auto out = run(device, "arbalest.Combine", std::vector<Tensor>(256, floats(one)), attributes,
                         {.in_place = std::vector<int>(512, -1)});
    for (const Tensor& tensor : out) check_values(tensor, mean);
  });
}

TEST_CASE("a sum over devices is written over each device's array") {
  const auto cpu = make_cpu_device();
  const std::vector<Tensor> arrays = {floats(ramp(2003, 1, 0.5)), floats(ramp(2003, 2, -1)), floats(ramp(2003, 0, 2))};
  const auto out = run(*cpu, "arbalest.AllReduce", arrays, {}, {.in_place = {0, 1, 2}});
  for (const Tensor& sum : out) check_values(sum, ramp(2003, 3, 1.5));
}

TEST_CASE("statistics of two replicas are those of a mixture of them") {
  // Means 1 and 3, variances 2 and 4: the mean is 2, the second moments 3 and 13, so the variance is 8 − 4.
  on_each_device([](TestDevice& device) {
    const auto merged = run(device, "arbalest.MergeStatistics", {floats({1, 5, 2, 0}), floats({3, 5, 4, 0})},
                            {{"replicas", int64_t{2}}}, {.in_place = {-1}});
    CHECK(merged[0].type.dtype == DataType::Float32);
    CHECK(values_of(merged[0]) == std::vector<double>{2, 5, 4, 0});
  });
}

TEST_CASE("statistics merged device by device are the same as at once") {
  const size_t channels = 37;
  std::vector<Tensor> replicas;
  for (int j = 0; j < 4; ++j) {
    std::vector<double> values = ramp(channels, 0.1 * j, 0.3), variances = ramp(channels, 1 + j, 0.02);
    values.insert(values.end(), variances.begin(), variances.end());
    replicas.push_back(floats(values));
  }
  const auto cpu = make_cpu_device();
  on_each_device([&](TestDevice& device) {
    const auto merge = [&](const std::vector<Tensor>& inputs, const Attributes& attributes) {
      return run(device, "arbalest.MergeStatistics", inputs, attributes, {.in_place = {-1}})[0];
    };
    const Tensor first = merge({replicas[0], replicas[1]}, {}), second = merge({replicas[2], replicas[3]}, {});
    CHECK(first.type.dtype == DataType::Float64);
    const Tensor sums = run(*cpu, "arbalest.AllReduce", {first, second}, {}, {.in_place = {0, 1}})[1];
    const Tensor finished = merge({sums}, {{"gather", int64_t{0}}, {"replicas", int64_t{4}}});
    check_values(finished, values_of(merge(replicas, {{"replicas", int64_t{4}}})), 1e-7);
  });
}

TEST_CASE("a merged variance is never below 0, and NaN stays") {
  on_each_device([](TestDevice& device) {
    const auto finished = values_of(run(device, "arbalest.MergeStatistics", {doubles({3, 3, 2.9, kNan})},
                                        {{"gather", int64_t{0}}, {"replicas", int64_t{3}}}, {.in_place = {-1}})[0]);
    CHECK(finished[2] == 0);
    CHECK(std::isnan(finished[3]));
  });
}

TEST_CASE("gradients of three batches add up to their mean, from whatever was left behind") {
  const Attributes attributes{{"scale", 1.0 / 3}};
  on_each_device([&](TestDevice& device) {
    for (const size_t offset : {0, 1}) {
      Tensor sum = floats(std::vector<double>(9, kNan));
      for (int32_t batch = 0; batch < 3; ++batch) {
        sum = run(device, "arbalest.Accumulate", {floats(ramp(9, batch, 1)), sum}, attributes,
                  {.in_place = {1}, .offset = offset}, {.accumulated = batch})[0];
      }
      check_values(sum, ramp(9, 1, 1));
    }
  });
}

TEST_CASE("an update gives up a share of its distance from the average") {
  // w = 1, average 0.6: less 0.1 · 0.5 for the gradient, less 0.25 · 0.4 for the distance.
  const std::vector<Tensor> inputs = {floats(std::vector<double>(7, 0.5)), floats(std::vector<double>(7, 1)),
                                      floats(std::vector<double>(7, 0)), floats(std::vector<double>(7, 0.6))};
  on_each_device([&](TestDevice& device) {
    for (const size_t offset : {0, 1}) {
      const auto out = run(device, "arbalest.Sgd", inputs, {}, {.in_place = {1, 2}, .offset = offset},
                           {.learning_rate = 0.1f, .correction = 0.25f});
      check_values(out[0], std::vector<double>(7, 0.85));
      check_values(out[1], std::vector<double>(7, 0.5));
    }
  });
}

TEST_CASE("a restart takes the average as it became, forgets the velocity, and reads nothing else") {
  const std::vector<double> averaged = ramp(1003, -1, 0.25), nothing(1003, kNan);
  const std::vector<Tensor> inputs = {floats(nothing), floats(nothing), floats(nothing), floats(nothing),
                                      floats(averaged)};
  const Attributes attributes{{"momentum", 0.9}, {"weight_decay", 0.1}};
  const StepScalars scalars{.learning_rate = 0.1f, .correction = 0.5f, .restart = 1};
  on_each_device([&](TestDevice& device) {
    for (const size_t offset : {0, 3}) {
      // In single precision the update has no third output.
      const auto out = run(device, "arbalest.Sgd", inputs, attributes,
                           {.in_place = {1, 2, -1, 3}, .offset = offset, .left_out = {2}}, scalars);
      CHECK(values_of(out[0]) == averaged);
      CHECK(values_of(out[1]) == std::vector<double>(1003, 0));
      CHECK(values_of(out[3]) == averaged);
    }
  });
}

TEST_CASE("without an average there is neither a correction nor a restart") {
  on_each_device([](TestDevice& device) {
    const auto out = run(device, "arbalest.Sgd", {floats({0.5}), floats({1}), floats({0})}, {}, {.in_place = {1, 2}},
                         {.learning_rate = 0.1f, .correction = 0.5f, .restart = 1});
    check_values(out[0], {0.95});
  });
}

TEST_CASE("where no update is due, all memory stays as it is") {
  const std::vector<double> weights = ramp(1003, 1, 0.5), velocity = ramp(1003, 2, 0.5), average = ramp(1003, 3, 0.5);
  const std::vector<double> nothing(1003, kNan);
  const std::vector<Tensor> inputs = {floats(nothing), floats(weights), floats(velocity), floats(average),
                                      floats(nothing)};
  on_each_device([&](TestDevice& device) {
    const auto out = run(device, "arbalest.Sgd", inputs, {}, {.in_place = {1, 2, -1, 3}},
                         {.learning_rate = 0.1f, .correction = 0.5f, .restart = 1, .update = 0});
    CHECK(values_of(out[0]) == weights);
    CHECK(values_of(out[1]) == velocity);
    CHECK(values_of(out[3]) == average);
    for (const std::byte byte : out[2].bytes) REQUIRE(byte == std::byte{0xff});
  });
}

}  // namespace replicas_test
