// SPDX-License-Identifier: Apache-2.0

// Means of the weights of several models: their numbers, their batch norms, and which of them a greedy soup takes.

#include "executor/inference/average_models.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "executor/inference/inference.h"
#include "io/formats/safetensors.h"
#include "tests/executor/fixture.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace average_models_test {
namespace {

// Models of one graph that go on from one another's weights with orders of data of their own.
struct Trained {
  Trained() {
    train("begin", 1, "", 2);
    for (const uint64_t seed : {11, 12, 13}) train(fmt::format("{}", seed), seed, "begin", 1);
  }

  void train(const std::string& name, uint64_t seed, const std::string& from, int64_t epochs) {
    SessionOptions run_options = options;
    run_options.numerics.seed = seed;
    run_options.length.epochs = epochs;
    run_options.files.save = path(name);
    if (!from.empty()) run_options.files.weights = path(from);
    run(graph, run_options);
  }
  std::string path(const std::string& name) const { return folder / (name + ".safetensors"); }
  std::vector<std::string> files() const { return {path("11"), path("12"), path("13")}; }

  TestFolder folder;
  Graph graph = tiny(convolutional(320));
  SessionOptions options = on_cpus();
};

std::vector<float> floats_of(const NamedTensor& tensor) {
  std::vector<float> values(tensor.bytes.size() / sizeof(float));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

double metric_of(const Validated& measured, const std::string& name) {
  for (const auto& [metric, value] : measured.metrics) {
    if (metric == name) return value;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

TEST_CASE("the mean of models has the means of their weights, and evaluates as it was measured") {
  const Trained trained;
  const ModelAverage average(trained.graph, trained.options, trained.files());
  CHECK(average.metric() == "accuracy");
  const ModelAverage::Measured mean = average.mean({0, 1, 2});
  CHECK(mean.result.samples == 300);
  CHECK(mean.value == metric_of(mean.result, "accuracy"));
  const std::string out = trained.path("mean");
  average.save(out, mean, 3);

  std::vector<TensorFile> models;
  for (const std::string& file : trained.files()) models.push_back(read_safetensors(file));
  const TensorFile saved = read_safetensors(out);
  REQUIRE(saved.tensors.size() == models[0].tensors.size());
  for (const NamedTensor& tensor : saved.tensors) {
    CAPTURE(tensor.name);
    const bool statistic = tensor.name.find("running") != std::string::npos;
    const std::vector<float> values = floats_of(tensor);
    for (size_t i = 0; i < values.size(); ++i) {
      double sum = 0;
      for (const TensorFile& model : models) sum += double(floats_of(*model.find(tensor.name))[i]);
      if (!statistic) CHECK(double(values[i]) == doctest::Approx(sum / 3).epsilon(1e-7));
    }
    if (statistic) CHECK(values != floats_of(*models[0].find(tensor.name)));  // made anew
  }
  CHECK(saved.metadata.at("averaged") == "3");
  CHECK(saved.metadata.at("graph") == "tiny");
  CHECK_FALSE(saved.metadata.contains("iteration"));

  SessionOptions options = trained.options;
  options.files.weights = out;
  const Validated evaluated = Inference(trained.graph, options, {}).run();
  CHECK(evaluated.loss == mean.result.loss);
  CHECK(evaluated.metrics == mean.result.metrics);
}

TEST_CASE("one model by itself keeps its weights, and batch norms are those of as many batches as asked for") {
  const Trained trained;
  SessionOptions options = trained.options;
  options.rules.recalibrate = 2;
  const ModelAverage few(trained.graph, options, trained.files());
  options.rules.recalibrate = 10;
  const ModelAverage many(trained.graph, options, trained.files());
  const ModelAverage::Measured by_few = few.mean({1}), by_many = many.mean({1});
  CHECK(by_few.model.weights == by_many.model.weights);
  CHECK(by_few.model.statistics != by_many.model.statistics);
  CHECK(few.mean({1}).model.statistics == by_few.model.statistics);
}

TEST_CASE("a greedy soup leaves out what makes the mean worse") {
  Trained trained;
  trained.train("stranger", 99, "", 1);  // from other first weights
  std::vector<std::string> files = trained.files();
  files.insert(files.begin(), trained.path("stranger"));
  const ModelAverage average(trained.graph, trained.options, files);
  std::vector<ModelAverage::Measured> single;
  for (size_t model = 0; model < files.size(); ++model) single.push_back(average.mean({model}));
  std::vector<bool> joined;
  const GreedySoup soup =
      greedy_soup(average, single, [&](size_t, bool joins, const ModelAverage::Measured&) { joined.push_back(joins); });
  CHECK(joined.size() == files.size() - 1);
  CHECK(std::count(joined.begin(), joined.end(), true) == int64_t(soup.models.size()) - 1);
  CHECK(std::find(soup.models.begin(), soup.models.end(), size_t(0)) == soup.models.end());
  for (const ModelAverage::Measured& model : single) CHECK(average.as_good(soup.mean.value, model.value));
  CHECK(average.mean(soup.models).value == soup.mean.value);

  // The same model once more is as good, and joins.
  const ModelAverage twice(trained.graph, trained.options, {files[1], files[1]});
  joined.clear();
  const GreedySoup both =
      greedy_soup(twice, {twice.mean({0}), twice.mean({1})},
                  [&](size_t, bool joins, const ModelAverage::Measured&) { joined.push_back(joins); });
  CHECK(joined == std::vector<bool>{true});
  CHECK(both.models.size() == 2);
}

TEST_CASE("which value is as good follows the metric's direction, and an undefined one is the worst") {
  const Trained trained;
  const double undefined = std::numeric_limits<double>::quiet_NaN();
  SessionOptions options = trained.options;
  const ModelAverage accuracy(trained.graph, options, trained.files());
  options.rules.metric = "loss";
  const ModelAverage loss(trained.graph, options, trained.files());
  CHECK(accuracy.as_good(0.5, 0.5));
  CHECK(accuracy.as_good(0.6, 0.5));
  CHECK_FALSE(accuracy.as_good(0.4, 0.5));
  CHECK(loss.metric() == "loss");
  CHECK(loss.as_good(0.4, 0.5));
  CHECK_FALSE(loss.as_good(0.6, 0.5));
  CHECK_FALSE(accuracy.as_good(undefined, 0.5));
  CHECK(accuracy.as_good(0.5, undefined));
}

TEST_CASE("models that cannot be averaged are refused") {
  const Trained trained;
  const auto refusal = [&](const Graph& graph, const std::vector<std::string>& files) {
    return message_of([&] { ModelAverage(graph, trained.options, files); });
  };
  TinyNet other = convolutional(320);
  other.validate = "";
  CHECK(contains(refusal(tiny(other), trained.files()), "expected a graph that validates"));
  TinyNet wider = convolutional(320);
  wider.layers = "h = arbalest.ConvBnRelu <filters = 9, kernel_shape = [3, 3]> (x)\n";
  CHECK(contains(refusal(tiny(wider), trained.files()), "11.safetensors"));
  CHECK(contains(refusal(trained.graph, {trained.path("11"), trained.path("none")}), "none.safetensors"));
}

}  // namespace average_models_test
