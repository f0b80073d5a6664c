// SPDX-License-Identifier: Apache-2.0

// Training with several labels a sample, some of them missing, and with numbers for targets.

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "base/random.h"
#include "io/sources/memory_source.h"
#include "ops/builtin_ops.h"
#include "tests/executor/fixture.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace many_labels_test {
namespace {

constexpr int64_t kLabels = 3;

// Points of the plane with three labels each: on which side of two lines a point lies, and whether it is within a
// circle. `height` is that of a plane above it. A share `missing` of the labels is missing.
struct Points {
  std::vector<float> points, height, floats;
  std::vector<int32_t> labels;
  std::vector<uint8_t> bytes;

  Points(int64_t count, uint64_t key, float missing) {
    for (int64_t i = 0; i < count; ++i) {
      const Random4 draw = philox(key, uint64_t(i), 0), gaps = philox(key, uint64_t(i), 1);
      const float x = 4 * uniform(draw.word[0]) - 2, y = 4 * uniform(draw.word[1]) - 2;
      points.insert(points.end(), {x, y});
      height.push_back(2 * x - y + 1);
      const bool labels_of_point[kLabels] = {x + y > 0, x > 0.5f, std::hypot(x, y) < 1.4f};
      for (int k = 0; k < kLabels; ++k) {
        labels.push_back(uniform(gaps.word[k]) < missing ? -1 : labels_of_point[k]);
        floats.push_back(labels.back() < 0 ? std::numeric_limits<float>::quiet_NaN() : float(labels.back()));
        bytes.push_back(uint8_t(labels.back()));
      }
    }
  }

  FieldArray label(DataType type) const {
    switch (type) {
      case DataType::Float32: return field_array("label", {kLabels}, floats);
      case DataType::Uint8: return field_array("label", {kLabels}, bytes);
      default: return field_array("label", {kLabels}, labels);
    }
  }
  std::unique_ptr<Source> source(DataType type) const {
    return memory_source({field_array("points", {2}, points), label(type), field_array("height", {}, height)},
                         "points");
  }
};

Validated last_validation(const std::string& body, DataType labels) {
  const Points training(512, 1, 0.3f), test(170, 2, 0);
  SessionOptions options = on_cpus();
  options.sources = {training.source(labels), test.source(labels)};
  options.length.epochs = 20;
  const Graph graph = read_graph_text(
      "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\nnet () => (float loss)\n{\n"
      "points, label, height = arbalest.Prefetch <source = \"memory:\", batch = 16> ()\n" +
          body + "}\n",
      "net.onnxtxt", builtin_ops());
  const Recorder story = run(graph, options);
  REQUIRE(story.validations.size() == 20);
  return story.validations.back();
}

std::string many_labels(const std::string& attributes) {
  return "hidden = arbalest.Linear <units = 32> (points)\n"
         "h = Relu (hidden)\n"
         "logits = arbalest.Linear <units = 3> (h)\n"
         "loss = arbalest.SigmoidCrossEntropy " +
         attributes +
         " (logits, label)\n"
         "auc = arbalest.AUC (logits, label)\n"
         "f1 = arbalest.F1 (logits, label)\n"
         "trained = arbalest.Train <lr = 0.2, momentum = 0.9> (loss)\n"
         "report = arbalest.Validate <batch = 50> (trained, loss, auc, f1)\n";
}

}  // namespace

TEST_CASE("labels of which a third is missing train, in integers, bytes and floats alike") {
  const Validated found = last_validation(many_labels(""), DataType::Int32);
  CHECK(found.samples == 170);
  CHECK(found.metrics.at(0).second > 0.98);
  CHECK(found.metrics.at(1).second > 0.9);
  CHECK(found.parts.size() == 2 * kLabels);
  for (const DataType type : {DataType::Float32, DataType::Uint8}) {
    const Validated same = last_validation(many_labels(""), type);
    CHECK(same.loss == found.loss);
    CHECK(same.metrics == found.metrics);
  }
}

TEST_CASE("weights of positives are taken from the attribute, in training and in validation") {
  const Validated even = last_validation(many_labels(""), DataType::Int32);
  const Validated ones = last_validation(many_labels("<pos_weight = [1.0, 1.0, 1.0]>"), DataType::Int32);
  const Validated weighted = last_validation(many_labels("<pos_weight = [8.0, 1.0, 0.5]>"), DataType::Int32);
  CHECK(ones.loss == even.loss);
  CHECK(ones.metrics == even.metrics);
  CHECK(weighted.loss != even.loss);
  CHECK(weighted.metrics.at(0).second > 0.95);
}

TEST_CASE("a number is learnt by mean squared error and by L1") {
  for (const char* loss : {"MeanSquaredError", "L1Loss"}) {
    const Validated found =
        last_validation(fmt::format("prediction = arbalest.Linear <units = 1> (points)\n"
                                    "loss = arbalest.{} (prediction, height)\n"
                                    "trained = arbalest.Train <lr = 0.05, schedule = \"linear\"> (loss)\n"
                                    "report = arbalest.Validate <batch = 50> (trained, loss)\n",
                                    loss),
                        DataType::Int32);
    CHECK_MESSAGE(found.loss < 0.02, loss, ": ", found.loss);
  }
}

TEST_CASE("a validation whose loss is not finite ends the run, and its model replaces no best one") {
  const TestFolder folder;
  const Points training(512, 1, 0);
  Points test(170, 2, 0);
  test.height[7] = std::numeric_limits<float>::infinity();
  SessionOptions options = on_cpus();
  options.sources = {training.source(DataType::Int32), test.source(DataType::Int32)};
  options.length.epochs = 3;
  options.files.save_best = (folder / "best.safetensors").string();
  const Graph graph = read_graph_text(
      "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\nnet () => (float loss)\n{\n"
      "points, label, height = arbalest.Prefetch <source = \"memory:\", batch = 16> ()\n"
      "prediction = arbalest.Linear <units = 1> (points)\n"
      "loss = arbalest.MeanSquaredError (prediction, height)\n"
      "trained = arbalest.Train <lr = 0.05> (loss)\n"
      "report = arbalest.Validate <batch = 50> (trained, loss)\n}\n",
      "net.onnxtxt", builtin_ops());
  Recorder story;
  CHECK(
      message_of([&] { run_training(graph, options, story); }) ==
      "the validation after iteration 32 (epoch 1) is not finite: field 'height' of sample 7 of split 'test' holds an "
      "infinity");
  CHECK(story.validations.size() == 1);
  CHECK_FALSE(std::filesystem::exists(options.files.save_best));
}

}  // namespace many_labels_test
