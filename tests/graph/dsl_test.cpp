// SPDX-License-Identifier: Apache-2.0

// The C++ DSL: what it refuses. What it builds is judged by the examples (tests/examples).

#include <doctest/doctest.h>

#include <iterator>

#include "dsl/dsl.h"
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

TEST_CASE("the DSL refuses empty tensors, and operators without outputs") {
  Model model("empty");
  auto [image, label] = prefetch(model, {.source = "synthetic:"});
  const Tensor x = augment(image, {}), none;
  const auto refused = [](const auto& call, const char* phrase) {
    const std::string message = error_of(call);
    CHECK_MESSAGE(message.find(phrase) != std::string::npos, message);
  };
  const char* expected = "expected one that a function of dsl/dsl.h returned";
  refused([&] { relu(none); }, "Relu: the first operand is an empty Tensor; expected one");
  refused([&] { linear(none, {.units = 3}); }, "arbalest.Linear: the first operand is an empty Tensor");
  refused([&] { train(none, {}); }, "arbalest.Train: the first operand is an empty Tensor");
  refused([&] { validate(none, {}); }, "arbalest.Validate: the first operand is an empty Tensor");
  refused([&] { concat({none, x}, 1); }, "Concat: the first operand is an empty Tensor");
  refused([&] { none + x; }, "Add: the first operand is an empty Tensor");
  refused([&] { none.named("a"); }, expected);
  refused([&] { none.name(); }, expected);
  refused([&] { none.model(); }, expected);
  refused([&] { Batch({none})["a"]; }, expected);
  refused([&] { split(x, 1, 0); }, "Split: 0 outputs are asked for, expected 1 or more");
  refused([&] { split(x, 1, -1); }, "Split: -1 outputs are asked for, expected 1 or more");
  refused([&] { model.add("Relu", {x}, {}, -1); }, "Relu: -1 outputs are asked for, expected 1 or more");
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

TEST_CASE("what images are augmented and mixed with are the attributes of those names, and nothing else is stated") {
  Model model("augmented");
  auto [image, label] = prefetch(model, {.source = "glyphs:?size=8", .batch = 8});
  augment(image, {.pad = 2, .flip = true});
  const Attributes usual = model.graph().find_op("arbalest.Augment")->attributes;
  CHECK(std::distance(usual.begin(), usual.end()) == 4);  // pad, flip, mean and std always

  const Tensor x = augment(image, {.crop = {6, 6},
                                   .vertical_flip = true,
                                   .area = {0.2, 1},
                                   .ratio = {1, 1},
                                   .resize = 7,
                                   .rotate = 10,
                                   .brightness = 0.1,
                                   .contrast = 0.2,
                                   .erase = 0.5,
                                   .erase_area = {0.1, 0.2},
                                   .erase_ratio = {0.5, 2}});
  auto [mixed, rows] = mix_images(
      x, label, {.classes = 10, .mixup = 0.2, .cutmix = 1, .to_cutmix = 0.7, .probability = 0.9, .per_sample = true});
  const Tensor logits = linear(mixed, {.units = 10});
  validate(train(softmax_cross_entropy(logits, rows), {.lr = 0.1}), {accuracy(logits, label)});
  const Graph& graph = model.graph();
  const Node& augmented = graph.nodes[graph.values[x.value()].producer];
  using Floats = std::vector<double>;
  CHECK(ints_attribute(augmented, "crop") == std::vector<int64_t>{6, 6});
  CHECK(int_attribute(augmented, "vertical_flip") == 1);
  CHECK(floats_attribute(augmented, "area") == Floats{0.2, 1});
  CHECK(floats_attribute(augmented, "ratio") == Floats{1, 1});
  CHECK(int_attribute(augmented, "resize") == 7);
  CHECK(float_attribute(augmented, "rotate") == 10);
  CHECK(float_attribute(augmented, "brightness") == 0.1);
  CHECK(float_attribute(augmented, "contrast") == 0.2);
  CHECK(float_attribute(augmented, "saturation") == 0);
  CHECK(float_attribute(augmented, "erase") == 0.5);
  CHECK(floats_attribute(augmented, "erase_area") == Floats{0.1, 0.2});
  CHECK(floats_attribute(augmented, "erase_ratio") == Floats{0.5, 2});
  const Node& mix = *graph.find_op("arbalest.MixImages");
  CHECK(int_attribute(mix, "classes") == 10);
  CHECK(float_attribute(mix, "mixup") == 0.2);
  CHECK(float_attribute(mix, "cutmix") == 1);
  CHECK(float_attribute(mix, "switch") == 0.7);
  CHECK(float_attribute(mix, "probability") == 0.9);
  CHECK(int_attribute(mix, "per_sample") == 1);
}
