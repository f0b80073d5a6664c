// SPDX-License-Identifier: Apache-2.0

// Calls of models: `y = model.net (x)` stands for the part of the model's file that makes y.

#include <doctest/doctest.h>

#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <set>

#include "graph/file/graph_file.h"
#include "graph/file/overrides.h"
#include "graph/op.h"
#include "ops/builtin_ops.h"
#include "passes/passes.h"
#include "tests/graph/model_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace model_call_test {
namespace {

// Two outputs; names as PyTorch's exporter writes them.
constexpr const char* kNet = R"(<ir_version: 8, opset_import: ["" : 17]>
net (float[N, 2, 4, 4] image) => (float[N, 3] logits, float[N, 2] features)
<
  float[2, 2, 1, 1] "conv.weight" = {1, 2, 3, 4},
  float[2] "bn.weight" = {1, 2}, float[2] "bn.bias" = {3, 4}, float[2] "bn.mean" = {5, 6}, float[2] "bn.var" = {7, 8},
  float[3, 2] "fc.weight" = {1, 2, 3, 4, 5, 6}, float[3] "fc.bias" = {1, 2, 3}, int64[2] shape = {0, -1}
>
{
  "/conv/out" = Conv (image, "conv.weight")
  n = BatchNormalization ("/conv/out", "bn.weight", "bn.bias", "bn.mean", "bn.var")
  d = Dropout (n)
  pooled = GlobalAveragePool (d)
  features = Reshape (pooled, shape)
  logits = Gemm <transB = 1> (features, "fc.weight", "fc.bias")
}
)";

struct Files : ModelFolder {
  std::string net = file("net.onnxtxt");
  Files() { write(net, kNet); }
};

}  // namespace

TEST_CASE("model: a call becomes the model's nodes, with the file's parameters and the graph's batch") {
  const Files files;
  Graph graph = files.read("logits = model.net (x) y = Relu (logits)", {{"", files.net}});
  verify(graph);
  CHECK(value(graph, "logits").type.shape == Shape{5, 3});
  CHECK(value(graph, "y").type.shape == Shape{5, 3});
  CHECK(value(graph, "fc.weight").role == Role::Parameter);
  CHECK(floats(value(graph, "fc.weight")) == std::vector<float>{1, 2, 3, 4, 5, 6});
  CHECK(value(graph, "logits/shape").role == Role::Constant);
  CHECK(value(graph, "logits/conv/out").type.shape == Shape{5, 2, 4, 4});  // "/conv/out" of the file
  CHECK(int_attribute(only(graph, "BatchNormalization"), "training_mode") == 1);
  CHECK(int_attribute(only(graph, "Dropout"), "training_mode") == 1);
  expand_layers(graph);
  CHECK(value(graph, "bn.mean").role == Role::State);
  CHECK(int_attribute(only(graph, "arbalest.BatchNormTraining"), "correction") == 0);  // as ONNX defines it
  CHECK(value(graph, "bn.weight").role == Role::Parameter);
  CHECK(graph.carries.size() == 2);
}

TEST_CASE("model: batch norms of PyTorch's files keep the variance that PyTorch keeps") {
  const Files files;
  const std::string path = files.file("pytorch.onnxtxt");
  std::string text = kNet;
  text.insert(text.find('>'), ", producer_name: \"pytorch\"");
  Files::write(path, text);
  Graph graph = files.read("logits = model.net (x)", {{"", path}});
  verify(graph);
  expand_layers(graph);
  CHECK(int_attribute(only(graph, "arbalest.BatchNormTraining"), "correction") == 1);
}

TEST_CASE("model: tables in double are constants, since parameters are floats") {
  const Files files;
  const std::string path = files.file("table.onnxtxt");
  Files::write(path, R"(<ir_version: 8, opset_import: ["" : 17]>
table (float[N, 3] x) => (float[N, 3] y) < double[3] steps = {0.1, 0.2, 0.3}, float[3] shift = {1, 2, 3} >
{ wide = Cast <to = 11> (x)  scaled = Mul (wide, steps)  narrow = Cast <to = 1> (scaled)  y = Add (narrow, shift) })");
  const Graph graph = files.read("y = model.table (x)", {{"", path}}, "float[5,3] x");
  CHECK(value(graph, "y/steps").role == Role::Constant);
  CHECK(value(graph, "shift").role == Role::Parameter);
}

TEST_CASE("model: weights of classes in its loss are not trained") {
  const Files files;
  const std::string path = files.file("classes.onnxtxt");
  Files::write(path, R"(<ir_version: 8, opset_import: ["" : 17]>
net (float[N, 2] x, int64[N] label) => (float loss) < float[2, 3] "fc.weight" = {1, 2, 3, 4, 5, 6}, float[3] classes = {1, 2, 3} >
{ scores = MatMul (x, "fc.weight")  loss = SoftmaxCrossEntropyLoss <ignore_index = -100> (scores, label, classes) })");
  const Graph graph = files.read("loss = model.net (x, label)", {{"", path}}, "float[5,2] x, int64[5] label");
  CHECK(value(graph, "loss/classes").role == Role::Constant);
  CHECK(value(graph, "fc.weight").role == Role::Parameter);
}

TEST_CASE("model: weights that are not finite are named, and masks may be infinite") {
  const Files files;
  const std::string path = files.file("broken.onnxtxt");
  const auto write = [&](const char* weight, const char* mask) {
    Files::write(path, fmt::format("<ir_version: 8, opset_import: [\"\" : 17]>\n"
                                   "broken (float[N, 2] x) => (float[N, 2] y)\n"
                                   "<float[2, 2] w = {{1, 2, {}, 4}}, float[2] mask = {{0, {}}}>\n"
                                   "{{ h = MatMul (x, w)  y = Add (h, mask) }}\n",
                                   weight, mask));
  };
  write("3", "-inf");
  const Graph graph = files.read("y = model.broken (x)", {{"", path}}, "float[5,2] x");
  CHECK(value(graph, "y/mask").role == Role::Constant);
  CHECK(value(graph, "w").role == Role::Parameter);
  write("nan", "0");
  const std::string fault = error_of([&] { files.read("y = model.broken (x)", {{"", path}}, "float[5,2] x"); });
  CHECK(has(fault, "weight 'w', element 2: found nan, expected a finite number"));
  CHECK(has(fault, "broken.onnxtxt:3:"));
}

