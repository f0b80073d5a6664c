// SPDX-License-Identifier: Apache-2.0

// Losses of samples that do not weigh the same: means over all of them, and the updates that follow, however samples
// are divided into batches, accumulated batches, learners and devices. Held against sums over all samples in double.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "base/files/file.h"
#include "executor/training/checkpoint_folder.h"
#include "io/sources/memory_source.h"
#include "ops/builtin_ops.h"
#include "tests/executor/fixture.h"
#include "tests/executor/session/slow_source.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace sums_test {
namespace {

constexpr int64_t kSamples = 24;
constexpr size_t kScores = 3;

// Scores, a class for each sample, and a mark for each score, of which some are missing.
struct Data {
  std::vector<float> x;
  std::vector<int32_t> label, marks;

  explicit Data(bool missing = true) {
    for (int64_t i = 0; i < kSamples; ++i) {
      label.push_back(int32_t((i * i + i / 7) % 3));
      for (size_t k = 0; k < kScores; ++k) {
        const auto n = double(i) * double(kScores) + double(k);
        x.push_back(float(3 * std::sin(5 * n + 1)));
        const bool gap = missing && (i % 5 == 2 || int64_t(n) % 7 < i / 6);
        marks.push_back(gap ? -1 : int64_t(n * n) % 3 == 1);
      }
    }
  }
  std::unique_ptr<Source> source() const {
    return memory_source({owned_array("x", {3}, x), owned_array("label", {}, label), owned_array("marks", {3}, marks)},
                         "scores");
  }
};

// The expected loss, and its gradient for s, if scores are x · s with s = 1.
struct Expected {
  double loss = 0, weight = 0;
  double gradient[kScores] = {};

