// SPDX-License-Identifier: Apache-2.0
#pragma once
// CheXNet in the C++ DSL: the graph of examples/photos/chexnet.onnxtxt.

#include <string>

#include "examples/densenet.h"

namespace arbalest {

// `source` has files and, for each, 0 or 1 for every one of so many labels.
inline void build_chexnet(Model& model, const std::string& source, int64_t labels) {
  auto [image, label] = prefetch(model, {.source = source, .batch = 16, .cache = "host"});
  const Tensor pixels = resize_crop(image, {.height = 264, .width = 264, .channels = 1});
  const Tensor grey = augment(pixels, {.flip = true, .mean = {0.482}, .std = {0.236}, .crop = {224, 224}});
  const Tensor features = densenet121_features(concat({grey, grey, grey}, 1));
  const Tensor logits = linear(features, {.units = labels}).named("logits");
  const Tensor loss = sigmoid_cross_entropy(logits, label).named("loss");
  const Tensor area = auc(logits, label).named("auc");
  const Tensor trained = train(
      loss,
      {.lr = 0.0003, .weight_decay = 0.01, .warmup = 1, .epochs = 30, .optimizer = "adamw", .decay_norms = false});
  validate(synchronize(trained), {loss, area}, {.batch = 32});
}

}  // namespace arbalest
