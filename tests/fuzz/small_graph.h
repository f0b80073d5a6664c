// SPDX-License-Identifier: Apache-2.0
#pragma once
// A graph with a node of each kind that overrides have something to say to.

#include "graph/file/graph_file.h"
#include "graph/op.h"
#include "ops/builtin_ops.h"

namespace arbalest::fuzz {

inline const Graph& small_graph() {
  static const Graph graph = read_graph_text(R"(<ir_version: 8, opset_import: ["" : 17, "arbalest" : 1]>
small () => () {
  image, label = arbalest.Prefetch <source = "synthetic:?shape=1x8x8&size=64&test=32", split = "train", batch = 4> ()
  x = arbalest.Augment <pad = 1, flip = 1, mean = [0.5], std = [0.5]> (image)
  mixed, rows = arbalest.MixImages <classes = 10, mixup = 0.2> (x, label)
  h1 = arbalest.Conv <filters = 4, kernel_shape = [3, 3]> (mixed)
  h2 = arbalest.BatchNorm (h1)
  h3 = Relu (h2)
  h4 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (h3)
  h5 = Transpose <perm = [0, 2, 3, 1]> (h4)
  h6 = Softmax <axis = 1> (h5)
  h7 = ReduceMean <axes = [1]> (h6)
  logits = arbalest.Linear <units = 10> (h7)
  loss = arbalest.SoftmaxCrossEntropy <label_smoothing = 0.1> (logits, rows)
  accuracy = arbalest.Accuracy (logits, label)
  trained = arbalest.Train <optimizer = "sgd", lr = 0.1, momentum = 0.9, epochs = 2.0> (loss)
  together = arbalest.Synchronize <strategy = "sma", every = 2> (trained)
  score = arbalest.Validate <split = "test", batch = 4> (together, loss, accuracy)
}
)",
                                             "small.onnxtxt", builtin_ops());
  return graph;
}

}  // namespace arbalest::fuzz
