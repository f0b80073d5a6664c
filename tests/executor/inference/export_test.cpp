// SPDX-License-Identifier: Apache-2.0

// Trained models as graphs of ONNX's operators: they compute what the training graph does in validation.

#include "executor/inference/export_model.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "executor/inference/inference.h"
#include "graph/file/onnx_file.h"
#include "ops/builtin_ops.h"
#include "tests/executor/fixture.h"
#include "tests/io/test_folder.h"
#include "tests/ops/vectors/run_graph.h"

using namespace arbalest;
using namespace arbalest::test;

namespace export_test {
namespace {

// The first `count` samples' rows of a value, as validation computes them.
Logical rows_of(const Graph& graph, const SessionOptions& options, const std::string& value, int64_t count) {
  Inference inference(graph, options, {"", {value}});
  Logical rows{inference.output_type(0), {}};
  rows.type.shape.insert(rows.type.shape.begin(), count);
  inference.run([&](const InferredBatch& batch) {
    if (batch.first != 0) return;
    REQUIRE(batch.samples >= count);
    const auto size = size_t(rows.type.bytes());
    rows.values = values_of({rows.type, {batch.values[0], batch.values[0] + size}});
  });
  return rows;
}

double largest(const std::vector<double>& values) {
  double most = 0;
  for (const double value : values) most = std::max(most, std::abs(value));
  return most;
}

// Writes the model, reads it back for `count` samples and runs it.
std::vector<double> exported_values(const Graph& model, const Logical& input, const std::string& output) {
  const TestFolder folder;
  const std::string path = folder / "model.onnx";
  write_onnx(model, path);
  Graph graph = read_onnx(path, builtin_ops(), input.type.shape[0]);
  verify(graph);
  make_runnable(graph);
  REQUIRE(graph.inputs.size() == 1);
  const auto device = make_cpu_device();
  return run_graph(*device, graph, {{graph.values[graph.inputs[0]].name, input}}).at(output).values;
}

// The model computes of `x` what the graph does. Returns the largest number of it.
double check_same(const Graph& graph, const Graph& model, const std::string& value = "logits",
                  const SessionOptions& options = on_cpus(), int64_t count = 8) {
  const Logical x = rows_of(graph, options, "x", count), expected = rows_of(graph, options, value, count);
  const std::vector<double> found = exported_values(model, x, value);
  REQUIRE(found.size() == expected.values.size());
  const double most = largest(expected.values);
  CHECK(most > 0.01);
  for (size_t i = 0; i < found.size(); ++i) {
    CHECK(std::abs(found[i] - expected.values[i]) < 1e-5 * std::min(1.0, most));
  }
  return most;
}

TinyNet normalised() {
  TinyNet net = convolutional(160);
  net.layers =
      "c = arbalest.ConvBnRelu <filters = 8, kernel_shape = [3, 3]> (x)\n"
      "d = arbalest.Conv <filters = 8, kernel_shape = [1, 1]> (c)\n"
      "n = arbalest.BatchNorm (d)\n"
      "sum = Add (n, c)\n"
      "h = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (sum)\n";
  return net;
}

TinyNet concatenated() {
  TinyNet net = convolutional(160);
  net.layers =
      "c = arbalest.ConvBnRelu <filters = 8, kernel_shape = [3, 3]> (x)\n"
      "d = arbalest.Conv <filters = 5, kernel_shape = [3, 3]> (c)\n"
      "both = Concat <axis = 1> (c, d)\n"
      "n = arbalest.BatchNorm (both)\n"
      "r = Relu (n)\n"
      "h = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)\n";
  return net;
}

struct Trained {
  TestFolder folder;
  SessionOptions options = on_cpus();
  Graph graph;

