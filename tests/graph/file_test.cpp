// SPDX-License-Identifier: Apache-2.0

// Graph files: what is read, what is written, and that one gives the other.

#include "graph/file/graph_file.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>

#include "graph/field.h"
#include "ops/builtin_ops.h"
#include "tests/graph/file_fixture.h"

using namespace arbalest;

namespace file_test {
namespace {

Graph read(const std::string& text, int64_t batch = 0) {
  return read_graph_text(text, "t.onnxtxt", file_test_ops(), batch);
}

template <typename T>
std::vector<T> data_of(const Graph& graph, const std::string& name) {
  const auto& bytes = *graph.values.at(graph.find_value(name)).initializer.data;
  std::vector<T> items(bytes.size() / sizeof(T));
  std::memcpy(items.data(), bytes.data(), bytes.size());
  return items;
}

const Value& value(const Graph& graph, const std::string& name) {
  return graph.values.at(graph.find_value(name));
}
const Node& node(const Graph& graph, const std::string& name) {
  return graph.nodes.at(graph.find_node(name));
}

// Everything the syntax has, in one file.
const char* const kEverything = R"(# a comment
<ir_version: 8, opset_import: ["" : 17, "arbalest" : 1, "block" : 1], producer_name: "test", producer_version: "1",
 domain: "d", model_version: 3, doc_string: "several
lines", metadata_props: ["k" : "v", "k2" : "v2"]>
everything (float[N, 3, 8, 8] x, float[2] biased = {1, -2.5}) => (float[N, 3, 8, 8] y, z, untyped)
<
  float[2, 2] w = {1, 2.5, -3e-2, 1e10}, int64[3] shape = {1, -2, 9223372036854775807}, double scalar = {0.1},
  uint8[2] bytes = {0, 255}, int32[0] none = {}, bfloat16[1] half = {16256}, float[1] infinite = {-inf}
  , float[N, 3, 8, 8] c
>
{
  image, label = arbalest.Prefetch <source = "a \"quoted\" \\ path\n\x41", tags = ["a", "b"]> ()
  one = Constant <value = float[2] {1, 2}> ()
  two = Constant <value_int = 7> ()
  c = Conv <strides = [2, 1], group = 3> (x, w, )
  d = Conv (x, w) <group = 2>
  ["label 1"] e = Clip (c, , d)
  , f = Split (e)
  "g/h.i" = Concat <axis = -1> (f, "e", e, one)
  g2 = block.twice <filters = 4> ("g/h.i")
  trained = arbalest.Train <lr = 1, momentum: float = 1, milestones = [1, 2.5, 3], schedule = "x"> (g2)
  y = Relu (c)
  z = Relu (d)
  untyped = Relu (g2)
}
<domain: "block", opset_import: ["" : 17, "arbalest" : 1], doc_string: "text">
twice <filters, strides = [1, 1], slope: float = 2, n: int = 3> (a) => (b)
<float[1] bias = {1}>
{
  inner = block.once <filters = @filters, strides: ints = @strides> (a)
  b = Add (inner, bias)
}
<domain: "block">
once <filters, strides = [7]> (float[N] a, unused) => (float[N] b)
{
  c1 = arbalest.Conv <filters: int = @filters, strides = @strides> (a)
  t = Clip (c1, unused)
  b = Relu (t)
}
)";

}  // namespace

