// SPDX-License-Identifier: Apache-2.0

// Small runs with each optimiser and schedule that has no other test of a run.

#include <doctest/doctest.h>

#include <utility>

#include "executor/devices/device.h"
#include "tests/executor/fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace optimizers_test {
namespace {

Recorder trained(const std::string& train, SessionOptions options) {
  TinyNet net;
  net.source = "glyphs:?train=640&test=200&size=16";
  net.batch = 16;
  net.layers = "hidden = arbalest.Linear <units = 32> (x)\nnormal = arbalest.BatchNorm (hidden)\nh = Relu (normal)\n";
  net.train = train;
  net.validate = "batch = 100";
  options.length.epochs = 6;
  const Recorder story = run(tiny(net), options);
  REQUIRE(story.validations.size() == 6);
  return story;
}

double accuracy_after(const std::string& train, Precision precision) {
  SessionOptions options = on_cpus();
  options.numerics.precision = precision;
  return trained(train, options).validations.back().metrics.at(0).second;
}

}  // namespace

TEST_CASE("RMSprop, LARS, LAMB and Muon train small networks, by one cycle, polynomially and exponentially") {
  for (const std::string& train : {
           std::string("optimizer = \"rmsprop\", lr = 0.003, momentum = 0.5, schedule = \"onecycle\""),
           std::string("optimizer = \"rmsprop\", lr = 0.005, centered = 1, schedule = \"exponential\", gamma = 0.7"),
           std::string("optimizer = \"lars\", lr = 1.0, trust_coefficient = 0.02, momentum = 0.9, weight_decay = 1e-4, "
                       "decay_norms = 0, schedule = \"polynomial\", power = 2.0, warmup = 1.0"),
           std::string(
               "optimizer = \"lamb\", lr = 0.03, weight_decay = 0.01, decay_norms = 0, schedule = \"onecycle\", "
               "anneal = \"linear\""),
           std::string("optimizer = \"muon\", lr = 0.02, momentum = 0.95, nesterov = 1, weight_decay = 0.01, "
                       "momentum_only = [\"logits.*\"]"),
       }) {
    for (const Precision precision : {Precision::Fp32, Precision::Bf16}) {
      const double accuracy = accuracy_after(train, precision);
      CHECK_MESSAGE(accuracy > 0.55, train, ": ", accuracy);
    }
  }
}

TEST_CASE("several learners on a GPU train by Muon, with the same bits each time") {
  if (cuda_device_count() < 1) {
    MESSAGE("SKIP: no CUDA device");
    return;
  }
  for (const char* strategy : {"ssgd", "sma"}) {
    SessionOptions options = on_cpus(1, 3);
    options.learners.devices = {{PlanDevice::Kind::Cuda, 0}};
    options.learners.strategy = strategy;
    options.numerics.deterministic = true;
    const std::string train =
        "optimizer = \"muon\", lr = 0.02, momentum = 0.95, nesterov = 1, weight_decay = 0.01, "
        "clip_norm = 1.0, momentum_only = [\"logits.*\"], schedule = \"cosine\"";
    const Recorder one = trained(train, options), other = trained(train, options);
    CHECK(one.validations.back().metrics.at(0).second > 0.4);  // of ten classes; SMA's three learners reach 0.48
    CHECK(one.validations.back().loss == other.validations.back().loss);
  }
}

}  // namespace optimizers_test