TEST_CASE("model: training_mode = 0 leaves statistics as they are") {
  const Files files;
  Graph graph = files.read("logits = model.net <training_mode = 0> (x)", {{"net", files.net}});
  CHECK(int_attribute(only(graph, "BatchNormalization"), "training_mode") == 0);
  CHECK(int_attribute(only(graph, "Dropout"), "training_mode") == 0);
  verify(graph);
  expand_layers(graph);
  CHECK(graph.carries.empty());
}

TEST_CASE("model: what is stored in bfloat16 trains in float") {
  const Files files;
  const std::string path = files.file("half.onnxtxt");
  Files::write(path, R"(<ir_version: 8, opset_import: ["" : 17]>
net (bfloat16[N, 2] x) => (bfloat16[N, 2] y)
<bfloat16[2, 2] weight = {16256, 49184, 16968, 0}>
{
  f = Cast <to = 1> (x)
  h = Cast <to = 16> (f)
  bias = Constant <value = bfloat16[2] {16256, 16128}> ()
  product = MatMul (h, weight)
  y = Add (product, bias)
})");
  Graph graph = files.read("y = model.net (x)", {{"net", path}}, "float[5,2] x");
  verify(graph);
  CHECK(floats(value(graph, "weight")) == std::vector<float>{1, -2.5f, 50, 0});
  CHECK(value(graph, "weight").role == Role::Parameter);
  CHECK(value(graph, "y").type == TensorType{DataType::Float32, {5, 2}});
  expand_layers(graph);
  CHECK(graph.find_op("Cast") == nullptr);
}

TEST_CASE("model: a file in double trains in float") {
  const Files files;
  const std::string path = files.file("double.onnxtxt");
  const auto of = [&](const char* inputs, const char* node) {
    Files::write(path, fmt::format("<ir_version: 8, opset_import: [\"\" : 17]>\nnet ({}) => (double[N, 2] y)\n"
                                   "<double[2, 2] weight = {{1, -2.5, 50, 0}}, double half = {{0.5}}>\n{{\n"
                                   "h = {}\nw = Cast <to = 11> (h)\np = MatMul (w, weight)\ny = Mul (p, half)\n}}\n",
                                   inputs, node));
    Graph graph = files.read("y = model.net (x)", {{"net", path}}, "float[5,2] x");
    verify(graph);
    return graph;
  };
  for (const auto& [inputs, node] :
       {std::pair{"double[N, 2] x", "Identity (x)"}, std::pair{"int64[N, 2] x", "Cast <to = 11> (x)"}}) {
    INFO(std::string(inputs));
    const Graph graph = of(inputs, node);
    CHECK(floats(value(graph, "weight")) == std::vector<float>{1, -2.5f, 50, 0});
    CHECK(value(graph, "weight").role == Role::Parameter);
    CHECK(value(graph, "y/half").role == Role::Constant);
    CHECK(value(graph, "y").type == TensorType{DataType::Float32, {5, 2}});
  }
  // A table next to weights in float, and a number beyond float's range.
  Files::write(path, R"(<ir_version: 8, opset_import: ["" : 17]>
net (double[N, 2] x) => (float[N, 2] y)
<float[2, 2] weight = {1, 2, 3, 4}, double[2] table = {0.1, 0.2}>
{ shifted = Add (x, table)  f = Cast <to = 1> (shifted)  y = MatMul (f, weight) })");
  const Graph mixed = read_graph_text("g (double[5,2] x) => () { y = model.net (x) }", files.file("mixed.onnxtxt"),
                                      builtin_ops(), 0, {{"net", path}});
  CHECK(value(mixed, "y/table").role == Role::Constant);
  Files::write(path, R"(<ir_version: 8, opset_import: ["" : 17]>
net (double[N, 2] x) => (double[N, 2] y) <double[2] least = {-1.7976931348623157e308, 1}>
{ y = Mul (x, least) })");
  const Graph least = files.read("y = model.net (x)", {{"net", path}}, "float[5,2] x");
  CHECK(floats(value(least, "least")) == std::vector<float>{-std::numeric_limits<float>::max(), 1});
}

TEST_CASE("model: masks of a large negative number are constants, and a bias of such numbers is none") {
  const Files files;
  const std::string path = files.file("masked.onnxtxt");
  const auto role_of = [&](const char* numbers) {
    Files::write(path,
                 fmt::format("<ir_version: 8, opset_import: [\"\" : 17]>\nnet (float[N, 2] x) => (float[N, 2] y)\n"
                             "<float[1, 2] table = {{{}}}>\n{{ y = Add (x, table) }}\n",
                             numbers));
    const Graph graph = files.read("y = model.net (x)", {{"", path}}, "float[5,2] x");
    const ValueId table = graph.find_value("table");
    return graph.values[table == kNone ? graph.find_value("y/table") : table].role;
  };
  CHECK(role_of("0, -3.4028235e38") == Role::Constant);
  CHECK(role_of("-10000, 0") == Role::Constant);
  CHECK(role_of("0, -1000") == Role::Parameter);
  CHECK(role_of("-20000, -30000") == Role::Parameter);
}

