// SPDX-License-Identifier: Apache-2.0

// Commands on graphs that call a model: trained, saved under the file's names, measured and exported.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "graph/file/onnx_file.h"
#include "io/formats/safetensors.h"
#include "ops/builtin_ops.h"
#include "tests/executor/fixture.h"
#include "tests/io/test_folder.h"
#include "tests/tools/command_line.h"
#include "tests/tools/redirected.h"

using namespace arbalest;
using namespace arbalest::test;

namespace model_commands_test {
namespace {

// A trunk for images of 16 × 16 with one channel, and the graph that gives it a head.
struct Files {
  TestFolder folder;
  std::string graph = folder / "g.onnxtxt", model = folder / "trunk.onnxtxt", weights = folder / "w.safetensors";

  Files() {
    std::ofstream(model) << R"(<ir_version: 8, opset_import: ["" : 17]>
trunk (float[N, 1, 16, 16] image) => (float[N, 2] y)
<
  float[2, 1, 3, 3] "conv.weight" = {1, 2, 3, 4, 5, 6, 7, 8, 9, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9},
  float[2] "bn.weight" = {1, 2}, float[2] "bn.bias" = {0.5, -0.5}, float[2] "bn.mean" = {1, 2},
  float[2] "bn.var" = {30, 2}, float[2, 2] "old.weight" = {1, 2, 3, 4}
>
{
  c = Conv (image, "conv.weight")
  n = BatchNormalization (c, "bn.weight", "bn.bias", "bn.mean", "bn.var")
  r = Relu (n)
  p = GlobalAveragePool (r)
  features = Flatten (p)
  y = MatMul (features, "old.weight")
})";
    std::ofstream(graph) << R"(<ir_version: 8, opset_import: ["" : 17, "arbalest" : 1]>
g () => (float loss)
{
  image, label = arbalest.Prefetch <source = "glyphs:?train=64&test=32&size=16", batch = 16> ()
  x = arbalest.Augment (image)
  features = model.trunk <outputs = ["features"]> (x)
  logits = arbalest.Linear <units = 10> (features)
  loss = arbalest.SoftmaxCrossEntropy (logits, label)
  accuracy = arbalest.Accuracy (logits, label)
  trained = arbalest.Train <optimizer = "sgd", lr = 0.1, epochs = 1.0> (loss)
  report = arbalest.Validate <split = "test", batch = 16> (trained, loss, accuracy)
})";
  }

  // The lines that the command prints; --model and the device come last.
  std::vector<std::string> lines(std::vector<const char*> words) const {
    for (const char* more : {"--model", model.c_str(), "--devices", "cpu:0", "--threads", "2"}) words.push_back(more);
    const Command command = parse(words);
    const Redirected output(folder / "out");
    int status = kFailed;
    if (const auto* run = options_if<RunOptions>(command)) status = command_run(*run);
    if (const auto* check = options_if<CheckOptions>(command)) status = command_check(*check);
    if (const auto* evaluate = options_if<EvaluateOptions>(command)) status = command_evaluate(*evaluate);
    if (const auto* exported = options_if<ExportCommandOptions>(command)) status = command_export(*exported);
    CHECK(status == kDone);
    return output.lines();
  }
};

std::vector<float> floats_of(const TensorFile& file, const std::string& name) {
  const NamedTensor* tensor = file.find(name);
  REQUIRE_MESSAGE(tensor != nullptr, name);
  std::vector<float> numbers(tensor->bytes.size() / sizeof(float));
  std::memcpy(numbers.data(), tensor->bytes.data(), tensor->bytes.size());
  return numbers;
}

}  // namespace

