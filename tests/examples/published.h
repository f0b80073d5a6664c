// SPDX-License-Identifier: Apache-2.0
#pragma once
// Published figures of the examples' models, and the graphs of their files.

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "graph/file/graph_file.h"
#include "graph/op.h"
#include "ops/builtin_ops.h"

namespace arbalest::test {

struct Published {
  std::string name;  // of the graph and its file
  Shape image;       // of one sample
  int64_t classes;
  int64_t parameters;  // that are trained
  double giga_macs;    // multiply-accumulates of convolutions and matrix products, of a sample's forward pass
  std::vector<std::pair<std::string, Shape>> stages;  // values of the file, and their shapes for one sample
};

// Parameters and work of ImageNet's models are torchvision's, and timm's for ViT-S/16. Those of CIFAR's follow from the
// paper's layers, with projections if a block's shape changes.
inline const std::vector<Published>& published() {
  const Shape digit = {1, 28, 28}, thumbnail = {3, 32, 32}, photo = {3, 224, 224};
  static const std::vector<Published> models = {
      {"lenet", digit, 10, 431080, 0.002293, {{"pool1", {20, 12, 12}}, {"pool2", {50, 4, 4}}}},
      {"mlp", digit, 10, 535818, 0.000535, {{"hidden1", {512}}, {"hidden2", {256}}}},
      {"resnet20", thumbnail, 10, 272474, 0.0408, {{"h3", {16, 32, 32}}, {"h6", {32, 16, 16}}, {"h9", {64, 8, 8}}}},
      {"resnet32", thumbnail, 10, 466906, 0.0691, {{"h5", {16, 32, 32}}, {"h10", {32, 16, 16}}, {"h15", {64, 8, 8}}}},
      {"resnet44", thumbnail, 10, 661338, 0.0975, {{"h7", {16, 32, 32}}, {"h14", {32, 16, 16}}, {"h21", {64, 8, 8}}}},
      {"resnet18",
       photo,
       1000,
       11689512,
       1.814,
       {{"h2", {64, 56, 56}}, {"h4", {128, 28, 28}}, {"h6", {256, 14, 14}}, {"h8", {512, 7, 7}}}},
      {"resnet50",
       photo,
       1000,
       25557032,
       4.089,
       {{"h3", {256, 56, 56}}, {"h7", {512, 28, 28}}, {"h13", {1024, 14, 14}}, {"h16", {2048, 7, 7}}}},
      {"resnet101",
       photo,
       1000,
       44549160,
       7.801,
       {{"h3", {256, 56, 56}}, {"h7", {512, 28, 28}}, {"h30", {1024, 14, 14}}, {"h33", {2048, 7, 7}}}},
      {"vgg16",
       photo,
       1000,
       138357544,
       15.470,
       {{"pool1", {64, 112, 112}}, {"pool3", {256, 28, 28}}, {"pool5", {512, 7, 7}}, {"fc7", {4096}}}},
      {"vgg16_bn",
       photo,
       1000,
       138365992,
       15.470,
       {{"pool1", {64, 112, 112}}, {"pool3", {256, 28, 28}}, {"pool5", {512, 7, 7}}, {"fc7", {4096}}}},
      {"densenet121",
       photo,
       1000,
       7978856,
       2.834,
       {{"h6", {256, 56, 56}}, {"h19", {512, 28, 28}}, {"h44", {1024, 14, 14}}, {"h61", {1024, 7, 7}}}},
      {"mobilenet_v3_large",
       photo,
       1000,
       5483032,
       0.2166,
       {{"h1", {16, 112, 112}},
        {"h3", {24, 56, 56}},
        {"h6", {40, 28, 28}},
        {"h12", {112, 14, 14}},
        {"h15", {160, 7, 7}}}},
      {"efficientnet_b0",
       photo,
       1000,
       5288548,
       0.386,
       {{"h1", {16, 112, 112}},
        {"h3", {24, 56, 56}},
        {"h5", {40, 28, 28}},
        {"h11", {112, 14, 14}},
        {"h16", {320, 7, 7}}}},
      {"vit_s16", photo, 1000, 22050664, 4.598, {{"tokens", {196, 384}}, {"h0", {197, 384}}, {"h12", {197, 384}}}},
      {"convnext_tiny",
       photo,
       1000,
       28589128,
       4.456,
       {{"h0", {96, 56, 56}}, {"h6", {192, 28, 28}}, {"h15", {384, 14, 14}}, {"h18", {768, 7, 7}}}},
  };
  return models;
}

inline Graph example_graph(const std::string& name) {
  const char* root = std::getenv("ARBALEST_SOURCE");
  return load_graph(std::string(root ? root : ".") + "/examples/" + name + ".onnxtxt", builtin_ops());
}

// The value of Prefetch's attribute `source` for noise of the shape.
inline std::string noise(const Shape& image, int64_t classes, int64_t size) {
  return "synthetic:?shape=" + std::to_string(image[0]) + "x" + std::to_string(image[1]) + "x" +
         std::to_string(image[2]) + "&classes=" + std::to_string(classes) + "&size=" + std::to_string(size);
}

}  // namespace arbalest::test
