// SPDX-License-Identifier: Apache-2.0

// Training with mixed images, and validation, evaluation and export of what was trained so.

#include <doctest/doctest.h>

#include <algorithm>

#include "executor/inference/classification.h"
#include "executor/inference/export_model.h"
#include "executor/inference/inference.h"
#include "ops/builtin_ops.h"
#include "tests/executor/fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace mix_images_test {
namespace {

Graph graph_of(const std::string& mix) {
  const bool mixes = !mix.empty();
  return read_graph_text(
      fmt::format("<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
                  "mixing () => (float loss)\n{{\n"
                  "image, label = arbalest.Prefetch <source = \"glyphs:?train=1280&test=300&size=16\", batch = 32> ()\n"
                  "x = arbalest.Augment <pad = 1, mean = [0.2], std = [0.3]> (image)\n"
                  "{}"
                  "c = arbalest.ConvBnRelu <filters = 8, kernel_shape = [3, 3]> ({})\n"
                  "h = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (c)\n"
                  "logits = arbalest.Linear <units = 10> (h)\n"
                  "loss = arbalest.SoftmaxCrossEntropy (logits, {})\n"
                  "accuracy = arbalest.Accuracy (logits, label)\n"
                  "trained = arbalest.Train <lr = 0.05, momentum = 0.9> (loss)\n"
                  "report = arbalest.Validate <batch = 70> (trained, loss, accuracy)\n}}\n",
                  mixes ? "mixed, rows = arbalest.MixImages <classes = 10, " + mix + "> (x, label)\n" : "",
                  mixes ? "mixed" : "x", mixes ? "rows" : "label"),
      "mixing.onnxtxt", builtin_ops());
}

double of(const Metrics& metrics, const std::string& name) {
  const auto found = std::find_if(metrics.begin(), metrics.end(), [&](const auto& m) { return m.first == name; });
  REQUIRE(found != metrics.end());
  return found->second;
}

}  // namespace

TEST_CASE("a model trains on mixed images, in both precisions, and validation sees images as they are") {
  for (const Precision precision : {Precision::Fp32, Precision::Bf16}) {
    SessionOptions options = on_cpus();
    options.numerics.precision = precision;
    options.length.epochs = 6;
    const Recorder story = run(graph_of("mixup = 0.2, cutmix = 1.0, probability = 0.5, per_sample = 1"), options);
    CHECK(of(story.validations.back().metrics, "accuracy") > 0.7);
    // The loss of mixed labels has their entropy for a floor, validation's has not.
    CHECK(story.epochs.back().loss > story.validations.back().loss);
  }
}

TEST_CASE("validation's loss of rows is that of classes") {
  SessionOptions options = on_cpus();
  const Validated expected = Inference(graph_of(""), options, {"", {}}).run();
  for (const char* mix : {"mixup = 0.4", "cutmix = 1.0, probability = 0.5", "mixup = 0.0"}) {
    INFO(std::string(mix));
    const Validated found = Inference(graph_of(mix), options, {"", {}}).run();
    CHECK(found.loss == doctest::Approx(expected.loss).epsilon(1e-6));
    CHECK(of(found.metrics, "accuracy") == of(expected.metrics, "accuracy"));
  }
  // And training is that of classes if nothing is mixed.
  options.length.epochs = 1;
  const Recorder classes = run(graph_of(""), options), rows = run(graph_of("mixup = 0.4, probability = 0.0"), options);
  CHECK(rows.epochs.at(0).loss == doctest::Approx(classes.epochs.at(0).loss).epsilon(1e-4));
  CHECK(rows.validations.at(0).loss == doctest::Approx(classes.validations.at(0).loss).epsilon(1e-4));
}

TEST_CASE("evaluation compares with the classes that rows were made of, and has to know enough of them") {
  const Head head = head_of(graph_of("mixup = 0.4"), "", "");
  CHECK(head.scores == "logits");
  CHECK(head.label == "label");
  Graph few = graph_of("mixup = 0.4");
  few.find_op("arbalest.MixImages")->attributes.set("classes", int64_t{9});
  few.find_op("arbalest.Linear")->attributes.set("units", int64_t{9});
  CHECK(message_of([&] { run(few, on_cpus()); }).find("9 numbers for 10 classes of field 'label'") !=
        std::string::npos);
}

TEST_CASE("an exported model takes images that are not mixed") {
  const Graph model = export_model(graph_of("mixup = 0.4, cutmix = 1.0"), on_cpus(), {});
  for (const Node& node : model.nodes) CHECK(node.op->domain.empty());
  REQUIRE(model.inputs.size() == 1);
  CHECK(model.values[model.inputs[0]].name == "x");
}

}  // namespace mix_images_test
