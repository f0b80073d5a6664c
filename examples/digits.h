// SPDX-License-Identifier: Apache-2.0
#pragma once
// Models of digits in the C++ DSL: the graphs of examples/mlp.onnxtxt and examples/lenet.onnxtxt.

#include <cstdint>
#include <string>

#include "dsl/dsl.h"

namespace arbalest {

// Two hidden layers.
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

inline void build_lenet(Model& model, const std::string& source) {
  auto [image, label] = prefetch(model, {.source = source, .batch = 64});
  Tensor x = augment(image, {.mean = {0.1307}, .std = {0.3081}}).named("x");
  x = max_pool(conv(x, {.filters = 20, .kernel = 5, .pad = 0}).named("conv1"));
  x = max_pool(conv(x, {.filters = 50, .kernel = 5, .pad = 0}).named("conv2"));
  x = relu(linear(x, {.units = 500}).named("fc1"));
  const Tensor logits = linear(x, {.units = 10}).named("logits");
  const Tensor loss = softmax_cross_entropy(logits, label).named("loss");
  const Tensor correct = accuracy(logits, label).named("accuracy");
  const Tensor trained = train(
      loss, {.lr = 0.03, .momentum = 0.9, .weight_decay = 5e-4, .schedule = "linear", .warmup = 0.1, .epochs = 3});
  validate(trained, {loss, correct}, {.batch = 256});
}

}  // namespace arbalest
