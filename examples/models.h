// SPDX-License-Identifier: Apache-2.0
#pragma once
// The examples by name.

#include <string>
#include <vector>

#include "examples/convnext.h"
#include "examples/densenet.h"
#include "examples/digits.h"
#include "examples/efficientnet.h"
#include "examples/mobilenet_v3.h"
#include "examples/resnet.h"
#include "examples/vgg.h"
#include "examples/vit.h"

namespace arbalest {

struct ExampleModel {
  std::string name;    // of the graph, and of its file: examples/NAME.onnxtxt
  std::string source;  // that the file trains on
  void (*build)(Model&, const std::string& source);
};

inline const std::vector<ExampleModel>& example_models() {
  static const std::string digits = "glyphs:", cifar = "cifar10:data/cifar10",
                           imagenet = "synthetic:?shape=3x224x224&classes=1000&size=1281167";
  static const std::vector<ExampleModel> models = {
      {"lenet", digits, build_lenet},
      {"mlp", digits, build_mlp},
      {"resnet20", cifar, [](Model& model, const std::string& source) { build_cifar_resnet(model, source, 20); }},
      {"resnet32", cifar, [](Model& model, const std::string& source) { build_cifar_resnet(model, source, 32); }},
      {"resnet44", cifar, [](Model& model, const std::string& source) { build_cifar_resnet(model, source, 44); }},
      {"resnet18", imagenet, [](Model& model, const std::string& source) { build_resnet(model, source, 18); }},
      {"resnet50", imagenet, [](Model& model, const std::string& source) { build_resnet(model, source, 50); }},
      {"resnet101", imagenet, [](Model& model, const std::string& source) { build_resnet(model, source, 101); }},
      {"vgg16", imagenet, [](Model& model, const std::string& source) { build_vgg16(model, source, false); }},
      {"vgg16_bn", imagenet, [](Model& model, const std::string& source) { build_vgg16(model, source, true); }},
      {"densenet121", imagenet, build_densenet121},
      {"mobilenet_v3_large", imagenet, build_mobilenet_v3_large},
      {"efficientnet_b0", imagenet, build_efficientnet_b0},
      {"vit_s16", imagenet, build_vit_s16},
      {"convnext_tiny", imagenet, build_convnext_tiny},
  };
  return models;
}

}  // namespace arbalest
