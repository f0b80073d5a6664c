// ResNet-32 in the C++ DSL, on CIFAR-10.

#include "examples/resnet32.h"

#include "examples/example.h"

int main(int argc, char** argv) {
  return arbalest::run_example(argc, argv, "resnet32", "cifar10:data/cifar10", arbalest::build_resnet32);
}
