// LeNet in the C++ DSL, on generated digits or MNIST ("mnist:DIR").

#include "examples/lenet.h"

#include "examples/example.h"

int main(int argc, char** argv) {
  return arbalest::run_example(argc, argv, "lenet", "glyphs:", arbalest::build_lenet);
}
