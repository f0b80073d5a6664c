// SPDX-License-Identifier: Apache-2.0

// Passes over a split with weights as they are: evaluation and prediction.

#include "executor/inference/inference.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "executor/inference/classification.h"
#include "ops/builtin_ops.h"
#include "tests/executor/fixture.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace inference_test {
namespace {

Validated evaluated(Graph graph, SessionOptions options, const std::string& weights, const std::string& split = "") {
  options.files = {};
  options.files.weights = weights;
  return Inference(std::move(graph), options, {split, {}}).run();
}

double of(const Metrics& metrics, const std::string& name) {
  const auto found = std::find_if(metrics.begin(), metrics.end(), [&](const auto& m) { return m.first == name; });
  REQUIRE(found != metrics.end());
  return found->second;
}

// The rows of `value` for all samples of the split, by sample.
std::vector<std::vector<float>> rows_of(Graph graph, const SessionOptions& options, const std::string& value) {
  Inference inference(std::move(graph), options, {"", {value}});
  const TensorType type = inference.output_type(0);
  CHECK(type.dtype == DataType::Float32);
  std::vector<std::vector<float>> rows(size_t(inference.samples()));
  inference.run([&](const InferredBatch& batch) {
    const auto* floats = reinterpret_cast<const float*>(batch.values.at(0));
    for (int64_t n = 0; n < batch.samples; ++n) {
      std::vector<float>& row = rows.at(size_t(batch.first + n));
      CHECK(row.empty());  // once each
      row.assign(floats + n * type.elements(), floats + (n + 1) * type.elements());
    }
  });
  for (const auto& row : rows) CHECK(row.size() == size_t(type.elements()));
  return rows;
}

}  // namespace

TEST_CASE("a saved model is evaluated as the last validation saw it, on any number of devices, and stays as it is") {
  for (const Precision precision : {Precision::Fp32, Precision::Bf16}) {
    for (const int devices : {1, 2}) {
      INFO(name_of(precision), " on ", devices);
      const TestFolder folder;
      SessionOptions options = on_cpus(devices);
      options.numerics.precision = precision;
      options.length.epochs = 2;
      options.files.save = folder / "weights.safetensors";
      const Graph graph = tiny(convolutional(160));
      const RunFinished end = run(graph, options).ends.at(0);
      const std::string before = read_whole_file(options.files.save);
      const Validated first = evaluated(graph, options, options.files.save);
      CHECK(first.samples == 300);
      CHECK(first.loss == doctest::Approx(end.last.loss).epsilon(1e-12));
      CHECK(of(first.metrics, "accuracy") == of(end.last.metrics, "accuracy"));
      CHECK(first.metrics.size() == 1);
      const Validated again = evaluated(graph, options, options.files.save);
      CHECK(again.loss == first.loss);
      const Validated elsewhere = evaluated(graph, on_cpus(3), options.files.save);
      CHECK(elsewhere.samples == 300);
      CHECK(elsewhere.loss == doctest::Approx(end.last.loss).epsilon(precision == Precision::Bf16 ? 0.02 : 1e-6));
      CHECK(read_whole_file(options.files.save) == before);
      CHECK(folder.names().size() == 1);
    }
  }
}

TEST_CASE("another split is evaluated where it is named, and the loss where the graph validates nothing") {
  TinyNet net;
  const double test = evaluated(tiny(net), on_cpus(), "").loss;
  const Validated train = evaluated(tiny(net), on_cpus(), "", "train");
  CHECK(train.samples == 96);
  CHECK(std::isfinite(train.loss));
  CHECK(train.loss != test);
  net.validate.clear();
  const Validated bare = evaluated(tiny(net), on_cpus(), "");
  CHECK(bare.samples == 50);
  CHECK(bare.loss == doctest::Approx(test).epsilon(1e-6));
  CHECK(bare.metrics.empty());
}

TEST_CASE("frozen parameters are read from the file as well") {
  const TestFolder folder;
  TinyNet net = convolutional(160);
  net.train = "lr = 0.05, frozen = [\"c.*\"]";
  SessionOptions options = on_cpus();
  options.length.epochs = 1;
  options.files.save = folder / "weights.safetensors";
  const RunFinished end = run(tiny(net), options).ends.at(0);
  CHECK(evaluated(tiny(net), options, "").loss != doctest::Approx(end.last.loss).epsilon(0.01));
  CHECK(evaluated(tiny(net), options, options.files.save).loss == doctest::Approx(end.last.loss).epsilon(1e-12));
  options.numerics.precision = Precision::Bf16;
  CHECK(evaluated(tiny(net), options, options.files.save).loss == doctest::Approx(end.last.loss).epsilon(0.02));
}

