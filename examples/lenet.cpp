// LeNet in the C++ DSL: the graph of examples/lenet.onnxtxt. Trains on generated digits, or on what the first argument names
// ("mnist:DIR"); a second argument is a file to save the graph to instead of training.

#include <atomic>
#include <cstdio>
#include <exception>
#include <string>

#include "executor/session.h"
#include "graph/dsl.h"

using namespace arbalest;

namespace {

void build(Model& model, const std::string& source) {
  auto [image, label] = prefetch(model, {.source = source, .batch = 64});
  Tensor x = augment(image, {.mean = {0.1307}, .std = {0.3081}});
  x = max_pool(conv(x, {.filters = 20, .kernel = 5, .pad = 0}).named("c1"));
  x = max_pool(conv(x, {.filters = 50, .kernel = 5, .pad = 0}).named("c2"));
  x = relu(linear(x, {.units = 500}).named("f1"));
  const Tensor logits = linear(x, {.units = 10}).named("logits");
  const Tensor loss = softmax_cross_entropy(logits, label).named("loss");
  const Tensor correct = accuracy(logits, label).named("accuracy");
  const Tensor trained = train(loss, {.lr = 0.02, .momentum = 0.9, .weight_decay = 5e-4, .schedule = "cosine", .epochs = 3});
  validate(trained, {loss, correct}, {.batch = 256});
}

class Printer final : public RunObserver {
  void validation(const Validated& event) override {
    std::printf("epoch %ld: accuracy %.4f after %.1f s\n", long(event.epoch), event.metrics.at(0).second, event.seconds);
  }
};

}  // namespace

int main(int argc, char** argv) try {
  Model model("lenet");
  build(model, argc > 1 ? argv[1] : "glyphs:");
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
