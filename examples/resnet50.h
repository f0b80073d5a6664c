#pragma once
// ResNet-18 and ResNet-50 for ImageNet in the C++ DSL: the graphs of examples/resnet18.onnxtxt and resnet50.onnxtxt.

#include <array>
#include <cstdint>
#include <string>

#include "examples/resnet32.h"
#include "graph/error.h"

namespace arbalest {

// Three convolutions around which the input passes; the 3×3 one has the stride (version 1.5).
inline Tensor bottleneck(Tensor x, int64_t width, int64_t stride, bool project) {
  Tensor y = relu(conv_bn(x, width, 1, 1));
  y = relu(conv_bn(y, width, 3, stride));
  y = conv_bn(y, 4 * width, 1, 1);
  return relu(y + (project ? conv_bn(x, 4 * width, 1, stride) : x));
}

// `depth`: 18 (basic blocks) or 50 (bottlenecks). Throws GraphError for any other.
inline void build_resnet(Model& model, const std::string& source, int depth) {
  if (depth != 18 && depth != 50) throw GraphError("depth is " + std::to_string(depth) + "; expected 18 or 50");
  const bool deep = depth == 50;
  const std::array<int, 4> blocks = deep ? std::array{3, 4, 6, 3} : std::array{2, 2, 2, 2};  // of each stage
  auto [image, label] = prefetch(model, {.source = source, .batch = 64});
  Tensor x = augment(image, {.flip = true, .mean = {0.485, 0.456, 0.406}, .std = {0.229, 0.224, 0.225}});
  x = max_pool(relu(conv_bn(x, 64, 7, 2)), {.kernel = 3, .stride = 2, .pad = 1});
  for (size_t stage = 0; stage < blocks.size(); ++stage) {
    const int64_t width = 64 << stage;
    for (int block = 0; block < blocks[stage]; ++block) {
      const bool first = block == 0;
      const int64_t stride = first && stage > 0 ? 2 : 1;
      x = deep ? bottleneck(x, width, stride, first) : residual(x, width, stride, stride > 1);
    }
  }
  const Tensor logits = linear(global_average_pool(x), {.units = 1000}).named("logits");
  const Tensor loss = softmax_cross_entropy(logits, label).named("loss");
  const Tensor correct = accuracy(logits, label).named("accuracy");
  const Tensor top5 = accuracy(logits, label, {.top_k = 5}).named("top5");
  const Tensor trained = train(loss, {.lr = 0.025,
                                      .momentum = 0.9,
                                      .weight_decay = 1e-4,
                                      .schedule = "multistep",
                                      .milestones = {30, 60, 80},
                                      .warmup = 5,
                                      .epochs = 90});
  validate(synchronize(trained), {loss, correct, top5}, {.batch = 250});
}

}  // namespace arbalest
