// SPDX-License-Identifier: Apache-2.0

// Models that answer requests of many threads.

#include "executor/inference/predictor.h"

#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <set>
#include <thread>

#include "executor/inference/inference.h"
#include "ops/builtin_ops.h"
#include "tests/executor/fixture.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace predictor_test {
namespace {

constexpr int64_t kPixels = 16 * 16;

const std::vector<Field> kFields = {{"image", DataType::Uint8, {1, 16, 16}}, {"label", DataType::Int32, {}, 10}};

std::vector<uint8_t> random_images(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> pixels(size_t(count * kPixels));
  for (uint8_t& pixel : pixels) pixel = uint8_t(random());
  return pixels;
}

FieldArray images(const std::vector<uint8_t>& pixels) {
  return field_array("image", {1, 16, 16}, pixels);
}

// As a pass over a split gives them.
std::vector<float> expected_logits(const Graph& graph, SessionOptions options, const std::vector<uint8_t>& pixels) {
  const auto count = int64_t(pixels.size()) / kPixels;
  options.sources.validation =
      memory_source({images(pixels), owned_array("label", {}, std::vector<int32_t>(size_t(count), 0), 10)});
  std::vector<float> logits(size_t(count * 10));
  Inference(graph, options, {"", {"logits"}}).run([&](const InferredBatch& batch) {
    std::memcpy(logits.data() + batch.first * 10, batch.values[0], size_t(batch.samples * 10) * sizeof(float));
  });
  return logits;
}

Graph trained(SessionOptions& options, const TestFolder& folder) {
  const Graph graph = tiny(convolutional(160));
  options.length.epochs = 1;
  options.files.save = folder / "weights.safetensors";
  run(graph, options);
  options.files.weights = std::exchange(options.files.save, "");
  return graph;
}

}  // namespace

