// SPDX-License-Identifier: Apache-2.0
#pragma once
// Residual networks in the C++ DSL: for CIFAR-10 the graphs of examples/resnet20, resnet32 and resnet44.onnxtxt, for
// ImageNet those of resnet18, resnet50 and resnet101.onnxtxt.

#include <array>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "dsl/dsl.h"
#include "examples/imagenet.h"

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

// Three convolutions around which the input passes; the 3×3 one has the stride (version 1.5).
inline Tensor bottleneck(Tensor x, int64_t width, int64_t stride, bool project) {
  Tensor y = relu(conv_bn(x, width, 1, 1));
  y = relu(conv_bn(y, width, 3, stride));
  y = conv_bn(y, 4 * width, 1, 1);
  return relu(y + (project ? conv_bn(x, 4 * width, 1, stride) : x));
}

// Blocks of each stage. Throws GraphError for a depth other than 18, 34, 50 and 101.
inline std::array<int, 4> resnet_stages(int depth) {
  switch (depth) {
    case 18: return {2, 2, 2, 2};
    case 34:
    case 50: return {3, 4, 6, 3};
    case 101: return {3, 4, 23, 3};
  }
  throw GraphError("depth is " + std::to_string(depth) + "; expected 18, 34, 50 or 101");
}

// Features of images (N, 3, H, W). `depth`: 18 or 34 (basic blocks, 512 features), 50 or 101 (bottlenecks, 2048).
inline Tensor resnet_features(Tensor x, int depth) {
  const std::array<int, 4> blocks = resnet_stages(depth);
  const bool deep = depth >= 50;
  x = max_pool(relu(conv_bn(x, 64, 7, 2)), {.kernel = 3, .stride = 2, .pad = 1});
  for (size_t stage = 0; stage < blocks.size(); ++stage) {
    const int64_t width = 64 << stage;
    for (int block = 0; block < blocks[stage]; ++block) {
      const bool first = block == 0;
      const int64_t stride = first && stage > 0 ? 2 : 1;
      x = deep ? bottleneck(x, width, stride, first) : residual(x, width, stride, stride > 1);
    }
  }
  return global_average_pool(x);
}

inline void build_resnet(Model& model, const std::string& source, int depth) {
  auto [x, label] = imagenet(model, source, 64);
  const Tensor logits = linear(resnet_features(x, depth), {.units = 1000}).named("logits");
  train_classifier(logits, label,
                   {.lr = 0.025,
                    .momentum = 0.9,
                    .weight_decay = 1e-4,
                    .schedule = "multistep",
                    .milestones = {30, 60, 80},
                    .warmup = 5,
                    .epochs = 90});
}

}  // namespace arbalest
