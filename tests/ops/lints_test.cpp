// SPDX-License-Identifier: Apache-2.0

// Notes about graphs that are sound and probably not meant so.

#include "ops/check/lints.h"

#include <doctest/doctest.h>

#include <fstream>

#include "ops/builtin_ops.h"
#include "tests/io/test_folder.h"
#include "tests/passes/passes_fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace lints_test {
namespace {

using Notes = std::vector<std::string>;

const std::string kBody = "logits = arbalest.Linear <units = 3> (x)\n" + std::string(kLoss);

Notes notes(const std::string& body) {
  return lint(net(body));
}

// The graph whose logits a model of these nodes makes of its 4 samples; Augment does nothing but x = image / 255.
Graph calling(const std::string& nodes, const std::string& after) {
  const TestFolder folder;
  const std::string model = folder / "m.onnxtxt";
  std::ofstream(model) << "<ir_version: 8, opset_import: [\"\" : 17]>\n"
                          "m (float[N, 2, 6, 6] x) => (float[N, 3] y)\n"
                          "<float[72, 3] w = {"
                       << numbers(72 * 3) << "}, float[1, 2, 1, 1] mean = {0.5, 0.4}, float[2] of255 = {255, 255}, "
                       << "float deviation = {0.25}>\n{\n"
                       << nodes << "}\n";
  const std::string text =
      "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1, \"model\" : 1]>\n"
      "net () => (float loss) {\n"
      "image, label = arbalest.Prefetch <source = \"synthetic:\", batch = 4, fields = [\"image uint8[2,6,6]\", "
      "\"label int32[]\"]> ()\n" +
      after + kLoss + "}\n";
  Graph graph = read_graph_text(text, "net.onnxtxt", builtin_ops(), 0, {{"", model}});
  verify(graph);
  return graph;
}

}  // namespace

TEST_CASE("lints: graphs that are meant so have none") {
  CHECK(notes(kBody) == Notes{});
  CHECK(notes(kResidual) == Notes{});
  CHECK(notes("d = Dropout <ratio = 0.3, training_mode = 1> (x)\nlogits = arbalest.Linear <units = 3> (d)\n" +
              std::string(kLoss)) == Notes{});
  CHECK(notes("d = arbalest.Dropout <ratio = 0.3> (x)\nlogits = arbalest.Linear <units = 3> (d)\n" +
              std::string(kLoss)) == Notes{});
  for (const char* name : {"lenet", "vgg16", "efficientnet_b0", "vit_s16"}) CHECK(lint(example(name)) == Notes{});
}

TEST_CASE("lints: one file that is called twice is two models") {
  const std::string nodes = "flat = Flatten (x)\ny = MatMul (flat, w)\n";
  const std::string floats = "x = arbalest.Augment <mean = [0.0], std = [1.0]> (image)\n";
  CHECK(lint(calling(nodes, floats + "logits = model.net (x)\n")) == Notes{});
  const Notes found =
      lint(calling(nodes, floats + "one = model.net (x)\nother = model.net (x)\nlogits = Add (one, other)\n"));
  REQUIRE(found.size() == 1);
  CHECK(found[0].find("m.onnxtxt is called 2 times, for 'one', 'other': these are models with weights of their own") !=
        std::string::npos);
}

