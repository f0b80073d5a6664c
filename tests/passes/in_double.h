// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whole training graphs, as the passes leave them, on CPU kernels in double.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "passes/program.h"
#include "tests/passes/loop_run.h"

namespace arbalest::test {

// A loop's graph with every float replaced by double, and numbers drawn for what is stored and read.
class InDouble {
 public:
  explicit InDouble(const Loop& loop)
      : loop_(loop), device_(make_cpu_device()), run_(loop, *device_, DataType::Float64) {
    draw();
  }

  double* of(ValueId v) { return reinterpret_cast<double*>(run_.memory(v)); }
  double* of(std::string_view name) { return of(graph().find_value(name)); }
  const Graph& graph() const { return run_.graph(); }

  void run() { run_.run(scalars_); }
  void step() { run_.step(scalars_); }
  double loss() {
    run();
    return *of(loop_.metrics[0].name);
  }

 private:
  // By the values' names, so that programs of other passes begin alike.
  void draw() {
    const auto uniform = [](std::mt19937& random) { return 1.2 * random() / std::mt19937::max() - 0.6; };
    double* velocities = of(loop_.arenas.slots.at(0).value);
    for (const ValueId v : graph().values.ids()) {
      const Value& value = graph().values[v];
      const bool trained = value.role == Role::Parameter, frozen = value.role == Role::Frozen;
      if (value.view.base == kNone || !(trained || frozen)) continue;
      std::mt19937 random(uint32_t(std::hash<std::string>{}(value.name)));
      // Variances are among what is frozen, and far from 0.
      for (int64_t i = 0; i < value.type.elements(); ++i) of(v)[i] = uniform(random) + (frozen ? 1 : 0);
      for (int64_t i = 0; i < value.type.elements() && trained; ++i) {
        velocities[value.view.offset_bytes / 8 + i] = uniform(random);
      }
    }
    std::mt19937 random(5);
    const ValueId images = loop_.fields[0], labels = loop_.fields[1];
    auto* image = reinterpret_cast<uint8_t*>(of(images));
    for (int64_t i = 0; i < run_.type(images).elements(); ++i) image[i] = uint8_t(random());
    auto* label = reinterpret_cast<int32_t*>(of(labels));
    for (int64_t i = 0; i < run_.type(labels).elements(); ++i) label[i] = int32_t(random() % 3);
    scalars_.seed = 3;
    scalars_.valid = int32_t(loop_.batch);
    scalars_.learning_rate = 0.25f;
  }

  const Loop& loop_;
  std::unique_ptr<TestDevice> device_;
  LoopRun run_;
  StepScalars scalars_;
};

// Losses of some steps, and all stored values after them, by name.
struct Trained {
  std::vector<double> losses;
  std::map<std::string, std::vector<double>> values;
};

inline Trained train(const Program& program, int steps) {
  InDouble net(program.training());
  Trained trained;
  for (int step = 0; step < steps; ++step) {
    net.step();
    trained.losses.push_back(*net.of(program.training().metrics[0].name));
  }
  for (const ValueId v : net.graph().values.ids()) {
    const Value& value = net.graph().values[v];
    const bool stored = value.role == Role::Parameter || value.role == Role::State;
    if (!stored || value.view.base == kNone || value.name.ends_with(".gradient")) continue;
    const double* first = net.of(v);
    trained.values[value.name] = {first, first + value.type.elements()};
  }
  return trained;
}

inline void check_same(const Trained& one, const Trained& other) {
  constexpr double kRounding = 1e-8;
  for (size_t i = 0; i < one.losses.size(); ++i) {
    CHECK(other.losses[i] == doctest::Approx(one.losses[i]).epsilon(kRounding));
  }
  REQUIRE(other.values.size() == one.values.size());
  for (const auto& [name, values] : one.values) {
    INFO(name);
    REQUIRE(other.values.contains(name));
    const std::vector<double>& others = other.values.at(name);
    double norm = 0, apart = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      norm += values[i] * values[i];
      apart += (values[i] - others[i]) * (values[i] - others[i]);
    }
    CHECK(std::sqrt(apart) <= kRounding * (1 + std::sqrt(norm)));
  }
}

}  // namespace arbalest::test