TEST_CASE("an inference needs no gradients, and nothing to train") {
  const TestFolder folder;
  TinyNet net;
  net.layers = "hidden = arbalest.Linear <units = 2> (x)\na, b = Split <axis = 1> (hidden)\nh = Mul (a, b)\n";
  SessionOptions options = on_cpus();
  options.length.epochs = 1;
  options.files.save = folder / "weights.safetensors";
  const double trained = run(tiny(net), options).ends.at(0).last.loss;
  net.layers =
      "hidden = arbalest.Linear <units = 2> (x)\nkept = arbalest.StopGradient (hidden)\n"
      "h = ReduceProd <axes = [1]> (kept)\n";
  CHECK(contains(message_of([&] { run(tiny(net), on_cpus()); }),
                 "'hidden.weight' does not influence the loss 'loss', at least not past what stops gradients"));
  CHECK(evaluated(tiny(net), options, options.files.save).loss == doctest::Approx(trained).epsilon(1e-6));
  net.train = "lr = 0.1, frozen = [\"*\"]";
  CHECK(contains(message_of([&] { run(tiny(net), on_cpus()); }), "there is nothing to train"));
  CHECK(evaluated(tiny(net), options, options.files.save).loss == doctest::Approx(trained).epsilon(1e-6));
  options.numerics.precision = Precision::Bf16;
  CHECK(evaluated(tiny(net), options, options.files.save).loss == doctest::Approx(trained).epsilon(0.05));
}

TEST_CASE("values are handed out once a sample, the same on several devices, and agree with the metrics") {
  SessionOptions options = on_cpus();
  const Graph graph = tiny(convolutional(160));
  const auto logits = rows_of(graph, options, "logits");
  CHECK(logits.size() == 300);
  const auto spread = rows_of(graph, on_cpus(3), "logits");
  const auto hidden = rows_of(graph, options, "h");  // an image, in another order in memory
  CHECK(hidden.at(0).size() == 8 * 8 * 8);
  const auto labels = [&] {
    std::vector<int32_t> found(300);
    Inference inference(graph, options, {"", {"label"}});
    CHECK(inference.output_type(0) == TensorType{DataType::Int32, {}});
    inference.run([&](const InferredBatch& batch) {
      std::memcpy(&found[size_t(batch.first)], batch.values[0], size_t(batch.samples) * sizeof(int32_t));
    });
    return found;
  }();
  ConfusionMatrix confusion(10);
  for (size_t n = 0; n < logits.size(); ++n) {
    for (size_t c = 0; c < 10; ++c) CHECK(spread[n][c] == doctest::Approx(logits[n][c]).epsilon(1e-5));
    confusion.add(labels[n], most_probable(logits[n], 1).at(0).label);
  }
  CHECK(confusion.samples() == 300);
  CHECK(confusion.accuracy() == doctest::Approx(of(evaluated(graph, options, "").metrics, "accuracy")));
  CHECK(confusion.mean_recall() == doctest::Approx(confusion.accuracy()));  // as many samples of each class
}

TEST_CASE("images are handed out in logical order") {
  // The weights of the one convolution pick the pixel itself, so that the output is the input.
  const Graph graph = read_graph_text(
      "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
      "copy () => (float loss) <float[2, 1, 1, 1] w = {1, -1}>\n{\n"
      "image, label = arbalest.Prefetch <source = \"glyphs:?train=16&test=10&size=16\", batch = 8> ()\n"
      "x = arbalest.Augment <mean = [0.0], std = [1.0]> (image)\n"
      "both = Conv (x, w)\n"
      "logits = arbalest.Linear <units = 10> (both)\n"
      "loss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
      "trained = arbalest.Train <lr = 0.1> (loss)\n"
      "report = arbalest.Validate (trained, loss)\n}\n",
      "copy.onnxtxt", builtin_ops());
  const auto pixels = rows_of(graph, on_cpus(), "x"), both = rows_of(graph, on_cpus(2), "both");
  double sum = 0;
  for (size_t n = 0; n < pixels.size(); ++n) {
    for (size_t i = 0; i < 256; ++i) {
      CHECK(both[n][i] == pixels[n][i]);
      CHECK(both[n][256 + i] == -pixels[n][i]);
      sum += pixels[n][i];
    }
  }
  CHECK(sum > 1);
}

TEST_CASE("what an inference cannot do is reported before it runs") {
  const auto refusal = [](const InferenceRequest& asked, const std::string& weights = "", TinyNet net = {}) {
    SessionOptions options = on_cpus();
    options.files.weights = weights;
    return message_of([&] { Inference(tiny(net), options, asked); });
  };
  CHECK(contains(refusal({"", {"logit"}}), "graph 'tiny' has no value 'logit'; did you mean 'logits'?"));
  CHECK(contains(refusal({"", {"loss"}}), "expected a value with a row for each of the 16 samples of a batch"));
  CHECK(contains(refusal({"tset", {}}), "tset"));
  CHECK(contains(refusal({}, "/no/such.safetensors"), "/no/such.safetensors"));
  const TestFolder folder;
  SessionOptions options = on_cpus();
  options.length.iterations = 1;
  options.files.save = folder / "other.safetensors";
  run(tiny(convolutional(160)), options);
  CHECK(contains(refusal({}, options.files.save), "no tensor 'hidden.weight'"));
}

