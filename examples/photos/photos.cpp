// SPDX-License-Identifier: Apache-2.0

// Photos as a program: trains a ResNet of a chosen depth on photos with a class each and keeps the best model.

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "examples/photos/photos.h"
#include "executor/session/session.h"
#include "io/open/open_source.h"

namespace arbalest {
namespace {

class Printer final : public RunObserver {
  void validation(const Validated& event) override {
    std::printf("epoch %ld: loss %.4f", long(event.epoch), event.loss);
    for (const auto& [name, value] : event.metrics) std::printf("  %s %.4f", name.c_str(), value);
    std::printf("\n");
  }
  void finished(const RunFinished& event) override {
    std::printf("best %s in epoch %ld, in %s; %.0f images/s\n", event.best_metric.c_str(), long(event.best_epoch),
                event.best_weights.c_str(), event.images_per_second);
  }
};

// The source's fields are the file of a photo and its class.
void train_on(const std::string& source, int depth) {
  SessionOptions options;
  options.sources.training = open_source(source, "train", options.numerics.seed);
  options.sources.validation = open_source(source, "test", options.numerics.seed);
  options.files.save_best = "photos.safetensors";
  Model model("photos");
  build_photos(model, source, options.sources.training->fields().back().classes, depth);
  Printer printer;
  run_training(model.graph(), options, printer);
}

}  // namespace
}  // namespace arbalest

int main(int argc, char** argv) try {
  if (argc < 2 || argc > 3 || argv[1][0] == '-') {
    std::printf(
        "usage: %s SOURCE [DEPTH]\n\nTrains a ResNet of DEPTH 18, 34 or 50 (unless given) on SOURCE, such as "
        "folder:data/caltech101.\nWrites photos.safetensors.\n",
        argv[0]);
    return argc < 2 ? 2 : 0;
  }
  arbalest::train_on(argv[1], argc > 2 ? std::atoi(argv[2]) : 50);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
