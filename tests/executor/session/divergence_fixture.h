// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs whose loss is not finite at a place that is known.

#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <thread>

#include "ops/builtin_ops.h"
#include "tests/executor/fixture.h"

namespace arbalest::test {

// Vectors with a target that follows from them, read slowly enough for the disk to keep up. The sample at a position of
// an epoch's order holds `value` the first `times` times that it is read.
class Poisoned final : public Source {
 public:
  Poisoned(uint64_t epoch, uint64_t position, int times, float value = std::numeric_limits<float>::quiet_NaN())
      : epoch_(epoch), position_(position), value_(value), left_(times) {}
  int64_t size() const override { return 96; }
  std::vector<Field> fields() const override {
    return {{"x", DataType::Float32, {6}}, {"target", DataType::Float32, {1}}};
  }
  void fill(std::span<const SampleRef> samples, std::span<std::byte* const> fields) const override {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    auto* x = reinterpret_cast<float*>(fields[0]);
    auto* target = reinterpret_cast<float*>(fields[1]);
    for (size_t s = 0; s < samples.size(); ++s, x += 6) {
      for (int i = 0; i < 6; ++i) x[i] = std::sin(float(samples[s].index * 7 + i * 3));
      target[s] = x[0] - x[3];
      const bool here = samples[s].epoch == epoch_ && samples[s].position == position_;
      if (here && left_.fetch_sub(1) > 0) x[2] = value_;
    }
  }
  double microseconds_per_sample() const override { return 0; }
  std::string describe() const override { return "poisoned"; }

 private:
  const uint64_t epoch_, position_;
  const float value_;
  mutable std::atomic<int> left_;
};

inline Graph regression(const std::string& train = "lr = 0.05, momentum = 0.9", const std::string& more = "") {
  return read_graph_text(fmt::format("<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
                                     "g () => (float loss)\n{{\n"
                                     "x, target = arbalest.Prefetch <source = \"memory:\", batch = 4> ()\n"
                                     "a = arbalest.Linear <units = 8> (x)\n"
                                     "b = Relu (a)\n"
                                     "c = arbalest.Linear <units = 1> (b)\n"
                                     "loss = arbalest.MeanSquaredError (c, target)\n"
                                     "trained = arbalest.Train <{}> (loss)\n{}}}\n",
                                     train, more),
                         "g.onnxtxt", builtin_ops());
}

// 24 iterations an epoch of one learner; a checkpoint after each fifth.
inline SessionOptions rolling_back(const std::string& folder, int times, uint64_t epoch = 1, uint64_t position = 50) {
  SessionOptions options = on_cpus();
  options.numerics.deterministic = true;
  options.length.epochs = 4;
  options.execution.report_every = 2;
  options.sources.training = std::make_shared<Poisoned>(epoch, position, times);
  options.divergence.then = OnDivergence::Rollback;
  options.checkpoints.folder = folder;
  options.checkpoints.resume = true;
  options.checkpoints.iterations = 5;
  options.checkpoints.keep = 1000;
  return options;
}

struct RunOutcome {
  Recorder story;
  std::string error;
};

inline RunOutcome outcome(Graph graph, const SessionOptions& options) {
  RunOutcome result;
  result.error = message_of([&] { run_training(std::move(graph), options, result.story); });
  return result;
}

}  // namespace arbalest::test
