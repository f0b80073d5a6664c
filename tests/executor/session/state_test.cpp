// SPDX-License-Identifier: Apache-2.0

// Tests the values that a run starts from: initial values, and weights that were saved.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "executor/session/state.h"
#include "tests/executor/fixture.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

TEST_CASE("weights that were saved validate as they did") {
  const TestFolder folder;
  SessionOptions options = on_cpus();
  options.length.epochs = 1;
  options.files.save = folder / "weights.safetensors";
  const Recorder training = run(tiny(convolutional(160)), options);
  REQUIRE(training.checkpoints.size() == 1);
  CHECK(training.checkpoints[0].path == options.files.save);
  CHECK(training.ends.at(0).weights == options.files.save);

  // Batch norm's running statistics move even if nothing is learned, unless momentum is 0.
  TinyNet still = convolutional(160);
  still.train = "lr = 0.0";
  still.layers =
      "c = arbalest.ConvBnRelu <filters = 8, kernel_shape = [3, 3], momentum = 0.0> (x)\n"
      "h = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (c)\n";
  SessionOptions again = on_cpus();
  again.files.weights = options.files.save;
  again.length.epochs = 1;
  const Recorder same = run(tiny(still), again);
  REQUIRE(same.validations.size() == 1);
  CHECK(same.validations[0].loss == training.validations.at(0).loss);
  CHECK(same.validations[0].metrics == training.validations[0].metrics);

  // The last batch is partial or not: every sample counts once.
  for (const char* batch : {"batch = 7", "batch = 300", "batch = 299"}) {
    still.validate = batch;
    const Recorder other = run(tiny(still), again);
    REQUIRE(other.validations.size() == 1);
    INFO(batch);
    CHECK(other.validations[0].samples == 300);
    CHECK(other.validations[0].loss == doctest::Approx(training.validations[0].loss).epsilon(1e-5));
    CHECK(other.validations[0].metrics[0].second == doctest::Approx(training.validations[0].metrics[0].second));
  }
}

TEST_CASE("weights of another graph are refused, by name and by shape") {
  const TestFolder folder;
  SessionOptions options = on_cpus();
  options.length.iterations = 1;
  options.files.save = folder / "weights.safetensors";
  run(tiny({}), options);
  SessionOptions reading = on_cpus();
  reading.length.iterations = 1;
  reading.files.weights = options.files.save;
  TinyNet wider;
  wider.layers = "hidden = arbalest.Linear <units = 17> (x)\nh = Relu (hidden)\n";
  CHECK(contains(message_of([&] { run(tiny(wider), reading); }),
                 "tensor 'logits.weight' is float[10,16], the graph's parameter is float[10,17]"));
  TinyNet renamed;
  renamed.layers = "hiden = arbalest.Linear <units = 16> (x)\nh = Relu (hiden)\n";
  CHECK(contains(message_of([&] { run(tiny(renamed), reading); }),
                 "no tensor 'hiden.weight', which the graph needs; did you mean 'hidden.weight'?"));
  TensorFile broken = read_safetensors(options.files.save);
  const float infinite = HUGE_VALF;
  std::memcpy(broken.tensors[0].bytes.data() + 2 * sizeof infinite, &infinite, sizeof infinite);
  reading.files.weights = folder / "broken.safetensors";
  write_safetensors(reading.files.weights, broken);
  CHECK(contains(message_of([&] { run(tiny({}), reading); }),
                 fmt::format("tensor '{}', element 2: found inf, expected a finite number", broken.tensors[0].name)));
  reading.files.weights = folder / "absent.safetensors";
  CHECK(contains(message_of([&] { run(tiny({}), reading); }), "absent.safetensors"));
}

