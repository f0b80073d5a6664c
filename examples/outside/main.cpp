// SPDX-License-Identifier: Apache-2.0

// Trains a model that separates two rings of points, with an operator, a source, a metric, a strategy and an observer
// that are not part of the library, on two CPU learners. The exit status is 1 if a check fails.

#include <arbalest/arbalest.h>

#include <cmath>
#include <cstdio>

#include "own.h"

using namespace arbalest;

namespace {

// Collects the results that main() checks. The library makes the calls one at a time, from a thread that does nothing
// else.
class Story final : public RunObserver {
 public:
  void started(const RunStarted& event) override {
    learners = event.learners;
    strategy = event.strategy;
  }
  void validation(const Validated& event) override {
    losses.push_back(event.loss);
    metrics = event.metrics;
    std::printf("epoch %ld: loss %.4f", long(event.epoch), event.loss);
    for (const auto& [name, value] : event.metrics) std::printf(", %s %.4f", name.c_str(), value);
    std::printf("\n");
  }

  int learners = 0;
  std::string strategy;
  std::vector<double> losses;  // of the validations
  Metrics metrics;             // of the last one
};

// A linear layer of squares tells circles apart: x² + y² is the square of the radius.
void build(Model& model, const SynchronizeOptions& agreement) {
  const Batch batch = prefetch(model, {.source = "rings:?size=2048", .batch = 32}, {"point", "ring"});
  const Tensor hidden = model.add("own.Square", {linear(batch["point"], {.units = 8})}, {})[0];
  const Tensor logits = linear(hidden, {.units = 2});
  const Tensor loss = softmax_cross_entropy(logits, batch["ring"]).named("loss");
  const Tensor confidence = model.add("own.Confidence", {logits, batch["ring"]}, {})[0].named("confidence");
  validate(synchronize(train(loss, {.lr = 0.05, .momentum = 0.9}), agreement), {loss, confidence});
}

RunFinished run(const SynchronizeOptions& agreement, int64_t epochs, Story& story) {
  Model model("rings");
  build(model, agreement);
  SessionOptions options;
  options.learners.devices = {PlanDevice{}};  // cpu:0
  options.learners.per_device = 2;
  options.length.epochs = epochs;
  return run_training(model.graph(), options, story);
}

// The loss after two epochs.
double loss_by(const SynchronizeOptions& agreement) {
  Story story;
  run(agreement, 2, story);
  return story.losses.back();
}

bool expect(bool fulfilled, const char* what) {
  if (!fulfilled) std::fprintf(stderr, "%s\n", what);
  return fulfilled;
}

}  // namespace

int main() try {
  register_square();
  register_rings();
  register_confidence();
  register_elastic();

  Story story;
  const RunFinished finished = run({.strategy = "elastic", .alpha = 0.3}, 6, story);
  std::printf("%ld iterations in %.1f s\n", long(finished.iteration), finished.seconds);

  bool well = expect(story.learners == 2, "there were not two learners");
  well &= expect(story.losses.size() == 6, "there was not a validation after each of six epochs");
  well &= expect(story.losses.back() < story.losses.front() / 2, "the loss has not halved");
  well &= expect(story.metrics.size() == 1 && story.metrics[0].first == "confidence" && story.metrics[0].second > 0.9,
                 "the model is not confident");
  well &= expect(story.strategy == "elastic", "the learners did not agree as they should");
  // All the way to their mean is local SGD; a part of the way is something else.
  const double local = loss_by({.strategy = "local", .every = 4});
  const double all = loss_by({.strategy = "elastic", .every = 4, .alpha = 1});
  const double part = loss_by({.strategy = "elastic", .every = 4, .alpha = 0.1});
  std::printf("local %.6f, elastic %.6f with alpha 1, %.6f with alpha 0.1\n", local, all, part);
  well &= expect(std::abs(all - local) < 1e-3 * local, "drawing learners all the way to their mean is not local SGD");
  well &= expect(std::abs(part - local) > 1e-3 * local, "drawing learners a part of the way is local SGD");
  return well ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