TEST_CASE("model: a transposed copy that PyTorch's exporter has folded is the weight itself") {
  const Files files;
  const std::string path = files.file("tied.onnxtxt");
  const auto copy_of = [&](const std::string& producer, const std::string& name, const std::string& numbers) {
    Files::write(path, "<ir_version: 8, opset_import: [\"\" : 17]" + producer +
                           ">\nnet (int64[N] x) => (float[N, 3] y)\n<float[3, 2] \"e.weight\" = {1, 2, 3, 4, 5, 6}, "
                           "float[2, 3] " +
                           name + " = {" + numbers + "}>\n{ h = Gather (\"e.weight\", x)  y = MatMul (h, " + name +
                           ") }\n");
    Graph graph = files.read("y = model.net (x)", {{"", path}}, "int64[5] x");
    verify(graph);
    return graph;
  };
  const auto parameters = [](const Graph& graph) {
    return std::count_if(graph.values.begin(), graph.values.end(),
                         [](const Value& value) { return value.role == Role::Parameter; });
  };
  const std::string torch = ", producer_name: \"pytorch\"", same = "1, 3, 5, 2, 4, 6";
  const Graph tied = copy_of(torch, "val_2", same);
  CHECK(parameters(tied) == 1);
  CHECK(tied.values[only(tied, "Transpose").inputs[0]].name == "e.weight");
  for (const char* name : {"t", "permute", "\"onnx::MatMul_21\""}) CHECK(parameters(copy_of(torch, name, same)) == 1);
  CHECK(parameters(copy_of(torch, "val_2", "1, 3, 5, 2, 4, 7")) == 2);
  CHECK(parameters(copy_of(torch, "\"o.weight\"", same)) == 2);  // a module of its own
  CHECK(parameters(copy_of("", "val_2", same)) == 2);
  // Layers that begin equal, as clones do, are no embedding and its last layer.
  Files::write(path, R"(<ir_version: 8, opset_import: ["" : 17], producer_name: "pytorch">
net (float[N, 2] x) => (float[N, 2] y)
<float[2, 2] "b.weight" = {1, 2, 3, 4}, float[2, 2] val_2 = {1, 3, 2, 4}>
{ h = MatMul (x, val_2)  y = Gemm <transB = 1> (h, "b.weight") })");
  Graph clones = files.read("y = model.net (x)", {{"", path}}, "float[5,2] x");
  verify(clones);
  CHECK(parameters(clones) == 2);
}

TEST_CASE("model: weights that are cast where they are read are the operator's") {
  const Files files;
  const std::string path = files.file("autocast.onnxtxt");
  Files::write(path, R"(<ir_version: 8, opset_import: ["" : 17]>
net (float[N, 2] x) => (float[N, 1] y)
<float[1, 2] "fc.weight" = {1, 2}, float[1] "fc.bias" = {3}>
{
  stored = Constant <value = float[2, 2] {1, 2, 3, 4}> ()
  first = Cast <to = 16> (stored)
  again = Cast <to = 1> (first)
  w = Cast <to = 16> ("fc.weight")
  b = Cast <to = 16> ("fc.bias")
  h = Cast <to = 16> (x)
  m = MatMul (h, again)
  y = Gemm <transB = 1> (m, w, b)
})");
  Graph graph = files.read("y = model.net (x)", {{"net", path}}, "float[5,2] x");
  verify(graph);
  expand_layers(graph);
  CHECK(graph.find_op("Cast") == nullptr);
  const std::vector<ValueId>& inputs = only(graph, "Gemm").inputs;
  for (size_t i = 0; i < 2; ++i) {
    CHECK(graph.values[inputs[i + 1]].name == (i == 0 ? "fc.weight" : "fc.bias"));
    CHECK(graph.values[inputs[i + 1]].role == Role::Parameter);
  }
  CHECK(graph.values[only(graph, "MatMul").inputs[1]].name == "stored");
  CHECK(value(graph, "stored").role == Role::Parameter);
}

TEST_CASE("model: results are any values of it, and what they do not need is left out") {
  const Files files;
  Graph graph = files.read("f, c = model.net <outputs = [\"features\", \"/conv/out\"]> (x)", {{"", files.net}});
  verify(graph);
  CHECK(value(graph, "f").type.shape == Shape{5, 2});
  CHECK(value(graph, "c").type.shape == Shape{5, 2, 4, 4});
  CHECK(graph.find_op("Gemm") == nullptr);
  CHECK(graph.find_value("fc.weight") == kNone);

  graph = files.read("y, f = model.net (x)", {{"", files.net}});
  CHECK(value(graph, "f").producer != kNone);
  graph = files.read("y, f, = model.net <outputs = [\"logits\", \"features\", \"features\"]> (x)", {{"", files.net}});
  CHECK(value(graph, "f").producer != kNone);
}

TEST_CASE("model: the attribute 'file' is relative to the graph's file, and --model comes before it") {
  const Files files;
  Graph graph = files.read("y = model.net <file = \"net.onnxtxt\"> (x)", {});
  CHECK(graph.find_op("Gemm") != nullptr);
  Files::write(files.file("other.onnxtxt"), "o (float[N] x) => (float[N] y) { y = Relu (x) }");
  graph = files.read("y = model.net <file = \"net.onnxtxt\"> (x)", {{"net", files.file("other.onnxtxt")}});
  CHECK(graph.find_op("Gemm") == nullptr);
  CHECK(graph.find_op("Relu") != nullptr);
}

TEST_CASE("model: names that are taken get the call's before them") {
  const Files files;
  Graph graph =
      files.read("a = model.net (x) [\"second\"] b = model.net (x) shape = Relu (a) \"bn.bias\" = Relu (shape)",
                 {{"net", files.net}});
  verify(graph);
  CHECK(floats(value(graph, "fc.weight")) == floats(value(graph, "second/fc.weight")));
  CHECK(value(graph, "bn.bias").role == Role::Activation);
  CHECK(value(graph, "a/bn.bias").role == Role::Parameter);
  CHECK(value(graph, "second/bn.bias").role == Role::Parameter);
}