TEST_CASE("weights of another floating-point type are converted as they are read, others are refused") {
  Graph graph;
  const ValueId arena = graph.add_value("arena", {DataType::Float32, {64}}, Role::Parameter);
  const ValueId weight = graph.add_value("weight", {DataType::Float32, {2, 2}}, Role::Parameter);
  graph.values[weight].view = {arena, 16 * int64_t(sizeof(float))};
  const TestFolder folder;
  const std::string path = (folder / "w.safetensors").string();
  const std::vector<double> numbers = {1.5, -2, 0.1, 7};
  std::vector<std::byte> content(64 * sizeof(float));
  NamedTensor tensor{"weight", DataType::Float64, {2, 2}, std::vector<uint8_t>(numbers.size() * sizeof(double))};
  std::memcpy(tensor.bytes.data(), numbers.data(), tensor.bytes.size());
  write_safetensors(path, {{tensor}, {}});
  CHECK(adopt_tensors(WeightsFile(path), graph, arena, content) == std::vector<std::string>{"weight"});
  std::vector<float> read(4);
  std::memcpy(read.data(), content.data() + graph.values[weight].view.offset_bytes, 4 * sizeof(float));
  CHECK(read == std::vector<float>{1.5f, -2, 0.1f, 7});
  tensor.dtype = DataType::Int64;
  write_safetensors(path, {{tensor}, {}});
  CHECK(contains(message_of([&] { adopt_tensors(WeightsFile(path), graph, arena, content); }),
                 "tensor 'weight' is int64[2,2], the graph's parameter is float[2,2]"));
}

TEST_CASE("a large parameter is drawn as a small one of its name is, all of it") {
  const auto weights = [](int64_t elements, int threads) {
    Graph graph;
    const ValueId arena = graph.add_value("arena", {DataType::Float32, {elements}}, Role::Parameter);
    const ValueId weight = graph.add_value("weight", {DataType::Float32, {elements}}, Role::Parameter);
    graph.values[weight].view = {arena, 0};
    graph.values[weight].initializer = {Initializer::Kind::Normal, 0.5, nullptr};
    const std::vector<std::byte> bytes = initial_content(graph, arena, 1, threads);
    std::vector<float> values(size_t(elements), 0);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  };
  const std::vector<float> large = weights(200'001, 3), small = weights(50'000, 2);
  CHECK(std::equal(small.begin(), small.end(), large.begin()));
  CHECK(weights(200'001, 1) == large);
  const std::set<float> different(large.begin(), large.end());
  CHECK(different.size() > 180'000);  // floats of 24 bits repeat now and then
  double sum = 0, squares = 0;
  for (const float value : large) {
    sum += double(value);
    squares += double(value) * double(value);
  }
  CHECK(std::abs(sum / 200'000) < 0.01);
  CHECK(squares / 200'000 == doctest::Approx(0.25).epsilon(0.02));
}

TEST_CASE(
    "what starts as zeros is zeros, next to parameters that do not, also where the rest of their memory does not") {
  const auto content = [](double rest, double first, double second) {
    Graph graph;
    const ValueId arena = graph.add_value("arena", {DataType::Float32, {6}}, Role::Parameter);
    graph.values[arena].initializer = {Initializer::Kind::Constant, rest, nullptr};
    int64_t offset = 0;
    for (const double value : {first, second}) {
      const ValueId member =
          graph.add_value("member" + std::to_string(offset), {DataType::Float32, {2}}, Role::Parameter);
      graph.values[member].view = {arena, offset};
      graph.values[member].initializer = {Initializer::Kind::Constant, value, nullptr};
      offset += 2 * int64_t(sizeof(float));
    }
    const std::vector<std::byte> bytes = initial_content(graph, arena, 1);
    std::vector<float> values(6, -9);
    REQUIRE(bytes.size() == values.size() * sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  };
  CHECK(content(0, 0, 3) == std::vector<float>{0, 0, 3, 3, 0, 0});
  CHECK(content(5, 0, 3) == std::vector<float>{0, 0, 3, 3, 5, 5});
  CHECK(std::signbit(content(0, -0.0, 3)[1]));
  CHECK(std::signbit(content(-0.0, 1, 3)[5]));
  CHECK_FALSE(std::signbit(content(-0.0, 0, 3)[0]));
}