TEST_CASE("what the receiver throws ends the pass, and so does an interrupt") {
  Inference throws(tiny({}), on_cpus(2), {"", {"logits"}});
  CHECK(contains(message_of([&] { throws.run([](const InferredBatch&) { throw RunError("the disk is full"); }); }),
                 "the disk is full"));
  Inference interrupted(tiny({}), on_cpus(), {});
  std::stop_source stop;
  stop.request_stop();
  CHECK_THROWS_WITH_AS(interrupted.run({}, stop.get_token()), "interrupted", InterruptedError);
}

TEST_CASE("a confusion matrix tells precision, recall and F1") {
  ConfusionMatrix confusion(3);
  for (int i = 0; i < 3; ++i) confusion.add(0, 0);
  confusion.add(0, 1);
  confusion.add(1, 1);
  CHECK(confusion.samples() == 5);
  CHECK(confusion.samples(0) == 4);
  CHECK(confusion.count(0, 1) == 1);
  CHECK(confusion.accuracy() == doctest::Approx(0.8));
  CHECK(confusion.precision(1) == doctest::Approx(0.5));
  CHECK(confusion.recall(0) == doctest::Approx(0.75));
  CHECK(confusion.f1(0) == doctest::Approx(6.0 / 7));
  CHECK(std::isnan(confusion.precision(2)));  // never predicted, never met
  CHECK(std::isnan(confusion.recall(2)));
  CHECK(confusion.mean_recall() == doctest::Approx((0.75 + 1) / 2));
  CHECK(std::isnan(ConfusionMatrix(2).accuracy()));
}

TEST_CASE("a confusion matrix takes memory for what was counted, not for all pairs of classes") {
  constexpr int64_t kMany = 1'000'000;  // a table of them would take 8 TB
  ConfusionMatrix confusion(kMany);
  confusion.add(kMany - 1, 0);
  confusion.add(3, 3);
  confusion.add(3, kMany - 1);
  confusion.add(3, 3);
  REQUIRE(confusion.cells().size() == 3);
  CHECK(confusion.cells()[0].predicted == 3);
  CHECK(confusion.cells()[0].count == 2);
  CHECK(confusion.cells()[1].predicted == kMany - 1);
  CHECK(confusion.cells()[2].label == kMany - 1);
  CHECK(confusion.count(3, 3) == 2);
  CHECK(confusion.count(0, 0) == 0);
  CHECK(confusion.accuracy() == 0.5);
  CHECK(confusion.mean_recall() == doctest::Approx((2.0 / 3 + 0) / 2));
  CHECK(confusion.mean_precision() == doctest::Approx((0.0 + 1 + 0) / 3));
}

TEST_CASE("a batch of a validation is not larger than its split, unless the graph's shapes say so") {
  TinyNet net;
  net.validate = "batch = 250";
  const auto batches = [](const TinyNet& of) {
    return std::pair(prepare_inference(tiny(of), on_cpus(), {}).program.find(LoopRole::Validate)->batch,
                     prepare(tiny(of), on_cpus()).program.find(LoopRole::Validate)->batch);
  };
  CHECK(batches(net) == std::pair(int64_t{50}, int64_t{50}));
  const double loss = evaluated(tiny(net), on_cpus(), "").loss;
  net.validate = "batch = 25";
  CHECK(batches(net) == std::pair(int64_t{25}, int64_t{25}));
  CHECK(evaluated(tiny(net), on_cpus(), "").loss == doctest::Approx(loss).epsilon(1e-6));

  TinyNet stated;
  stated.batch = 96;
  stated.validate = "batch = 0";
  stated.layers =
      "shape = Constant <value_ints = [96, 256]> ()\nflat = Reshape (x, shape)\n"
      "hidden = arbalest.Linear <units = 16> (flat)\nh = Relu (hidden)\n";
  CHECK(batches(stated) == std::pair(int64_t{96}, int64_t{96}));
  CHECK(evaluated(tiny(stated), on_cpus(), "").samples == 50);
}

TEST_CASE("the most probable classes come first, and the first of equal ones") {
  const std::vector<float> scores = {1, 3, 3, -1000};
  const std::vector<Prediction> top = most_probable(scores, 3);
  REQUIRE(top.size() == 3);
  CHECK(top[0].label == 1);
  CHECK(top[1].label == 2);
  CHECK(top[2].label == 0);
  const double whole = 2 * std::exp(3.0) + std::exp(1.0);
  CHECK(top[0].probability == doctest::Approx(std::exp(3.0) / whole));
  CHECK(top[2].probability == doctest::Approx(std::exp(1.0) / whole));
  CHECK(most_probable(scores, 9).size() == 4);
  CHECK(most_probable(std::vector<float>{1e30f, -1e30f}, 2)[0].probability == 1);
}

}  // namespace inference_test
