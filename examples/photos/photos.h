// SPDX-License-Identifier: Apache-2.0
#pragma once
// A ResNet on a folder of photos in the C++ DSL; of depth 50 the graph of examples/photos/photos.onnxtxt.

#include <string>

#include "examples/resnet.h"

namespace arbalest {

inline void build_photos(Model& model, const std::string& source, int64_t classes, int depth = 50) {
  auto [image, label] = prefetch(model, {.source = source, .batch = 64});
  const Tensor pixels = random_resized_crop(image, {.area = {0.35, 1}});
  const Tensor x = augment(pixels, {.flip = true, .mean = {0.485, 0.456, 0.406}, .std = {0.229, 0.224, 0.225}});
  const Tensor logits = linear(resnet_features(x, depth), {.units = classes}).named("logits");
  const Tensor loss = softmax_cross_entropy(logits, label, {.label_smoothing = 0.1}).named("loss");
  const Tensor correct = accuracy(logits, label).named("accuracy");
  const Tensor top5 = accuracy(logits, label, {.top_k = 5}).named("top5");
  const Tensor trained = train(loss, {.lr = 0.05,
                                      .momentum = 0.9,
                                      .weight_decay = 5e-4,
                                      .nesterov = true,
                                      .schedule = "cosine",
                                      .warmup = 5,
                                      .epochs = 100,
                                      .decay_norms = false});
  validate(synchronize(trained), {loss, correct, top5}, {.batch = 101});
}

}  // namespace arbalest