  void divide() {
    loss /= weight;
    for (double& g : gradient) g /= weight;
  }
};

Expected of_classes(const Data& data, const std::vector<double>& class_weights, int32_t ignored = -1,
                    double smoothing = 0) {
  Expected sum;
  for (size_t i = 0; i < size_t(kSamples); ++i) {
    const auto y = size_t(data.label[i]);
    if (data.label[i] == ignored) continue;
    const float* x = &data.x[i * kScores];
    double all = 0;
    for (size_t k = 0; k < kScores; ++k) all += std::exp(double(x[k]));
    sum.weight += class_weights[y];
    double targets[kScores], total = 0;
    for (size_t k = 0; k < kScores; ++k) {
      targets[k] = class_weights[k] * ((1 - smoothing) * double(k == y) + smoothing / double(kScores));
      total += targets[k];
      sum.loss += targets[k] * (std::log(all) - double(x[k]));
    }
    for (size_t k = 0; k < kScores; ++k) {
      sum.gradient[k] += (std::exp(double(x[k])) / all * total - targets[k]) * double(x[k]);
    }
  }
  sum.divide();
  return sum;
}

Expected of_marks(const Data& data) {
  Expected sum;
  for (size_t i = 0; i < data.x.size(); ++i) {
    if (data.marks[i] < 0) continue;
    const double x = data.x[i], t = data.marks[i], p = 1 / (1 + std::exp(-x));
    sum.weight += 1;
    sum.loss -= t * std::log(p) + (1 - t) * std::log(1 - p);
    sum.gradient[i % kScores] += (p - t) * x;
  }
  sum.divide();
  return sum;
}

struct Net {
  std::string loss;  // nodes that make it of 'logits', 'label' and 'marks'
  int64_t batch = 24, accumulate = 1, test_batch = 24;
  std::string rate = "0.1", train;  // train: more attributes
  std::string metrics = "loss";
};

Graph graph_of(const Net& net) {
  return read_graph_text(
      fmt::format("<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\nnet () => (float loss)\n{{\n"
                  "x, label, marks = arbalest.Prefetch <source = \"memory:\", batch = {}> ()\n"
                  "logits = arbalest.LayerScale <axis = 1, initial = 1.0> (x)\n{}"
                  "trained = arbalest.Train <lr = {}, accumulate = {}{}> (loss)\n"
                  "report = arbalest.Validate <batch = {}> (trained, {})\n}}\n",
                  net.batch, net.loss, net.rate, net.accumulate, net.train, net.test_batch, net.metrics),
      "net.onnxtxt", builtin_ops());
}

struct Ended {
  Recorder story;
  std::vector<double> weights;
};

// One epoch, whose weights are saved; `devices` and `learners` are averaged in every update.
Ended ended(const Net& net, const Data& data, int devices = 1, int learners = 1, bool skips = false) {
  const TestFolder folder;
  SessionOptions options = on_cpus(devices, learners);
  options.learners.strategy = "ssgd";
  options.sources = {data.source(), data.source()};
  options.length.epochs = 1;
  options.files.save = folder / "weights.safetensors";
  if (skips) options.divergence.then = OnDivergence::Skip;
  Ended end;
  end.story = run(graph_of(net), options);
  const TensorFile file = read_safetensors(options.files.save);
  REQUIRE(file.tensors.size() == 1);
  std::vector<float> floats(kScores);
  std::memcpy(floats.data(), file.tensors[0].bytes.data(), sizeof(float) * kScores);
  end.weights.assign(floats.begin(), floats.end());
  return end;
}

const std::string kClasses = "loss = arbalest.SoftmaxCrossEntropy <class_weights = [0.1, 1.0, 10.0]> (logits, label)\n";
const std::string kSmoothed =
    "loss = arbalest.SoftmaxCrossEntropy <class_weights = [0.5, 0.0, 2.0], label_smoothing = 0.3> (logits, label)\n";
const std::string kIgnoring = "loss = arbalest.SoftmaxCrossEntropy <ignore_index = 1> (logits, label)\n";
const std::string kMarks = "loss = arbalest.SigmoidCrossEntropy (logits, marks)\n";

// The same as kMarks as two classes a place: of tokens, whose classes are the last axis, and of images.
std::string pairs(const std::string& axis) {
  return "half = Constant <value_float = 0.5> ()\nyes = Mul (logits, half)\nno = Neg (yes)\n"
         "y = Unsqueeze <axes = [" +
         axis + "]> (yes)\nn = Unsqueeze <axes = [" + axis +
         "]> (no)\n"
         "pairs = Concat <axis = " +
         axis + "> (n, y)\n";
}
std::string of_pairs(const std::string& axis) {
  return pairs(axis) + "loss = arbalest.SoftmaxCrossEntropy <axis = " + axis + ", ignore_index = -1> (pairs, marks)\n";
}

struct Kind {
  std::string loss;
  Expected expected;
};
std::vector<Kind> kinds(const Data& data) {
  return {{kClasses, of_classes(data, {0.1, 1, 10})},
          {kSmoothed, of_classes(data, {0.5, 0, 2}, -1, 0.3)},  // batches of class 1 alone weigh 0
          {kIgnoring, of_classes(data, {1, 1, 1}, 1)},
          {kMarks, of_marks(data)},
          {of_pairs("2"), of_marks(data)},
          {of_pairs("1"), of_marks(data)}};
}

// Samples of a batch, batches of an update, devices, and learners of each: one update of all samples.
struct Division {
  int64_t batch, accumulate;
  int devices, learners;
};
constexpr Division kDivisions[] = {{24, 1, 1, 1}, {4, 6, 1, 1}, {1, 24, 1, 1}, {12, 1, 2, 1},
                                   {4, 1, 2, 3},  {4, 2, 1, 3}, {2, 3, 2, 2}};

}  // namespace

TEST_CASE("a validation is the mean over all samples by their weights, whatever its batches and devices") {
  const Data data;
  for (const Kind& kind : kinds(data)) {
    for (const int64_t batch : {24, 12, 7, 4, 2, 1}) {
      for (const int devices : {1, 2}) {
        const Ended end = ended({.loss = kind.loss, .batch = 12, .test_batch = batch, .rate = "0.0"}, data, devices);
        INFO(kind.loss, " in batches of ", batch, " on ", devices, " devices");
        CHECK(end.story.validations.at(0).loss == doctest::Approx(kind.expected.loss).epsilon(1e-6));
      }
    }
  }
}

