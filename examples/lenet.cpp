// LeNet in the C++ DSL: the graph of examples/lenet.onnxtxt. Trains on generated digits, or on what the first argument
// names ("mnist:DIR"); a second argument is a file to save the graph to instead of training.

#include <atomic>
#include <cstdio>
#include <exception>
#include <string>

#include "examples/lenet.h"
#include "executor/session.h"

using namespace arbalest;

namespace {

class Printer final : public RunObserver {
  void validation(const Validated& event) override {
    std::printf("epoch %ld: accuracy %.4f after %.1f s\n", long(event.epoch), event.metrics.at(0).second,
                event.seconds);
  }
};

}  // namespace

int main(int argc, char** argv) try {
  Model model("lenet");
  build_lenet(model, argc > 1 ? argv[1] : "glyphs:");
  if (argc > 2) {
    model.save(argv[2]);
    return 0;
  }
  Printer printer;
  const std::atomic<bool> interrupted{false};
  train(model.graph(), SessionOptions{}, printer, interrupted);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
