// SPDX-License-Identifier: Apache-2.0
#pragma once
// The numbers that a program computes, by name: programs of other passes and devices are compared by them.

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/passes/loop_run.h"

namespace arbalest::test {

// Numbers for what a loop reads and for what a run would draw, by the values' names; lowered weights are their
// masters'.
inline void draw(LoopRun& run, const Loop& loop) {
  const Graph& graph = run.graph();
  for (const ValueId v : graph.values.ids()) {
    const Value& value = graph.values[v];
    const Initializer::Kind kind = value.initializer.kind;
    if (value.role != Role::Parameter || value.view.base == kNone) continue;
    std::vector<double> elements = run.get(v);
    std::mt19937 random(uint32_t(std::hash<std::string>{}(value.name)));
    if (kind == Initializer::Kind::Normal || kind == Initializer::Kind::Uniform) {
      const Shape& shape = value.type.shape;
      const double most = shape.size() < 2 ? 0.5 : 1 / std::sqrt(double(element_count(shape) / shape[0]));
      for (double& element : elements) element = most * (double(random() % 2001) / 1000 - 1);
      run.set(v, elements);
    }
    if (const ValueId lowered = graph.find_value(value.name + ".bf16"); lowered != kNone) run.set(lowered, elements);
  }
  std::mt19937 random(5);
  for (const ValueId field : loop.fields) {
    if (field == kNone) continue;
    const TensorType type = run.type(field);
    std::vector<double> elements(size_t(type.elements()));
    const uint32_t below = type.dtype == DataType::Int32 ? 3 : 256;  // labels, pixels
    for (double& element : elements) element = double(random() % below);
    run.set(field, elements);
  }
}

// Losses of two steps, stored values after them, gradients of the second, and what validation makes of the start.
using Numbers = std::map<std::string, std::vector<double>>;

inline Numbers numbers_of(const Program& program, const StepScalars& given, TestDevice& device, DataType floats) {
  Numbers numbers;
  StepScalars scalars = given;
  scalars.learning_rate = 0.25f;
  if (scalars.valid == 0) scalars.valid = int32_t(program.training().batch);
  LoopRun training(program.training(), device, floats);
  draw(training, program.training());
  for (int step = 0; step < 2; ++step) {
    training.step(scalars);
    const ValueId loss = training.graph().find_value(program.training().metrics[0].name);
    numbers[fmt::format("the loss of step {}", step)] = training.get(loss);
  }
  for (const ValueId v : training.graph().values.ids()) {
    const Value& value = training.graph().values[v];
    const bool stored = value.role == Role::Parameter || value.role == Role::State || value.name.ends_with(".gradient");
    if (stored && value.view.base != kNone) numbers[value.name] = training.get(v);
  }
  const Loop& validation = *program.find(LoopRole::Validate);
  LoopRun validated(validation, device, floats);
  draw(validated, validation);
  validated.run(scalars);
  for (size_t k = 0; k < validation.outputs.size(); ++k) {
    numbers[fmt::format("output {} of validation", k)] = validated.get(validation.outputs[k]);
  }
  return numbers;
}

// "" or the first numbers that differ by more than rounding.
inline std::string difference(const Numbers& one, const Numbers& other, double rounding) {
  if (one.size() != other.size()) return "other values are stored";
  for (const auto& [name, values] : one) {
    const auto found = other.find(name);
    if (found == other.end() || found->second.size() != values.size()) return name + " is missing";
    double norm = 0, apart = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const double a = values[i], b = found->second[i];
      if (a == b || (std::isnan(a) && std::isnan(b))) continue;
      norm += a * a;
      apart += (a - b) * (a - b);
    }
    if (!(std::sqrt(apart) <= rounding * (1 + std::sqrt(norm)))) {
      return fmt::format("{} differs by {:.3g}, norm {:.3g}", name, std::sqrt(apart), std::sqrt(norm));
    }
  }
  return "";
}

}  // namespace arbalest::test
