// SPDX-License-Identifier: Apache-2.0

// Frozen layers and batch norms in inference mode: what never changes, in memory and in files.

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "graph/file/overrides.h"
#include "io/formats/safetensors.h"
#include "tests/executor/fixture.h"
#include "tests/executor/session/reference.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace frozen_test {
namespace {

using Bytes = std::map<std::string, std::vector<uint8_t>>;

Bytes bytes_by_name(TensorFile file) {
  Bytes bytes;
  for (NamedTensor& tensor : file.tensors) bytes[tensor.name] = std::move(tensor.bytes);
  return bytes;
}

TinyNet two_norms() {
  TinyNet net = convolutional(160);
  net.layers =
      "c = arbalest.ConvBnRelu <filters = 8, kernel_shape = [3, 3]> (x)\n"
      "d = arbalest.ConvBnRelu <filters = 8, kernel_shape = [3, 3]> (c)\n"
      "h = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (d)\n";
  return net;
}

SessionOptions options_of(const std::string& strategy, int devices, int learners) {
  SessionOptions options = on_cpus(devices, learners);
  options.learners.strategy = strategy;
  options.length.epochs = 2;
  return options;
}

const std::vector<std::string> kStrategies = {"none", "ssgd", "sma", "local", "papa", "diloco"};

}  // namespace

TEST_CASE("a frozen layer is saved as it was read, and all else trains") {
  const TestFolder folder;
  SessionOptions first = options_of("none", 1, 1);
  first.files.save = folder / "first.safetensors";
  run(tiny(two_norms()), first);
  const Bytes before = bytes_by_name(read_safetensors(first.files.save));
  for (const std::string& strategy : kStrategies) {
    for (const Precision precision : {Precision::Fp32, Precision::Bf16}) {
      INFO(strategy);
      SessionOptions options = options_of(strategy, 2, 2);
      options.files.weights = first.files.save;
      options.numerics.precision = precision;
      Graph graph = tiny(two_norms());
      apply_override(graph, "train.frozen=[\"c.*\"]");
      const Bytes after = bytes_by_name(trained(std::move(graph), options));
      REQUIRE(after.size() == before.size());
      for (const auto& [name, bytes] : before) {
        INFO(name);
        REQUIRE(after.count(name) == 1);
        CHECK((after.at(name) == bytes) == name.starts_with("c."));
      }
    }
  }
}

// At a rate of 0 the loss over an epoch is that of one model; in training mode its batch norm would see batches.
TEST_CASE("a frozen batch norm computes in training what it computes in validation") {
  TinyNet net = convolutional(160);
  net.source = "glyphs:?train=320&test=50&size=16";
  net.validate = "batch = 64, split = \"train\"";
  for (const Precision precision : {Precision::Fp32, Precision::Bf16}) {
    for (const char* frozen : {"", ", frozen = [\"c.bn.*\"]"}) {
      net.train = std::string("lr = 0") + frozen;
      SessionOptions options = options_of("ssgd", 1, 2);
      options.numerics.precision = precision;
      options.length.epochs = 1;
      const Recorder story = run(tiny(net), options);
      REQUIRE(story.validations.size() == 1);
      REQUIRE(story.epochs.size() == 1);
      const double difference = std::abs(story.validations[0].loss - story.epochs[0].loss);
      CHECK((difference < 1e-4) == (*frozen != 0));
    }
  }
}

// Whether weights that do not move are frozen makes no difference to what reads them.
TEST_CASE("validation and recalibration read frozen weights") {
  TinyNet net = two_norms();
  net.source = "glyphs:?train=320&test=50&size=16";
  for (const Precision precision : {Precision::Fp32, Precision::Bf16}) {
    for (const char* recalibrate : {"", ", recalibrate = 4"}) {
      net.validate = std::string("batch = 25") + recalibrate;
      std::vector<double> losses;
      for (const char* frozen : {"", ", frozen = [\"c.conv.*\"]"}) {
        net.train = std::string("lr = 0") + frozen;
        SessionOptions options = options_of("ssgd", 2, 2);
        options.numerics.precision = precision;
        options.length.epochs = 1;
        const Recorder story = run(tiny(net), options);
        REQUIRE(story.validations.size() == 1);
        losses.push_back(story.validations[0].loss);
      }
      CHECK(losses[1] == doctest::Approx(losses[0]).epsilon(1e-5));
    }
  }
}

TEST_CASE("a batch norm in inference mode trains its scale and bias, and keeps the statistics of its file") {
  TinyNet net = convolutional(160);
  net.layers =
      "v = arbalest.Conv <filters = 8, kernel_shape = [3, 3]> (x)\n"
      "n = arbalest.BatchNorm <training_mode = 0> (v)\n"
      "c = Relu (n)\n"
      "h = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (c)\n";
  const TestFolder folder;
  for (const std::string& strategy : kStrategies) {
    SessionOptions options = options_of(strategy, 1, 2);
    options.files.save = folder / "trained.safetensors";
    const Recorder story = run(tiny(net), options);
    const Bytes after = bytes_by_name(read_safetensors(options.files.save));
    const std::vector<float> ones(8, 1), zeros(8, 0);
    const auto equals = [&](const char* name, const std::vector<float>& numbers) {
      return after.at(name).size() == 32 && std::memcmp(after.at(name).data(), numbers.data(), 32) == 0;
    };
    CHECK(equals("n.running_mean", zeros));
    CHECK(equals("n.running_var", ones));
    CHECK_FALSE(equals("n.weight", ones));
    CHECK_FALSE(equals("n.bias", zeros));
    REQUIRE(story.validations.size() == 2);
    CHECK(story.validations[1].loss < story.validations[0].loss);
  }
}

}  // namespace frozen_test
