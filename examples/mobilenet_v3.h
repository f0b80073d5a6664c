// SPDX-License-Identifier: Apache-2.0
#pragma once
// MobileNetV3-Large for ImageNet in the C++ DSL: the graph of examples/mobilenet_v3_large.onnxtxt.

#include <array>
#include <cstdint>
#include <string>

#include "examples/imagenet.h"

namespace arbalest {

struct MobileBlock {
  int64_t kernel, width, filters;
  int64_t squeezed;  // channels that weigh the others; 0: none
  bool hard;         // HardSwish instead of Relu
  int64_t stride;
};

inline Tensor mobile_conv(Tensor x, const ConvOptions& options) {
  ConvOptions plain = options;
  plain.bias = false;
  plain.init = "kaiming_normal";
  return batch_norm(conv(x, plain), {.epsilon = 1e-3, .momentum = 0.01});
}

// To `width` channels, a depthwise convolution, and a projection, added to the identity if the shape stays.
inline Tensor mobile_block(Tensor x, int64_t channels, const MobileBlock& block) {
  const auto activate = [&](Tensor t) { return block.hard ? hard_swish(t) : relu(t); };
  Tensor y = x;
  if (block.width != channels) y = activate(mobile_conv(y, {.filters = block.width}));
  y = activate(
      mobile_conv(y, {.filters = block.width, .kernel = block.kernel, .stride = block.stride, .group = block.width}));
  if (block.squeezed > 0) {
    const Tensor down = conv(global_average_pool(y), {.filters = block.squeezed, .init = "kaiming_normal"});
    const Tensor up = conv(relu(down), {.filters = block.width, .init = "kaiming_normal"});
    y = y * hard_sigmoid(up, 0.16666667, 0.5);
  }
  y = mobile_conv(y, {.filters = block.filters});
  return block.stride == 1 && block.filters == channels ? y + x : y;
}

inline void build_mobilenet_v3_large(Model& model, const std::string& source) {
  constexpr std::array<MobileBlock, 15> kBlocks = {{{3, 16, 16, 0, false, 1},
                                                    {3, 64, 24, 0, false, 2},
                                                    {3, 72, 24, 0, false, 1},
                                                    {5, 72, 40, 24, false, 2},
                                                    {5, 120, 40, 32, false, 1},
                                                    {5, 120, 40, 32, false, 1},
                                                    {3, 240, 80, 0, true, 2},
                                                    {3, 200, 80, 0, true, 1},
                                                    {3, 184, 80, 0, true, 1},
                                                    {3, 184, 80, 0, true, 1},
                                                    {3, 480, 112, 120, true, 1},
                                                    {3, 672, 112, 168, true, 1},
                                                    {5, 672, 160, 168, true, 2},
                                                    {5, 960, 160, 240, true, 1},
                                                    {5, 960, 160, 240, true, 1}}};
  auto [x, label] = imagenet(model, source, 64);
  x = hard_swish(mobile_conv(x, {.filters = 16, .kernel = 3, .stride = 2}));
  int64_t channels = 16;
  for (const MobileBlock& block : kBlocks) {
    x = mobile_block(x, channels, block);
    channels = block.filters;
  }
  x = global_average_pool(hard_swish(mobile_conv(x, {.filters = 960})));
  x = dropout(hard_swish(linear(x, {.units = 1280, .init = "normal:0.01"})), 0.2);
  train_classifier(linear(x, {.units = 1000, .init = "normal:0.01"}).named("logits"), label,
                   {.lr = 0.025,
                    .momentum = 0.9,
                    .weight_decay = 1e-5,
                    .schedule = "cosine",
                    .warmup = 5,
                    .epochs = 300,
                    .decay_norms = false,
                    .ema = 0.9999},
                   {.label_smoothing = 0.1});
}

}  // namespace arbalest
