// SPDX-License-Identifier: Apache-2.0

// Models that were exported for a batch of a certain size: whether they keep samples apart in another.

#include "passes/samples_apart.h"

#include <doctest/doctest.h>

#include <fstream>

#include "graph/file/graph_file.h"
#include "graph/op.h"
#include "graph/samples/exported_batch.h"
#include "graph/samples/sample_probe.h"
#include "ops/builtin_ops.h"
#include "passes/program.h"
#include "tests/graph/file_fixture.h"

using namespace arbalest;

namespace samples_apart_test {
namespace {

struct Exported {
  const char* name;
  int64_t exported, called;  // batches
  const char* sample;        // of a sample, after the batch
  std::string initial;
  std::string nodes;  // from x to y
  const char* mixes;  // the node that does; "": none
};

const std::string kAttention =
    "q = MatMul (t, w)\nturned = Transpose <perm = [0, 2, 1]> (t)\nscores = MatMul (q, turned)\n"
    "weights = Softmax <axis = -1> (scores)\nread = MatMul (weights, t)\ny = Reshape (read, back)\n";
const std::string kAttentionData = "float[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}, int64[2] back = {-1, 12}, int64[3] ";

// Each row of a batch reads all rows.
const std::string kRows =
    "turned = Transpose <perm = [1, 0]> (x)\nscores = MatMul (x, turned)\nweights = Softmax <axis = -1> (scores)\n"
    "y = MatMul (weights, x)\n";

// Numbers by a rule, for weights whose values do not matter.
std::string weight(const std::string& name, const Shape& shape) {
  std::string text = "float[";
  for (size_t i = 0; i < shape.size(); ++i) text += fmt::format("{}{}", i ? ", " : "", shape[i]);
  text += fmt::format("] \"{}\" = {{", name);
  for (int64_t i = 0; i < element_count(shape); ++i) text += fmt::format("{}{}", i ? ", " : "", (i * 7 % 11 - 5) * 0.1);
  return text + "}";
}

// The graph that calls a model of the case.
Graph graph_of(const Exported& model) {
  const FileTestFolder folder;
  const std::string path = folder.file("m.onnxtxt");
  std::ofstream(path) << fmt::format(
      "<ir_version: 8, opset_import: [\"\" : 17]>\nm (float[{}, {}] x) => (float y)\n{}\n{{\n{}}}\n", model.exported,
      model.sample, model.initial.empty() ? "" : "<" + model.initial + ">", model.nodes);
  Graph graph = read_graph_text(fmt::format("<ir_version: 8, opset_import: [\"\" : 17, \"model\" : 1]>\n"
                                            "g (float[{}, {}] x) => () {{ y = model.m (x)  z = Relu (y) }}",
                                            model.called, model.sample),
                                "graph.onnxtxt", builtin_ops(), 0, {{"", path}});
  verify(graph);
  return graph;
}

void check(const std::vector<Exported>& models) {
  for (const Exported& model : models) {
    INFO(model.name);
    const std::optional<MixingNode> found = find_mixing(graph_of(model));
    CHECK((found ? found->node.name : "") == (*model.mixes ? "y/" + std::string(model.mixes) : ""));
    if (found) CHECK(found->batch == model.exported);
  }
}

}  // namespace

TEST_CASE("samples: a fixed batch that mixes samples in another is found, with the node") {
  check({
      {"attention over all rows", 1, 5, "12", "", kRows, "scores"},
      {"the same of more than one sample", 4, 8, "12", "", kRows, "scores"},
      {"half a sample each", 4, 2, "12", "", kRows, "scores"},
      {"softmax over samples", 1, 5, "12", "", "p = Softmax <axis = 0> (x)\ny = Relu (p)\n", "p"},
      {"the mean of all", 1, 5, "12", "", "m = ReduceMean <keepdims = 1> (x)\ny = Sub (x, m)\n", "m"},
      {"what has come before", 1, 5, "12", "int64 axis = {0}", "c = CumSum (x, axis)\ny = Relu (c)\n", "c"},
      {"the first sample", 1, 5, "12", "int64[1] from = {0}, int64[1] to = {1}, int64[1] axis = {0}",
       "f = Slice (x, from, to, axis)\ny = Sub (x, f)\n", "f"},
      {"another order", 1, 5, "12",
       "int64[1] from = {-1}, int64[1] to = {-100}, int64[1] axis = {0}, int64[1] by = {-1}",
       "f = Slice (x, from, to, axis, by)\ny = Relu (f)\n", "f"},
      {"the largest of all", 1, 5, "12", "int64[1] k = {1}", "v, i = TopK <axis = 0> (x, k)\ny = Sub (x, v)\n", "v"},
      {"a norm over samples", 1, 5, "4",
       "int64[1] axis = {0}, float[4] scale = {1, 1, 1, 1}, float[4] bias = {0, 0, 0, 0}",
       "t = Transpose <perm = [1, 0]> (x)\nr = Unsqueeze (t, axis)\n"
       "n = InstanceNormalization (r, scale, bias)\nb = Squeeze (n, axis)\ny = Transpose <perm = [1, 0]> (b)\n",
       "n"},
      {"a norm of channels whose pixels are samples", 1, 5, "4, 2", "float[2] scale = {1, 1}, float[2] bias = {0, 0}",
       "t = Transpose <perm = [1, 2, 0]> (x)\nn = InstanceNormalization (t, scale, bias)\n"
       "y = Transpose <perm = [2, 0, 1]> (n)\n",
       "n"},
  });
}

TEST_CASE("samples: what keeps samples apart is taken, as exporters write it") {
  const std::string tokens = "float[3, 9] qkv = {" + [] {
    std::string numbers;
    for (int i = 0; i < 27; ++i) numbers += fmt::format("{}{}", i ? ", " : "", 0.1 * (i % 7));
    return numbers;
  }() + "}";
  check({
      {"a norm of frames, which come first", 1, 5, "4, 2, 3",
       "float[2] scale = {1, 1}, float[2] bias = {0, 0}, int64[3] three = {-1, 2, 3}, int64[4] four = {4, -1, 2, 3}",
       "t = Transpose <perm = [1, 0, 2, 3]> (x)\nr = Reshape (t, three)\n"
       "n = InstanceNormalization (r, scale, bias)\nb = Reshape (n, four)\nu = Transpose <perm = [1, 0, 2, 3]> (b)\n"
       "s = Softmax <axis = 1> (u)\ny = Flatten (s)\n",
       ""},
      {"attention of each sample", 1, 5, "12", kAttentionData + "shape = {-1, 4, 3}",
       "t = Reshape (x, shape)\n" + kAttention, ""},
      {"attention, the batch it was exported for told by the input", 1, 5, "12", kAttentionData + "shape = {0, -1, 3}",
       "t = Reshape (x, shape)\n" + kAttention, ""},
      {"heads", 1, 5, "4, 3",
       tokens + ", int64[5] five = {-1, 4, 3, 3, 1}, int64[3] three = {0, 0, -1}, "
                "int64 at0 = {0}, int64 at1 = {1}, int64 at2 = {2}",
       "p = MatMul (x, qkv)\nr = Reshape (p, five)\nt = Transpose <perm = [2, 0, 3, 1, 4]> (r)\n"
       "q = Gather <axis = 0> (t, at0)\nk = Gather <axis = 0> (t, at1)\nv = Gather <axis = 0> (t, at2)\n"
       "kt = Transpose <perm = [0, 1, 3, 2]> (k)\ns = MatMul (q, kt)\nw = Softmax <axis = -1> (s)\n"
       "a = MatMul (w, v)\nb = Transpose <perm = [0, 2, 1, 3]> (a)\ny = Reshape (b, three)\n",
       ""},
      {"tokens before samples, heads of samples side by side", 1, 5, "4, 6",
       "int64[3] rows = {4, -1, 3}, int64[3] back = {4, -1, 6}",
       "t = Transpose <perm = [1, 0, 2]> (x)\nr = Reshape (t, rows)\nh = Transpose <perm = [1, 0, 2]> (r)\n"
       "ht = Transpose <perm = [0, 2, 1]> (h)\ns = MatMul (h, ht)\nw = Softmax <axis = -1> (s)\na = MatMul (w, h)\n"
       "b = Transpose <perm = [1, 0, 2]> (a)\nc = Reshape (b, back)\ny = Transpose <perm = [1, 0, 2]> (c)\n",
       ""},
      {"windows", 1, 3, "4, 4, 2",
       "int64[6] six = {-1, 2, 2, 2, 2, 2}, int64[3] windows = {-1, 4, 2}, "
       "int64[6] again = {-1, 2, 2, 2, 2, 2}, int64[4] back = {-1, 4, 4, 2}",
       "r = Reshape (x, six)\nt = Transpose <perm = [0, 1, 3, 2, 4, 5]> (r)\nn = Reshape (t, windows)\n"
       "nt = Transpose <perm = [0, 2, 1]> (n)\ns = MatMul (n, nt)\nw = Softmax <axis = -1> (s)\na = MatMul (w, n)\n"
       "u = Reshape (a, again)\nv = Transpose <perm = [0, 1, 3, 2, 4, 5]> (u)\ny = Reshape (v, back)\n",
       ""},
      {"squeeze and excite", 1, 5, "2, 4, 4", weight("down", {1, 2, 1, 1}) + ", " + weight("up", {2, 1, 1, 1}),
       "g = GlobalAveragePool (x)\nd = Conv (g, \"down\")\nr = Relu (d)\nu = Conv (r, \"up\")\ns = Sigmoid (u)\n"
       "m = Mul (x, s)\ny = Flatten (m)\n",
       ""},
      {"a group norm", 1, 5, "4, 3, 3", "int64[3] groups = {0, 2, -1}, float[2] one = {1, 1}, float[2] none = {0, 0}",
       "s = Shape (x)\nr = Reshape (x, groups)\nn = InstanceNormalization (r, one, none)\nb = Reshape (n, s)\n"
       "y = Clip (b)\n",
       ""},
      {"channels last and back", 1, 5, "2, 4, 4", weight("w", {2, 2}) + ", float[2] scale = {1, 2}",
       "t = Transpose <perm = [0, 2, 3, 1]> (x)\nn = LayerNormalization (t, scale)\nl = MatMul (n, w)\ng = Erf (l)\n"
       "y = Transpose <perm = [0, 3, 1, 2]> (g)\n",
       ""},
      {"a convolution that is cut and put together", 1, 5, "2, 5, 5",
       weight("w", {4, 2, 3, 3}) + ", int64[2] split = {2, 2}",
       "c = Conv <pads = [1, 1, 1, 1]> (x, w)\na, b = Split <axis = 1> (c, split)\nt = Tanh (a)\nm = Mul (t, b)\n"
       "p = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (m)\nj = Concat <axis = 1> (p, p)\ny = Flatten (j)\n",
       ""},
      {"a batch norm, which inference runs by its statistics", 1, 5, "2, 4, 4",
       "float[2] a = {1, 2}, float[2] b = {1, 2}, float[2] mean = {1, 2}, float[2] var = {1, 2}",
       "y = BatchNormalization (x, a, b, mean, var)\n", ""},
      {"an operand that is read twice", 1, 5, "12", "", "a = Relu (x)\nb = Add (x, a)\ny = Sub (b, x)\n", ""},
      {"a loss, which is made of all samples", 1, 5, "12", "", "y = ReduceMean <keepdims = 0> (x)\n", ""},
  });
}

TEST_CASE("samples: the batch that a file states is kept in the place of its nodes") {
  CHECK(exported_batch(exported_file("a (exported for batches of 2).onnx", 17)) == 17);
  CHECK(exported_batch("m.onnx") == 0);
  CHECK(exported_batch("m.onnx (exported for batches of x)") == 0);
}

TEST_CASE("samples: a model that was exported for a batch keeps it in validation, however small the split is") {
  const auto batch_of = [](const std::string& states) {
    const FileTestFolder folder;
    const std::string path = folder.file("m.onnxtxt");
    std::ofstream(path) << fmt::format(
        "<ir_version: 8, opset_import: [\"\" : 17]>\nm (float[{}, 3] x) => (float y)\n{{ y = Relu (x) }}\n", states);
    Graph graph = read_graph_text(
        "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1, \"model\" : 1]>\ng () => (float loss) {\n"
        "x, label = arbalest.Prefetch <source = \"memory:\", batch = 8, fields = [\"x float[3]\", \"label int32[]\"]> "
        "()\n"
        "y = model.m (x)\nlogits = arbalest.Linear <units = 3> (y)\n"
        "loss = arbalest.SoftmaxCrossEntropy (logits, label)\ntrained = arbalest.Train <lr = 0.1> (loss)\n"
        "report = arbalest.Validate (trained, loss)\n}",
        "graph.onnxtxt", builtin_ops(), 0, {{"", path}});
    verify(graph);
    ProgramOptions options;
    options.validation_samples = 5;
    return make_program(std::move(graph), options).find(LoopRole::Validate)->batch;
  };
  CHECK(batch_of("N") == 5);
  CHECK(batch_of("8") == 8);
}

TEST_CASE("samples: errors of shapes tell the batch that a model was exported for, or the node that mixes samples") {
  const auto fault = [](const std::string& nodes,
                        const std::string& weights = "float[2, 3] queries = {1, 2, 3, 4, 5, 6}",
                        const std::string& scores = "y") {
    const FileTestFolder folder;
    const std::string path = folder.file("m.onnxtxt");
    std::ofstream(path) << "<ir_version: 8, opset_import: [\"\" : 17]>\nm (float[2, 3] x) => (float y)\n<" << weights
                        << ">\n{ " << nodes << " }\n";
    Graph graph = read_graph_text(
        "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1, \"model\" : 1]>\ng () => (float loss) {\n"
        "x, label = arbalest.Prefetch <source = \"memory:\", batch = 8, fields = [\"x float[3]\", \"label int32[]\"]> "
        "()\ny = model.m (x)\nloss = arbalest.SoftmaxCrossEntropy (" +
            scores +
            ", label)\n"
            "trained = arbalest.Train <lr = 0.1> (loss)\nreport = arbalest.Validate (trained, loss)\n}",
        "graph.onnxtxt", builtin_ops(), 0, {{"", path}});
    try {
      verify_called(graph);
    } catch (const GraphError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string one = fault("y = Add (x, queries)");
  CHECK(one.find("node 'y/y' (Add)") != std::string::npos);
  CHECK(
      one.find("\nthe model was exported for a batch of 2, and the graph uses 8: expected a file whose batch may vary "
               "('dynamic_axes' or 'dynamic_shapes' of torch.onnx.export), or batches of 2 in Prefetch and Validate") !=
      std::string::npos);
  const std::string other = fault("t = Transpose (x)  y = MatMul (t, x)", "float unused = {1}");
  CHECK(other.find("node 'loss' (arbalest.SoftmaxCrossEntropy)") != std::string::npos);
  CHECK(other.find("do not stay apart in the model before it: node 'y/y' (MatMul) of ") != std::string::npos);
  CHECK(fault("y = Relu (x)").empty());
  // Errors that have nothing to do with the batch, or with what a model computes.
  const std::string always = fault("y = Gemm (x, queries)");
  CHECK(always.find("node 'y/y' (Gemm)") != std::string::npos);
  CHECK(always.find("exported for a batch of 2, and") == std::string::npos);
  const std::string own = fault("t = Transpose (x)  y = MatMul (t, x)", "float unused = {1}", "label");
  CHECK(own.find("node 'loss' (arbalest.SoftmaxCrossEntropy)") != std::string::npos);
  CHECK(own.find("do not stay apart") == std::string::npos);
}

}  // namespace samples_apart_test