TEST_CASE("model: parameters that a layer of the graph will make keep their names, and the model's get the call's") {
  const Files files;
  const std::string path = files.file("teacher.onnxtxt");
  Files::write(path, R"(t (float[N, 3] x) => (float[N, 3] y)
<float[3, 3] "logits.weight" = {1, 2, 3, 4, 5, 6, 7, 8, 9}, float[3] "logit.bias" = {1, 2, 3}>
{
  m = MatMul (x, "logits.weight")
  y = Add (m, "logit.bias")
})");
  Graph graph = files.read("t = model.teacher (x) logits = arbalest.Linear <units = 3> (x) s = Add (t, logits)",
                           {{"", path}}, "float[2, 3] x");
  verify(graph);
  expand_layers(graph);
  CHECK(value(graph, "logits.weight").initializer.kind != Initializer::Kind::Data);
  CHECK(value(graph, "t/logits.weight").initializer.kind == Initializer::Kind::Data);
  CHECK(value(graph, "logit.bias").role == Role::Parameter);
}

TEST_CASE("model: Softmax means what it meant in the opset of the model's file") {
  const Files files;
  const std::string path = files.file("old.onnxtxt");
  const auto read = [&](int opset, const std::string& node) {
    Files::write(path, fmt::format("<ir_version: 8, opset_import: [\"\" : {}]> o (float[N, 3, 4] x) => (y) {{ {} }}",
                                   opset, node));
    Graph graph = files.read("y = model.old (x) z = Relu (y)", {{"", path}}, "float[2, 3, 4] x");
    verify(graph);
    CHECK(value(graph, "z").type.shape == Shape{2, 3, 4});
    return graph;
  };
  for (const char* op : {"Softmax", "LogSoftmax"}) {
    for (const char* attributes : {"<axis = 1>", ""}) {
      const Graph graph = read(12, fmt::format("y = {} {} (x)", op, attributes));
      const Node& softmax = only(graph, op);
      CHECK(graph.values[softmax.inputs[0]].type.shape == Shape{2, 12});
      CHECK(int_attribute(softmax, "axis") == -1);
    }
  }
  CHECK(read(11, "y = Softmax <axis = -1> (x)").nodes.size() == 2);
  CHECK(read(13, "y = Softmax <axis = 1> (x)").nodes.size() == 2);
  CHECK(has(error_of([&] { read(11, "y = Softmax <axis = 5> (x)"); }), "old.onnxtxt"));
}

TEST_CASE("model: inputs with values are parameters of it, not operands") {
  const Files files;
  const std::string path = files.file("given.onnxtxt");
  Files::write(path, R"(g (float[2, 2] w = {1, 2, 3, 4}, float[N, 2] x, float[2] unused = {1, 2}) => (float[N, 2] y)
{ y = MatMul (x, w) })");
  Graph graph = files.read("y = model.given (x)", {{"", path}}, "float[5, 2] x");
  verify(graph);
  CHECK(floats(value(graph, "w")) == std::vector<float>{1, 2, 3, 4});
  CHECK(graph.find_value("unused") == kNone);
  CHECK(has(files.fault("y = model.given (x, x)", {{"", path}}),
            "2 operands are given to model 'given', which has the "
            "inputs 'x'"));
}

TEST_CASE("model: outputs that do not fit are refused") {
  const Files files;
  const std::string path = files.file("outputs.onnxtxt");
  Files::write(path, "o (float[N, 2] x) => (float[2] y) <float[2] w = {1, 2}> { , y = Identity (w) }");
  CHECK(has(error_of([&] {
              Graph graph = files.read("y = model.outputs (x)", {{"", path}}, "float[5, 2] x");
              verify(graph);
            }),
            "Identity"));
  const auto normalised = [&](const char* result) {
    Files::write(path, fmt::format(R"(o (float[N, 2] x) => (float[N, 2] y, float[2] m)
<float[2] s = {{1, 2}}, float[2] b = {{1, 2}}, float[2] mean = {{1, 2}}, float[2] var = {{1, 2}}>
{{ n, m, v = BatchNormalization <training_mode = 1> (x, s, b, mean, var)  y = Add (n, {}) }})",
                                   result));
    return error_of([&] { files.read("y = model.outputs (x)", {{"", path}}, "float[5, 2] x"); });
  };
  CHECK(normalised("b") == "");
  CHECK(has(normalised("m"), "its output 'm' is read; expected readers of its first output alone"));
}

TEST_CASE("model: a function may call one") {
  const Files files;
  Graph graph =
      read_graph_text("g (float[5,2,4,4] x) => () { y = f (x) } f (a) => (b) { c = model.net (a) b = Relu (c) }",
                      files.file("graph.onnxtxt"), builtin_ops(), 0, {{"", files.net}});
  verify(graph);
  CHECK(value(graph, "y").type.shape == Shape{5, 3});
  CHECK(value(graph, "y/c/n").type.shape == Shape{5, 2, 4, 4});
  CHECK(value(graph, "fc.bias").role == Role::Parameter);
}