TEST_CASE("a loss and an accuracy that no sample takes part in are undefined, and never the best") {
  Data data;
  std::fill(data.label.begin(), data.label.end(), 1);
  std::fill(data.marks.begin(), data.marks.end(), -1);
  const std::string accuracy = "accuracy = arbalest.Accuracy <ignore_index = 1> (logits, label)\n";
  for (const std::string& loss : {kIgnoring, kMarks}) {
    for (const int devices : {1, 2}) {
      Net net{.loss = loss + accuracy, .batch = 4, .test_batch = 7};
      net.metrics = "loss, accuracy";
      const Ended end = ended(net, data, devices);
      const Validated& validated = end.story.validations.at(0);
      CHECK(validated.loss_undefined);
      CHECK(std::isnan(validated.loss));
      CHECK(std::isnan(validated.metrics.at(0).second));
      CHECK(end.story.ends.at(0).best_epoch == 0);
      for (const RunProgress& progress : end.story.reports) CHECK(progress.loss_undefined);
    }
  }
}

TEST_CASE("metrics over several places of a sample count places, accuracy in the loss's kernel and in its own") {
  for (const bool missing : {false, true}) {
    const Data data(missing);
    double right = 0, counted = 0;
    for (size_t i = 0; i < data.x.size(); ++i) {
      if (data.marks[i] < 0) continue;
      counted += 1;
      right += (data.x[i] > 0) == (data.marks[i] == 1);
    }
    const std::string ignoring = missing ? ", ignore_index = -1" : "";
    for (const std::string axis : {"1", "2"}) {
      const std::string operands = " <axis = " + axis + ignoring + "> (pairs, marks)\n";
      const std::string rate = "rate = arbalest.F1 <average = \"micro\"," + operands.substr(2);  // of classes: accuracy
      const std::string nodes = pairs(axis) + "loss = arbalest.SoftmaxCrossEntropy" + operands +
                                "accuracy = arbalest.Accuracy" + operands + rate;
      for (const std::string metrics : {"loss, accuracy, rate", "loss, of_all, rate"}) {
        const std::string more = metrics == "loss, of_all, rate" ? "of_all = Identity (accuracy)\n" : "";
        for (const int64_t batch : {24, 7, 1}) {
          INFO("axis ", axis, ", ", metrics, " in batches of ", batch);
          Net net{.loss = nodes + more, .batch = 12, .test_batch = batch, .rate = "0.0", .metrics = metrics};
          const Ended end = ended(net, data, 2);
          for (const size_t metric : {0, 1}) {
            const double found = end.story.validations.at(0).metrics.at(metric).second;
            CHECK(found == doctest::Approx(right / counted).epsilon(1e-12));
          }
          if (!more.empty()) continue;  // training reports what the loss's kernel counts
          CHECK(end.story.epochs.at(0).metrics.at(0).second == doctest::Approx(right / counted).epsilon(1e-6));
        }
      }
    }
  }
}

TEST_CASE("metrics with a label for each score take the scores' axis, wherever it is, and leave out missing labels") {
  const Data data;
  // Two scores of each place, with the same label: x, and one that is in another order and has another sign.
  const auto second = [](float x) { return std::abs(x) - 1.5f; };
  std::map<std::string, double> expected;
  for (const size_t column : {0, 1}) {
    double right = 0, predicted = 0, positives = 0, won = 0, pairs = 0;
    const auto score = [&](size_t i) { return column == 0 ? data.x[i] : second(data.x[i]); };
    for (size_t i = 0; i < data.x.size(); ++i) {
      if (data.marks[i] < 0) continue;
      right += score(i) > 0 && data.marks[i] == 1;
      predicted += score(i) > 0;
      positives += data.marks[i] == 1;
      for (size_t k = 0; k < data.x.size(); ++k) {
        if (data.marks[i] != 1 || data.marks[k] != 0) continue;
        won += score(i) > score(k);  // no two are equal
        pairs += 1;
      }
    }
    expected[fmt::format("area/{}", column)] = won / pairs;
    expected[fmt::format("rate/{}", column)] = 2 * right / (predicted + positives);
  }
  for (const std::string axis : {"1", "2"}) {
    const auto both = [&](const std::string& name, const std::string& a, const std::string& b) {
      const std::string one = " = Unsqueeze <axes = [" + axis + "]> (";
      return name + "_a" + one + a + ")\n" + name + "_b" + one + b + ")\n" + name + " = Concat <axis = " + axis +
             "> (" + name + "_a, " + name + "_b)\n";
    };
    const std::string operands = " <axis = " + axis + "> (scores, labels)\n";
    const std::string nodes = kMarks +
                              "size = Abs (logits)\nhigh = Constant <value_float = 1.5> ()\n"
                              "other = Sub (size, high)\n" +
                              both("scores", "logits", "other") + both("labels", "marks", "marks") +
                              "area = arbalest.AUC" + operands + "rate = arbalest.F1" + operands;
    for (const int64_t batch : {24, 7, 1}) {
      INFO("axis ", axis, " in batches of ", batch);
      const Net net{.loss = nodes, .batch = 12, .test_batch = batch, .rate = "0.0", .metrics = "loss, area, rate"};
      const Metrics parts = ended(net, data, 2).story.validations.at(0).parts;
      std::map<std::string, double> found(parts.begin(), parts.end());
      REQUIRE(found.size() == expected.size());
      for (const auto& [name, number] : expected) CHECK(found.at(name) == doctest::Approx(number).epsilon(1e-12));
    }
  }
}

