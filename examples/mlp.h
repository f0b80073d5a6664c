// SPDX-License-Identifier: Apache-2.0
#pragma once
// Two hidden layers in the C++ DSL: the graph of examples/mlp.onnxtxt.

#include <string>

#include "dsl/dsl.h"

namespace arbalest {

inline void build_mlp(Model& model, const std::string& source) {
  auto [image, label] = prefetch(model, {.source = source, .batch = 64});
  Tensor x = augment(image, {.mean = {0.1307}, .std = {0.3081}}).named("x");
  x = relu(linear(x, {.units = 512}).named("fc1"));
  x = relu(linear(x, {.units = 256}).named("fc2"));
  const Tensor logits = linear(x, {.units = 10}).named("logits");
  const Tensor loss = softmax_cross_entropy(logits, label).named("loss");
  const Tensor correct = accuracy(logits, label).named("accuracy");
  const Tensor trained = train(
      loss, {.lr = 0.03, .momentum = 0.9, .weight_decay = 5e-4, .schedule = "linear", .warmup = 0.1, .epochs = 3});
  validate(trained, {loss, correct}, {.batch = 256});
}

}  // namespace arbalest