TEST_CASE("model: operands are its inputs in the file's order, or by name") {
  const Files files;
  const std::string two = files.file("two.onnxtxt");
  Files::write(two, "two (float[N, 3] a, float[N, 3] b) => (float[N, 3] y) { n = Neg (b) y = Add (a, n) }");
  const auto inputs_of = [&](const std::string& call) {
    const Graph graph = files.read(call, {{"", two}}, "float[5, 3] p, float[5, 3] q");
    return std::pair(graph.values[only(graph, "Add").inputs[0]].name, graph.values[only(graph, "Neg").inputs[0]].name);
  };
  CHECK(inputs_of("y = model.two (p, q)") == std::pair<std::string, std::string>("p", "q"));
  CHECK(inputs_of("y = model.two <inputs = [\"b\", \"a\"]> (p, q)") == std::pair<std::string, std::string>("q", "p"));
  const auto fault = [&](const std::string& call) {
    return error_of([&] { files.read(call, {{"", two}}, "float[5, 3] p, float[5, 3] q"); });
  };
  CHECK(has(fault("y = model.two (p)"), "two.onnxtxt: model 'two' needs its input 'b', and the call gives 'a'"));
  CHECK(has(fault("y = model.two (p, q, p)"), "3 operands are given to model 'two', which has the inputs 'a', 'b'"));
  CHECK(has(fault("y = model.two <inputs = [\"a\"]> (p, q)"), "names 1 inputs for 2 operands"));
  CHECK(has(fault("y = model.two <inputs = [\"a\", \"c\"]> (p, q)"), "has no input 'c', its inputs are 'a', 'b'"));
  CHECK(has(fault("y = model.two <inputs = [\"a\", \"a\"]> (p, q)"), "names 'a' twice"));
  // An input that the results do not need may be left out.
  const Graph graph = files.read("y = model.two <inputs = [\"b\"], outputs = [\"n\"]> (p)", {{"", two}},
                                 "float[5, 3] p, float[5, 3] q");
  CHECK(graph.nodes.size() == 1);
}

TEST_CASE("model: whole numbers and flags get the types that the model's file states for its inputs") {
  const Files files;
  const std::string path = files.file("mask.onnxtxt");
  Files::write(path, R"(mask (float[N, 3] x, int64[N, 1] length, bool[N, 3] keep) => (float[N, 3] y) {
    number = Cast <to = 1> (length)  kept = Where (keep, x, number)  y = Neg (kept) })");
  const auto casts = [&](const char* operands) {
    Graph graph = files.read("y = model.mask (x, n, k)", {{"", path}}, operands);
    verify(graph);
    expand_layers(graph);
    CHECK(value(graph, "y").type.shape == Shape{5, 3});
    return std::count_if(graph.nodes.begin(), graph.nodes.end(),
                         [](const Node& node) { return node.op->name == "Cast"; });
  };
  CHECK(casts("float[5,3] x, int32[5,1] n, float[5,3] k") == 3);
  CHECK(casts("float[5,3] x, int64[5,1] n, bool[5,3] k") == 1);  // they have them
  CHECK(casts("float[5,3] x, float[5,1] n, bool[5,3] k") == 0);  // fractions stay
}

TEST_CASE("model: what exporters make of parameters") {
  const Files files;
  const std::string path = files.file("exported.onnxtxt");
  // PyTorch: equal initialisers are one and its Identities. Others: weights in Constant nodes, shared statistics.
  Files::write(path, R"(e (float[N, 2] x) => (float[N, 2] y)
<float[2] one = {1, 1}, float[2] zero = {0, 0}, float[2] extents = {2, 1}>
{
  "b.bias" = Identity (zero)
  w = Constant <value = float[2, 2] {1, 2, 3, 4}> ()
  half = Constant <value = float[2] {0.5, 0.5}> ()
  m = MatMul (x, w)
  s = Mul (m, half)
  a = BatchNormalization (s, one, zero, zero, one)
  b = BatchNormalization (a, one, "b.bias", zero, one)
  whole = Cast <to = 7> (extents)
  all = Shape (b)
  unit = Div (whole, whole)
  shape = Mul (all, unit)
  y = Reshape (b, shape)
})");
  Graph graph = files.read("y = model.exported (x)", {{"", path}}, "float[6, 2] x");
  verify(graph);
  CHECK(value(graph, "w").role == Role::Parameter);
  CHECK(value(graph, "b.bias").role == Role::Parameter);
  CHECK(floats(value(graph, "b.bias")) == std::vector<float>{0, 0});
  CHECK(value(graph, "y/half").role == Role::Constant);
  CHECK(value(graph, "y/extents").role == Role::Constant);  // a shape is computed of it
  CHECK(graph.find_op("Identity") == nullptr);
  expand_layers(graph);
  std::set<ValueId> statistics;
  for (const Carry& carry : graph.carries) statistics.insert(carry.current);
  CHECK(statistics.size() == 4);  // of two batch norms
}

TEST_CASE("model: what recurrent layers learn, and zeros before their first step") {
  const Files files;
  const std::string path = files.file("recurrent.onnxtxt");
  Files::write(path, R"(e (float[3, N, 2] x) => (float[3, 1, N, 1] y)
<float[1, 4, 1] r = {1, 2, 3, 4}, float[1, 5, 1] zeros = {0, 0, 0, 0, 0}>
{
  w = Constant <value = float[1, 4, 2] {1, 2, 3, 4, 5, 6, 7, 8}> ()
  p = Constant <value = float[1, 3] {1, 2, 3}> ()
  y = LSTM (x, w, r, , , zeros, zeros, p)
})");
  Graph graph = files.read("y = model.recurrent (x)", {{"", path}}, "float[3, 6, 2] x");  // of another batch than zeros
  verify(graph);
  for (const char* name : {"w", "r", "p"}) CHECK(value(graph, name).role == Role::Parameter);
  const Node& node = *graph.find_op("LSTM");
  CHECK(node.inputs[5] == kNone);
  CHECK(node.inputs[6] == kNone);
}