TEST_CASE("an update of all samples is the same however they are divided into batches, learners and devices") {
  const Data data;
  for (const Kind& kind : kinds(data)) {
    for (const Division& by : kDivisions) {
      for (const bool skips : {false, true}) {
        INFO(kind.loss, " batch ", by.batch, " × ", by.accumulate, " on ", by.devices, " × ", by.learners);
        const Ended end = ended({.loss = kind.loss, .batch = by.batch, .accumulate = by.accumulate}, data, by.devices,
                                by.learners, skips);
        for (size_t k = 0; k < kScores; ++k) {
          CHECK(end.weights[k] == doctest::Approx(1 - 0.1 * kind.expected.gradient[k]).epsilon(1e-6));
        }
        CHECK(end.story.epochs.at(0).loss == doctest::Approx(kind.expected.loss).epsilon(1e-6));
      }
    }
  }
}

TEST_CASE("gradients are clipped as the mean over all samples") {
  const Data data;
  const Expected expected = of_classes(data, {0.1, 1, 10});
  double norm = 0;
  for (const double g : expected.gradient) norm += g * g;
  norm = std::sqrt(norm);
  for (const double bound : {norm / 2, norm * 2}) {
    const double factor = std::min(1.0, bound / norm);
    for (const Division& by : kDivisions) {
      const Ended end = ended({.loss = kClasses,
                               .batch = by.batch,
                               .accumulate = by.accumulate,
                               .train = fmt::format(", clip_norm = {:.8f}", bound)},
                              data, by.devices, by.learners);
      for (size_t k = 0; k < kScores; ++k) {
        CHECK(end.weights[k] == doctest::Approx(1 - 0.1 * factor * expected.gradient[k]).epsilon(1e-6));
      }
    }
  }
}

TEST_CASE("where nothing weighs anything the loss is undefined and the weights stay") {
  Data data;
  std::fill(data.marks.begin(), data.marks.end(), -1);
  for (const Division& by : kDivisions) {
    const Ended end = ended({.loss = kMarks, .batch = by.batch, .accumulate = by.accumulate, .test_batch = 5}, data,
                            by.devices, by.learners);
    CHECK(end.weights == std::vector<double>{1, 1, 1});
    CHECK(end.story.epochs.at(0).loss_undefined);
    CHECK(end.story.validations.at(0).loss_undefined);
  }
}

