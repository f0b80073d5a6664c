// SPDX-License-Identifier: Apache-2.0
#pragma once
// Residual networks for ImageNet in the C++ DSL: the graphs of examples/resnet18, resnet50 and resnet101.onnxtxt.

#include <array>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "examples/imagenet.h"
#include "examples/resnet_cifar.h"

namespace arbalest {

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
