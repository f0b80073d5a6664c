// SPDX-License-Identifier: Apache-2.0
#pragma once
// The examples as small as they take, for tests that train them.

#include <algorithm>
#include <string>
#include <vector>

#include "graph/file/overrides.h"
#include "tests/examples/published.h"

namespace arbalest::test {

struct Small {
  std::string name;
  Shape image;
  int64_t narrow;  // channels and units are divided by this
  std::vector<std::string> overrides;
};

// A source of noise gives the same batch in each epoch, mirrored or not, so that even a few steps lower its loss.
inline const std::vector<Small>& small_models() {
  static const std::vector<Small> models = {
      {"lenet", {1, 28, 28}, 1, {"train.warmup=0"}},
      {"mlp", {1, 28, 28}, 1, {"train.warmup=0"}},
      {"resnet20", {3, 16, 16}, 1, {"train.lr=0.02"}},
      {"resnet32", {3, 16, 16}, 1, {"train.lr=0.02"}},
      {"resnet44", {3, 16, 16}, 1, {"train.lr=0.02"}},
      {"resnet18", {3, 64, 64}, 8, {"train.warmup=0", "train.lr=0.01"}},
      {"resnet50", {3, 64, 64}, 8, {"train.warmup=0", "train.lr=0.01"}},
      {"resnet101", {3, 64, 64}, 8, {"train.warmup=0", "train.lr=0.01"}},
      {"vgg16", {3, 32, 32}, 8, {"train.lr=0.01"}},
      {"vgg16_bn", {3, 32, 32}, 8, {"train.lr=0.01"}},
      {"densenet121", {3, 64, 64}, 8, {"train.lr=0.01"}},
      {"mobilenet_v3_large", {3, 64, 64}, 8, {"train.warmup=0", "train.lr=0.01"}},
      {"efficientnet_b0", {3, 64, 64}, 8, {"train.warmup=0", "train.lr=0.01"}},
      {"vit_s16", {3, 32, 32}, 1, {"train.warmup=0", "train.lr=0.0002"}},
      {"convnext_tiny", {3, 64, 64}, 8, {"train.warmup=0", "train.lr=0.001"}},
  };
  return models;
}

inline constexpr int64_t kBatch = 4, kSteps = 4;

// Divides the attribute if the node has it.
inline void divide(Node& node, const char* attribute, int64_t by) {
  if (node.attributes.find(attribute))
    node.attributes.set(attribute, std::max<int64_t>(1, int_attribute(node, attribute) / by));
}

inline Graph small_graph(const Small& model, int64_t classes) {
  Graph graph = example_graph(model.name);
  for (Node& node : graph.nodes) {
    divide(node, "filters", model.narrow);
    divide(node, "group", model.narrow);  // depthwise convolutions alone have it
    if (node.name != "logits") divide(node, "units", model.narrow);
  }
  // Each batch of an epoch is another one, so an epoch is a batch.
  std::vector<std::string> overrides = {"prefetch.source=" + noise(model.image, classes, kBatch) + "&test=4",
                                        "prefetch.batch=4", "validate.batch=4", "validate.every_epochs=4"};
  overrides.insert(overrides.end(), model.overrides.begin(), model.overrides.end());
  for (const std::string& assignment : overrides) apply_override(graph, assignment);
  return graph;
}

}  // namespace arbalest::test