TEST_CASE("a sum of losses has the weight of its parts where they weigh samples alike") {
  const Data data;
  const Expected one = of_classes(data, {0.1, 1, 10});
  const std::string both =
      "main = arbalest.SoftmaxCrossEntropy <class_weights = [0.1, 1.0, 10.0]> (logits, label)\n"
      "second = Neg (x)\nopposite = Neg (second)\n"
      "aside = arbalest.SoftmaxCrossEntropy <class_weights = [0.1, 1.0, 10.0]> (opposite, label)\n"
      "third = Constant <value_float = 0.3> ()\npart = Mul (aside, third)\nloss = Add (main, part)\n";
  for (const Division& by : kDivisions) {
    const Ended end =
        ended({.loss = both, .batch = by.batch, .accumulate = by.accumulate, .test_batch = 5, .metrics = "loss, main"},
              data, by.devices, by.learners);
    INFO("batch ", by.batch, " × ", by.accumulate, " on ", by.devices, " × ", by.learners);
    CHECK(end.story.epochs.at(0).loss == doctest::Approx(1.3 * one.loss).epsilon(1e-6));
    for (size_t k = 0; k < kScores; ++k) {
      CHECK(end.weights[k] == doctest::Approx(1 - 0.1 * one.gradient[k]).epsilon(1e-6));
    }
    const Validated& validated = end.story.validations.at(0);
    CHECK(validated.loss == doctest::Approx(validated.metrics.at(0).second + 0.3 * one.loss).epsilon(1e-5));
  }
}

TEST_CASE("operators that pass a loss on pass its weight on") {
  const Data data;
  const Expected one = of_classes(data, {1, 1, 1}, 1);
  const std::string first = "first = arbalest.SoftmaxCrossEntropy <ignore_index = 1> (logits, label)\n";
  for (const std::string& rest : std::vector<std::string>{
           "row = Unsqueeze <axes = [0]> (first)\nloss = Squeeze (row)\n",
           "row = Reshape <shape = [1, 1]> (first)\nloss = ReduceMean <keepdims = 0> (row)\n",
           "half = Constant <value_float = 0.5> ()\npart = Mul (first, half)\nloss = Add (part, part)\n",
           "loss = Mean (first, first)\n"}) {
    for (const Division& by : {Division{4, 6, 1, 1}, Division{1, 24, 1, 1}, Division{4, 1, 2, 3}}) {
      INFO(rest, "batch ", by.batch, " × ", by.accumulate, " on ", by.devices, " × ", by.learners);
      const Ended end =
          ended({.loss = first + rest, .batch = by.batch, .accumulate = by.accumulate, .test_batch = by.batch + 1},
                data, by.devices, by.learners);
      CHECK(end.story.epochs.at(0).loss == doctest::Approx(one.loss).epsilon(1e-6));
      for (size_t k = 0; k < kScores; ++k) {
        CHECK(end.weights[k] == doctest::Approx(1 - 0.1 * one.gradient[k]).epsilon(1e-6));
      }
    }
    for (const int64_t batch : {24, 7, 1}) {
      const Ended end = ended({.loss = first + rest, .batch = 12, .test_batch = batch, .rate = "0.0"}, data);
      CHECK(end.story.validations.at(0).loss == doctest::Approx(one.loss).epsilon(1e-6));
    }
  }
}

TEST_CASE("a function of means is validated over all samples, not as a mean over batches") {
  const Data data;
  const Expected one = of_classes(data, {1, 1, 1}, 1);
  double squares = 0, right = 0;
  for (size_t i = 0; i < data.x.size(); ++i) squares += double(data.x[i]) * double(data.x[i]);
  for (size_t i = 0; i < size_t(kSamples); ++i) {
    const float* x = &data.x[i * kScores];
    right += std::max_element(x, x + kScores) - x == data.label[i];
  }
  const double accuracy = right / double(kSamples);
  const std::string nodes = kIgnoring +
                            "perplexity = Exp (loss)\n"
                            "square = Mul (x, x)\nsquares = ReduceMean <keepdims = 0> (square)\nrms = Sqrt (squares)\n"
                            "accuracy = arbalest.Accuracy (logits, label)\ngap = Sub (loss, accuracy)\n"
                            "bounded = Clip <max = 0.5> (gap)\nratio = Div (accuracy, loss)\n";
  for (const int64_t batch : {24, 12, 7, 5, 1}) {
    for (const int devices : {1, 2}) {
      INFO("batches of ", batch, " on ", devices, " devices");
      const Ended end = ended({.loss = nodes,
                               .batch = 12,
                               .test_batch = batch,
                               .rate = "0.0",
                               .metrics = "loss, perplexity, rms, gap, bounded, ratio"},
                              data, devices);
      const Metrics& metrics = end.story.validations.at(0).metrics;
      const double expected[] = {std::exp(one.loss), std::sqrt(squares / double(data.x.size())), one.loss - accuracy,
                                 std::min(0.5, one.loss - accuracy), accuracy / one.loss};
      REQUIRE(metrics.size() == std::size(expected));
      for (size_t m = 0; m < metrics.size(); ++m) {
        INFO(metrics[m].first);
        CHECK(metrics[m].second == doctest::Approx(expected[m]).epsilon(1e-6));
      }
    }
  }
}

