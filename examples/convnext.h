// SPDX-License-Identifier: Apache-2.0
#pragma once
// ConvNeXt-Tiny for ImageNet in the C++ DSL: the graph of examples/convnext_tiny.onnxtxt.

#include <array>
#include <cstdint>
#include <string>

#include "examples/imagenet.h"

namespace arbalest {

// Pixels of `size` × `size` become one of `filters` channels.
inline Tensor patches(Tensor x, int64_t filters, int64_t size) {
  return conv(x, {.filters = filters, .kernel = size, .stride = size, .pad = 0, .init = "normal:0.02"});
}

// A depthwise convolution and two layers for each pixel, added to the identity, which alone is left for a share of the
// samples.
inline Tensor mixed(Tensor x, int64_t width, double dropped) {
  const Tensor c = conv(x, {.filters = width, .kernel = 7, .group = width, .init = "normal:0.02"});
  Tensor y = layer_norm(transpose(c, {0, 2, 3, 1}), {.epsilon = 1e-6});
  y = gelu(linear(y, {.units = 4 * width, .axis = -1, .init = "normal:0.02"}));
  y = layer_scale(linear(y, {.units = width, .axis = -1, .init = "normal:0.02"}), 1e-6);
  return stochastic_depth(transpose(y, {0, 3, 1, 2}), dropped) + x;
}

inline void build_convnext_tiny(Model& model, const std::string& source) {
  struct Stage {
    int64_t width;
    int blocks;
  };
  constexpr std::array<Stage, 4> kStages = {{{96, 3}, {192, 3}, {384, 9}, {768, 3}}};
  constexpr int kBlocks = 18;
  auto [x, label] = imagenet(model, source, 64);
  x = layer_norm(patches(x, kStages[0].width, 4), {.axis = 1, .epsilon = 1e-6});
  int index = 0;
  for (const Stage& stage : kStages) {
    if (index > 0) x = patches(layer_norm(x, {.axis = 1, .epsilon = 1e-6}), stage.width, 2);
    for (int i = 0; i < stage.blocks; ++i) x = mixed(x, stage.width, dropped_share(0.1, index++, kBlocks - 1));
  }
  x = layer_norm(flatten(global_average_pool(x)), {.epsilon = 1e-6});
  train_classifier(linear(x, {.units = 1000, .init = "normal:0.02"}).named("logits"), label,
                   {.lr = 6.25e-5,
                    .weight_decay = 0.05,
                    .schedule = "cosine",
                    .warmup = 20,
                    .epochs = 300,
                    .lr_end = 1.5625e-8,
                    .optimizer = "adamw",
                    .decay_norms = false,
                    .ema = 0.9999},
                   {.label_smoothing = 0.1});
}

}  // namespace arbalest
