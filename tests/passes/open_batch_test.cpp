// SPDX-License-Identifier: Apache-2.0

// Models that were exported for a batch, called with another: each sample has what its own batch gives.

#include <doctest/doctest.h>

#include <cstring>
#include <fstream>
#include <map>

#include "graph/constants.h"
#include "graph/file/graph_file.h"
#include "graph/op.h"
#include "graph/verify/host_node.h"
#include "ops/builtin_ops.h"
#include "passes/samples_apart.h"
#include "tests/graph/file_fixture.h"

using namespace arbalest;

namespace open_batch_test {
namespace {

using Bytes = std::vector<std::byte>;

struct Fixed {
  const char* name;
  int64_t exported;
  const char* sample;  // the shape of a sample of x, after the batch
  std::string initial, nodes;
  int64_t width = 1;  // elements of a sample of y
};

Graph graph_of(const Fixed& model, int64_t called) {
  const FileTestFolder folder;
  const std::string path = folder.file("m.onnxtxt");
  std::ofstream(path) << fmt::format(
      "<ir_version: 8, opset_import: [\"\" : 17]>\nm (float[{}, {}] x) => (float y)\n<{}>\n{{\n{}}}\n", model.exported,
      model.sample, model.initial, model.nodes);
  Graph graph = read_graph_text(fmt::format("<ir_version: 8, opset_import: [\"\" : 17, \"model\" : 1]>\n"
                                            "g (float[{}, {}] x) => () {{ y = model.m (x)  z = Identity (y) }}",
                                            called, model.sample),
                                "graph.onnxtxt", builtin_ops(), 0, {{"", path}});
  verify(graph);
  return graph;
}

// z of the samples from `first` on.
std::vector<float> run(const Graph& graph, int64_t first) {
  std::map<ValueId, std::shared_ptr<const Bytes>> made;
  const TensorType& x = graph.values[graph.inputs[0]].type;
  const int64_t each = x.elements() / x.shape[0];
  std::vector<float> numbers;
  for (int64_t i = 0; i < x.elements(); ++i) numbers.push_back(float((first * each + i) * 7 % 23) / 23 - 0.4f);
  made[graph.inputs[0]] = std::make_shared<Bytes>(bytes_of(numbers));
  const auto content = [&](ValueId value) -> std::shared_ptr<const Bytes> {
    if (const auto found = made.find(value); found != made.end()) return found->second;
    if (const auto known = content_of(graph, value)) return known;
    return graph.values[value].initializer.data;
  };
  for (const Node& node : graph.nodes) {
    if (graph.values[node.outputs[0]].content) continue;
    const HostNode host(graph, node);
    REQUIRE_MESSAGE(host.has_kernel(), node.name);
    const std::vector<std::shared_ptr<Bytes>> results = host.run(content);
    for (size_t i = 0; i < results.size(); ++i) {
      if (node.outputs[i] != kNone) made[node.outputs[i]] = results[i];
    }
  }
  const std::shared_ptr<const Bytes> z = content(graph.find_value("z"));
  std::vector<float> found(z->size() / sizeof(float));
  std::memcpy(found.data(), z->data(), z->size());
  return found;
}

std::string numbers(const std::string& name, const Shape& shape) {
  std::string text = fmt::format("float{} {} = {{", fmt::format("[{}]", fmt::join(shape, ", ")), name);
  for (int64_t i = 0; i < element_count(shape); ++i) text += fmt::format("{}{}", i ? ", " : "", (i * 5 % 13 - 6) * 0.1);
  return text + "}";
}

// Attention over `t` of (samples, tokens, 3).
const std::string kAttention =
    "turned = Transpose <perm = [0, 2, 1]> (t)\nscores = MatMul (t, turned)\nweights = Softmax <axis = -1> (scores)\n"
    "read = MatMul (weights, t)\n";

const std::vector<Fixed> kModels = {
    {"the reshape in front of a classifier", 1, "3, 2, 2", numbers("w", {12, 4}) + ", int64[2] flat = {1, 12}",
     "f = Reshape (x, flat)\ny = MatMul (f, w)\n", 4},
    {"the same of two samples", 2, "3, 2, 2", numbers("w", {12, 4}) + ", int64[2] flat = {2, 12}",
     "f = Reshape (x, flat)\ny = MatMul (f, w)\n", 4},
    {"all that is left, along another axis", 1, "12", "int64[3] tokens = {1, -1, 3}, int64[2] rows = {1, -1}",
     "t = Reshape (x, tokens)\n" + kAttention + "y = Reshape (read, rows)\n", 12},
    {"tokens of two samples", 2, "12", "int64[3] tokens = {2, 4, 3}, int64[2] rows = {2, 12}",
     "t = Reshape (x, tokens)\n" + kAttention + "y = Reshape (read, rows)\n", 12},
    {"heads of all samples along one axis", 2, "4, 6",
     "int64[4] apart = {2, 4, 2, 3}, int64[3] heads = {4, 4, 3}, int64[4] again = {2, 2, 4, 3}, "
     "int64[3] back = {2, 4, 6}",
     "a = Reshape (x, apart)\nb = Transpose <perm = [0, 2, 1, 3]> (a)\nt = Reshape (b, heads)\n" + kAttention +
         "c = Reshape (read, again)\nd = Transpose <perm = [0, 2, 1, 3]> (c)\ny = Reshape (d, back)\n",
     24},
    {"tokens before samples", 2, "4, 6", "int64[3] rows = {4, 4, 3}, int64[3] back = {4, 2, 6}",
     "first = Transpose <perm = [1, 0, 2]> (x)\nr = Reshape (first, rows)\nt = Transpose <perm = [1, 0, 2]> (r)\n" +
         kAttention +
         "u = Transpose <perm = [1, 0, 2]> (read)\nc = Reshape (u, back)\ny = Transpose <perm = [1, 0, 2]> (c)\n",
     24},
    {"a class token that is expanded", 2, "4, 3",
     numbers("token", {1, 1, 3}) + ", int64[3] all = {2, -1, -1}, "
                                   "int64[3] shape = {2, 1, 3}, int64[2] rows = {2, 15}",
     "e = Expand (token, shape)\nt = Concat <axis = 1> (e, x)\n" + kAttention + "y = Reshape (read, rows)\n", 15},
    {"a class token whose expansion an exporter has left out", 1, "4, 3",
     numbers("token", {1, 1, 3}) + ", int64[2] rows = {1, 15}",
     "t = Concat <axis = 1> (token, x)\n" + kAttention + "y = Reshape (read, rows)\n", 15},
    {"positions that are stated for each sample", 2, "4, 3",
     numbers("table", {4, 3}) + ", int64[2, 4] at = {0, 1, 2, 3, 0, 1, 2, 3}, int64[2] rows = {2, 12}",
     "p = Gather <axis = 0> (table, at)\nt = Add (x, p)\n" + kAttention + "y = Reshape (read, rows)\n", 12},
    {"positions that follow from the samples' numbers", 2, "4, 3",
     numbers("table", {4, 3}) +
         ", int64[2, 1] samples = {0, 1}, int64[2] shape = {2, 4}, int64 none = {0}, int64[4] at = {0, 1, 2, 3}, "
         "int64[2] rows = {2, 12}",
     "e = Expand (samples, shape)\nz = Mul (e, none)\nplaces = Add (z, at)\np = Gather <axis = 0> (table, places)\n"
     "t = Add (x, p)\n" +
         kAttention + "y = Reshape (read, rows)\n",
     12},
    {"a copy that names strides", 1, "4, 2, 2",
     numbers("w", {4, 3}) + ", int64[1] flat = {-1}, int64[1, 4] places = {0, 1, 2, 3}",
     "m = ReduceMean <axes = [2, 3]> (x)\nr = Reshape (m, flat)\ng = Gather <axis = 0> (r, places)\n"
     "y = MatMul (g, w)\n",
     3},
    {"sizes of an image and the batch", 2, "1, 2, 2", "int64[4] sizes = {2, 1, 4, 4}, int64[2] rows = {2, 16}",
     "r = Resize <mode = \"nearest\"> (x, , , sizes)\ny = Reshape (r, rows)\n", 16},
};

}  // namespace

TEST_CASE("open batch: in any batch each sample has what the model's own batch gives") {
  for (const Fixed& model : kModels) {
    INFO(model.name);
    const Graph own = graph_of(model, model.exported), open = graph_of(model, 6);
    CHECK_FALSE(find_mixing(open));
    const std::vector<float> all = run(open, 0);
    REQUIRE(all.size() == size_t(6 * model.width));
    for (int64_t first = 0; first < 6; first += model.exported) {
      const std::vector<float> some = run(own, first);
      for (size_t i = 0; i < some.size(); ++i) {
        CHECK(all[size_t(first * model.width) + i] == doctest::Approx(some[i]).epsilon(1e-5));
      }
    }
  }
}

TEST_CASE("open batch: a recurrent layer's states are spread over the samples") {
  const std::string weights = numbers("w", {1, 6, 3}) + ", " + numbers("r", {1, 6, 2}) + ", ";
  for (const int64_t exported : {1, 2}) {
    const std::string state =
        fmt::format("float[1, {}, 2] h = {{{}}}", exported, exported == 1 ? "0, 0" : "0, 0, 0, 0");
    const Fixed model = {"", exported, "5, 3", weights + state,
                         "t = Transpose <perm = [1, 0, 2]> (x)\n"
                         "y, last = GRU <hidden_size = 2> (t, w, r, , , h)\n"};
    const Graph graph = graph_of(model, 6);
    CHECK(graph.values[graph.find_value("z")].type.shape == Shape{5, 1, 6, 2});
    const Fixed last = {"", exported, "5, 3", weights + fmt::format("int64[2] rows = {{{}, 2}}", exported),
                        "t = Transpose <perm = [1, 0, 2]> (x)\n"
                        "all, last = GRU <hidden_size = 2> (t, w, r)\ny = Reshape (last, rows)\n"};
    const Graph flat = graph_of(last, 6);
    CHECK(flat.values[flat.find_value("z")].type.shape == Shape{6, 2});
    const Fixed alone = {"", exported, "5, 3", weights + fmt::format("int64[2] rows = {{{}, 2}}, {}", exported, state),
                         "t = Transpose <perm = [1, 0, 2]> (x)\n"
                         ", last = GRU <hidden_size = 2> (t, w, r, , , h)\ny = Reshape (last, rows)\n"};
    const Graph without_steps = graph_of(alone, 6);
    CHECK(without_steps.values[without_steps.find_value("z")].type.shape == Shape{6, 2});
  }
}

TEST_CASE("open batch: what is not the batch stays as it is") {
  // The constant differs between samples: it belongs to a batch of two.
  const Fixed rows = {"", 2, "2", "float[2, 2] each = {1, 2, 3, 4}", "y = Add (x, each)\n", 2};
  CHECK_THROWS_AS(graph_of(rows, 6), GraphError);
  CHECK(run(graph_of(rows, 2), 0).size() == 4);
  // Weights that are alike at first are as many as the file has.
  const Fixed zeros = {"", 2, "2", "float[2, 2] each = {0, 0, 0, 0}", "y = Add (x, each)\n", 2};
  CHECK_THROWS_AS(graph_of(zeros, 6), GraphError);
  const Graph two = graph_of(zeros, 2);
  CHECK(two.values[two.find_value("each")].type.shape == Shape{2, 2});
  // A number that is made of all samples, and other extents that are open.
  const Fixed greatest = {
      "", 2, "4", "float none = {0}", "s = ReduceMax <keepdims = 0> (x)\nz = Mul (s, none)\ny = Add (x, z)\n", 4};
  CHECK(run(graph_of(greatest, 2), 0).size() == 8);
  const Fixed open = {"",
                      1,
                      "seq, 3",
                      numbers("w", {3, 3}),
                      "t = Transpose <perm = [1, 0, 2]> (x)\nm = MatMul (t, w)\n"
                      "y = Transpose <perm = [1, 0, 2]> (m)\n",
                      3};
  CHECK_THROWS_AS(graph_of(open, 6), GraphError);  // of the caller, whose input has no such extent
  // Two channels of two samples are apart in the middle, whatever the batch is.
  const Fixed channels = {"", 2, "2, 2", "int64[3] shape = {0, 2, 2}", "y = Reshape (x, shape)\n", 4};
  const Graph graph = graph_of(channels, 6);
  CHECK(graph.nodes.size() == 2);
}

}  // namespace open_batch_test
