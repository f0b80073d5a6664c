// SPDX-License-Identifier: Apache-2.0
#pragma once
// Small training graphs, stated as a file states them.

#include <fmt/format.h>

#include <string>

#include "graph/file/graph_file.h"
#include "graph/op.h"
#include "ops/builtin_ops.h"

namespace arbalest::test {

// Ends a body that computes `logits`.
inline constexpr const char* kLoss =
    "loss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
    "accuracy = arbalest.Accuracy (logits, label)\n"
    "trained = arbalest.Train <lr = 0.1, momentum = 0.9, weight_decay = 0.001> (loss)\n"
    "report = arbalest.Validate <batch = 5> (trained, loss, accuracy)\n";

// Comma-separated numbers for an initial value.
inline std::string numbers(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += fmt::format("{}{}", i ? ", " : "", 0.1 * ((i * 7) % 11 - 5));
  return text;
}

// w (72×3) is read by two matrix products.
inline const std::string kShared =
    "flat = Flatten (x)\n"
    "positive = Relu (flat)\n"
    "one = Gemm (flat, w)\n"
    "other = Gemm (positive, w)\n"
    "logits = Add (one, other)\n" +
    std::string(kLoss) + "#initial float[72, 3] w = {" + numbers(72 * 3) + "}";

// The verified graph whose nodes are `body`, after x = Augment (image): 4 samples of 2×6×6, 3 classes. What follows
// "#initial " in the body are initial values.
inline Graph net(std::string body) {
  std::string initial;
  const std::string mark = "#initial ";
  if (const size_t at = body.find(mark); at != std::string::npos) {
    initial = fmt::format("<{}>", body.substr(at + mark.size()));
    body.resize(at);
  }
  const std::string text = fmt::format(
      "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
      "net () => (float loss) {}\n{{\n"
      "image, label = arbalest.Prefetch <source = \"synthetic:\", batch = 4, fields = [\"image "
      "uint8[2,6,6]\", \"label int32[]\"]> ()\n"
      "x = arbalest.Augment <pad = 1, flip = 1, mean = [0.5, 0.4], std = [0.25, 0.2]> (image)\n{}}}\n",
      initial, body);
  Graph graph = read_graph_text(text, "net.onnxtxt", builtin_ops());
  verify(graph);
  return graph;
}

}  // namespace arbalest::test