TEST_CASE("lints: tensors of a model that are trained and look like constants are reported") {
  const auto found = [](const std::string& initial, const std::string& node, const std::string& frozen = "") {
    const TestFolder folder;
    const std::string model = folder / "m.onnxtxt";
    std::ofstream(model) << "<ir_version: 8, opset_import: [\"\" : 17]>\nm (float[N, 4] x) => (float[N, 4] y)\n<"
                         << initial << ">\n{ y = " << node << " }\n";
    Graph graph = read_graph_text(
        "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1, \"model\" : 1]>\nnet () => (float loss) {\n"
        "x, label = arbalest.Prefetch <source = \"synthetic:\", batch = 4, fields = [\"x float[4]\", \"label "
        "int32[]\"]> ()\nlogits = model.net (x)\nloss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
        "trained = arbalest.Train <lr = 0.1" +
            frozen + "> (loss)\nreport = arbalest.Validate (trained, loss)\n}\n",
        "net.onnxtxt", builtin_ops(), 0, {{"", model}});
    verify(graph);
    return lint(graph);
  };
  const auto note = [](const std::string& name, const std::string& type, const std::string& op, const char* why) {
    return Notes{"'" + name + "' (" + type + "), which node 'logits/y' (" + op +
                 ") reads, is trained and may be a constant: " + why + "; if it is one, expected frozen = [\"" + name +
                 "\"] of Train"};
  };
  const std::string eye = "float[4, 4] m = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}";
  CHECK(found(eye, "MatMul (x, m)") == note("m", "float[4,4]", "MatMul", "it has the numbers 0 and 1 alone"));
  CHECK(found(eye, "MatMul (x, m)", ", frozen = [\"m\"]") == Notes{});
  CHECK(found("float[4] steps = {-0.75, -0.25, 0.25, 0.75}", "Add (x, steps)") ==
        note("steps", "float[4]", "Add", "its numbers are evenly spaced"));
  CHECK(found("float[4, 4] pe = {0, 1, 0, 1, 0.8414710, 0.5403023, 0.0099998, 0.9999500, 0.9092974, -0.4161468, "
              "0.0199987, 0.9998000, 0.1411200, -0.9899925, 0.0299955, 0.9995500}",
              "Add (x, pe)") ==
        note("pe", "float[4,4]", "Add", "its rows are sines and cosines, as those of positions are"));
  CHECK(found("float[4, 4] pe = {0, 0, 0, 0, 0, 1, 0, 1, 0.8414710, 0.5403023, 0.0099998, 0.9999500, 0.9092974, "
              "-0.4161468, 0.0199987, 0.9998000}",
              "Add (x, pe)") ==
        note("pe", "float[4,4]", "Add", "its rows are sines and cosines, as those of positions are"));
  CHECK(found("float[4] \"onnx::Add_7\" = {0, 0, 0, 0}", "Add (x, \"onnx::Add_7\")") ==
        note("onnx::Add_7", "float[4]", "Add", "it has the number 0 alone, and its name is the exporter's"));
  CHECK(found("float[4] bias = {0, 0, 0, 0}", "Add (x, bias)") == Notes{});
  CHECK(found("float[4] \"onnx::Add_7\" = {0.3, -0.2, 0.5, 0.1}", "Add (x, \"onnx::Add_7\")") == Notes{});
  CHECK(found("float[4] bias = {0.3, -0.2, 0.5, 0.1}", "Add (x, bias)") == Notes{});
  CHECK(found("float[4, 4] \"onnx::MatMul_7\" = {" + numbers(16) + "}", "MatMul (x, \"onnx::MatMul_7\")") == Notes{});
}

TEST_CASE("lints: a table whose row for padding is trained is reported, and images whose channels come last") {
  const auto found = [](const std::string& field, const std::string& nodes, const std::string& initial) {
    Graph graph = read_graph_text(
        "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\nnet () => (float loss)\n<" + initial +
            ">\n{\nx, label = arbalest.Prefetch <source = \"synthetic:\", batch = 4, fields = [\"x " + field +
            "\", \"label int32[]\"]> ()\n" + nodes +
            "logits = arbalest.Linear <units = 3> (h)\nloss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
            "trained = arbalest.Train <lr = 0.1> (loss)\nreport = arbalest.Validate (trained, loss)\n}\n",
        "net.onnxtxt", builtin_ops());
    verify(graph);
    return lint(graph);
  };
  const auto table = [&](const char* rows, const char* nodes = "h = Gather (table, x)\n") {
    return found("int32[]", nodes, std::string("float[4, 2] table = {") + rows + "}");
  };
  CHECK(table("1, 2, 0, 0, 3, 4, 5, 6", "a = Gather (table, x)\nb = Gather (table, x)\nh = Add (a, b)\n").size() == 1);
  REQUIRE(table("1, 2, 0, 0, 3, 4, 5, 6").size() == 1);
  CHECK(table("1, 2, 0, 0, 3, 4, 5, 6")[0].starts_with(
      "'table' (float[4,2]) is an embedding whose row 1 is zero, and is trained as a whole: PyTorch leaves the row"));
  CHECK(table("1, 2, 0, 0, 0, 0, 5, 6") == Notes{});
  CHECK(table("1, 2, 0, 1, 3, 4, 5, 6") == Notes{});
  const auto images = [&](const char* field) {
    return found(field, "a = arbalest.Augment (x)\nh = Flatten (a)\n", "float unused = {1}");
  };
  CHECK(images("uint8[8,8,3]") ==
        Notes{"node 'a' (arbalest.Augment): takes images of 8 channels, 8 × 3: expected (N, C, H, W), and these seem "
              "to be (N, H, W, C)"});
  CHECK(images("uint8[3,8,8]") == Notes{});
  CHECK(images("uint8[3,3,3]") == Notes{});
}