TEST_CASE("graph file: every construct of the syntax is read") {
  const Graph graph = read(kEverything);
  CHECK(graph.name == "everything");
  CHECK(graph.opsets == std::vector<std::pair<std::string, int64_t>>{{"", 17}, {"arbalest", 1}, {"block", 1}});
  REQUIRE(graph.inputs.size() == 1);
  CHECK(value(graph, "x").type == TensorType{DataType::Float32, {-1, 3, 8, 8}});
  CHECK(value(graph, "x").role == Role::Input);
  CHECK(value(graph, "y").declared->shape == Shape{-1, 3, 8, 8});
  CHECK(value(graph, "c").declared.has_value());
  CHECK_FALSE(value(graph, "z").declared.has_value());

  CHECK(value(graph, "w").role == Role::Parameter);
  CHECK(data_of<float>(graph, "w") == std::vector<float>{1, 2.5f, -3e-2f, 1e10f});
  CHECK(data_of<float>(graph, "biased") == std::vector<float>{1, -2.5f});
  CHECK(value(graph, "shape").role == Role::Constant);
  CHECK(data_of<int64_t>(graph, "shape") == std::vector<int64_t>{1, -2, std::numeric_limits<int64_t>::max()});
  CHECK(data_of<double>(graph, "scalar") == std::vector<double>{0.1});
  CHECK(value(graph, "scalar").type == TensorType{DataType::Float64, {}});
  CHECK(data_of<uint8_t>(graph, "bytes") == std::vector<uint8_t>{0, 255});
  CHECK(value(graph, "none").type.elements() == 0);
  CHECK(data_of<uint16_t>(graph, "half") == std::vector<uint16_t>{bfloat16(1.0f).bits});
  CHECK(data_of<float>(graph, "infinite")[0] == -std::numeric_limits<float>::infinity());
  CHECK(value(graph, "one").role == Role::Constant);
  CHECK(data_of<float>(graph, "one") == std::vector<float>{1, 2});
  CHECK(data_of<int64_t>(graph, "two") == std::vector<int64_t>{7});

  CHECK(string_attribute(node(graph, "image"), "source") == "a \"quoted\" \\ path\nA");
  CHECK(*node(graph, "image").attributes.find("tags") == Attribute(std::vector<std::string>{"a", "b"}));
  CHECK(node(graph, "c").inputs.size() == 3);
  CHECK(node(graph, "c").inputs[2] == kNone);
  CHECK(int_attribute(node(graph, "d"), "group") == 2);
  CHECK(node(graph, "label 1").outputs[0] == graph.find_value("e"));
  CHECK(node(graph, "label 1").inputs[1] == kNone);
  CHECK(node(graph, "f").outputs[0] == kNone);
  CHECK(node(graph, "g/h.i").inputs.size() == 4);
  CHECK(*node(graph, "trained").attributes.find("milestones") == Attribute(std::vector<double>{1, 2.5, 3}));
  CHECK(*node(graph, "trained").attributes.find("momentum") == Attribute(1.0));
  CHECK(*node(graph, "trained").attributes.find("lr") == Attribute(int64_t{1}));
  CHECK(float_attribute(node(graph, "trained"), "lr") == 1.0);
  CHECK(node(graph, "c").where.line == 15);
  CHECK(node(graph, "c").where.column == 7);
  CHECK(node(graph, "c").where.file == "t.onnxtxt");
}

TEST_CASE("graph file: a byte order mark and other line ends are no part of the text") {
  const std::string text =
      "# a comment\n<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
      "g (float[2] x) => (float[2] y)\n{\n  y = Relu (x)  # another\n}\n";
  const std::string expected = write_graph_text(read(text));
  for (const char* end : {"\n", "\r\n", "\r"}) {
    std::string other = "\xef\xbb\xbf";
    for (const char c : text) c == '\n' ? other += end : other += c;
    CHECK(write_graph_text(read(other)) == expected);
  }
  try {
    read("\xff\xfe<\0");
    FAIL("UTF-16 was read");
  } catch (const GraphError& error) {
    CHECK(std::string(error.what()).find("t.onnxtxt:1:1: found UTF-16, expected text in UTF-8") != std::string::npos);
  }
}

TEST_CASE("graph file: functions are inlined with their attributes, values named after the instance") {
  const Graph graph = read(kEverything);
  const Node& conv = node(graph, "g2/inner/c1");
  CHECK(conv.op->qualified_name() == "arbalest.Conv");
  CHECK(int_attribute(conv, "filters") == 4);
  CHECK(ints_attribute(conv, "strides") == std::vector<int64_t>{1, 1});  // twice's default, not once's
  CHECK(conv.inputs[0] == graph.find_value("g/h.i"));
  CHECK(node(graph, "g2/inner/t").inputs == std::vector<ValueId>{graph.find_value("g2/inner/c1"), kNone});
  CHECK(node(graph, "g2/inner").op->name == "Relu");  // the function's output under the caller's name
  CHECK(node(graph, "g2").op->name == "Add");
  CHECK(value(graph, "g2/bias").role == Role::Parameter);
  CHECK(value(graph, "g2").declared == std::nullopt);
  CHECK(conv.where.line == 36);  // where it is written
}

TEST_CASE("graph file: names of nested instances do not meet, whichever output they compute") {
  const Graph graph = read(R"(g (float[2] x) => (float[2] h1)
{ h1 = outer (x) }
outer (a) => (b) { c1 = Relu (a) b = inner (c1) }
inner (a) => (b) { c1 = Relu (a) b = Relu (c1) })");
  REQUIRE(graph.nodes.size() == 3);
  CHECK(graph.nodes[0].name == "h1/c1");
  CHECK(graph.nodes[1].name == "h1/b/c1");
  CHECK(graph.nodes[2].name == "h1");
}

