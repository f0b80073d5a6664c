// SPDX-License-Identifier: Apache-2.0
#pragma once
// EfficientNet-B0 for ImageNet in the C++ DSL: the graph of examples/efficientnet_b0.onnxtxt.

#include <array>
#include <cstdint>
#include <string>

#include "examples/imagenet.h"

namespace arbalest {

inline Tensor conv_swish(Tensor x, const ConvOptions& options) {
  ConvOptions plain = options;
  plain.bias = false;
  plain.init = "kaiming_normal";
  return swish(batch_norm(conv(x, plain)));
}

struct EfficientBlock {
  int64_t kernel, stride, channels, width, filters;
  double dropped;  // share of the samples that leave the block out
};

// To `width` channels, a depthwise convolution, weighed channels and a projection, added to the identity if the shape
// stays.
inline Tensor efficient_block(Tensor x, const EfficientBlock& block) {
  Tensor y = block.width == block.channels ? x : conv_swish(x, {.filters = block.width});
  y = conv_swish(y, {.filters = block.width, .kernel = block.kernel, .stride = block.stride, .group = block.width});
  const Tensor down = conv(global_average_pool(y), {.filters = block.channels / 4, .init = "kaiming_normal"});
  y = y * sigmoid(conv(swish(down), {.filters = block.width, .init = "kaiming_normal"}));
  y = batch_norm(conv(y, {.filters = block.filters, .bias = false, .init = "kaiming_normal"}));
  const bool residual = block.stride == 1 && block.filters == block.channels;
  return residual ? stochastic_depth(y, block.dropped) + x : y;
}

inline void build_efficientnet_b0(Model& model, const std::string& source) {
  struct Stage {
    int64_t widening, kernel, stride, filters;
    int blocks;
  };
  constexpr std::array<Stage, 7> kStages = {{{1, 3, 1, 16, 1},
                                             {6, 3, 2, 24, 2},
                                             {6, 5, 2, 40, 2},
                                             {6, 3, 2, 80, 3},
                                             {6, 5, 1, 112, 3},
                                             {6, 5, 2, 192, 4},
                                             {6, 3, 1, 320, 1}}};
  constexpr int kBlocks = 16;
  auto [x, label] = imagenet(model, source, 64);
  x = conv_swish(x, {.filters = 32, .kernel = 3, .stride = 2});
  int64_t channels = 32;
  int index = 0;
  for (const Stage& stage : kStages) {
    for (int i = 0; i < stage.blocks; ++i) {
      x = efficient_block(x, {.kernel = stage.kernel,
                              .stride = i == 0 ? stage.stride : 1,
                              .channels = channels,
                              .width = stage.widening * channels,
                              .filters = stage.filters,
                              .dropped = dropped_share(0.2, index++, kBlocks)});
      channels = stage.filters;
    }
  }
  x = dropout(global_average_pool(conv_swish(x, {.filters = 1280})), 0.2);
  train_classifier(linear(x, {.units = 1000, .init = "uniform:0.0316228"}).named("logits"), label,
                   {.lr = 0.025,
                    .momentum = 0.9,
                    .weight_decay = 1e-5,
                    .schedule = "cosine",
                    .warmup = 5,
                    .epochs = 350,
                    .ema = 0.9999},
                   {.label_smoothing = 0.1});
}

}  // namespace arbalest
