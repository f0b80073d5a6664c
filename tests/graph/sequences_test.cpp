// SPDX-License-Identifier: Apache-2.0

// Sequences of tensors in models: a graph has their parts alone.

#include <doctest/doctest.h>

#include "passes/passes.h"
#include "tests/graph/model_folder.h"

using namespace arbalest;
using namespace arbalest::test;

TEST_CASE("model: sequences whose parts follow from constants are taken apart") {
  const ModelFolder files;
  const std::string path = files.file("parts.onnxtxt");
  ModelFolder::write(path, R"(<ir_version: 8, opset_import: ["" : 18]>
parts (float[N, 6, 4] x) => (float[N, 12, 4] y)
<int64[3] sizes = {1, 2, 3}, int64 two = {2}, int64 last = {-1}, int64 first = {0}>
{
  one = Constant <value_int = 1> ()
  listed = SplitToSequence <axis = 1> (x, sizes)
  three = SequenceAt (listed, last)
  again = SequenceAt (listed, last)
  equal = SplitToSequence <axis = 1> (x, two)
  middle = SequenceAt (equal, one)
  rows = SplitToSequence <axis = 1, keepdims = 0> (x)
  row = SequenceAt (rows, two)
  both = SequenceConstruct (three, again)
  six = ConcatFromSequence <axis = 1> (both)
  whole = SequenceConstruct (row, row, row, row)
  four = ConcatFromSequence <axis = 1, new_axis = 1> (whole)
  other = SequenceConstruct (middle, x)
  same = SequenceAt (other, first)
  y = Concat <axis = 1> (six, four, same)
})");
  const auto extents = [&](const std::string& name) {
    Graph graph = files.read("y = model.parts <outputs = [\"" + name + "\"]> (x)", {{"", path}}, "float[5,6,4] x");
    verify(graph);
    return graph.values[graph.find_value("y")].type.shape;
  };
  CHECK(extents("three") == Shape{5, 3, 4});
  CHECK(extents("middle") == Shape{5, 2, 4});
  CHECK(extents("row") == Shape{5, 4});
  CHECK(extents("six") == Shape{5, 6, 4});
  CHECK(extents("y") == Shape{5, 12, 4});
  const Graph graph = files.read("y = model.parts (x)", {{"", path}}, "float[5,6,4] x");
  CHECK(only(graph, "Split").outputs.size() == 3);
  CHECK(ints_attribute(*graph.find_op("Slice"), "starts") == std::vector<int64_t>{2});

  // Past the ends, at a place or of sizes that are computed, and a sequence that another operator reads.
  for (const char* nodes : {"s = SplitToSequence <axis = 1> (x, sizes)\ny = SequenceAt (s, three)\n",
                            "s = SplitToSequence <axis = 1> (x, sizes)\nat = Size (x)\ny = SequenceAt (s, at)\n",
                            "at = Concat <axis = 0> (one, three)\ns = SplitToSequence <axis = 1> (x, at)\n"
                            "y = SequenceAt (s, one)\n",
                            "s = SplitToSequence <axis = 1> (x, sizes)\na = SequenceAt (s, one)\n"
                            "t = SequenceInsert (s, a)\ny = SequenceAt (t, one)\n"}) {
    ModelFolder::write(path,
                       std::string("<ir_version: 8, opset_import: [\"\" : 18]>\nparts (float[N, 6] x) => (float[N, 1] "
                                   "y)\n<int64[3] sizes = {1, 2, 3}, int64 three = {3}, int64 one = {1}>\n{\n") +
                           nodes + "}\n");
    INFO(nodes);
    CHECK(has(files.fault("y = model.parts (x)", {{"", path}}), "SplitToSequence: node 's'"));
  }
}

TEST_CASE("model: parts of a size that follows from the batch are slices") {
  const ModelFolder files;
  const std::string path = files.file("chunks.onnxtxt");
  ModelFolder::write(path, R"(<ir_version: 8, opset_import: ["" : 17]>
chunks (float[N, 3] x) => (float[M, 3] first, float[M, 3] second)
<int64 zero = {0}, int64 one = {1}, int64 two = {2}>
{
  extent = Shape <end = 1> (x)
  n = Squeeze (extent)
  more = Add (n, one)
  half = Div (more, two)
  parts = SplitToSequence <axis = 0> (x, half)
  first = SequenceAt (parts, zero)
  second = SequenceAt (parts, one)
})");
  Graph graph = files.read("a, b = model.chunks <outputs = [\"first\", \"second\"]> (x)", {{"", path}}, "float[5,3] x");
  verify(graph);
  CHECK(graph.values[graph.find_value("a")].type.shape == Shape{3, 3});
  CHECK(graph.values[graph.find_value("b")].type.shape == Shape{2, 3});
}

