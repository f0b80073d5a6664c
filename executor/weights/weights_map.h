// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rules that translate the tensor names of another program's file into the graph's.

#include <string>
#include <string_view>
#include <vector>

namespace arbalest {

// A text of rules, a line each: a pattern of names in the file, the graph's name, and perhaps a word:
//
//   # torchvision's ResNet-18
//   layer1.0.conv*.weight  h1/c*.weight
//   fc.*                   logits.*
//   *.num_batches_tracked  -
//   */kernel               *.weight      transposed
//   conv1_bn               stem.bn       keras
//
// In a pattern each * stands for any characters, as few as fit, or none. The k-th * of the graph's name stands for the
// characters that the pattern's k-th matched. The first rule whose pattern fits applies; a name that fits none stays as
// it is. "-" leaves the tensor out. `transposed`: the tensor is a kernel in the layout of TensorFlow and Keras,
// (height, width, channels, filters) or (inputs, units). `keras`: pattern and name are layers. Keras calls a layer's
// variables LAYER/kernel (which is transposed), bias, gamma, beta, moving_mean, moving_variance and embeddings; here
// they are LAYER.weight, bias, running_mean and running_var. A # begins a comment.
class WeightsMap {
 public:
  struct Target {
    std::string name;  // "": left out
    bool transposed = false;
  };

  WeightsMap() = default;  // every name stays
  // `file` is for messages. Throws GraphError with the line.
  WeightsMap(std::string_view text, const std::string& file);

  // Returns the name of the tensor in the graph, and whether the tensor is transposed.
  Target operator()(std::string_view name) const;

 private:
  struct Rule {
    std::string pattern, name;
    bool transposed = false;
    bool keras = false;  // of a layer
  };
  std::vector<Rule> rules_;
};

}  // namespace arbalest
