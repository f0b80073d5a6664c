// SPDX-License-Identifier: Apache-2.0

// Losses that are not finite: updates that are skipped.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "executor/devices/device.h"
#include "executor/training/checkpoint_folder.h"
#include "io/formats/safetensors.h"
#include "ops/builtin_ops.h"
#include "tests/executor/session/divergence_fixture.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace skip_test {
namespace {

struct Skipping {
  std::string train = "lr = 0.05, momentum = 0.9";
  std::string strategy = "none";
  int devices = 1, learners = 1;
  Precision precision = Precision::Fp32;
};

Graph normed(const Skipping& of) {
  return read_graph_text(fmt::format("<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
                                     "g () => (float loss)\n{{\n"
                                     "x, target = arbalest.Prefetch <source = \"memory:\", batch = 4> ()\n"
                                     "a = arbalest.Linear <units = 8> (x)\n"
                                     "n = arbalest.BatchNorm (a)\n"
                                     "b = Relu (n)\n"
                                     "c = arbalest.Linear <units = 1> (b)\n"
                                     "loss = arbalest.MeanSquaredError (c, target)\n"
                                     "trained = arbalest.Train <{}> (loss)\n}}\n",
                                     of.train),
                         "g.onnxtxt", builtin_ops());
}

// So many iterations of a run in which the batch at `bad` of the second epoch is poisoned.
SessionOptions skipping(const Skipping& of, const std::string& folder, uint64_t bad = 50) {
  SessionOptions options = on_cpus(of.devices, of.learners);
  options.learners.strategy = of.strategy;
  options.numerics.deterministic = true;
  options.numerics.precision = of.precision;
  options.length.epochs = 4;
  options.execution.report_every = 2;
  options.sources.training = std::make_shared<Poisoned>(1, bad, 1000);
  options.divergence.then = OnDivergence::Skip;
  options.checkpoints.folder = folder;
  options.checkpoints.resume = true;
  return options;
}

// The arrays of the run's last checkpoint, without those that count batches or accumulate over them.
std::map<std::string, std::vector<uint8_t>> learned(const std::string& folder) {
  std::map<std::string, std::vector<uint8_t>> arrays;
  const auto newest = newest_checkpoint(folder);
  REQUIRE(newest);
  for (const NamedTensor& tensor : newest->tensors.tensors) {
    const bool counts = tensor.name.ends_with("/tally") || tensor.name.ends_with("/kept_statistics") ||
                        tensor.name.ends_with("/accumulated");
    if (!counts) arrays[tensor.name] = tensor.bytes;
  }
  return arrays;
}

}  // namespace

TEST_CASE("an update whose loss is not finite is skipped and leaves everything as it was") {
  const std::vector<Skipping> cases = {
      {},
      {.train = "lr = 0.05, momentum = 0.9", .precision = Precision::Bf16},
      {.train = "lr = 0.05, nesterov = 1, momentum = 0.5, clip_norm = 0.3, rate_patterns = [\"c.*\"], "
                "rate_factors = [0.5]"},
      {.train = "lr = 0.01, optimizer = \"adamw\", weight_decay = 0.1"},
      {.train = "lr = 0.01, optimizer = \"lamb\", weight_decay = 0.1"},
      {.train = "lr = 0.01, optimizer = \"rmsprop\", accumulate = 2"},
      {.train = "lr = 0.01, optimizer = \"muon\", momentum = 0.9, nesterov = 1, clip_norm = 0.3"},
  };
  for (const Skipping& each : cases) {
    CAPTURE(each.train);
    const TestFolder folder;
    const int64_t accumulate = contains(each.train, "accumulate") ? 2 : 1;
    const int64_t bad = (24 + 50 / 4) / accumulate * accumulate;  // iterations before the update
    for (const int64_t more : {int64_t{0}, accumulate}) {
      SessionOptions options = skipping(each, folder / std::to_string(more));
      options.length.iterations = bad + more;
      const RunOutcome run = outcome(normed(each), options);
      REQUIRE(run.error == "");
      CHECK(run.story.ends.at(0).skipped_updates == (more > 0 ? 1 : 0));
    }
    const auto before = learned(folder / "0"), after = learned(folder / std::to_string(accumulate));
    CHECK(before.size() > 6);
    CHECK(before == after);
    const RunOutcome whole = outcome(normed(each), skipping(each, folder / "whole"));
    CHECK(whole.error == "");
    CHECK(whole.story.ends.at(0).skipped_updates == 1);
    int64_t told = 0;
    for (const RunProgress& report : whole.story.reports) {
      told += report.skipped_updates;
      CHECK(std::isfinite(report.loss));
    }
    CHECK(told == 1);
    CHECK(learned(folder / "whole") != before);
  }
}