TEST_CASE("lints: a BatchNormalization that trains by its running statistics is reported") {
  const auto found = [](const std::string& attributes) {
    return notes("y = BatchNormalization " + attributes + "(x, ones, ones, ones, ones)\n" +
                 "logits = arbalest.Linear <units = 3> (y)\n" + std::string(kLoss) + "#initial float[2] ones = {1, 1}");
  };
  const Notes expected = {
      "node 'y' (BatchNormalization): trains by the running statistics, which stay as they are, as its training_mode "
      "is 0; arbalest.BatchNorm trains by each batch's"};
  CHECK(found("") == expected);
  CHECK(found("<training_mode = 0> ") == expected);
  CHECK(found("<spatial = 1> ") == expected);  // of opsets before 9
  CHECK(found("<training_mode = 1> ") == Notes{});
}

TEST_CASE("lints: a Dropout that drops nothing is reported, with what drops") {
  const std::string rest = "logits = arbalest.Linear <units = 3> (d)\n" + std::string(kLoss);
  const Notes found = {
      "node 'd' (Dropout): drops nothing, as its training_mode is 0; arbalest.Dropout drops in training"};
  CHECK(notes("d = Dropout <ratio = 0.3> (x)\n" + rest) == found);
  CHECK(notes("d = Dropout <ratio = 0.3, training_mode = 0> (x)\n" + rest) == found);
  CHECK(notes("d = Dropout (x, ratio, mode)\n" + rest + "#initial float ratio = {0.3}, bool mode = {0}") == found);
  CHECK(notes("d = Dropout (x, ratio, mode)\n" + rest + "#initial float ratio = {0.3}, bool mode = {1}") == Notes{});
}

TEST_CASE("lints: metrics that take probabilities for logits, or the reverse, are reported") {
  const auto found = [](const std::string& metric) {
    return notes(
        "logits = arbalest.Linear <units = 3> (x)\np = Sigmoid (logits)\ns = Softmax (logits)\n"
        "one = OneHot <axis = -1> (label, depth, values)\n"
        "loss = arbalest.SigmoidCrossEntropy (logits, one)\n" +
        metric +
        "both = Add (p, s)\nmean = ReduceMean <keepdims = 0> (both)\n"
        "trained = arbalest.Train <lr = 0.1> (loss)\n"
        "report = arbalest.Validate <batch = 5> (trained, loss, m, mean)\n"
        "#initial int64 depth = {3}, float[2] values = {0, 1}");
  };
  for (const std::string op : {"F1", "Precision", "Recall"}) {
    CHECK(found("m = arbalest." + op + " (logits, one)\n") == Notes{});
    CHECK(found("m = arbalest." + op + " <logits = 0> (p, one)\n") == Notes{});
    CHECK(found("m = arbalest." + op + " (p, label)\n") == Notes{});  // the greatest score counts
    CHECK(found("m = arbalest." + op + " (p, one)\n") ==
          Notes{"node 'm' (arbalest." + op +
                "): takes logits, and node 'p' has made probabilities; expected what 'p' "
                "reads, or logits = 0"});
    CHECK(found("m = arbalest." + op + " <logits = 0> (logits, one)\n") ==
          Notes{"node 'm' (arbalest." + op +
                "): takes probabilities as logits is 0, and a loss takes its scores for "
                "logits"});
  }
  CHECK(found("m = arbalest.AUC (s, one)\n") == Notes{});  // by label, whose order the scores alone decide
  CHECK(found("m = arbalest.AUC <softmax = 0> (s, label)\n") == Notes{});
  CHECK(found("m = arbalest.AUC (s, label)\n") ==
        Notes{"node 'm' (arbalest.AUC): compares the softmax of its scores, and node 's' has applied one already; "
              "expected what 's' reads, or softmax = 0"});
}

