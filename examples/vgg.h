// SPDX-License-Identifier: Apache-2.0
#pragma once
// VGG-16 for ImageNet in the C++ DSL: the graphs of examples/vgg16.onnxtxt and vgg16_bn.onnxtxt.

#include <array>
#include <cstdint>
#include <string>

#include "examples/imagenet.h"

namespace arbalest {

// `normalise`: a batch norm follows each convolution.
inline void build_vgg16(Model& model, const std::string& source, bool normalise) {
  struct Stage {
    int convolutions;
    int64_t filters;
  };
  constexpr std::array<Stage, 5> kStages = {{{2, 64}, {2, 128}, {3, 256}, {3, 512}, {3, 512}}};
  auto [x, label] = imagenet(model, source, 32);
  for (const Stage& stage : kStages) {
    for (int i = 0; i < stage.convolutions; ++i) {
      x = conv(x, {.filters = stage.filters, .kernel = 3, .init = "kaiming_normal"});
      x = relu(normalise ? batch_norm(x) : x);
    }
    x = max_pool(x);
  }
  for (int i = 0; i < 2; ++i) x = dropout(relu(linear(x, {.units = 4096, .init = "normal:0.01"})), 0.5);
  const Tensor logits = linear(x, {.units = 1000, .init = "normal:0.01"}).named("logits");
  train_classifier(
      logits, label,
      {.lr = 0.00125, .momentum = 0.9, .weight_decay = 1e-4, .schedule = "step", .step_size = 30, .epochs = 90});
}

}  // namespace arbalest