TEST_CASE("graph file: a batch binds the first symbol, and what stays unknown is refused by verify") {
  const std::string text = "g (float[N, 3] x, float[M, N] w) => (float[N, 3] y) { y = Relu (x) }";
  const Graph bound = read(text, 16);
  CHECK(value(bound, "x").type.shape == Shape{16, 3});
  CHECK(value(bound, "w").type.shape == Shape{-1, 16});
  CHECK(value(bound, "y").declared->shape == Shape{16, 3});
  Graph unknown = read(text);
  const std::string message = error_of([&] { verify(unknown); });
  CHECK(message.find("t.onnxtxt:1:") == 0);
  CHECK(message.find("'x'") != std::string::npos);
  Graph known = read("g (float[N, 3] x) => (float[N, 3] y) { y = Relu (x) }", 16);
  CHECK(error_of([&] { verify(known); }) == "");
  Graph wrong = read("g (float[N, 3] x) => (float[N, 4] y) { y = Relu (x) }", 16);
  CHECK(error_of([&] { verify(wrong); }).find("'y' is float[16,3], declared as float[16,4]") != std::string::npos);
}

TEST_CASE("graph file: graph to text to graph is the identity") {
  const Graph graph = read(kEverything);
  const std::string text = write_graph_text(graph);
  const Graph again = read(text);
  CHECK(difference(graph, again) == "");
  CHECK(write_graph_text(again) == text);
  CHECK(text.find("[\"label 1\"] e = Clip (c, , d)") != std::string::npos);
  CHECK(text.find("  , f = Split (e)") != std::string::npos);
  CHECK(text.find("\"g2/inner\" = Relu") != std::string::npos);
  CHECK(text.find("float[?, 3, 8, 8] x") != std::string::npos);
}

TEST_CASE("graph file: random graphs survive the round trip to the last bit") {
  std::mt19937 random(7);
  const auto below = [&](int n) { return int(random() % unsigned(n)); };
  const auto text = [&] {
    std::string out;
    const int letters = 1 + below(6);
    const std::string_view alphabet = "ab_Z09/.:\"\\ \n\t\r\xc3\xa4#<>{}()=@,[]\x01";
    for (int i = 0; i < letters; ++i) out += alphabet[size_t(below(int(alphabet.size())))];
    return out;
  };
  const auto number = [&] {
    const uint64_t bits = (uint64_t(random()) << 32) | random();
    double result;
    std::memcpy(&result, &bits, sizeof result);
    return std::isnan(result) ? 0.1 : result;
  };
  for (int round = 0; round < 300; ++round) {
    Graph graph;
    graph.name = text();
    graph.opsets = {{"", 17}, {"arbalest", 1}, {text(), below(9)}};
    for (int i = 0, n = 1 + below(2); i < n; ++i) {
      graph.inputs.push_back(graph.add_value(text(), {DataType::Float32, {below(3) - 1, 2}}, Role::Input));
    }
    for (int i = 0, n = below(4); i < n; ++i) {
      const DataType types[] = {DataType::Float32, DataType::Float64, DataType::Bfloat16,
                                DataType::Uint8,   DataType::Int32,   DataType::Int64};
      const TensorType type{types[below(6)], {below(3), 2}};
      const Role role = is_floating(type.dtype) && below(2) ? Role::Parameter : Role::Constant;
      auto bytes = std::make_shared<std::vector<std::byte>>(size_t(type.bytes()));
      for (std::byte& byte : *bytes)
        byte = std::byte(below(127));  // no NaN: a sign and the exponent's top bit are clear
      Value& added = graph.values[graph.add_value(text(), type, role)];
      added.initializer = {Initializer::Kind::Data, 0, std::move(bytes)};
    }
    for (int i = 0, n = 1 + below(6); i < n; ++i) {
      Attributes attributes;
      const Attribute choices[] = {Attribute(int64_t(random())),
                                   Attribute(number()),
                                   Attribute(text()),
                                   Attribute(std::vector<int64_t>(size_t(below(3)), -int64_t(random()))),
                                   Attribute(std::vector<double>(size_t(below(3)), number())),
                                   Attribute(std::vector<std::string>(size_t(below(3)), text()))};
      for (const char* name : {"axis", "other", "third"}) {
        if (below(2)) attributes.set(name, choices[below(6)]);
      }
      std::vector<ValueId> inputs;
      for (int k = below(4); k > 0; --k) inputs.push_back(below(4) ? ValueId(below(int(graph.values.size()))) : kNone);
      const NodeId id = graph.add_node(file_test_ops().get(below(2) ? "Split" : "arbalest.Train"), text(), inputs,
                                       1 + below(2), std::move(attributes));
      Node& added = graph.nodes[id];
      while (graph.find_node(added.name) != id) added.name += "x";
    }
    graph.outputs = {graph.nodes.back().outputs[0]};
    const std::string written = write_graph_text(graph);
    CAPTURE(written);
    REQUIRE(difference(graph, read(written)) == "");
  }
}