TEST_CASE("a graph that calls a model trains it, and saves it under the names of its file") {
  const Files files;
  files.lines({"run", files.graph.c_str(), "--save", files.weights.c_str()});
  const TensorFile saved = read_safetensors(files.weights);
  std::vector<std::string> names;
  for (const NamedTensor& tensor : saved.tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  CHECK(names == std::vector<std::string>{"bn.bias", "bn.mean", "bn.var", "bn.weight", "conv.weight", "logits.bias",
                                          "logits.weight"});
  const std::vector<float> filters = floats_of(saved, "conv.weight");
  CHECK(filters[8] != 9);  // trained from the file's values on
  CHECK(filters[8] == doctest::Approx(9).epsilon(0.2));
  CHECK(floats_of(saved, "bn.mean") != std::vector<float>{1, 2});
  CHECK(floats_of(saved, "bn.bias") != std::vector<float>{0.5, -0.5});
  CHECK(files.lines({"evaluate", files.graph.c_str(), "--weights", files.weights.c_str()}).size() > 3);
  const std::vector<std::string> checked = files.lines({"check", files.graph.c_str()});
  const auto states = [&](const std::string& name, const std::string& how) {
    return std::any_of(checked.begin(), checked.end(), [&](const std::string& line) {
      return line.starts_with("  " + name + " ") && line.ends_with(" " + how);
    });
  };
  for (const char* name : {"bn.bias", "bn.weight", "conv.weight", "logits.bias", "logits.weight"})
    CHECK(states(name, "trained"));
  for (const char* name : {"bn.mean", "bn.var"}) CHECK(states(name, "statistics"));
}

TEST_CASE("a trunk is frozen by its names") {
  const Files files;
  files.lines({"run", files.graph.c_str(), "--save", files.weights.c_str(), "--set", "train.frozen=conv.*,bn.*"});
  const TensorFile saved = read_safetensors(files.weights);
  CHECK(floats_of(saved, "conv.weight")[8] == 9);
  CHECK(floats_of(saved, "bn.mean") == std::vector<float>{1, 2});
  CHECK(floats_of(saved, "bn.weight") == std::vector<float>{1, 2});
}

TEST_CASE("a model alone is no graph of a command; the error says what calls it") {
  const Files files;
  const auto fault_of = [&](const char* word) {
    const Command command = parse({word, files.model.c_str()});
    return message_of([&] {
      if (const auto* run = options_if<RunOptions>(command)) command_run(*run);
      if (const auto* predict = options_if<PredictOptions>(command)) command_predict(*predict);
    });
  };
  for (const char* word : {"run", "predict"}) {
    CHECK(contains(fault_of(word), files.model + ": a model alone, without data"));
  }
}

TEST_CASE("a model that a graph calls is not overwritten") {
  const Files files;
  const auto fault_of = [&](std::vector<const char*> words) {
    words.insert(words.end(), {"--model", files.model.c_str()});
    const Command command = parse(words);
    return message_of([&] { command_run(options_of<RunOptions>(command)); });
  };
  CHECK(contains(fault_of({"run", files.graph.c_str(), "--save", files.model.c_str()}),
                 fmt::format("--save would overwrite '{}', which the graph reads", files.model)));
  const std::string map = files.folder / "names.map";
  std::ofstream(map) << "a b\n";
  const auto map_fault_of = [&](const char* option) {
    return fault_of({"run", files.graph.c_str(), "--weights", files.weights.c_str(), "--weights-map", map.c_str(),
                     option, map.c_str()});
  };
  CHECK(contains(map_fault_of("--log"), "which --weights-map reads"));
  CHECK(contains(map_fault_of("--save"), "which --weights-map reads"));
}

TEST_CASE("a model that the graph itself names is not overwritten") {
  const Files files;
  std::string text;
  std::getline(std::ifstream(files.graph), text, '\0');
  text.replace(text.find("outputs = ["), 0, "file = \"trunk.onnxtxt\", ");
  std::ofstream(files.graph) << text;
  const auto fault = [&](std::vector<const char*> words) {
    const Command command = parse(words);
    return message_of([&] {
      if (const auto* run = options_if<RunOptions>(command)) command_run(*run);
      if (const auto* exported = options_if<ExportCommandOptions>(command)) command_export(*exported);
    });
  };
  const std::string expected = fmt::format("would overwrite '{}', which the graph reads", files.model);
  CHECK(contains(fault({"run", files.graph.c_str(), "--log", files.model.c_str()}), expected));
  CHECK(contains(fault({"export", files.graph.c_str(), files.model.c_str()}), expected));
}

namespace {

// Two tokens of two numbers each, which read each other: what attention makes of one sample.
std::vector<double> attended(const float* x) {
  std::vector<double> y;
  for (int row = 0; row < 2; ++row) {
    double weight[2], sum = 0;
    for (int other = 0; other < 2; ++other) {
      weight[other] = std::exp(double(x[2 * row]) * x[2 * other] + double(x[2 * row + 1]) * x[2 * other + 1]);
      sum += weight[other];
    }
    for (int i = 0; i < 2; ++i) y.push_back((weight[0] * x[i] + weight[1] * x[2 + i]) / sum);
  }
  return y;
}

NamedTensor tensor(const std::string& name, DataType type, Shape shape, const void* numbers, size_t bytes) {
  const auto* first = static_cast<const uint8_t*>(numbers);
  return {name, type, std::move(shape), {first, first + bytes}};
}

}  // namespace

TEST_CASE("a model that was exported for one sample gives each of a batch its own, or is refused if it mixes them") {
  const TestFolder folder;
  std::vector<float> x;
  for (int i = 0; i < 20; ++i) x.push_back(0.25f * float(i * 7 % 11) - 1.0f);
  const std::vector<int32_t> labels(5, 1);
  for (const char* split : {"train", "test"}) {
    write_safetensors(folder / (std::string(split) + ".safetensors"),
                      {{tensor("x", DataType::Float32, {5, 4}, x.data(), x.size() * sizeof(float)),
                        tensor("label", DataType::Int32, {5}, labels.data(), labels.size() * sizeof(int32_t))},
                       {}});
  }
  const std::string graph = folder / "g.onnxtxt", model = folder / "m.onnxtxt", exported = folder / "out.onnx";
  const std::string mixes = R"(<ir_version: 8, opset_import: ["" : 17]>
m (float[1, 4] x) => (float[1, 4] y)
{
  turned = Transpose <perm = [1, 0]> (x)
  scores = MatMul (x, turned)
  weights = Softmax <axis = -1> (scores)
  y = MatMul (weights, x)
})";
  std::ofstream(model) << R"(<ir_version: 8, opset_import: ["" : 17]>
m (float[1, 4] x) => (float[1, 4] y) <int64[3] tokens = {1, -1, 2}, int64[2] rows = {-1, 4}>
{
  t = Reshape (x, tokens)
  turned = Transpose <perm = [0, 2, 1]> (t)
  scores = MatMul (t, turned)
  weights = Softmax <axis = -1> (scores)
  read = MatMul (weights, t)
  y = Reshape (read, rows)
})";
  std::ofstream(graph) << fmt::format(R"(<ir_version: 8, opset_import: ["" : 17, "arbalest" : 1, "model" : 1]>
g () => (float loss)
{{
  x, label = arbalest.Prefetch <source = "tensors:{}?classes=4", batch = 5> ()
  h = arbalest.LayerScale <initial = 1.0> (x)
  logits = model.m <file = "m.onnxtxt"> (h)
  loss = arbalest.SoftmaxCrossEntropy (logits, label)
  trained = arbalest.Train <lr = 0.1> (loss)
  report = arbalest.Validate <split = "test", batch = 5> (trained, loss)
}})",
                                      folder.string());
  const auto lines = [&](std::vector<const char*> words) {
    for (const char* more : {"--devices", "cpu:0", "--threads", "2"}) words.push_back(more);
    const Command command = parse(words);
    const Redirected output(folder / "out"), errors(folder / "err", stderr);
    if (const auto* run = options_if<RunOptions>(command)) command_run(*run);
    if (const auto* check = options_if<CheckOptions>(command)) command_check(*check);
    if (const auto* predict = options_if<PredictOptions>(command)) command_predict(*predict);
    if (const auto* evaluate = options_if<EvaluateOptions>(command)) command_evaluate(*evaluate);
    if (const auto* written = options_if<ExportCommandOptions>(command)) command_export(*written);
    return output.lines();
  };
  const auto refused = [&](std::vector<const char*> words) {
    const std::string message = message_of([&] { lines(std::move(words)); });
    CHECK(contains(message, "m.onnxtxt (exported for batches of 1)"));
    CHECK(contains(message, "node 'logits/scores' (MatMul): in a batch of 5 samples do not stay apart here"));
  };
  const std::vector<std::string> answers = lines({"predict", graph.c_str(), "--value", "logits", "--format", "json"});
  REQUIRE(answers.size() == 5);
  for (size_t sample = 0; sample < 5; ++sample) {
    const std::vector<double> right = attended(x.data() + 4 * sample);
    const nlohmann::json found = nlohmann::json::parse(answers[sample])["value"];
    for (size_t i = 0; i < 4; ++i) CHECK(found.at(i).get<double>() == doctest::Approx(right[i]).epsilon(1e-5));
  }
  const auto shapes_of_export = [&](const std::vector<const char*>& more) {
    std::vector<const char*> words = {"export", graph.c_str(), exported.c_str()};
    words.insert(words.end(), more.begin(), more.end());
    const std::vector<std::string> told = lines(words);
    return told.size() == 1 ? told[0] : "";
  };
