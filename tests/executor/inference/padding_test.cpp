// SPDX-License-Identifier: Apache-2.0

// Means over the rows of whole batches, as a loss of ONNX's operators is one: what fills a last batch must not change
// them. Held against sums over all samples in double.

#include <doctest/doctest.h>

#include <cmath>

#include "executor/inference/inference.h"
#include "io/sources/memory_source.h"
#include "ops/builtin_ops.h"
#include "tests/executor/fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace padding_test {
namespace {

struct Data {
  std::vector<float> x, y;
  double squares = 0, distances = 0;  // means

  explicit Data(int64_t samples) {
    for (int64_t i = 0; i < samples; ++i) {
      x.push_back(float(3 * std::sin(5 * double(i) + 1)));
      y.push_back(float(double(i * i % 11) / 4));
      const double apart = double(x.back()) - double(y.back());
      squares += apart * apart / double(samples);
      distances += std::abs(apart) / double(samples);
    }
  }
  std::unique_ptr<Source> source() const {
    return memory_source({owned_array("x", {1}, x), owned_array("y", {1}, y)}, "points");
  }
};

// `between`: nodes that make 'd' of 'away', what is predicted less what is right.
Graph graph_of(int64_t batch, const std::string& between = "d = Identity (away)\n") {
  return read_graph_text(
      fmt::format("<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\nnet () => (float loss)\n{{\n"
                  "x, y = arbalest.Prefetch <source = \"memory:\", batch = 1> ()\n"
                  "p = arbalest.LayerScale <axis = 1, initial = 1.0> (x)\naway = Sub (p, y)\n{}"
                  "square = Mul (d, d)\nloss = ReduceMean <keepdims = 0> (square)\n"
                  "size = Abs (d)\ndistance = ReduceMean <keepdims = 0> (size)\n"
                  "known = arbalest.MeanSquaredError (p, y)\n"
                  "both = Add (known, distance)\ntwice = Add (known, known)\n"
                  "trained = arbalest.Train <lr = 1e-12> (loss)\n"
                  "report = arbalest.Validate <batch = {}> (trained, loss, distance, known, both, twice)\n}}\n",
                  between, batch),
      "net.onnxtxt", builtin_ops());
}

SessionOptions options_for(const Data& data, int devices = 1) {
  SessionOptions options = on_cpus(devices);
  options.sources = {data.source(), data.source()};
  options.length.epochs = 1;
  options.length.iterations = {};
  return options;
}

void check_exact(const Validated& measured, const Data& data) {
  const auto near = [](double value) { return doctest::Approx(value).epsilon(1e-6); };
  CHECK(measured.samples == int64_t(data.x.size()));
  CHECK(measured.loss == near(data.squares));
  REQUIRE(measured.metrics.size() == 4);
  CHECK(measured.metrics[0].second == near(data.distances));
  CHECK(measured.metrics[1].second == near(data.squares));
  CHECK(measured.metrics[2].second == near(data.squares + data.distances));
  CHECK(measured.metrics[3].second == near(2 * data.squares));
}

bool mentions(const std::vector<std::string>& notes, const std::string& text) {
  return std::any_of(notes.begin(), notes.end(), [&](const auto& note) { return note.find(text) != note.npos; });
}

}  // namespace

TEST_CASE("padding: means of whole batches are exact whatever the batch and the devices") {
  for (const int64_t samples : {1, 24, 37, 101, 211}) {
    const Data data(samples);
    for (const int64_t batch : {1, 2, 7, 10, 20, 30, 36, 37, 250}) {
      for (const int devices : {1, 3}) {
        if (devices == 3 && batch % 10 != 0) continue;
        CAPTURE(samples);
        CAPTURE(batch);
        CAPTURE(devices);
        const SessionOptions options = options_for(data, devices);
        check_exact(Inference(graph_of(batch), options, {}).run(), data);
        if (batch == 20) check_exact(Inference(graph_of(1), options, {"", {}, batch}).run(), data);
      }
    }
  }
}

TEST_CASE("padding: a run validates what an evaluation measures") {
  const Data data(37);
  for (const int devices : {1, 2}) check_exact(run(graph_of(30), options_for(data, devices)).ends.at(0).last, data);
}

TEST_CASE("padding: batches are made smaller for means of whole batches alone, and the run says so") {
  const Data data(37);
  const auto prepared = [&](int64_t batch, const std::string& between = "d = Identity (away)\n") {
    return prepare(graph_of(batch, between), options_for(data));
  };
  const Prepared smaller = prepared(20);
  CHECK(smaller.program.find(LoopRole::Validate)->batch == 18);
  CHECK(smaller.program.find(LoopRole::Validate)->padded == std::vector<std::string>{"loss", "distance", "both"});
  CHECK(
      mentions(smaller.notes, "validation takes batches of 18 instead of 20: 'loss', 'distance', 'both' are made of"));
  CHECK_FALSE(mentions(prepared(36).notes, "validation takes batches"));
  CHECK_FALSE(mentions(prepared(250).notes, "validation takes batches"));
  // A batch that the graph's shapes state stays, and its mean is only nearly exact.
  const std::string fixed =
      "shape = Constant <value_ints = [5, 2]> ()\npairs = Reshape (away, shape)\n"
      "d = Identity (pairs)\n";
  Graph of_tens = graph_of(10, fixed);
  of_tens.find_op("arbalest.Prefetch")->attributes.set("batch", int64_t{10});
  const Prepared stays = prepare(of_tens, options_for(data));
  CHECK(stays.program.find(LoopRole::Validate)->batch == 10);
  CHECK(mentions(stays.notes, "the last one of validation fills 10 rows with 7 of 37 samples"));
  // 7 samples fill 10 rows: the first three count twice.
  double expected = 0;
  for (size_t i = 0; i < 30; ++i) expected += std::pow(double(data.x[i]) - double(data.y[i]), 2) / 37;
  for (size_t i = 0; i < 10; ++i)
    expected += std::pow(double(data.x[30 + i % 7]) - double(data.y[30 + i % 7]), 2) * 0.7 / 37;
  Inference inference(of_tens, options_for(data), {});
  CHECK(mentions(inference.notes(), "so that the mean is not exact"));
  CHECK(inference.run().loss == doctest::Approx(expected).epsilon(1e-6));
}

TEST_CASE("padding: operators that count valid samples keep the batch that is asked for") {
  const Data data(37);
  Graph graph = read_graph_text(
      "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\nnet () => (float loss)\n{\n"
      "x, y = arbalest.Prefetch <source = \"memory:\", batch = 1> ()\n"
      "p = arbalest.LayerScale <axis = 1, initial = 1.0> (x)\nloss = arbalest.MeanSquaredError (p, y)\n"
      "root = Sqrt (loss)\ntrained = arbalest.Train <lr = 0.1> (loss)\n"
      "report = arbalest.Validate <batch = 20> (trained, loss, root)\n}\n",
      "net.onnxtxt", builtin_ops());
  const Prepared prepared = prepare(std::move(graph), options_for(data));
  CHECK(prepared.program.find(LoopRole::Validate)->batch == 20);
  CHECK(prepared.program.find(LoopRole::Validate)->padded.empty());
}

}  // namespace padding_test