  explicit Trained(const TinyNet& net = normalised()) : graph(tiny(net)) {
    options.length.epochs = 1;
    options.files.save = folder / "weights.safetensors";
    run(graph, options);
    options.files.weights = options.files.save;
    options.files.save.clear();
  }
};

std::string zeros(int64_t count) {
  std::string text = "0";
  for (int64_t i = 1; i < count; ++i) text += ", 0";
  return text;
}

int64_t count_ops(const Graph& graph, std::string_view op) {
  return std::count_if(graph.nodes.begin(), graph.nodes.end(),
                       [&](const Node& node) { return node.op->qualified_name() == op; });
}

}  // namespace

TEST_CASE("an exported model computes the scores, for any number of samples") {
  const Trained trained;
  for (const bool fold : {false, true}) {
    const Graph model = export_model(trained.graph, trained.options, {.fold_batch_norm = fold});
    CHECK(count_ops(model, "BatchNormalization") == (fold ? 0 : 2));
    CHECK(model.opsets == std::vector<std::pair<std::string, int64_t>>{{"", 18}});
    for (const int64_t count : {7, 100}) {
      CHECK(check_same(trained.graph, model, "logits", trained.options, count) > 0.5);
    }
  }
}

TEST_CASE("a batch norm that reads a Concat in parts is exported as the graph has it, and the Concat is handed out") {
  const Trained trained(concatenated());
  const Graph model = export_model(trained.graph, trained.options, {});
  CHECK(count_ops(model, "Concat") == 1);
  CHECK(count_ops(model, "BatchNormalization") == 2);
  const size_t count = 7;
  check_same(trained.graph, model, "logits", trained.options, count);

  const Logical both = rows_of(trained.graph, trained.options, "both", count);
  const Logical c = rows_of(trained.graph, trained.options, "c", count),
                d = rows_of(trained.graph, trained.options, "d", count);
  std::vector<double> beside;
  for (size_t n = 0; n < count; ++n) {
    for (const Logical* part : {&c, &d}) {
      const auto each = part->values.size() / count;
      beside.insert(beside.end(), part->values.begin() + int64_t(n * each),
                    part->values.begin() + int64_t((n + 1) * each));
    }
  }
  CHECK(both.values == beside);
}

TEST_CASE("an exported model may begin with the images as they are stored, and end with probabilities") {
  const Trained trained;
  const Graph model = export_model(trained.graph, trained.options, {.probabilities = true, .preprocessing = true});
  CHECK(model.values[model.inputs.at(0)].type.dtype == DataType::Uint8);
  const Logical image = rows_of(trained.graph, trained.options, "image", 20);
  const Logical logits = rows_of(trained.graph, trained.options, "logits", 20);
  const std::vector<double> found = exported_values(model, image, "probabilities");
  for (size_t n = 0; n < 20; ++n) {
    double sum = 0;
    for (size_t c = 0; c < 10; ++c) sum += std::exp(logits.values[10 * n + c]);
    for (size_t c = 0; c < 10; ++c) {
      CHECK(found[10 * n + c] == doctest::Approx(std::exp(logits.values[10 * n + c]) / sum).epsilon(1e-4));
    }
  }
}

TEST_CASE("labels that are decided each by itself are exported as their scores, or as their sigmoids") {
  const Graph graph = read_graph_text(
      "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
      "labels () => (float loss)\n"
      "<int64 classes = {10}, int64[2] values = {0, 1}>\n{\n"
      "image, label = arbalest.Prefetch <source = \"glyphs:?train=32&test=32&size=16\", batch = 8> ()\n"
      "x = arbalest.Augment <mean = [0.2], std = [0.3]> (image)\n"
      "scores = arbalest.Linear <units = 10> (x)\n"
      "chosen = OneHot (label, classes, values)\n"
      "targets = Cast <to = 1> (chosen)\n"
      "loss = arbalest.SigmoidCrossEntropy (scores, targets)\n"
      "trained = arbalest.Train <lr = 0.1> (loss)\n"
      "report = arbalest.Validate (trained, loss)\n}\n",
      "labels.onnxtxt", builtin_ops());
  const Logical x = rows_of(graph, on_cpus(), "x", 8), expected = rows_of(graph, on_cpus(), "scores", 8);
  const std::vector<double> scores = exported_values(export_model(graph, on_cpus(), {}), x, "scores");
  const std::vector<double> sigmoids =
      exported_values(export_model(graph, on_cpus(), {.probabilities = true}), x, "probabilities");
  REQUIRE(scores.size() == 80);
  REQUIRE(sigmoids.size() == 80);
  for (size_t i = 0; i < scores.size(); ++i) {
    CHECK(scores[i] == doctest::Approx(expected.values[i]).epsilon(1e-4));
    CHECK(sigmoids[i] == doctest::Approx(1 / (1 + std::exp(-expected.values[i]))).epsilon(1e-4));
  }
}

TEST_CASE("a crop's middle, scaled or not, and the zeros around it are exported") {
  for (const char* augment :
       {"pad = 2, crop = [19, 20]", "crop = [9, 12]", "pad = 3, crop = [22, 11]", "pad = 4",
        "area = [0.1, 1], crop = [14, 14]", "area = [0.1, 1], crop = [30, 21], resize = 33",
        "area = [0.1, 1], crop = [12, 12], pad = 3, rotate = 10.0, erase = 1.0, brightness = 0.5"}) {
    INFO(std::string(augment));
    const Graph graph = read_graph_text(
        fmt::format("<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
                    "crop () => (float loss)\n{{\n"
                    "image, label = arbalest.Prefetch <source = \"glyphs:?train=32&test=32&size=16\", batch = 8> ()\n"
                    "x = arbalest.Augment <mean = [0.2], std = [0.3], {}> (image)\n"
                    "logits = arbalest.Linear <units = 10> (x)\n"
                    "loss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
                    "trained = arbalest.Train <lr = 0.1> (loss)\n"
                    "report = arbalest.Validate (trained, loss)\n}}\n",
                    augment),
        "crop.onnxtxt", builtin_ops());
    const Graph model = export_model(graph, on_cpus(), {.value = "x", .preprocessing = true});
    const Logical image = rows_of(graph, on_cpus(), "image", 8), expected = rows_of(graph, on_cpus(), "x", 8);
    const std::string output = model.values[model.outputs.at(0)].name;
    const std::vector<double> found = exported_values(model, image, output);
    REQUIRE(found.size() == expected.values.size());
    for (size_t i = 0; i < found.size(); ++i) CHECK(found[i] == doctest::Approx(expected.values[i]).epsilon(1e-5));
  }
}

TEST_CASE("ONNX's own operators are exported as they are, though they run as simpler ones") {
  const Graph graph = read_graph_text(
      "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
      "own () => (float loss)\n"
      "<float[4] scale = {1, 0.5, 2, -1}, float[4] bias = {0, 1, -1, 0.5}, float[4] mean = {0.1, 0.2, 0, -0.3},\n"
      " float[4] variance = {1, 2, 0.5, 3}, float[4, 1, 2, 2] filters = {1, 2, 3, 4, -1, 0, 1, 2, 0.5, 0, 1, 1, 2, 1, "
      "-1, 0}>\n{\n"
      "image, label = arbalest.Prefetch <source = \"glyphs:?train=32&test=32&size=16\", batch = 8> ()\n"
      "x = arbalest.Augment <mean = [0.2], std = [0.3]> (image)\n"
      "c = arbalest.Conv <filters = 4, kernel_shape = [3, 3], strides = [2, 2]> (x)\n"
      "n = InstanceNormalization (c, scale, bias)\n"
      "b, new_mean, new_variance = BatchNormalization <training_mode = 1, correction = 1> (n, scale, bias, mean, "
      "variance)\n"
      "kept, mask = Dropout <training_mode = 1, ratio = 0.8> (b)\n"
      "d, unread = Dropout <training_mode = 1, ratio = 0.9> (kept)\n"
      "ones = Cast <to = 1> (mask)\n"
      "m = Mean (d, n, c, ones)\n"
      "up = ConvTranspose <strides = [2, 2]> (m, filters)\n"
      "h = GlobalMaxPool (up)\n"
      "logits = arbalest.Linear <units = 10> (h)\n"
      "loss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
      "trained = arbalest.Train <lr = 0.1> (loss)\n"
      "report = arbalest.Validate (trained, loss)\n}\n",
      "own.onnxtxt", builtin_ops());
  const Graph model = export_model(graph, on_cpus(), {});
  for (const char* op : {"InstanceNormalization", "BatchNormalization", "Mean", "ConvTranspose", "GlobalMaxPool"}) {
    INFO(std::string(op));
    CHECK(count_ops(model, op) == 1);
  }
  CHECK(count_ops(model, "Dropout") == 1);  // the one whose mask is read
  for (const Node& node : model.nodes) {
    if (node.op->name == "Dropout") CHECK(model.values[node.inputs.at(2)].type.dtype == DataType::Bool);
    if (node.op->name == "BatchNormalization")
      CHECK(node.attributes.find("correction") == nullptr);  // ONNX has no such attribute
  }
  check_same(graph, model);
}

// ONNX Runtime has no OneHot of int32 with a depth of int64.
TEST_CASE("rows of whole numbers are exported with indices of 64 bits") {
  TinyNet net;
  net.layers =
      "tokens = Cast <to = 6> (x)\nd = Constant <value_int = 4> ()\nv = Constant <value_floats = [0.0, 1.0]> ()\n"
      "rows = OneHot (tokens, d, v)\nh = Flatten (rows)\n";
  const Graph graph = tiny(net), model = export_model(graph, on_cpus(), {});
  REQUIRE(count_ops(model, "OneHot") == 1);
  const Node& rows = *model.find_op("OneHot");
  CHECK(model.values[rows.inputs[0]].type.dtype == DataType::Int64);
  check_same(graph, model);
}

TEST_CASE("dropouts that are spelt out are not exported, and other random numbers are, as ONNX has them") {
  const Graph graph = read_graph_text(
      "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\nown () => (float loss)\n{\n"
      "image, label = arbalest.Prefetch <source = \"glyphs:?train=32&test=32&size=16\", batch = 8> ()\n"
      "x = arbalest.Augment <mean = [0.2], std = [0.3]> (image)\n"
      "p = Constant <value_float = 0.75> ()\n"
      "shape = Shape (x)\nfilled = Expand (p, shape)\n"
      "kept = Bernoulli (filled)\nmask = Div (kept, p)\nd = Mul (x, mask)\n"
      "noise = RandomNormalLike <scale = 0.5> (d)\nnone = Constant <value_float = 0.0> ()\n"
      "nothing = Mul (noise, none)\nrest = RandomUniformLike <training_mode = 0> (d)\nno = Mul (rest, none)\n"
      "h = Add (d, nothing)\nk = Add (h, no)\n"
      "logits = arbalest.Linear <units = 10> (k)\n"
      "loss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
      "trained = arbalest.Train <lr = 0.1> (loss)\n"
      "report = arbalest.Validate (trained, loss)\n}\n",
      "own.onnxtxt", builtin_ops());
  const Graph model = export_model(graph, on_cpus(), {});
  CHECK(count_ops(model, "Bernoulli") + count_ops(model, "Dropout") == 0);
  CHECK(count_ops(model, "RandomNormalLike") == 1);
  REQUIRE(count_ops(model, "RandomUniformLike") == 1);
  CHECK(model.find_op("RandomUniformLike")->attributes.find("training_mode") == nullptr);
  check_same(graph, model);
}

TEST_CASE("a recurrent layer is exported as one, with the size of its state") {
  std::string w = "0.1", r = "0.3";
  for (int i = 1; i < 8 * 16; ++i) w += fmt::format(", {}", 0.1 * (i % 7 - 3));
  for (int i = 1; i < 8 * 2; ++i) r += fmt::format(", {}", 0.1 * (i % 5 - 2));
  const Graph graph = read_graph_text(
      "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\nown () => (float loss)\n<float[1, 8, 16] w = {" +
          w + "}, float[1, 8, 2] r = {" + r +
          "}>\n{\n"
          "image, label = arbalest.Prefetch <source = \"glyphs:?train=32&test=32&size=16\", batch = 8> ()\n"
          "x = arbalest.Augment <mean = [0.2], std = [0.3]> (image)\n"
          "rows = Reshape <shape = [0, 16, 16]> (x)\n"
          "steps = Transpose <perm = [1, 0, 2]> (rows)\n"
          "y, last = LSTM (steps, w, r)\n"
          "h = Squeeze <axes = [0]> (last)\n"
          "logits = arbalest.Linear <units = 10> (h)\n"
          "loss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
          "trained = arbalest.Train <lr = 0.1> (loss)\n"
          "report = arbalest.Validate (trained, loss)\n}\n",
      "own.onnxtxt", builtin_ops());
  const Graph model = export_model(graph, on_cpus(), {});
  REQUIRE(count_ops(model, "LSTM") == 1);
  CHECK(int_attribute(*model.find_op("LSTM"), "hidden_size") == 2);
  check_same(graph, model);
}

TEST_CASE("Attention and transforms are exported as they are, in the opset that has them") {
  struct Case {
    std::string layers, op;
    int64_t opset, masks;
  };
  const std::string tokens =
      "t = Reshape <shape = [0, 4, 64]> (x)\nk = ReduceMax <axes = [2]> (t)\nzero = Constant <value_float = 0.0> ()\n"
      "g = Greater (k, zero)\nm = Reshape <shape = [-1, 1, 1, 4]> (g)\n";
  for (const Case& c :
       {Case{"y = Attention <q_num_heads = 4, kv_num_heads = 4, is_causal = 1> (t, t, t)", "Attention", 23, 0},
        Case{"y = Attention <q_num_heads = 4, kv_num_heads = 4> (t, t, t, m)", "Attention", 23, 1},
        Case{"u = Unsqueeze <axes = [4]> (x)\ny = DFT <axis = 3> (u)", "DFT", 20, 0},
        Case{"f = Flatten (x)\ny = STFT <frame_step = 16, frame_length = 32> (f)", "STFT", 18, 0}}) {
    INFO(c.layers);
    TinyNet net;
    net.layers = tokens + c.layers + "\nh = Flatten (y)\n";
    const Graph graph = tiny(net), model = export_model(graph, on_cpus(), {});
    CHECK(count_ops(model, c.op) == 1);
    CHECK(count_ops(model, "Expand") == c.masks);
    CHECK(model.opsets[0].second == c.opset);
    check_same(graph, model);
  }
}

TEST_CASE("operators newer than the opset are spelt out, or the opset is theirs") {
  TinyNet net;
  net.layers =
      "a = arbalest.Linear <units = 16> (x)\n"
      "b = Swish (a)\n"
      "h = Swish <alpha = 1.7> (b)\n";
  for (const bool gelu : {false, true}) {
    if (gelu) net.layers += "g = Gelu (h)\n";
    Graph graph = tiny(net);
    if (gelu) graph.nodes[graph.find_node("logits")].inputs[0] = graph.find_value("g");
    for (const char* value : {"logits", "h"}) {
      INFO(std::string(value));
      const Graph model = export_model(graph, on_cpus(), {.value = value});
      CHECK(count_ops(model, "Swish") == 0);
      CHECK(count_ops(model, "Sigmoid") == 2);
      CHECK(model.opsets[0].second == (count_ops(model, "Gelu") > 0 ? 20 : 18));
      check_same(graph, model, value);
    }
  }
}

TEST_CASE("a Split without extents is exported with the number of its parts") {
  TinyNet net;
  net.layers =
      "a = arbalest.Linear <units = 16> (x)\n"
      "b, c = Split <axis = 1> (a)\n"
      "d, e = Split <axis = 1, split = [3, 5]> (b)\n"
      "h = Concat <axis = 1> (e, c, d)\n";
  const Graph graph = tiny(net), model = export_model(graph, on_cpus(), {});
  REQUIRE(count_ops(model, "Split") == 2);
  for (const Node& node : model.nodes) {
    if (node.op->name != "Split") continue;
    const bool extents = node.inputs.size() == 2;
    CHECK(extents == (node.name == "d"));
    CHECK(bool(node.attributes.find("num_outputs")) == !extents);
    CHECK(int_attribute(node, "num_outputs") == (extents ? 0 : 2));
  }
  check_same(graph, model);
}

TEST_CASE("a batch norm is folded only where the weights of both are stored") {
  TinyNet net = convolutional(160);
  net.layers =
      "zero = Constant <value = float[4] {0, 0, 0, 0}> ()\n"
      "mean = Neg (zero)\n"
      "one = Exp (zero)\n"
      "d = arbalest.Conv <filters = 4, kernel_shape = [1, 1]> (x)\n"
      "n = BatchNormalization (d, one, zero, mean, one)\n"
      "h = GlobalMaxPool (n)\n";
  const Graph graph = tiny(net), model = export_model(graph, on_cpus(), {.fold_batch_norm = true});
  CHECK(count_ops(model, "BatchNormalization") == 1);
  check_same(graph, model);
}

TEST_CASE("all that weights lack is reported at once, and what starts anew is not read") {
  const Trained other;
  SessionOptions options = other.options;
  TinyNet net = normalised();
  net.layers += "more = arbalest.Conv <filters = 8, bias = 1, kernel_shape = [1, 1]> (h)\n";
  Graph graph = tiny(net);
  graph.nodes[graph.find_node("logits")].inputs[0] = graph.find_value("more");
  const std::string missing = message_of([&] { export_model(graph, options, {}); });
  CHECK(contains(missing, "no tensor 'more.weight', which the graph needs"));
  CHECK(contains(missing, "; also missing: more.bias"));
  CHECK(std::count(missing.begin(), missing.end(), '\n') == 0);
  options.files.fresh = {"more.*"};
  CHECK(message_of([&] { export_model(graph, options, {}); }) == "");
  TinyNet wide = normalised();
  wide.layers.replace(wide.layers.find("filters = 8, kernel_shape = [1"), 11, "filters = 9");
  wide.layers.replace(wide.layers.find("sum = Add (n, c)"), 16, "sum = Relu (n)");
  options.files.fresh.clear();
  const std::string message = message_of([&] { export_model(tiny(wide), options, {}); });
  for (const char* name : {"tensor 'd.weight' is", "tensor 'n.weight' is", "tensor 'n.bias' is"}) {
    INFO(message);
    CHECK(contains(message, name));
  }
}

TEST_CASE("an input that only models read is exported in the type that their files state, if it is one") {
  const TestFolder folder;
  const std::string file = folder / "flags.onnxtxt";
  const std::string flags_of = "flags (bool[N, C, H, W] x) => (float[N, C, H, W] y) { y = Cast <to = 1> (x) }";
  folder.write("flags.onnxtxt", flags_of);
  const auto exported = [&](const std::string& layers) {
    TinyNet net = convolutional(160);
    net.layers = layers + "h = MaxPool <kernel_shape = [2, 2]> (f)\n";
    const Graph model = export_model(tiny(net), on_cpus(), {});
    REQUIRE(model.inputs.size() == 1);
    return model.values[model.inputs[0]].type.dtype;
  };
  const std::string call = " = model.flags <file = \"" + file + "\"> (x)\n", flags = "a" + call;
  CHECK(exported(flags + "f = Neg (a)\n") == DataType::Bool);
  CHECK(exported(flags + "b" + call + "f = Add (a, b)\n") == DataType::Bool);
  CHECK(exported(flags + "b = Neg (x)\nf = Add (a, b)\n") == DataType::Float32);
  CHECK(exported("a = Cast <to = 9> (x)\nf = Cast <to = 1> (a)\n") == DataType::Float32);  // the graph's own
}

TEST_CASE("what cannot be exported is reported") {
  const Graph graph = tiny({});
  CHECK(contains(message_of([&] { export_model(graph, on_cpus(), {.value = "logit"}); }),
                 "graph 'tiny' has no value 'logit'; did you mean 'logits'?"));
  CHECK(contains(message_of([&] { export_model(graph, on_cpus(), {.value = "accuracy"}); }),
                 "node 'accuracy' (arbalest.Accuracy): cannot be exported: ONNX has no such operator"));
  const std::string regression =
      "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\nnet () => (float loss)\n{\n"
      "image = arbalest.Prefetch <source = \"glyphs:?train=8&size=16\", batch = 4> ()\n"
      "x = arbalest.Augment (image)\nfirst = arbalest.Linear <units = 3> (x)\nlast = arbalest.Linear <units = 3> (x)\n"
      "loss = arbalest.MeanSquaredError (first, last)\ntrained = arbalest.Train <lr = 0.1> (loss)\n}\n";
  CHECK(contains(
      message_of([&] { export_model(read_graph_text(regression, "net.onnxtxt", builtin_ops()), on_cpus(), {}); }),
      "; --value first exports what is compared with targets"));
  CHECK(contains(message_of([&] {
                   export_model(read_graph_text(regression, "net.onnxtxt", builtin_ops()), on_cpus(),
                                {.value = "first", .probabilities = true});
                 }),
                 "whose scores it would be; expected no --probabilities, which are made of such scores"));
  const Trained other;
  SessionOptions options = on_cpus();
  options.files.weights = other.options.files.weights;
  CHECK(contains(message_of([&] { export_model(graph, options, {}); }), "no tensor 'hidden.weight'"));
}

// onnxruntime and onnx.checker take all of these; what it was before, they refused.
TEST_CASE("nodes of older opsets are exported in the form of the opset that is stated") {
  struct Case {
    std::string nodes;  // from x, float[8, 1, 16, 16], to y
    int64_t from, to;
    std::string op;                         // that y comes from
    std::vector<std::string> attributes{};  // that it has
    std::string constants{};
  };
  const std::string scale = "c = arbalest.Conv <filters = 4, kernel_shape = [3, 3]> (x)\n";
  const std::vector<Case> cases = {
      {"y = Upsample <mode = \"nearest\", scales = [1., 1., 2., 1.5]> (x)\n",
       7,
       18,
       "Resize",
       {"mode", "coordinate_transformation_mode", "nearest_mode"}},
      {"y = Upsample <mode = \"linear\"> (x, factors)\n",
       9,
       18,
       "Resize",
       {"mode", "coordinate_transformation_mode", "nearest_mode"},
       "float[4] factors = {1, 1, 0.75, 2}"},
      {"y = Resize <mode = \"nearest\"> (x, factors)\n",
       10,
       18,
       "Resize",
       {"mode", "coordinate_transformation_mode", "nearest_mode"},
       "float[4] factors = {1, 1, 2, 0.5}"},
      {"y = Pad <pads = [0, 0, 1, 2, 0, 0, 0, 3], value = 1.5> (x)\n", 9, 18, "Pad"},
      {"p = Pad <mode = \"wrap\"> (x, around)\ny = Identity (p)\n",
       19,
       19,
       "Identity",
       {},
       "int64[8] around = {0, 0, 1, 2, 0, 0, 0, 3}"},
      {"y, at = TopK <axis = 3, k = 2> (x)\n", 9, 18, "TopK", {"axis"}},
      {"t = Transpose <perm = [0, 1, 3, 2]> (x)\ny = Scatter <axis = 2> (t, zeros, x)\n",
       9,
       18,
       "ScatterElements",
       {"axis"},
       "int64[8, 1, 16, 16] zeros = {" + zeros(8 * 16 * 16) + "}"},
      {"y = AveragePool <kernel_shape = [2, 2], dilations = [2, 1]> (x)\n",
       19,
       19,
       "AveragePool",
       {"kernel_shape", "dilations"}},
      {"y = AveragePool <kernel_shape = [2, 2], dilations = [1, 1]> (x)\n", 19, 18, "AveragePool", {"kernel_shape"}},
      {"y = AveragePool <kernel_shape = [3, 3], strides = [2, 2], pads = [0, 0, 0, 0], ceil_mode = 1> (x)\n",
       19,
       18,
       "AveragePool",
       {"kernel_shape", "strides", "pads", "ceil_mode"}},
      {"y = MaxPool <kernel_shape = [2, 2], strides = [3, 3], pads = [1, 1, 1, 1], ceil_mode = 1> (x)\n",
       22,
       22,
       "MaxPool",
       {"kernel_shape", "strides", "pads", "ceil_mode"}},
      {"i = Cast <to = 7, saturate = 1> (x)\ny = Cast <to = 1, saturate = 0> (i)\n", 19, 18, "Cast", {"to"}},
      {"e = Greater (x, zero)\nm = ReduceMax <axes = [3], keepdims = 1> (e)\ny = CastLike <saturate = 1> (m, x)\n",
       20,
       20,
       "CastLike",
       {},
       "float zero = {0}"},
      {scale + "y = GroupNormalization <num_groups = 2, epsilon = 0.1> (c, two, two)\n",
       18,
       21,
       "GroupNormalization",
       {"num_groups", "epsilon"},
       "float[2] two = {0.5, -2}"},
      {scale + "y = GroupNormalization <num_groups = 2, epsilon = 0.1> (c, four, four)\n",
       21,
       21,
       "GroupNormalization",
       {"num_groups", "epsilon"},
       "float[4] four = {0.5, -2, 1, 3}"},
  };
  for (const Case& each : cases) {
    INFO(each.nodes);
    const Graph graph = read_graph_text(
        fmt::format("<ir_version: 8, opset_import: [\"\" : {}, \"arbalest\" : 1]>\nold () => (float loss)\n{}{{\n"
                    "image, label = arbalest.Prefetch <source = \"glyphs:?train=32&test=32&size=16\", batch = 8> ()\n"
                    "x = arbalest.Augment <mean = [0.2], std = [0.3]> (image)\n{}"
                    "logits = arbalest.Linear <units = 10> (y)\n"
                    "loss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
                    "trained = arbalest.Train <lr = 0.1> (loss)\nreport = arbalest.Validate (trained, loss)\n}}\n",
                    each.from, each.constants.empty() ? "" : "<" + each.constants + ">\n", each.nodes),
        "old.onnxtxt", builtin_ops());
    const Graph model = export_model(graph, on_cpus(), {.value = "y"});
    CHECK(model.opsets == std::vector<std::pair<std::string, int64_t>>{{"", each.to}});
    const Node& node = model.nodes[model.values[model.outputs[0]].producer];
    CHECK(node.op->qualified_name() == each.op);
    std::vector<std::string> attributes;
    for (const NamedAttribute& attribute : node.attributes) attributes.push_back(attribute.name);
    std::sort(attributes.begin(), attributes.end());
    std::vector<std::string> expected_attributes = each.attributes;
    std::sort(expected_attributes.begin(), expected_attributes.end());
    CHECK(attributes == expected_attributes);
    check_same(graph, model, "y");
  }
}

TEST_CASE("probabilities are of scores that a loss compares, and of no other value") {
  TinyNet net;
  net.layers = "h = Identity (x)\n";
  Graph graph = tiny(net);
  const auto exported = [&](const std::string& value) {
    return export_model(graph, on_cpus(), {.value = value, .probabilities = true});
  };
  CHECK(count_ops(exported("logits"), "Softmax") == 1);
  for (const char* value : {"h", "loss", "x"}) {
    CHECK(contains(message_of([&] { exported(value); }),
                   fmt::format("no loss compares the value '{}'; expected scores: logits", value)));
  }
  // A head that Identity hands on is the same head.
  const NodeId handed = graph.add_node(graph.op("Identity"), "same", {graph.find_value("logits")}, 1);
  infer(graph, handed);
  graph.values[graph.nodes[handed].outputs[0]].name = "same";
  CHECK(count_ops(exported("same"), "Softmax") == 1);
}

}  // namespace export_test