#ifdef ARBALEST_ONNX
  CHECK(contains(shapes_of_export({}), "out.onnx: x float[-1,4] to logits float[-1,4], "));
#endif

  std::ofstream(model) << mixes;
  for (const char* command : {"run", "check", "evaluate"}) {
    INFO(command);
    refused({command, graph.c_str()});
  }
  refused({"predict", graph.c_str(), "--value", "logits"});
  // In batches of one it is what the file says.
  CHECK(lines({"check", graph.c_str(), "--set", "prefetch.batch=1", "--set", "report.batch=1"}).size() > 3);
#ifdef ARBALEST_ONNX
  CHECK(contains(shapes_of_export({"--set", "prefetch.batch=1", "--set", "report.batch=1"}),
                 "out.onnx: x float[1,4] to logits float[1,4], "));
#endif
}

#ifdef ARBALEST_ONNX
TEST_CASE("what is exported of a called model is a model that can be called, also with external data") {
  const Files files;
  const std::string exported = files.folder / "out.onnx";
  for (const bool external : {false, true}) {
    std::vector<const char*> words = {"export", files.graph.c_str(), exported.c_str(), "--value", "features"};
    if (external) words.push_back("--external-data");
    files.lines(words);
    CHECK_FALSE(std::filesystem::exists(external_data_path(exported)) != external);
    const Graph graph = load_graph(exported, builtin_ops());
    CHECK(graph.find_value("conv.weight") != kNone);
    Files again;
    std::filesystem::copy_file(exported, again.folder / "trunk.onnx");
    if (external) {
      std::filesystem::copy_file(external_data_path(exported), again.folder / "out.onnx.data");
    }
    again.model = again.folder / "trunk.onnx";
    again.lines({"evaluate", again.graph.c_str()});
  }
}
#endif

}  // namespace model_commands_test