TEST_CASE("GPUs skip updates, and find what is not finite, as CPUs do") {
  if (cuda_device_count() < 1) {
    MESSAGE("SKIP: no CUDA device");
    return;
  }
  for (const char* strategy : {"ssgd", "sma", "local", "none", "papa", "diloco"}) {
    for (const Precision precision : {Precision::Fp32, Precision::Bf16}) {
      CAPTURE(strategy);
      const TestFolder folder;
      const Skipping of{.strategy = strategy, .learners = 2, .precision = precision};
      SessionOptions options = skipping(of, folder / "c");
      options.learners.devices = {{PlanDevice::Kind::Cuda, 0}};
      const RunOutcome run = outcome(normed(of), options);
      CHECK(run.error == "");
      REQUIRE(run.story.ends.size() == 1);
      CHECK(run.story.ends[0].skipped_updates == (std::string(strategy) == "ssgd" ? 2 : 1));
      CHECK(std::isfinite(run.story.reports.back().loss));
      options.divergence = {.find = true};
      options.checkpoints = {};
      options.sources.training = std::make_shared<Poisoned>(1, 50, 1000);
      CHECK(contains(outcome(normed(of), options).error, " of learner 0 on cuda:0 reads 'x', float[4,6]: "));
    }
  }
}

TEST_CASE("where no update is skipped a run that may skip them trains the same bits") {
  for (const Skipping& each : {Skipping{}, Skipping{.strategy = "ssgd", .devices = 2, .learners = 2},
                               Skipping{.strategy = "sma", .learners = 2}}) {
    CAPTURE(each.strategy);
    const TestFolder folder;
    for (const OnDivergence then : {OnDivergence::Stop, OnDivergence::Skip}) {
      SessionOptions options = skipping(each, folder / std::to_string(int(then)), 1000);
      options.divergence.then = then;
      REQUIRE(outcome(normed(each), options).error == "");
    }
    CHECK(learned(folder / "0") == learned(folder / "2"));
  }
}

TEST_CASE("each learner skips for itself, but with S-SGD all alike") {
  for (const char* strategy : {"ssgd", "sma", "local", "none", "papa", "diloco"}) {
    for (const int devices : {1, 2}) {
      CAPTURE(strategy);
      CAPTURE(devices);
      const TestFolder folder;
      const Skipping of{.strategy = strategy, .devices = devices, .learners = 2};
      const RunOutcome run = outcome(normed(of), skipping(of, folder / "c"));
      CHECK(run.error == "");
      const bool together = std::string(strategy) == "ssgd";
      CHECK(run.story.ends.at(0).skipped_updates == (together ? 2 * devices : 1));
      const auto arrays = learned(folder / "c");
      if (!together) continue;
      for (const auto& [name, bytes] : arrays) {
        if (!name.starts_with("learner 0/weights/")) continue;
        for (int learner = 1; learner < 2 * devices; ++learner) {
          CHECK(arrays.at(fmt::format("learner {}/{}", learner, name.substr(10))) == bytes);
        }
      }
    }
  }
}

TEST_CASE("a run that skips all updates ends") {
  const TestFolder folder;
  const Skipping of;
  SessionOptions options = skipping(of, folder / "c");
  options.length.epochs = 20;
  class Hopeless final : public Source {
   public:
    int64_t size() const override { return 96; }
    std::vector<Field> fields() const override {
      return {{"x", DataType::Float32, {6}}, {"target", DataType::Float32, {1}}};
    }
    void fill(std::span<const SampleRef> samples, std::span<std::byte* const> fields) const override {
      auto* x = reinterpret_cast<float*>(fields[0]);
      std::fill_n(x, samples.size() * 6, std::numeric_limits<float>::infinity());
      std::fill_n(reinterpret_cast<float*>(fields[1]), samples.size(), 1.0f);
    }
    std::string describe() const override { return "poisoned"; }
  };
  options.sources.training = std::make_shared<Hopeless>();
  const RunOutcome run = outcome(normed(of), options);
  CHECK(contains(run.error, "the last 100 updates have been skipped up to iteration 100: field 'x' of sample "));
  CHECK(contains(run.error, "holds an infinity at element 0 of 6"));
  CHECK(run.story.reports.size() == 50);
  CHECK(run.story.reports.back().skipped_updates == 2);
  CHECK(std::isnan(run.story.reports.back().loss));
}

TEST_CASE("a run that skips goes on from its checkpoints, and knows what it has skipped") {
  const TestFolder folder;
  const Skipping of{.train = "lr = 0.05, momentum = 0.9, accumulate = 2"};
  SessionOptions options = skipping(of, folder / "c");
  REQUIRE(outcome(normed(of), options).error == "");
  SessionOptions part = skipping(of, folder / "d");
  part.length.iterations = 37;  // within the update that is skipped
  REQUIRE(outcome(normed(of), part).error == "");
  part.length.iterations.reset();
  part.checkpoints.from = newest_checkpoint(folder / "d");
  const RunOutcome rest = outcome(normed(of), part);
  CHECK(rest.error == "");
  CHECK(rest.story.ends.at(0).skipped_updates == 1);
  CHECK(learned(folder / "d") == learned(folder / "c"));
  part.divergence.then = OnDivergence::Stop;
  part.checkpoints.from = newest_checkpoint(folder / "d");
  CHECK(outcome(normed(of), part).error != "");
  part.divergence = {.find = true, .then = OnDivergence::Skip};
  CHECK(outcome(normed(of), part).error == "--find-nan ends a run where --on-nan skip goes on");
}

}  // namespace skip_test
