// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts that all classifiers for ImageNet share: images and labels at the beginning, measures and training at the
// end.

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "dsl/dsl.h"

namespace arbalest {

// Normalised images, mirrored at random, and their labels.
inline std::pair<Tensor, Tensor> imagenet(Model& model, const std::string& source, int64_t batch) {
  auto [image, label] = prefetch(model, {.source = source, .batch = batch});
  return {augment(image, {.flip = true, .mean = {0.485, 0.456, 0.406}, .std = {0.229, 0.224, 0.225}}), label};
}

// The share of the samples that leave out block `index`, which grows evenly to `most` at block `last`; to four
// decimals, as the graph files have it.
inline double dropped_share(double most, int index, int last) {
  return std::round(1e4 * most * index / last) / 1e4;
}

// Loss, accuracy and top-5 accuracy, and training with them.
inline void train_classifier(Tensor logits, Tensor label, const TrainOptions& options, const LossOptions& loss = {}) {
  const Tensor cost = softmax_cross_entropy(logits, label, loss).named("loss");
  const Tensor correct = accuracy(logits, label).named("accuracy");
  const Tensor top5 = accuracy(logits, label, {.top_k = 5}).named("top5");
  validate(synchronize(train(cost, options)), {cost, correct, top5}, {.batch = 250});
}

}  // namespace arbalest