TEST_CASE("model: what SequenceMap makes of a listed sequence is computed part by part") {
  const ModelFolder files;
  const std::string path = files.file("mapped.onnxtxt");
  ModelFolder::write(path, R"(<ir_version: 8, opset_import: ["" : 18]>
mapped (float[N, 6, 4] x) => (float[N, 6, 4] y)
<int64 zero = {0}, int64 one = {1}, int64[1] axis = {1}>
{
  row = ReduceMean <keepdims = 0> (x, axis)
  rows = Neg (row)
  both = SequenceConstruct (x, rows)
  factors = SequenceConstruct (rows, x)
  made = SequenceMap (both, factors, row) <body = part (t, other, all) => (u) {
    shape = Shape (t)
    rank = Size (shape)
    three = Constant <value = int64 {3}> ()
    high = Equal (rank, three)
    u = If (high) <then_branch = a () => (p) { p = Identity (t) }, else_branch = b () => (q) { q = Mul (t, all) }>
  }>
  first = SequenceAt (made, zero)
  second = SequenceAt (made, one)
  y = Add (first, x)
})");
  const auto shape_of = [&](const std::string& name) {
    Graph graph = files.read("y = model.mapped <outputs = [\"" + name + "\"]> (x)", {{"", path}}, "float[5,6,4] x");
    verify(graph);
    return graph.values[graph.find_value("y")].type.shape;
  };
  CHECK(shape_of("first") == Shape{5, 6, 4});
  CHECK(shape_of("second") == Shape{5, 4});
  CHECK(shape_of("y") == Shape{5, 6, 4});
}

TEST_CASE("model: a part takes the place of an initialiser, and outputs of SequenceMap may be left out") {
  const ModelFolder files;
  const std::string path = files.file("mapped.onnxtxt");
  ModelFolder::write(path, R"(<ir_version: 3, opset_import: ["" : 18]>
mapped (float[N, 2] x) => (float[N, 2] y)
<int64 one = {1}>
{
  other = Exp (x)
  both = SequenceConstruct (x, other)
  , made = SequenceMap (both) <body = part (t) => (u, v) <float[2] t = {7, 7}, float[2] w = {3, 4}> {
    u = Abs (t)
    v = Mul (t, w)
  }>
  y = SequenceAt (made, one)
})");
  const Graph graph = files.read("y = model.mapped (x)", {{"", path}}, "float[5,2] x");
  const Node& product = only(graph, "Mul");  // of the second part alone, which is read
  CHECK(product.inputs[0] == only(graph, "Exp").outputs[0]);
  CHECK(floats(graph.values[product.inputs[1]]) == std::vector<float>{3, 4});
}

TEST_CASE("model: what SequenceMap cannot make is refused, before it is made") {
  const ModelFolder files;
  const std::string path = files.file("mapped.onnxtxt");
  const auto fault = [&](const std::string& nodes) {
    ModelFolder::write(
        path,
        "<ir_version: 8, opset_import: [\"\" : 18]>\nmapped (float[N, 2] x) => (float[N, 2] y)\n{\n" + nodes + "}\n");
    return files.fault("y = model.mapped (x)", {{"", path}});
  };
  const std::string two = "a = SequenceConstruct (x, x)\n", three = "b = SequenceConstruct (x, x, x)\n";
  const std::string sum = " <body = part (t, u) => (v) { v = Add (t, u) }>\n";
  CHECK(has(fault(two + three + "y = SequenceMap (a, b)" + sum),
            "mapped.onnxtxt:6:5: node 'y' (SequenceMap): input 1 has 3 parts; expected 2, as input 0 has"));
  CHECK(has(fault(two + three + "y = SequenceMap (b, a)" + sum), "input 1 has 2 parts; expected 3, as input 0 has"));
  // Bodies within bodies, each for two parts: as many as 2 to the power of their depth.
  std::string map = "v = Neg (t)";
  for (int i = 0; i < 40; ++i) map = "v = SequenceMap (a) <body = part (t) => (v) { " + map + " }>";
  CHECK(has(fault(two + map), "the file's bodies have more than 1048576 names"));
}