TEST_CASE("lints: batch norms whose statistics never move, and rates of 0, are reported") {
  const std::string still =
      "keeps the running statistics that it starts from, by which it is validated, as momentum is "
      "1 (the weight of the old ones, as in ONNX)";
  const std::string end = "logits = arbalest.Linear <units = 3> (y)\n" + std::string(kLoss);
  CHECK(notes("y = arbalest.BatchNorm <momentum = 1.0> (x)\n" + end) ==
        Notes{"node 'y' (arbalest.BatchNorm): " + still});
  CHECK(notes("y = arbalest.BatchNorm <momentum = 0.99> (x)\n" + end) == Notes{});
  CHECK(notes("y = BatchNormalization <training_mode = 1, momentum = 1.0> (x, ones, ones, ones, ones)\n" + end +
              "#initial float[2] ones = {1, 1}") == Notes{"node 'y' (BatchNormalization): " + still});
  for (const std::string rate : {"0.0", "1e-46"}) {
    CHECK(notes("logits = arbalest.Linear <units = 3> (x)\nloss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
                "trained = arbalest.Train <lr = " +
                rate + "> (loss)\n") == Notes{"node 'trained' (arbalest.Train): trains nothing, as lr is " +
                                              (rate == "0.0" ? std::string("0") : rate)});
  }
}

TEST_CASE("lints: a batch norm that is applied twice has statistics for each place") {
  const auto norm = [](const std::string& name, const std::string& x, const std::string& statistics) {
    return name + " = BatchNormalization <training_mode = 1> (" + x + ", s, b, " + statistics + ")\n";
  };
  const std::string end =
      "logits = arbalest.Linear <units = 3> (z)\n" + std::string(kLoss) +
      "#initial float[2] s = {1, 1}, float[2] b = {0, 0}, float[2] m = {0, 0}, float[2] v = {1, 1}, "
      "float[2] n = {0, 0}, float[2] w = {1, 1}";
  CHECK(notes(norm("y", "x", "m, v") + norm("z", "y", "n, w") + end) ==
        Notes{"node 'z' (BatchNormalization): has the scale of 'y' and running statistics of its own, 'n': where a "
              "model applies a batch norm several times, each place counts by itself"});
}

TEST_CASE("lints: what nothing reads is reported, metrics as such") {
  CHECK(notes("other = Relu (x)\n" + kBody) ==
        Notes{"node 'other' (Relu): nothing reads it: training and validation leave it out"});
  CHECK(notes("logits = arbalest.Linear <units = 3> (x)\n"
              "loss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
              "accuracy = arbalest.Accuracy (logits, label)\n"
              "trained = arbalest.Train <lr = 0.1> (loss)\n"
              "report = arbalest.Validate <batch = 5> (trained, loss)\n") ==
        Notes{"node 'accuracy' (arbalest.Accuracy): nothing reads it, so that it is not measured; Validate lists "
              "metrics"});
}

TEST_CASE("lints: labels that nothing reads are reported") {
  CHECK(notes("y = arbalest.Linear <units = 72> (x)\n"
              "flat = Flatten (x)\n"
              "loss = arbalest.MeanSquaredError (y, flat)\n"
              "trained = arbalest.Train <lr = 0.1> (loss)\n") ==
        Notes{"node 'image' (arbalest.Prefetch): nothing reads 'label', so that no loss and no metric depends on it"});
}

