// Trains a model that separates two rings of points, with an operator, a source, a metric and an observer that are not
// part of the library, on two CPU learners. The exit status is 1 if a check fails.

#include <arbalest/arbalest.h>

#include <atomic>
#include <cstdio>

#include "own.h"

using namespace arbalest;

namespace {

// Collects the results that main() checks. The library makes the calls one at a time, from a thread that does nothing
// else.
class Story final : public RunObserver {
 public:
  void started(const RunStarted& event) override { learners = event.learners; }
  void validation(const Validated& event) override {
    losses.push_back(event.loss);
    metrics = event.metrics;
    std::printf("epoch %ld: loss %.4f", long(event.epoch), event.loss);
    for (const auto& [name, value] : event.metrics) std::printf(", %s %.4f", name.c_str(), value);
    std::printf("\n");
  }

  int learners = 0;
  std::vector<double> losses;  // of the validations
  Metrics metrics;             // of the last one
};

// A linear layer of squares tells circles apart: x² + y² is the square of the radius.
void build(Model& model) {
  const Batch batch = prefetch(model, {.source = "rings:?size=2048", .batch = 32}, {"point", "ring"});
  const Tensor hidden = model.add("own.Square", {linear(batch["point"], {.units = 8})}, {})[0];
  const Tensor logits = linear(hidden, {.units = 2});
  const Tensor loss = softmax_cross_entropy(logits, batch["ring"]).named("loss");
  const Tensor confidence = model.add("own.Confidence", {logits, batch["ring"]}, {})[0].named("confidence");
  validate(train(loss, {.lr = 0.05, .momentum = 0.9}), {loss, confidence});
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

  Model model("rings");
  build(model);
  SessionOptions options;
  options.learners.devices = {PlanDevice{}};  // cpu:0
  options.learners.per_device = 2;
  options.length.epochs = 6;
  Story story;
  const std::atomic<bool> interrupted{false};
  const RunFinished run = run_training(model.graph(), options, story, interrupted);
  std::printf("%ld iterations in %.1f s\n", long(run.iteration), run.seconds);

  bool well = expect(story.learners == 2, "there were not two learners");
  well &= expect(story.losses.size() == 6, "there was not a validation after each of six epochs");
  well &= expect(story.losses.back() < story.losses.front() / 2, "the loss has not halved");
  well &= expect(story.metrics.size() == 1 && story.metrics[0].first == "confidence" && story.metrics[0].second > 0.9,
                 "the model is not confident");
  return well ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