TEST_CASE("model: what PyTorch's files state once is one parameter, and what modules have is trained") {
  const Files files;
  const std::string path = files.file("shared.onnxtxt");
  const auto read = [&](const char* producer, const char* one) {
    Files::write(path, fmt::format(R"(<ir_version: 8, opset_import: ["" : 17], producer_name: "{}">
e (float[N, 2] x) => (float[N, 2] y)
<float[2] "act.weight" = {{0.25, 0.25}}, float[1] "blocks.0.gain" = {{2}}, float[1] factor = {{3}}>
{{
  one = {}
  a = PRelu (x, "act.weight")
  b = Mul (a, "blocks.0.gain")
  c = PRelu (b, "act.weight")
  d = Mul (c, factor)
  y = Mul (d, one)
}})",
                                   producer, one));
    return files.read("y = model.shared (x)", {{"", path}}, "float[6, 2] x");
  };
  const auto parameters = [](const Graph& graph) {
    return std::count_if(graph.values.begin(), graph.values.end(),
                         [](const Value& value) { return value.role == Role::Parameter; });
  };
  const char *constant = "Constant <value_float = 1.0> ()", *none = "Identity (x)";
  const Graph plain = read("pytorch", constant);
  CHECK(parameters(plain) == 2);
  CHECK(value(plain, "blocks.0.gain").role == Role::Parameter);
  CHECK(value(plain, "y/factor").role == Role::Constant);
  CHECK(parameters(read("pytorch", none)) == 3);  // without a Constant: optimised, which stores equal ones once
  CHECK(parameters(read("tf2onnx", constant)) == 2);
  CHECK(value(read("tf2onnx", constant), "y/blocks.0.gain").role == Role::Constant);
}

TEST_CASE("model: a number of PyTorch's older exporter is trained unless the exporter has made up its name") {
  const Files files;
  const std::string path = files.file("numbers.onnxtxt");
  Files::write(path, R"(<ir_version: 8, opset_import: ["" : 17], producer_name: "pytorch">
e (float[N, 2] x) => (float[N, 2] y)
<float[1] logit_scale = {2}, float[1] "onnx::Mul_7" = {3}, float[1] "7" = {4}>
{
  ["/Mul"] a = Mul (x, logit_scale)
  ["/Mul_1"] b = Mul (a, "onnx::Mul_7")
  ["/Mul_2"] y = Mul (b, "7")
})");
  const Graph graph = files.read("y = model.numbers (x)", {{"", path}}, "float[6, 2] x");
  CHECK(value(graph, "logit_scale").role == Role::Parameter);
  CHECK(value(graph, "y/onnx::Mul_7").role == Role::Constant);
  CHECK(value(graph, "y/7").role == Role::Constant);
}

TEST_CASE("model: norms of PyTorch's files without scale and bias have nothing to train") {
  const Files files;
  const std::string path = files.file("norms.onnxtxt");
  const auto read = [&](const char* producer, const char* filter) {
    Files::write(
        path, fmt::format(R"(<ir_version: 8, opset_import: ["" : 17], producer_name: "{}">
e (float[N, 2, 4, 4] x) => (float[N, 2, 4, 4] y)
<float[2] "1.weight" = {{1, 1}}, float[2] "1.bias" = {{0, 0}}, float[2] val_3 = {{1, 1}}{}>
{{
  "/one" = Constant <value = float[2] {{1, 1}}> ()
  "/zero" = Constant <value = float[2] {{0, 0}}> ()
  "/filter" = Constant <value = float[2, 2, 1, 1] {{1, 2, 3, 4}}> ()
  a = InstanceNormalization (x, "/one", "/zero")
  b = InstanceNormalization (a, val_3, "1.bias")
  c = InstanceNormalization (b, "1.weight", "/zero")
  y = Conv (c, {})
}})",
                          producer,
                          std::string(filter) == "fc.weight" ? ", float[2, 2, 1, 1] \"fc.weight\" = {1, 2, 3, 4}" : "",
                          filter == std::string("fc.weight") ? "\"fc.weight\"" : "\"/filter\""));
    std::set<std::string> parameters;
    for (const Value& each : files.read("y = model.norms (x)", {{"", path}}).values) {
      if (each.role == Role::Parameter) parameters.insert(each.name);
    }
    return parameters;
  };
  using Names = std::set<std::string>;
  CHECK(read("pytorch", "fc.weight") == Names{"fc.weight", "1.bias", "1.weight"});
  CHECK(read("pytorch", "/filter") == Names{"1.bias", "1.weight"});  // weights are initialisers
  CHECK(read("", "/filter").size() == 7);                            // "/zero" is two
}

TEST_CASE("model: what tf2onnx folds and stores once is called after the layer that reads it") {
  const Files files;
  const std::string path = files.file("folded.onnxtxt");
  // Channels-last images; a batch norm folded into a product and a sum. Scales that are equal stored once, under the
  // name of the second layer; a sum whose name is counted up.
  Files::write(path, R"(<ir_version: 8, opset_import: ["" : 17]> t (float[N, 4, 4, 2] x) => (float[N, 2] y)
<float[2, 2, 1, 1] "net/conv/merged_input:0" = {1, 2, 3, 4}, float[1, 2, 1, 1] "const_fold_opt__12" = {5, 6},
 float[1, 2, 1, 1] "net/bn_2/mul:0" = {3, 3}, float[2, 2] "const_fold_opt__13" = {7, 8, 9, 10}, float[2] one__3 = {1, 1}>
{
  ["net/conv__6"] "net/conv__6:0" = Transpose <perm = [0, 3, 1, 2]> (x)
  ["Conv__42"] "Conv__42:0" = Conv ("net/conv__6:0", "net/conv/merged_input:0")
  ["net/bn_1/mul_1"] "net/bn_1/mul_1:0" = Mul ("Conv__42:0", "net/bn_2/mul:0")
  ["net/bn_1/add_1"] "net/bn_1/add_1:0" = Add ("net/bn_1/mul_1:0", const_fold_opt__12)
  ["net/bn_2/mul_1"] "net/bn_2/mul_1:0" = Mul ("net/bn_2/mul:0", "net/bn_1/add_1:0")
  ["net/pool"] "net/pool:0" = ReduceMean <axes = [2, 3], keepdims = 0> ("net/bn_2/mul_1:0")
  ["net/dense/MatMul"] "net/dense/MatMul:0" = MatMul ("net/pool:0", const_fold_opt__13)
  ["net/dense/Pow"] y = Pow ("net/dense/MatMul:0", one__3)
})");
  Graph graph = files.read("t = Transpose <perm = [0, 2, 3, 1]> (x) y = model.folded (t)", {{"", path}});
  verify(graph);
  std::map<std::string, std::vector<float>> parameters;
  for (const Value& each : graph.values) {
    if (each.role == Role::Parameter) parameters.emplace(each.name, floats(each));
  }
  CHECK(parameters == std::map<std::string, std::vector<float>>{{"net/conv/merged_input:0", {1, 2, 3, 4}},
                                                                {"net/bn_1/mul_1.scale", {3, 3}},
                                                                {"net/bn_1/add_1.bias", {5, 6}},
                                                                {"net/bn_2/mul:0", {3, 3}},
                                                                {"net/dense/MatMul.weight", {7, 8, 9, 10}},
                                                                {"net/dense/Pow.B", {1, 1}}});
}