TEST_CASE("lints: Softmax and Sigmoid before losses that apply them, also at the end of a model") {
  const Notes found = {
      "node 'loss' (arbalest.SoftmaxCrossEntropy): takes logits and applies Softmax itself, and node 'p' has applied "
      "one already; expected what 'p' reads"};
  CHECK(notes("l = arbalest.Linear <units = 3> (x)\np = Softmax (l)\nlogits = Identity (p)\n" + std::string(kLoss)) ==
        found);
  CHECK(notes("l = arbalest.Linear <units = 3> (x)\nlogits = LogSoftmax (l)\n" + std::string(kLoss)) == Notes{});
  CHECK(notes("l = arbalest.Linear <units = 3> (x)\n"
              "p = Sigmoid (l)\n"
              "one = OneHot <axis = -1> (label, depth, values)\n"
              "loss = arbalest.SigmoidCrossEntropy (p, one)\n"
              "trained = arbalest.Train <lr = 0.1> (loss)\n"
              "#initial int64 depth = {3}, float[2] values = {0, 1}") ==
        Notes{"node 'loss' (arbalest.SigmoidCrossEntropy): takes logits and applies Sigmoid itself, and node 'p' has "
              "applied one already; expected what 'p' reads"});
  const Notes called = lint(calling("flat = Flatten (x)\ns = MatMul (flat, w)\ny = Softmax (s)\n",
                                    "x = arbalest.Augment (image)\nlogits = model.m (x)\n"));
  REQUIRE(called.size() == 1);
  CHECK(called[0].find("applies Softmax itself, and node 'logits/y' has applied one already") != std::string::npos);
}

TEST_CASE("lints: images that are normalised a second time") {
  const std::string plain = "x = arbalest.Augment (image)\nlogits = model.m (x)\n";
  const std::string normalised = "x = arbalest.Augment <mean = [0.5], std = [0.2]> (image)\nlogits = model.m (x)\n";
  const std::string rest = "flat = Flatten (b)\ny = MatMul (flat, w)\n";
  const std::string standardises = "a = Sub (x, mean)\nb = Div (a, deviation)\n" + rest;
  CHECK(lint(calling(standardises, plain)) == Notes{});  // the model's own business, once
  const Notes found = lint(calling(standardises, normalised));
  REQUIRE(found.size() == 1);
  CHECK(found[0] ==
        "node 'logits/a' (Sub): normalises images a second time: node 'x' (arbalest.Augment) has made (image / 255 − "
        "mean) / std of them");
  const std::string scales = "t = Transpose <perm = [0, 2, 3, 1]> (x)\nb = Div (t, of255)\n" + rest;
  CHECK(lint(calling(scales, plain)).size() == 1);  // 0 … 1 already
}

TEST_CASE("lints: many of a kind are counted") {
  std::string body;
  for (int i = 0; i < 11; ++i) body += fmt::format("other{} = Relu (x)\n", i);
  const Notes found = notes(body + kBody);
  REQUIRE(found.size() == 9);
  CHECK(found.back() == "and 3 more: a node of the graph's own that nothing reads");
}

TEST_CASE("lints: validation on the split that is trained on") {
  const auto validated = [](const std::string& split) {
    return notes(
        "logits = arbalest.Linear <units = 3> (x)\nloss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
        "trained = arbalest.Train <lr = 0.1> (loss)\n"
        "report = arbalest.Validate <split = \"" +
        split + "\"> (trained, loss)\n");
  };
  CHECK(validated("train") ==
        Notes{"node 'report' (arbalest.Validate): measures on 'train', which is the split that is trained on; expected "
              "another, such as split = \"test\""});
  CHECK(validated("test") == Notes{});
  // The split that is advised is not the one that is complained of.
  Graph graph =
      net("logits = arbalest.Linear <units = 3> (x)\nloss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
          "trained = arbalest.Train <lr = 0.1> (loss)\n"
          "report = arbalest.Validate <split = \"test\"> (trained, loss)\n");
  Node& prefetch = *graph.find_op("arbalest.Prefetch");
  prefetch.attributes.set("split", std::string("test"));
  CHECK(lint(graph) ==
        Notes{"node 'report' (arbalest.Validate): measures on 'test', which is the split that is trained "
              "on; expected that node '" +
              prefetch.name + "' (arbalest.Prefetch) has split = \"train\""});
}