TEST_CASE("accuracy is of the samples whose label is not ignored, in the loss's kernel and in its own") {
  const Data data;
  double right = 0, counted = 0;
  for (size_t i = 0; i < size_t(kSamples); ++i) {
    if (data.label[i] == 1) continue;
    const auto best = std::max_element(&data.x[i * kScores], &data.x[i * kScores] + kScores) - &data.x[i * kScores];
    counted += 1;
    right += best == data.label[i];
  }
  const std::string nodes = kIgnoring + "accuracy = arbalest.Accuracy <ignore_index = 1> (logits, label)\n";
  for (const int64_t batch : {24, 5, 1}) {
    const Ended end = ended({.loss = nodes,
                             .batch = batch == 5 ? 4 : batch,
                             .test_batch = batch,
                             .rate = "0.0",
                             .metrics = "loss, accuracy"},
                            data);
    CHECK(end.story.epochs.at(0).metrics.at(0).second == doctest::Approx(right / counted).epsilon(1e-6));
    CHECK(end.story.validations.at(0).metrics.at(0).second == doctest::Approx(right / counted).epsilon(1e-6));
  }
}

// Checkpoints of versions in which batches had no weights: means were divided by numbers of samples, which are equal to
// the weights if no label of the batch is missing.
TEST_CASE("a run goes on from a checkpoint that has no weights of batches") {
  const TestFolder folder;
  const Data data(false);
  const Net net{.loss = kMarks, .batch = 2, .accumulate = 3};
  SessionOptions options = on_cpus();
  options.numerics.deterministic = true;
  options.sources = {std::make_shared<SlowSource>(data.source(), 10), data.source()};
  options.length.epochs = 3;
  options.checkpoints.folder = folder / "c";
  options.checkpoints.resume = true;
  options.checkpoints.iterations = 1;
  options.checkpoints.keep = 100;
  options.files.save = folder / "whole.safetensors";
  run(graph_of(net), options);
  const std::string whole = read_whole_file(options.files.save);

  using Json = nlohmann::json;
  const std::vector<std::filesystem::path> files = checkpoints_in(options.checkpoints.folder);
  int64_t taken = 0;  // the newest after which two batches are accumulated
  for (const std::filesystem::path& path : files) {
    const int64_t iteration = read_checkpoint(path).checkpoint.position.iteration;
    if (taken > 0 || iteration % net.accumulate != 2) {
      std::filesystem::remove(path);
      continue;
    }
    taken = iteration;
    TensorFile file = read_safetensors(path);
    Json state = Json::parse(file.metadata.at("arbalest.checkpoint"));
    const auto shorten = [](Json& sums) {
      REQUIRE(sums.size() == 3);
      sums.erase(2);
    };
    shorten(state.at("monitor").at("epoch_sums"));
    for (const char* sums : {"trained", "validated"}) shorten(state.at("segment").at(sums));
    for (Json& sums : state.at("segment").at("tallies")) shorten(sums);
    for (NamedTensor& tensor : file.tensors) {
      const size_t weight = tensor.name == "learner 0/state/tally"         ? sizeof(double)
                            : tensor.name == "learner 0/state/accumulated" ? 64 * sizeof(float)
                                                                           : 0;
      tensor.bytes.resize(tensor.bytes.size() - weight);
      if (weight > 0) tensor.shape = {int64_t(tensor.bytes.size())};
    }
    seal(file, state.dump());
    write_safetensors(path, file);
  }
  REQUIRE(taken > 0);
  options.files.save = folder / "resumed.safetensors";
  options.checkpoints.from = newest_checkpoint(options.checkpoints.folder);
  const Recorder resumed = run(graph_of(net), options);
  CHECK(read_whole_file(options.files.save) == whole);
  CHECK(resumed.starts.at(0).resumed_iteration == taken);
}

}  // namespace sums_test
