// SPDX-License-Identifier: Apache-2.0

// CheXNet as a program: trains on a table of X-rays and keeps the model with the best mean AUC.

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>

#include "examples/photos/chexnet.h"
#include "executor/session/session.h"
#include "io/open/open_source.h"

namespace arbalest {
namespace {

class Printer final : public RunObserver {
  void validation(const Validated& event) override {
    std::printf("epoch %ld: loss %.4f", long(event.epoch), event.loss);
    for (const auto& [name, value] : event.metrics) std::printf("  %s %.4f", name.c_str(), value);
    for (const auto& [name, value] : event.parts) std::printf("  %s %.4f", name.c_str(), value);
    std::printf("\n");
  }
  void finished(const RunFinished& event) override {
    std::printf("best %s in epoch %ld, in %s; %.0f images/s\n", event.best_metric.c_str(), long(event.best_epoch),
                event.best_weights.c_str(), event.images_per_second);
  }
};

void train_on(const std::string& source, const std::string& weights) {
  SessionOptions options;
  options.sources.training = open_source(source, "train", options.numerics.seed);
  options.sources.validation = open_source(source, "test", options.numerics.seed);
  Model model("chexnet");
  build_chexnet(model, source, int64_t(options.sources.training->class_names().size()));
  options.rules.metric = "auc";
  options.rules.plateau = 4;  // validations without a better AUC, until the rate is a third
  options.rules.plateau_factor = 0.3;
  options.files.save_best = "chexnet.safetensors";
  options.files.weights = weights;
  if (!weights.empty()) options.files.fresh = {"logits.*"};
  Printer printer;
  run_training(model.graph(), options, printer);
}

}  // namespace
}  // namespace arbalest

int main(int argc, char** argv) try {
  if (argc < 2 || argc > 3 || argv[1][0] == '-') {
    std::printf(
        "usage: %s SOURCE [WEIGHTS]\n\nTrains on SOURCE, such as 'csv:data/xrays/labels.csv?labels=*', from WEIGHTS of "
        "another model,\nwhose head is not used, or from nothing. Writes chexnet.safetensors.\n",
        argv[0]);
    return argc < 2 ? 2 : 0;
  }
  arbalest::train_on(argv[1], argc > 2 ? argv[2] : "");
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
