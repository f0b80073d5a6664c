#pragma once
// What the graph calls the tensors of another program's file.

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
// In a pattern each * stands for any characters, also none, as few as fit; the k-th * of the graph's name for what the
// pattern's k-th stood for. The first rule whose pattern fits applies; a name that none fits stays as it is. "-" leaves
// the tensor out. `transposed`: the tensor is a kernel as TensorFlow and Keras have it, (height, width, channels,
// filters) or (inputs, units). `keras`: the pattern and the name are layers, whose variables Keras calls LAYER/kernel
// (which is transposed), bias, gamma, beta, moving_mean, moving_variance and embeddings; here they are LAYER.weight,
// bias, running_mean and running_var. What follows # is a comment.
class WeightsMap {
 public:
  struct Target {
    std::string name;  // "": left out
    bool transposed = false;
  };

  WeightsMap() = default;  // every name stays
  // `file` is for messages. Throws GraphError with the line.
  WeightsMap(std::string_view text, const std::string& file);

  // What the graph calls the tensor.
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
