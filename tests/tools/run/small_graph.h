// SPDX-License-Identifier: Apache-2.0
#pragma once
// Small graphs for tests of commands, on one CPU.

#include <string>

#include "tests/io/test_folder.h"

namespace arbalest::test {

inline constexpr const char* kSmallGraph =
    "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
    "g () => () {\n"
    "  image, label = arbalest.Prefetch <source = \"glyphs:?train=96&size=16\", batch = 8> ()\n"
    "  x = arbalest.Augment (image)\n"
    "  logits = arbalest.Linear <units = 10> (x)\n"
    "  loss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
    "  trained = arbalest.Train <lr = 0.01> (loss)\n"
    "}\n";

// Options of a command for the small graph, which is written to the folder, on one CPU device.
template <typename Options>
Options options_in(const TestFolder& folder) {
  Options options;
  options.graph = folder.write("g.onnxtxt", std::string(kSmallGraph)).string();
  options.devices = "cpu:0";
  return options;
}

// Writes a graph whose `layers` make h of the images x; returns its path.
inline std::string write_net(const TestFolder& folder, const std::string& layers) {
  const std::string text = R"(<ir_version: 8, opset_import: ["" : 17, "arbalest" : 1]>
g () => () {
  image, label = arbalest.Prefetch <source = "synthetic:?shape=1x16x16&classes=10&size=100&test=40", batch = 20> ()
  x = arbalest.Augment (image)
  )" + layers + R"(
  logits = arbalest.Linear <units = 10> (h)
  loss = arbalest.SoftmaxCrossEntropy (logits, label)
  trained = arbalest.Train <lr = 0.02> (loss)
})";
  return folder.write("g.onnxtxt", text).string();
}

}  // namespace arbalest::test
