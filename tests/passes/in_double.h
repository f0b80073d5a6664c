// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whole training graphs, as the passes leave them, on CPU kernels in double.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "graph/op.h"
#include "passes/program.h"

namespace arbalest::test {

// A loop's graph with every float replaced by double, and memory of its own for each value that is no view.
class InDouble {
 public:
  explicit InDouble(const Loop& loop) : loop_(loop), graph_(loop.graph) {
    for (Value& value : graph_.values) {
      if (value.type.dtype == DataType::Float32) value.type.dtype = DataType::Float64;
      const bool floats = value.type.dtype == DataType::Float64;
      if (floats) value.view.offset_bytes *= 2;
    }
    for (const ValueId v : graph_.values.ids()) {
      const bool own = graph_.values[v].view.base == kNone;
      memory_.emplace_back(own ? size_t(graph_.values[v].type.bytes()) / 8 + 1 : 0, 0.0);
    }
    for (Node& node : graph_.nodes) {
      KernelRequest request{node, {}, {}};
      for (const ValueId v : node.inputs) request.inputs.push_back(type(v));
      for (const ValueId v : node.outputs) request.outputs.push_back(type(v));
      kernels_.push_back(node.op->cpu(request));
    }
    draw();
  }

  double* of(ValueId v) { return reinterpret_cast<double*>(bytes_of(v)); }
  double* of(std::string_view name) { return of(graph_.find_value(name)); }
  const Graph& graph() const { return graph_; }

  void run() {
    for (const NodeId n : graph_.nodes.ids()) {
      std::vector<const void*> inputs;
      std::vector<void*> outputs;
      for (const ValueId v : graph_.nodes[n].inputs) inputs.push_back(v == kNone ? nullptr : of(v));
      for (const ValueId v : graph_.nodes[n].outputs) outputs.push_back(v == kNone ? nullptr : of(v));
      std::vector<double> workspace(size_t(kernels_[n]->workspace_bytes()) / 8 + 1);
      kernels_[n]->run({nullptr, inputs.data(), outputs.data(), workspace.data(), &scalars_});
    }
  }

  // run(), after which stored values are what the next iteration reads.
  void step() {
    run();
    for (const Carry& carry : graph_.carries) {
      std::memcpy(of(carry.current), of(carry.next), size_t(graph_.values[carry.current].type.bytes()));
    }
  }

  double loss() {
    run();
    return *of(loop_.metrics[0].name);
  }

 private:
  uint8_t* bytes_of(ValueId v) {
    const View storage = storage_of(graph_, v);
    return reinterpret_cast<uint8_t*>(memory_[storage.base].data()) + storage.offset_bytes;
  }

  TensorType type(ValueId v) const { return v == kNone ? TensorType{DataType::Token, {}} : graph_.values[v].type; }

  void set_constant(ValueId v) {
    const Initializer& initial = graph_.values[v].initializer;
    const TensorType& made = graph_.values[v].type;
    for (int64_t i = 0; i < made.elements(); ++i) {
      const bool data = initial.kind == Initializer::Kind::Data;
      if (made.dtype == DataType::Float64) {
        float element = float(initial.a);
        if (data) std::memcpy(&element, initial.data->data() + size_t(i) * sizeof element, sizeof element);
        of(v)[i] = data ? element : initial.a;
      } else if (made.dtype == DataType::Uint8 && !data) {
        bytes_of(v)[i] = uint8_t(initial.a);
      } else if (data) {
        std::memcpy(bytes_of(v), initial.data->data(), size_t(made.bytes()));
        return;
      }
    }
  }

  // By the values' names, so that programs of other passes begin alike.
  void draw() {
    std::uniform_real_distribution<double> uniform(-0.6, 0.6);
    double* velocities = of(loop_.arenas.slots.at(0).value);
    for (const ValueId v : graph_.values.ids()) {
      const Value& value = graph_.values[v];
      if (value.role == Role::Constant) set_constant(v);
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
    for (int64_t i = 0; i < type(images).elements(); ++i) image[i] = uint8_t(random());
    auto* label = reinterpret_cast<int32_t*>(of(labels));
    for (int64_t i = 0; i < type(labels).elements(); ++i) label[i] = int32_t(random() % 3);
    scalars_.seed = 3;
    scalars_.valid = int32_t(loop_.batch);
    scalars_.learning_rate = 0.25f;
  }

  const Loop& loop_;
  Graph graph_;
  Table<ValueId, std::vector<double>> memory_;
  Table<NodeId, std::unique_ptr<Kernel>> kernels_;
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