TEST_CASE("a predictor gives many threads what a pass over a split gives, without the graph's data") {
  const TestFolder folder;
  SessionOptions options = on_cpus(2);
  Graph graph = trained(options, folder);
  const std::vector<uint8_t> pixels = random_images(211, 1);
  const std::vector<float> expected = expected_logits(graph, options, pixels);
  graph.find_op("arbalest.Prefetch")->attributes.set("source", "mnist:/nowhere");
  Predictor predictor(graph, options, {.batch = 16, .fields = kFields});
  CHECK(to_string(predictor.fields()) == "image uint8[1,16,16]");
  CHECK(predictor.output().shape == Shape{10});
  std::vector<float> found(expected.size());
  std::vector<std::thread> callers;
  for (int64_t caller = 0; caller < 8; ++caller) {
    callers.emplace_back([&, caller] {
      // Requests of 1 to 40 samples, some larger than a batch; caller c has samples c, c + 8, … of the requests'
      // starts.
      for (int64_t first = 0, turn = 0; first < 211; ++turn) {
        const int64_t count = std::min<int64_t>(211 - first, 1 + turn * 7 % 40);
        if (turn % 8 == caller) {
          const std::vector<uint8_t> part(pixels.begin() + first * kPixels, pixels.begin() + (first + count) * kPixels);
          const FieldArray given[] = {images(part)};
          const std::vector<float> rows = predictor.predict(given);
          std::copy(rows.begin(), rows.end(), found.begin() + first * 10);
        }
        first += count;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (size_t i = 0; i < expected.size(); ++i) REQUIRE(found[i] == doctest::Approx(expected[i]).epsilon(1e-5));
}

TEST_CASE("predictors answer one after the other, and take no thread while nobody asks") {
  SessionOptions options = on_cpus(2);
  options.execution.threads = 1;
  const Graph graph = tiny({});
  Predictor predictor(graph, options, {.value = "hidden", .batch = 4}), other(graph, options, {.value = "hidden"});
  CHECK(predictor.output().shape == Shape{16});
  const std::vector<uint8_t> pixels = random_images(1, 2);
  const FieldArray given[] = {images(pixels)};
  const std::vector<float> first = predictor.predict(given);
  CHECK(first.size() == 16);
  for (int i = 0; i < 20; ++i) {
    CHECK(predictor.predict(given) == first);
    CHECK(other.predict(given) == first);
  }
  options.length.iterations = 3;
  CHECK(run(graph, options).ends.size() == 1);  // training next to two predictors
}

TEST_CASE("each batch of a predictor draws anew, on every device") {
  TinyNet net;
  net.layers = "hidden = arbalest.Linear <units = 16> (x)\nh = RandomNormalLike (hidden)\n";
  Predictor predictor(tiny(net), on_cpus(2), {.value = "h", .batch = 2});
  const std::vector<uint8_t> pixels = random_images(2, 4);
  const FieldArray given[] = {images(pixels)};
  std::set<float> drawn;
  constexpr size_t kBatches = 8;
  size_t numbers = 0;
  for (size_t i = 0; i < kBatches; ++i) {
    const std::vector<float> rows = predictor.predict(given);
    drawn.insert(rows.begin(), rows.end());
    numbers += rows.size();
  }
  REQUIRE(numbers == kBatches * 2 * 16);
  CHECK(drawn.size() > numbers - 4);  // two floats may be alike
}

TEST_CASE("a predictor that nobody asks ends") {
  Predictor(tiny({}), on_cpus(2), {});
}

TEST_CASE("what a predictor cannot do is reported") {
  const Graph graph = tiny({});
  const SessionOptions options = on_cpus();
  CHECK(contains(message_of([&] { Predictor(graph, options, {.value = "hiden"}); }), "did you mean 'hidden'"));
  CHECK(contains(message_of([&] { Predictor(graph, options, {.value = "image"}); }), "a predictor gives floats"));
  CHECK(contains(message_of([&] { Predictor(graph, options, {.batch = -1}); }), "the batch is -1 samples"));
  CHECK(contains(message_of([&] { Predictor(graph, options, {.value = "loss"}); }), "a row for each of the"));
  Predictor predictor(graph, options, {});
  const std::vector<uint8_t> pixels = random_images(2, 3);
  const auto refusal = [&](const std::vector<FieldArray>& given) {
    return message_of([&] { predictor.predict(given); });
  };
  CHECK(contains(refusal({}), "a request has no field 'image'"));
  CHECK(contains(refusal({field_array("image", {1, 8, 64}, pixels)}), "expected image uint8[1,16,16]"));
  CHECK(contains(refusal({{{"image", DataType::Uint8, {1, 16, 16}}, images(pixels).bytes.first(300), nullptr}}),
                 "256 bytes a sample"));
  CHECK(predictor.predict(std::vector<FieldArray>{{{"image", DataType::Uint8, {1, 16, 16}}, {}, nullptr}}).empty());
  CHECK(refusal({images(pixels)}) == "");  // and it still works
}

TEST_CASE("when a model cannot be run, all who ask get the error, and the predictor ends") {
  const Graph graph = read_graph_text(
      "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
      "table () => (float loss)\n{\n"
      "rows = Constant <value = float[3, 2] {1, 2, 3, 4, 5, 6}> ()\n"
      "image, label = arbalest.Prefetch <source = \"glyphs:?train=32&test=32&size=16\", batch = 8> ()\n"
      "x = arbalest.Augment <mean = [0.2], std = [0.3]> (image)\n"
      "row = Gather (rows, label)\n"
      "logits = arbalest.Linear <units = 10> (x)\n"
      "loss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
      "trained = arbalest.Train <lr = 0.1> (loss)\n}\n",
      "table.onnxtxt", builtin_ops());
  Predictor predictor(graph, on_cpus(), {.value = "row"});
  CHECK(to_string(predictor.fields()) == "label int32[] of 10 classes");
  const auto rows = [&](const std::vector<int32_t>& labels) {
    const FieldArray given[] = {field_array("label", {}, labels)};
    return predictor.predict(given);
  };
  CHECK(rows({2, 0}) == std::vector<float>{5, 6, 1, 2});
  CHECK(contains(message_of([&] { rows({1, 7}); }), "index 1 of 'indices' is 7; expected -3 to 2"));
  const std::string message = message_of([&] { rows({1, 7}); });
  CHECK(message.find("node '") == message.rfind("node '"));  // named once
  CHECK(contains(message_of([&] { rows({1}); }), "index 1 of 'indices' is 7; expected -3 to 2"));
}

}  // namespace predictor_test