TEST_CASE("model: all operators that are not supported are reported at once, with their nodes") {
  const Files files;
  const std::string path = files.file("odd.onnxtxt");
  Files::write(path, R"(odd (float[N, 2] x) => (float[N, 2] y)
{
  a = MaxUnpool (x)
  ["second"] b = MaxUnpool (a)
  c = com.example.Fused (b)
  d = inner (c)
  r = Multinomial (d)
  unused = Det (x)
  y = arbalest.ReluGrad (d, r)
}
inner (p) => (q) { q = Unique (p) })");
  const std::string message = files.fault("y = model.odd (x)", {{"", path}});
  CHECK(has(message, "odd.onnxtxt: 5 operators of model 'odd' are not supported"));
  CHECK(has(message, "\n  MaxUnpool: nodes 'a', 'second'"));
  CHECK(has(message, "\n  com.example.Fused: node 'c'"));
  CHECK(has(message, "\n  Multinomial: node 'r'"));
  CHECK(has(message, "\n  Unique: node 'q' of function 'inner'"));
  CHECK(has(message, "\n  arbalest.ReluGrad: node 'y'"));
  CHECK_FALSE(has(message, "Det"));
  CHECK(files.fault("y = model.odd <outputs = [\"x\"]> (x)", {{"", path}}) == "");
}

TEST_CASE("model: an operator may have an initial state without a layout, and operands after training_mode") {
  register_operator({.domain = "",
                     .name = "Remembers",
                     .doc = "X, with operands in an order of its own",
                     .inputs = {{.name = "X"},
                                {.name = "before", .arity = OperandSpec::Optional, .part = OperandSpec::InitialState},
                                {.name = "training_mode", .arity = OperandSpec::Optional, .constant = true},
                                {.name = "shift", .arity = OperandSpec::Optional}},
                     .outputs = {{.name = "Y"}},
                     .attributes = {{"training_mode", AttributeKind::Int, Attribute(int64_t{0}), "1: in training"}},
                     .infer = [](InferContext& c) { c.set_output(0, c.input(0)); },
                     .expand = [](ExpandContext&) {}});
  const Files files;
  const std::string path = files.file("own.onnxtxt");
  Files::write(path, R"(<ir_version: 8, opset_import: ["" : 17]>
own (float[N, 3] x) => (float[N, 3] z)
<float[1, 2, 3] zeros = {0, 0, 0, 0, 0, 0}, int64 no = {0}, float[3] shift = {1, 2, 3}>
{
  y = Remembers (x, zeros, no, shift)
  z = Remembers (y, zeros, no)
})");
  const Graph graph = files.read("z = model.own (x)", {{"", path}}, "float[5,3] x");
  std::vector<Node> found;
  for (const Node& node : graph.nodes) {
    if (node.is("Remembers")) found.push_back(node);
  }
  REQUIRE(found.size() == 2);
  REQUIRE(found[0].inputs.size() == 4);
  CHECK(found[0].inputs[1] == kNone);
  CHECK(found[0].inputs[2] == kNone);
  CHECK(found[0].inputs[3] != kNone);
  CHECK(found[1].inputs.size() == 1);
  for (const Node& node : found) CHECK(int_attribute(node, "training_mode") == 1);
}

TEST_CASE("model: dropouts that are spelt out drop, and with training_mode = 0 they drop nothing") {
  const Files files;
  const std::string path = files.file("drops.onnxtxt");
  Files::write(path, R"(drops (float[1, 6] x) => (float[1, 6] y)
{
  p = Constant <value = float {0.75}> ()
  like = Constant <value = float[1, 1] {0}> ()
  r = RandomUniformLike <dtype = 1> (like)
  l = Less (r, p)
  m = Cast <to = 1> (l)
  s = Div (m, p)
  a = Mul (x, s)
  shape = Shape (a)
  narrow = Cast <to = 6> (shape)
  key = Constant <value = int64[1] {5}> ()
  counter = Constant <value = int64[2] {0, 7}> ()
  kind = Constant <value_int = 1> ()
  t = StatelessRandomUniformV2 <dtype = 1> (narrow, key, counter, kind)
  g = GreaterOrEqual (t, p)
  k = Cast <to = 1> (g)
  four = Constant <value = float {4}> ()
  b = Mul (a, four)
  c = Mul (b, k)
  n = StatelessRandomNormalV2 <dtype = 1> (narrow, key, counter, kind)
  y = Add (c, n)
})");
  // A file for one sample draws one number for each of a batch.
  Graph graph = files.read("y = model.drops (x)", {{"", path}}, "float[5,6] x");
  verify(graph);
  expand_layers(graph);
  find_dropouts(graph);
  CHECK(float_attribute(only(graph, "arbalest.StochasticDepth"), "ratio") == 0.25);
  CHECK(float_attribute(only(graph, "Dropout"), "ratio") == 0.75);
  CHECK(only(graph, "RandomNormalLike").name == "y/n");

  graph = files.read("y = model.drops <training_mode = 0> (x)", {{"", path}}, "float[5,6] x");
  verify(graph);
  expand_layers(graph);
  find_dropouts(graph);
  CHECK(graph.find_op("arbalest.StochasticDepth") == nullptr);
  CHECK(graph.find_op("Dropout") == nullptr);
  CHECK(graph.values[only(graph, "Add").inputs[0]].producer != kNone);
}

