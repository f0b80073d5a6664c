// SPDX-License-Identifier: Apache-2.0

// The examples in the C++ DSL, by name: trained, with a line per validation, or saved as graph files.

#include "examples/models.h"

#include <cstdio>
#include <exception>
#include <string>

#include "executor/session/session.h"

namespace arbalest {
namespace {

class ValidationPrinter final : public RunObserver {
  void validation(const Validated& event) override {
    std::printf("epoch %ld: accuracy %.4f after %.1f s\n", long(event.epoch), event.metrics.at(0).second,
                event.seconds);
  }
};

const ExampleModel& find_example(const std::string& name) {
  std::string names;
  for (const ExampleModel& model : example_models()) {
    if (model.name == name) return model;
    names += (names.empty() ? "" : ", ") + model.name;
  }
  throw GraphError("there is no example '" + name + "'; expected one of " + names);
}

void print_usage(const char* program) {
  std::printf(
      "usage: %s MODEL [SOURCE [FILE]]\n\nTrains MODEL on SOURCE, or saves its graph to FILE. The models, each with "
      "the source that it has by default:\n",
      program);
  for (const ExampleModel& model : example_models())
    std::printf("  %-20s %s\n", model.name.c_str(), model.source.c_str());
}

void run_example(const ExampleModel& example, const std::string& source, const std::string& file) {
  Model model(example.name);
  example.build(model, source);
  if (!file.empty()) return model.save(file);
  ValidationPrinter printer;
  run_training(model.graph(), SessionOptions{}, printer);
}

}  // namespace
}  // namespace arbalest

int main(int argc, char** argv) try {
  using namespace arbalest;
  if (argc < 2 || argc > 4 || argv[1][0] == '-') {
    print_usage(argv[0]);
    return argc == 2 ? 0 : 2;
  }
  const ExampleModel& example = find_example(argv[1]);
  run_example(example, argc > 2 ? argv[2] : example.source, argc > 3 ? argv[3] : "");
  return 0;
} catch (const arbalest::GraphError& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
