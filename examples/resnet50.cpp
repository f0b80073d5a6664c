// ResNet-50 in the C++ DSL, on noise of ImageNet's size.

#include "examples/resnet50.h"

#include "examples/example.h"

int main(int argc, char** argv) {
  return arbalest::run_example(
      argc, argv, "resnet50", "synthetic:?shape=3x224x224&classes=1000&size=1281167",
      [](arbalest::Model& model, const std::string& source) { arbalest::build_resnet(model, source, 50); });
}
