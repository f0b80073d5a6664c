// SPDX-License-Identifier: Apache-2.0
#pragma once
// DenseNet-121 for ImageNet in the C++ DSL: the graph of examples/densenet121.onnxtxt.

#include <array>
#include <cstdint>
#include <string>

#include "examples/imagenet.h"

namespace arbalest {

inline Tensor plain_conv(Tensor x, int64_t filters, int64_t kernel, int64_t stride = 1) {
  return conv(x,
              {.filters = filters, .kernel = kernel, .stride = stride, .bias = false, .init = "kaiming_normal_fan_in"});
}

// 32 channels more, after all those before.
inline Tensor dense(Tensor x) {
  const Tensor bottleneck = plain_conv(relu(batch_norm(x)), 128, 1);
  return concat({x, plain_conv(relu(batch_norm(bottleneck)), 32, 3)}, 1);
}

// 1024 features of images (N, 3, H, W).
inline Tensor densenet121_features(Tensor x) {
  constexpr std::array<int, 4> kStages = {6, 12, 24, 16};
  x = max_pool(relu(batch_norm(plain_conv(x, 64, 7, 2))), {.kernel = 3, .stride = 2, .pad = 1});
  int64_t channels = 64;
  for (size_t stage = 0; stage < kStages.size(); ++stage) {
    if (stage > 0) {
      channels /= 2;
      x = average_pool(plain_conv(relu(batch_norm(x)), channels, 1));
    }
    for (int i = 0; i < kStages[stage]; ++i) x = dense(x);
    channels += 32 * kStages[stage];
  }
  return global_average_pool(relu(batch_norm(x)));
}

inline void build_densenet121(Model& model, const std::string& source) {
  auto [x, label] = imagenet(model, source, 64);
  train_classifier(linear(densenet121_features(x), {.units = 1000}).named("logits"), label,
                   {.lr = 0.025,
                    .momentum = 0.9,
                    .weight_decay = 1e-4,
                    .nesterov = true,
                    .schedule = "multistep",
                    .milestones = {30, 60},
                    .epochs = 90});
}

}  // namespace arbalest
