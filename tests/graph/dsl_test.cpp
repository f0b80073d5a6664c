// The C++ DSL: what it refuses. What it builds is judged by the examples (tests/examples).

#include <doctest/doctest.h>

#include "graph/dsl/dsl.h"
#include "tests/graph/file_fixture.h"

using namespace arbalest;

TEST_CASE("the DSL refuses unknown operators, taken names and tensors of other models") {
  Model model("one"), other("two");
  auto [image, label] = prefetch(model, {.source = "synthetic:"});
  const Tensor x = augment(image, {}).named("x");
  CHECK(x.name() == "x");
  CHECK(error_of([&] { model.add("Rellu", {x}, {}); }).find("did you mean 'Relu'?") != std::string::npos);
  CHECK(error_of([&] { model.add("arbalest.Sgd", {x}, {}); }).find("unknown operator") != std::string::npos);
  CHECK(error_of([&] { relu(x).named("x"); }).find("'x' is taken") != std::string::npos);
  CHECK(error_of([&] { other.add("Relu", {x}, {}); }).find("'x' belongs to another model") != std::string::npos);
}

TEST_CASE("losses and metrics of the DSL are the operators of those names, with what was asked for") {
  Model model("losses");
  auto [image, label] = prefetch(model, {.source = "glyphs:?size=8", .batch = 8});
  const Tensor logits = linear(augment(image, {.mean = {0.2}, .std = {0.3}}), {.units = 10}).named("logits");
  const std::vector<double> weights(10, 0.5);
  const Tensor weighed =
      softmax_cross_entropy(logits, label, {.label_smoothing = 0.1, .class_weights = weights}).named("weighed");
  const Tensor target = sigmoid(logits);
  const Tensor loss = weighed + sigmoid_cross_entropy(logits, target, {.pos_weight = weights}) +
                      mean_squared_error(logits, target) + l1_loss(logits, target);
  const Tensor trained = train(loss.named("loss"), {.lr = 0.1});
  validate(trained,
           {auc(logits, label, {.softmax = false}), precision(logits, label),
            recall(logits, label, {.average = "micro"}), f1(logits, label, {.threshold = 0.25, .logits = false})});
  const Graph graph = model.graph();
  const auto only = [&](std::string_view op) {
    const Node* node = graph.find_op(op);
    INFO(std::string(op));
    REQUIRE(node);
    return *node;
  };
  const Node softmax = only("arbalest.SoftmaxCrossEntropy");
  CHECK(floats_attribute(softmax, "class_weights") == weights);
  CHECK(float_attribute(softmax, "label_smoothing") == 0.1);
  CHECK(floats_attribute(only("arbalest.SigmoidCrossEntropy"), "pos_weight") == weights);
  only("arbalest.MeanSquaredError");
  only("arbalest.L1Loss");
  CHECK(int_attribute(only("arbalest.AUC"), "softmax") == 0);
  CHECK(string_attribute(only("arbalest.Precision"), "average") == "macro");
  CHECK(string_attribute(only("arbalest.Recall"), "average") == "micro");
  CHECK(float_attribute(only("arbalest.F1"), "threshold") == 0.25);
  CHECK(int_attribute(only("arbalest.F1"), "logits") == 0);
}
