// SPDX-License-Identifier: Apache-2.0

// Random numbers of validation are none of training's.

#include <doctest/doctest.h>

#include "io/sources/memory_source.h"
#include "tests/executor/fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace validation_draws_test {
namespace {

std::shared_ptr<const Source> of_one_class() {
  const std::vector<uint8_t> pixels(size_t{8 * 16 * 16}, 7);
  return memory_source(
      {owned_array("image", {1, 16, 16}, pixels), owned_array("label", {}, std::vector<int32_t>(8, 0), 10)});
}

}  // namespace

TEST_CASE("validation draws other numbers than training, though batch and epoch have the same numbers") {
  TinyNet net;
  net.train = "lr = 1e-12";
  net.validate = "batch = 8";
  const auto losses = [&](const std::string& layer) {
    net.layers = layer;
    SessionOptions options = on_cpus();
    options.length.epochs = 1;
    options.sources.training = options.sources.validation = of_one_class();
    const Recorder end = run(tiny(net), options);
    return std::pair(end.epochs.at(0).loss, end.validations.at(0).loss);
  };
  const auto [plain, validated_plain] = losses("h = Relu (x)\n");
  CHECK(plain == doctest::Approx(validated_plain).epsilon(1e-6));
  const auto [noisy, validated_noisy] = losses("h = RandomNormalLike (x)\n");
  CHECK(noisy != doctest::Approx(validated_noisy).epsilon(1e-4));
}

}  // namespace validation_draws_test
