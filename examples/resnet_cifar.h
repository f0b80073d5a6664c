// SPDX-License-Identifier: Apache-2.0
#pragma once
// Residual networks for CIFAR-10 in the C++ DSL: the graphs of examples/resnet20, resnet32 and resnet44.onnxtxt.

#include <cstdint>
#include <string>

#include "base/error.h"
#include "dsl/dsl.h"

namespace arbalest {

inline Tensor conv_bn(Tensor x, int64_t filters, int64_t kernel, int64_t stride) {
  return batch_norm(
      conv(x, {.filters = filters, .kernel = kernel, .stride = stride, .bias = false, .init = "kaiming_normal"}));
}

// Two convolutions around which the input passes, projected if its shape changes.
inline Tensor residual(Tensor x, int64_t filters, int64_t stride, bool project) {
  const Tensor y = conv_bn(relu(conv_bn(x, filters, 3, stride)), filters, 3, 1);
  return relu(y + (project ? conv_bn(x, filters, 1, stride) : x));
}

// `depth`: layers with weights, 6n + 2: a stem, three stages of n blocks, and the last layer. Throws GraphError for any
// other.
inline void build_cifar_resnet(Model& model, const std::string& source, int depth) {
  if (depth < 8 || depth % 6 != 2) throw GraphError("depth is " + std::to_string(depth) + "; expected 6n + 2");
  const int blocks = (depth - 2) / 6;
  auto [image, label] = prefetch(model, {.source = source, .batch = 128});
  Tensor x = augment(image, {.pad = 4, .flip = true, .mean = {0.4914, 0.4822, 0.4465}, .std = {0.247, 0.2435, 0.2616}});
  x = relu(conv_bn(x, 16, 3, 1));
  for (const int64_t filters : {16, 32, 64}) {
    for (int block = 0; block < blocks; ++block) {
      const bool first = block == 0 && filters > 16;
      x = residual(x, filters, first ? 2 : 1, first);
    }
  }
  const Tensor logits = linear(global_average_pool(x), {.units = 10}).named("logits");
  const Tensor loss = softmax_cross_entropy(logits, label).named("loss");
  const Tensor correct = accuracy(logits, label).named("accuracy");
  const Tensor trained = train(loss, {.lr = 0.1,
                                      .momentum = 0.9,
                                      .weight_decay = 1e-4,
                                      .schedule = "multistep",
                                      .milestones = {91, 136},
                                      .epochs = 182});
  validate(synchronize(trained), {loss, correct}, {.batch = 1000});
}

}  // namespace arbalest
