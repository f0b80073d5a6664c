#pragma once
// What the examples have in common: a model built by a function, saved or trained, with a line per validation.

#include <atomic>
#include <cstdio>
#include <exception>
#include <string>

#include "executor/session/session.h"
#include "graph/dsl/dsl.h"

namespace arbalest {

class ValidationPrinter final : public RunObserver {
  void validation(const Validated& event) override {
    std::printf("epoch %ld: accuracy %.4f after %.1f s\n", long(event.epoch), event.metrics.at(0).second,
                event.seconds);
  }
};

// The command line is [SOURCE [FILE]]: where the data is, and a file to save the graph to instead of training.
inline int run_example(int argc, char** argv, const std::string& name, const std::string& source,
                       void (*build)(Model&, const std::string&)) try {
  if (argc > 1 && argv[1][0] == '-') {
    std::printf("usage: %s [SOURCE [FILE]]\nTrains on SOURCE (default %s), or saves the graph to FILE.\n", argv[0],
                source.c_str());
    return 0;
  }
  Model model(name);
  build(model, argc > 1 ? argv[1] : source);
  if (argc > 2) {
    model.save(argv[2]);
    return 0;
  }
  ValidationPrinter printer;
  const std::atomic<bool> interrupted{false};
  run_training(model.graph(), SessionOptions{}, printer, interrupted);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

}  // namespace arbalest