TEST_CASE("model: a value that two nodes define is refused, with both, whether it is needed or not") {
  const Files files;
  const std::string path = files.file("twice.onnxtxt");
  Files::write(path, R"(twice (float[N, 2] x) => (float[N, 2] y)
{
  ["first"] y = Relu (x)
  z = Relu (x)
  y = Sigmoid (x)
})");
  const std::string message =
      "twice.onnxtxt: value 'y' of model 'twice' is defined twice, by node 'first' (Relu) and by "
      "node 'y' (Sigmoid); expected one of them";
  CHECK(has(files.fault("y = model.twice (x)", {{"", path}}), message.c_str()));
  CHECK(has(files.fault("y = model.twice <outputs = [\"z\"]> (x)", {{"", path}}), message.c_str()));
}

TEST_CASE("model: attributes of calls are changed in the file alone") {
  const Files files;
  const ModelFiles net = {{"", files.net}};
  CHECK(has(error_of([&] {
              Graph graph = files.read("logits = model.net (x)", net);
              apply_override(graph, "logits.training_mode=0");
            }),
            "attribute 'training_mode' of the call 'logits' (model.net) says how the graph's file is read"));
}

TEST_CASE("model: faults of calls are reported at their place") {
  const Files files;
  const ModelFiles net = {{"", files.net}};
  CHECK(has(files.fault("y = model.net (x)", {}),
            "graph.onnxtxt:1:34: model 'net' has no file; expected --model net=FILE or the attribute 'file'"));
  CHECK(has(files.fault("y = model.net (x)", {{"other", files.net}}), "; --model other="));
  CHECK(has(files.fault("y = model.net <fil = \"a\"> (x)", net), "1:45: attribute 'fil' of a model's call"));
  CHECK(has(files.fault("y = model.net <fil = \"a\"> (x)", net), "did you mean 'file'?"));
  CHECK(has(files.fault("y = model.net <training_mode = 2> (x)", net), "'training_mode' is 2, expected 0 or 1"));
  CHECK(has(files.fault("y = model.net <outputs = 3> (x)", net), "'outputs' is 3, expected strings"));
  CHECK(has(files.fault("y = model.net <outputs = [\"feature\"]> (x)", net),
            "net.onnxtxt: model 'net' has no value 'feature'; did you mean 'features'?; its outputs are 'logits' "
            "(Gemm of 'features'), 'features' (Reshape of 'pooled')"));
  CHECK(has(files.fault("y = model.net <outputs = [\"features\", \"logits\"]> (x)", net), "2 values for 1 results"));
  CHECK(has(files.fault("y, a, b = model.net (x)", net), "3 results are asked of model 'net'"));
  CHECK(has(files.fault("y = model.net (z)", net), "input 'z' is not defined"));
  CHECK(has(files.fault("y = model.net (x) y = Relu (x)", net), "'y' is defined twice"));
  CHECK(has(files.fault("y = model.net (x)", {{"", files.file("none.onnx")}}), "none.onnx: cannot be read"));
  CHECK(has(files.fault("y = model.net (x)", {{"", "/dev/zero"}}), "/dev/zero: found a device, expected a file"));
  const std::string large = files.file("large.onnx");
  std::ofstream(large) << "";
  std::error_code error;
  std::filesystem::resize_file(large, uint64_t{100} << 30, error);
  if (error) {
    MESSAGE("SKIP: the file system has no sparse files of 100 GiB");
    return;
  }
  CHECK(has(files.fault("y = model.net (x)", {{"", large}}), "large.onnx: found 107374182400 bytes, expected at most"));
  CHECK(has(files.fault("y = model.net (x)", {{"", files.net}, {"nett", files.net}}),
            "--model nett=" + files.net + ": the graph 'g' calls 'net'; did you mean 'net'?"));
  CHECK(has(files.fault("y = Relu (x)", net), "the graph 'g' calls no model"));
  CHECK(has(files.fault("y = model.net (x) z = model.other (x)", net),
            "calls 'net', 'other', expected --model NAME=FILE"));
  Files::write(files.file("self.onnxtxt"),
               "s (float[2] x) => (float[2] y) { y = model.s <file = \"self.onnxtxt\"> (x) }");
  CHECK(has(files.fault("y = model.s (x)", {{"", files.file("self.onnxtxt")}}),
            "\n  model.s: node 'y' (a model that is called may not call models)"));
  CHECK(has(files.fault("y = model.net (x) z = Relo (y)", net), "unknown operator or function 'Relo'"));
}

TEST_CASE("model: a fault that a fixed batch brings says that the batch is fixed") {
  const Files files;
  const std::string path = files.file("fixed.onnxtxt");
  Files::write(path, "f (float[1, 2] x) => (float[2, 2] y) <float[2, 2] w = {1, 2, 3, 4}> { y = Add (x, w) }");
  Graph graph = files.read("y = model.fixed (x)", {{"", path}}, "float[5, 2] x");
  const std::string message = error_of([&] { verify(graph); });
  CHECK(has(message, "fixed.onnxtxt (exported for batches of 1)"));
  CHECK(has(message, "Add"));
}

TEST_CASE("model: NAME=FILE and FILE") {
  CHECK(parse_model_file("net=a.onnx").name == "net");
  CHECK(parse_model_file("net=a.onnx").path == "a.onnx");
  CHECK(parse_model_file("dir/a=b.onnx").name == "");
  CHECK(parse_model_file("dir/a=b.onnx").path == "dir/a=b.onnx");
  CHECK(has(error_of([] { parse_model_file("net="); }), "found 'net=', expected NAME=FILE or FILE"));
}

}  // namespace model_call_test
