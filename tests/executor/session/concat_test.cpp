// SPDX-License-Identifier: Apache-2.0

// Nets whose batch norms read concatenations part by part, against the same nets with copies: an Identity between
// Concat and batch norm keeps them.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "io/formats/safetensors.h"
#include "tests/executor/fixture.h"
#include "tests/executor/session/reference.h"

using namespace arbalest;
using namespace arbalest::test;

namespace concat_test {
namespace {

// Two blocks; the second begins with what the first leaves, at half the resolution. Names are the same either way.
TinyNet dense(bool copied) {
  const auto normalised = [&](const char* norm, const char* x) {
    return copied ? fmt::format("{1}_copy = Identity ({1})\n{0} = arbalest.BatchNorm ({1}_copy)\n", norm, x)
                  : fmt::format("{} = arbalest.BatchNorm ({})\n", norm, x);
  };
  const auto layer = [&](const char* name, const char* x, const char* y) {
    return normalised(fmt::format("{}_norm", name).c_str(), x) +
           fmt::format(
               "{0}_relu = Relu ({0}_norm)\n"
               "{0}_c1 = arbalest.ConvBnRelu <filters = 12, kernel_shape = [1, 1]> ({0}_relu)\n"
               "{0}_c2 = arbalest.Conv <filters = 4, kernel_shape = [3, 3], bias = 0> ({0}_c1)\n"
               "{2} = Concat <axis = 1> ({1}, {0}_c2)\n",
               name, x, y);
  };
  TinyNet net = convolutional(160);
  net.layers = "h0 = arbalest.Conv <filters = 6, kernel_shape = [3, 3], bias = 0> (x)\n" + layer("l1", "h0", "h1") +
               layer("l2", "h1", "h2") + normalised("t_norm", "h2") +
               "t_relu = Relu (t_norm)\nt = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (t_relu)\n" +
               layer("l3", "t", "h3") + layer("l4", "h3", "h4") + normalised("last", "h4") +
               "r = Relu (last)\nh = GlobalAveragePool (r)\n";
  net.train = "lr = 0.02, momentum = 0.9";
  return net;
}

int64_t count(const Graph& graph, std::string_view op) {
  return std::count_if(graph.nodes.begin(), graph.nodes.end(),
                       [&](const Node& node) { return node.op->qualified_name() == op; });
}

// ‖a − b‖ / ‖b‖ of each tensor, the greatest; of biases that have hardly moved the tenth of 1 stands for their norm.
double greatest_distance(const TensorFile& a, const TensorFile& b) {
  REQUIRE(a.tensors.size() == b.tensors.size());
  double greatest = 0;
  for (const NamedTensor& tensor : b.tensors) {
    const NamedTensor* other = a.find(tensor.name);
    REQUIRE(other != nullptr);
    REQUIRE(other->bytes.size() == tensor.bytes.size());
    double difference = 0, norm = 0;
    for (size_t at = 0; at < tensor.bytes.size(); at += sizeof(float)) {
      float mine, theirs;
      std::memcpy(&mine, other->bytes.data() + at, sizeof mine);
      std::memcpy(&theirs, tensor.bytes.data() + at, sizeof theirs);
      difference += std::pow(double(mine) - double(theirs), 2);
      norm += std::pow(double(theirs), 2);
    }
    greatest = std::max(greatest, std::sqrt(difference / std::max(norm, 1e-2)));
  }
  return greatest;
}

}  // namespace

TEST_CASE("a net without copies of its concatenations trains to the weights of one with them") {
  const auto step_of = [](bool copied) { return prepare(tiny(dense(copied)), on_cpus()).program.training().graph; };
  CHECK(count(step_of(false), "Concat") == 0);
  CHECK(count(step_of(false), "arbalest.BatchNormPartsTraining") == 6);
  CHECK(count(step_of(true), "Concat") == 4);
  CHECK(count(step_of(true), "arbalest.BatchNormPartsTraining") == 0);

  struct Variant {
    const char* train;
    const char* validate;
    int learners;
    bool skips;
  };
  for (const Variant& variant :
       {Variant{"", "", 1, false}, Variant{", accumulate = 2, ema = 0.9", ", recalibrate = 3", 1, false},
        Variant{", frozen = [\"l2_norm.*\", \"l3_norm.running_*\"]", "", 1, false}, Variant{"", "", 2, true}}) {
    INFO(variant.train);
    for (const auto& [precision, tolerance] : {std::pair(Precision::Fp32, 1e-4), std::pair(Precision::Bf16, 2e-2)}) {
      std::vector<TensorFile> files;
      for (const bool copied : {false, true}) {
        TinyNet net = dense(copied);
        net.train += variant.train;
        net.validate = std::string("batch = 25") + variant.validate;
        SessionOptions options = on_cpus(1, variant.learners);
        options.numerics.precision = precision;
        options.length.epochs = 2;
        if (variant.skips) options.divergence.then = OnDivergence::Skip;
        files.push_back(trained(tiny(net), options));
      }
      const double distance = greatest_distance(files[0], files[1]);
      CHECK_MESSAGE(distance < tolerance, distance);
    }
  }
}

}  // namespace concat_test
