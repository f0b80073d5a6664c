// SPDX-License-Identifier: Apache-2.0
#pragma once
// A trained model as a graph of ONNX's own operators, for other programs to run.

#include <string>
#include <vector>

#include "executor/session/session.h"

namespace arbalest {

// The part of the model that becomes a file, and in which form.
struct ExportOptions {
  // The output; "": the scores that the first SoftmaxCrossEntropy takes or, without one, SigmoidCrossEntropy.
  std::string value = {};
  bool probabilities = false;    // of these scores instead: the sigmoid of those that SigmoidCrossEntropy takes, of
                                 // others the softmax over the last axis
  bool preprocessing = false;    // begin with the images as they are stored (uint8), not as Augment makes them
  bool fold_batch_norm = false;  // into the convolutions before them
  // All fields of a sample, so that the graph's data need not be there; empty: as the graph's source states them.
  std::vector<Field> fields = {};
};

// Returns the part of a training graph that computes the output, as it runs in validation. The weights are those of
// options.files.weights; without that file, and if options.files.fresh allows it, those of the graph's initialisers.
// Inputs and output accept any batch size, unless a called model mixes samples in all but its own
// (passes/samples_apart.h): then they keep that model's batch. Everything that ONNX's operators cannot express is
// reported at once, and so are weights that are missing. Throws GraphError and RunError.
Graph export_model(Graph graph, const SessionOptions& options, const ExportOptions& exported);

}  // namespace arbalest