TEST_CASE("graph file: what only passes make cannot be written") {
  Graph graph = read("g (float[2] x) => (float[2] y) { y = Relu (x) }");
  Graph internal = graph;
  internal.nodes[0].op = &file_test_ops().get("arbalest.ReluGrad");
  CHECK(error_of([&] { write_graph_text(internal); }).find("arbalest.ReluGrad") != std::string::npos);
  Graph state = graph;
  state.add_value("running", {DataType::Float32, {2}}, Role::State);
  CHECK(error_of([&] { write_graph_text(state); }).find("'running' is a state") != std::string::npos);
  Graph filled = graph;
  Value& constant = filled.values[filled.add_value("w", {DataType::Float32, {2}}, Role::Parameter)];
  constant.initializer.a = 0.5;
  CHECK(write_graph_text(filled).find("float[2] w = {0.5, 0.5}") != std::string::npos);
  constant.initializer.kind = Initializer::Kind::Normal;
  CHECK(error_of([&] { write_graph_text(filled); }).find("'w' is random") != std::string::npos);
}

TEST_CASE("graph file: files are written whole, and errors name the path") {
  const FileTestFolder folder;
  const Graph graph = read(kEverything);
  const std::string path = folder.file("model.onnxtxt");
  write_graph_file(graph, path);
  CHECK(difference(graph, load_graph(path, file_test_ops())) == "");
  write_graph_file(graph, folder.file("model.txt"));
  write_graph_file(graph, folder.file("no_extension"));
  CHECK(difference(graph, load_graph(folder.file("model.txt"), file_test_ops())) == "");
  CHECK(difference(graph, load_graph(folder.file("no_extension"), file_test_ops())) == "");
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 3);  // nothing temporary stays
  CHECK_THROWS_AS(write_graph_file(graph, folder.file("missing/model.onnxtxt")), RunError);
  const auto refusal = [&](const std::string& file) { return error_of([&] { load_graph(file, file_test_ops()); }); };
  const std::string missing = ": cannot be read: No such file or directory";
  CHECK(refusal(folder.file("absent.onnxtxt")) == folder.file("absent.onnxtxt") + missing);
  CHECK(refusal(folder.file("modle.onnxtxt")) ==
        folder.file("modle.onnxtxt") + missing + "; did you mean '" + path + "'?");
  CHECK(refusal(folder.file("model")) == folder.file("model") + missing + "; did you mean '" + path + "'?");
  CHECK(refusal(folder.file("model.onnx")) == folder.file("model.onnx") + missing + "; did you mean '" + path + "'?");
  write_graph_file(graph, folder.file("model.onnx"));
  CHECK(refusal(folder.file("modle.onnx")).ends_with("; did you mean '" + folder.file("model.onnx") + "'?"));
  CHECK(refusal(folder.file("modle.onnxtxt")).ends_with("; did you mean '" + path + "'?"));
  std::filesystem::create_symlink("nowhere", folder.file("link.onnxtxt"));
  std::filesystem::create_directory(folder.file("lonk.onnxtxt"));
  CHECK(refusal(folder.file("link.onnxtxt")) == folder.file("link.onnxtxt") + missing);
  CHECK(refusal(folder.path.string() + "/").find("cannot be read: Is a directory") != std::string::npos);
}

TEST_CASE("graph file: the examples are read, and written they read back the same") {
  const char* source = std::getenv("ARBALEST_SOURCE");
  REQUIRE(source);
  const std::pair<const char*, size_t> examples[] = {{"lenet", 13},    {"mlp", 11},      {"resnet20", 48},
                                                     {"resnet32", 72}, {"resnet18", 47}, {"resnet50", 96}};
  for (const auto& [name, nodes] : examples) {
    CAPTURE(name);
    const Graph graph = load_graph(fmt::format("{}/examples/{}.onnxtxt", source, name), builtin_ops());
    CHECK(graph.nodes.size() == nodes);
    CHECK(difference(graph, read_graph_text(write_graph_text(graph), "again", builtin_ops())) == "");
  }
  Graph resnet = load_graph(fmt::format("{}/examples/resnet20.onnxtxt", source), builtin_ops());
  CHECK(ints_attribute(node(resnet, "h4/shortcut"), "strides") == std::vector<int64_t>{2, 2});
  CHECK(int_attribute(node(resnet, "h7/c2"), "filters") == 64);
  set_fields(resnet.nodes[0], {{"image", DataType::Uint8, {3, 32, 32}}, {"label", DataType::Int32, {}}});
  verify(resnet);
  CHECK(value(resnet, "h9").type == TensorType{DataType::Float32, {128, 64, 8, 8}}.in(Layout::ChannelsLast));
  CHECK(value(resnet, "loss").type.shape.empty());
}

}  // namespace file_test