TEST_CASE("lints: crops that are mostly zeros") {
  const auto augmented = [](const std::string& attributes) {
    const std::string body =
        "scores = arbalest.Linear <units = 3> (y)\n"
        "loss = arbalest.SoftmaxCrossEntropy (scores, label)\n"
        "trained = arbalest.Train <lr = 0.1> (loss)\n";
    Graph graph = read_graph_text(
        "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\nnet () => (float loss) {\n"
        "image, label = arbalest.Prefetch <source = \"synthetic:\", batch = 4, fields = [\"image uint8[2,6,8]\", "
        "\"label int32[]\"]> ()\n"
        "y = arbalest.Augment <" +
            attributes + "> (image)\n" + body + "}\n",
        "net.onnxtxt", builtin_ops());
    verify(graph);
    return lint(graph);
  };
  CHECK(
      augmented("pad = 1000") ==
      Notes{"node 'y' (arbalest.Augment): pads images of 6 × 8 by 1000, so that a crop may show zeros alone; expected "
            "a pad below 6"});
  CHECK(augmented("pad = 4, crop = [4, 4]").size() == 1);
  CHECK(augmented("pad = 5") == Notes{});
  CHECK(augmented("pad = 2, crop = [8, 10]") == Notes{});
  CHECK(
      augmented("pad = 5, crop = [16, 18]") ==
      Notes{"node 'y' (arbalest.Augment): makes crops of 16 × 18 of images of 6 × 8, so that most of a crop is zeros; "
            "ResizeCrop and 'area' scale images"});
  CHECK(augmented("crop = [16, 18], area = [0.5, 1.0]") == Notes{});
}

TEST_CASE("lints: a warm-up as long as the run") {
  const auto trained = [](const std::string& attributes) {
    return notes(
        "logits = arbalest.Linear <units = 3> (x)\nloss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
        "trained = arbalest.Train <lr = 0.1, " +
        attributes + "> (loss)\n");
  };
  CHECK(trained("warmup = 5.0, epochs = 5.0") ==
        Notes{"node 'trained' (arbalest.Train): warms up for 5 epochs, and epochs = 5: the rate never reaches lr"});
  CHECK(trained("warmup = 5.0, epochs = 6.0") == Notes{});
  CHECK(trained("warmup = 5.0") == Notes{});
}

TEST_CASE("lints: metrics and losses that compare nothing are reported") {
  const std::string logits = "logits = arbalest.Linear <units = 3> (x)\n";
  CHECK(notes(logits +
              "all = arbalest.Accuracy <top_k = 3> (logits, label)\nfirst = arbalest.Accuracy <top_k = 2> "
              "(logits, label)\n" +
              std::string(kLoss))
            .front() == "node 'all' (arbalest.Accuracy): is 1 whatever the logits are, as top_k is all 3 classes");
  const std::string places = logits +
                             "rows = Unsqueeze <axes = [1]> (logits)\nlabels = Unsqueeze <axes = [1]> (label)\n"
                             "first = arbalest.Accuracy <axis = -1> (rows, labels)\n";
  const std::string all = "all = arbalest.Accuracy <axis = -1, top_k = 3> (rows, labels)\n";
  CHECK(
      notes(places + std::string(kLoss)) ==
      Notes{"node 'first' (arbalest.Accuracy): nothing reads it, so that it is not measured; Validate lists metrics"});
  CHECK(notes(places + all + std::string(kLoss)).front() ==
        "node 'all' (arbalest.Accuracy): is 1 whatever the logits are, as top_k is all 3 classes");
}

TEST_CASE("errors name what helps: a second Prefetch, whole numbers, one number a sample") {
  const auto error = [](const std::string& nodes, const char* fields) {
    return message_of<GraphError>([&] {
      Graph graph = read_graph_text(
          "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\nnet () => (float loss) {\n"
          "x, label = arbalest.Prefetch <source = \"synthetic:\", batch = 4, fields = [\"x " +
              std::string(fields) + "\", \"label int32[]\"]> ()\n" + nodes + "loss = ReduceMean (x)\n}\n",
          "net.onnxtxt", builtin_ops());
      verify(graph);
    });
  };
  check_parts(error("other = arbalest.Prefetch <source = \"synthetic:\", batch = 4> ()\n", "float[3]"),
              {"node 'other' (arbalest.Prefetch): the graph has a second arbalest.Prefetch; expected one"});
  check_parts(error("y = arbalest.Linear <units = 3> (x)\n", "int64[3]"),
              {"is int64[4,3]; expected float, double or bfloat16; Cast <to = 1> makes floats of it"});
  check_parts(error("y = arbalest.Linear <units = 3> (x)\n", "float[]"),
              {"is float[4], of rank 1", "; Unsqueeze <axes = [1]> makes rows of one number each"});
}

}  // namespace lints_test
