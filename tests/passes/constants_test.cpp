// SPDX-License-Identifier: Apache-2.0

// Facts that are known when a graph is read: constants, shapes, and values derived from them.

#include "graph/constants.h"

#include <doctest/doctest.h>

#include <cstring>

#include "passes/program.h"
#include "tests/graph/file_fixture.h"
#include "tests/passes/net.h"

using namespace arbalest;
using namespace arbalest::test;

namespace constants_test {
namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

const std::string kHead = "logits = arbalest.Linear <units = 3> (h)\n" + std::string(kLoss);

std::vector<int64_t> integers(const Graph& graph, std::string_view name) {
  const auto content = content_of(graph, graph.find_value(name));
  REQUIRE(content);
  std::vector<int64_t> numbers(content->size() / sizeof(int64_t));
  if (!numbers.empty()) std::memcpy(numbers.data(), content->data(), content->size());
  return numbers;
}

const Node& node_of(const Graph& graph, std::string_view name) {
  const NodeId id = graph.find_node(name);
  REQUIRE(id != kNone);
  return graph.nodes[id];
}

// x is float[4,2,6,6].
std::string refusal(const std::string& nodes, const std::string& initial = "") {
  return error_of([&] { net(nodes + kHead + initial); });
}

}  // namespace

TEST_CASE("constants that layers are made of have the type of what they work on, bfloat16 as well") {
  for (const std::string nodes :
       {"t = arbalest.Linear <units = 6> (x)\nmaps = Reshape <shape = [0, 2, 3]> (t)\nlow = Cast <to = 16> (maps)\n"
        "made = AffineGrid <size = [4, 1, 5, 7]> (low)\n",
        "columns = Reshape <shape = [0, 8, 9]> (x)\nlow = Cast <to = 16> (columns)\n"
        "made = Col2Im <image_shape = [6, 6], block_shape = [2, 2], strides = [2, 2]> (low)\n"}) {
    INFO(nodes);
    Graph graph = net(nodes + "wide = Cast <to = 1> (made)\nh = Flatten (wide)\n" + kHead);
    expand_layers(graph);
    const Value& places = graph.values[graph.find_value("made.places")];
    CHECK(places.type.dtype == DataType::Bfloat16);
    REQUIRE(places.initializer.data);
    CHECK(int64_t(places.initializer.data->size()) == places.type.bytes());
  }
}

TEST_CASE("shapes, and what is computed of constants alone, are known when a graph is read") {
  const Graph graph =
      net("whole = Shape (x)\n"
          "count = Size (x)\n"
          "middle = Shape <start = 1, end = -1> (x)\n"
          "none = Shape <start = 3, end = 1> (x)\n"
          "column = Unsqueeze (whole, last)\n"
          "half = Constant <value = float[2] {0.5, 0.25}> ()\n"
          "sum = Add (half, half)\n"
          "scale = Reshape <shape = [2, 1, 1]> (sum)\n"
          "scaled = Mul (x, scale)\n"
          "pixels = ReduceProd <keepdims = 0> (middle, first)\n"
          "h = Mul (scaled, weights)\n" +
          kHead + "#initial float[2, 1, 1] weights = {1, 2}, int64[1] last = {-1}, int64[1] first = {0}");
  CHECK(integers(graph, "whole") == std::vector<int64_t>{4, 2, 6, 6});
  CHECK(integers(graph, "count") == std::vector<int64_t>{288});
  CHECK(integers(graph, "middle") == std::vector<int64_t>{2, 6});
  CHECK(integers(graph, "pixels") == std::vector<int64_t>{12});
  CHECK(integers(graph, "none").empty());
  CHECK(graph.values[graph.find_value("column")].type.shape == Shape{4, 1});
  const auto scale = content_of(graph, graph.find_value("scale"));
  REQUIRE(scale);
  float second = 0;
  std::memcpy(&second, scale->data() + sizeof(float), sizeof(float));
  CHECK(second == 0.5f);
  CHECK_FALSE(content_of(graph, graph.find_value("scaled")));
  CHECK_FALSE(content_of(graph, graph.find_value("weights")));  // training changes them

  const Graph step = make_program(graph, {}).training().graph;
  for (const char* name : {"whole", "count", "column", "sum", "scale"}) CHECK(step.find_node(name) == kNone);
  CHECK(step.values[step.find_value("scale")].role == Role::Constant);
}

TEST_CASE("EyeLike is known when a graph is read, for every batch") {
  const Graph graph =
      net("h = Flatten (x)\n"
          "product = Gemm <transB = 1> (h, h)\n"
          "eye = EyeLike <dtype = 7> (product)\n"
          "above = EyeLike <dtype = 9, k = 3> (product)\n"
          "far = EyeLike <k = -9223372036854775808, dtype = 7> (product)\n" +
          kHead);
  using Integers = std::vector<int64_t>;
  CHECK(integers(graph, "eye") == Integers{1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1});
  const auto above = content_of(graph, graph.find_value("above"));
  REQUIRE(above);
  CHECK(above->size() == 16);
  CHECK(std::count(above->begin(), above->end(), std::byte{1}) == 1);
  CHECK((*above)[3] == std::byte{1});
  CHECK(integers(graph, "far") == Integers(16));
  CHECK(has(refusal("eye = EyeLike (x)\nh = Flatten (x)\n"), "'input' is float[4,2,6,6]; expected a matrix"));
  CHECK(has(refusal("h = Flatten (x)\neye = EyeLike <dtype = 8> (h)\n"), "attribute 'dtype' is 8 (string)"));
}

TEST_CASE("NonZero of what is known when a graph is read has a known number of results") {
  const Graph graph =
      net("half = Constant <value = float[2, 3] {0, -0.5, 2, -0.0, 0, 1e-40}> ()\n"
          "some = NonZero (half)\n"
          "whole = Shape (x)\n"
          "wide = Greater (whole, four)\n"
          "axes = NonZero (wide)\n"
          "none = NonZero (zero)\n"
          "h = Reshape <shape = [4, 72]> (x)\n" +
          kHead + "#initial int64 four = {4}, int64[3] zero = {0, 0, 0}");
  using Integers = std::vector<int64_t>;
  CHECK(integers(graph, "some") == Integers{0, 0, 1, 1, 2, 2});
  CHECK(graph.values[graph.find_value("some")].type.shape == Shape{2, 3});
  CHECK(integers(graph, "axes") == Integers{2, 3});
  CHECK(graph.values[graph.find_value("none")].type.shape == Shape{1, 0});
  CHECK(has(refusal("h = Flatten (x)\nsome = NonZero (h)\n"),
            "input 'X' is float[4,72], computed when the graph runs, so that the number of results would change"));
}

TEST_CASE("arithmetic of shapes, ranges and choices are known when a graph is read") {
  const Graph graph =
      net("whole = Shape (x)\n"
          "two = Constant <value_int = 2> ()\n"
          "half = Div (whole, two)\n"
          "odd = Mod (whole, four)\n"
          "even = Equal (odd, zero)\n"
          "chosen = Where (even, half, whole)\n"
          "axes = Range (zero, four, one)\n"
          "down = Range (four, zero, step)\n"
          "none = Range (four, zero, one)\n"
          "third = Constant <value_float = 0.3333> ()\n"
          "sizes = Cast <to = 1> (whole)\n"
          "scaled = Mul (sizes, third)\n"
          "floors = Floor (scaled)\n"
          "thirds = Cast <to = 7> (floors)\n"
          "least = Constant <value_int = 2> ()\n"
          "clipped = Clip (thirds, least)\n"
          "h = Reshape <shape = [4, 72]> (x)\n" +
          kHead + "#initial int64 four = {4}, int64 zero = {0}, int64 one = {1}, int64 step = {-3}");
  using Integers = std::vector<int64_t>;
  CHECK(integers(graph, "half") == Integers{2, 1, 3, 3});
  CHECK(integers(graph, "odd") == Integers{0, 2, 2, 2});
  CHECK(integers(graph, "chosen") == Integers{2, 2, 6, 6});
  CHECK(integers(graph, "axes") == Integers{0, 1, 2, 3});
  CHECK(integers(graph, "down") == Integers{4, 1});
  CHECK(integers(graph, "none").empty());
  CHECK(integers(graph, "thirds") == Integers{1, 0, 1, 1});
  CHECK(integers(graph, "clipped") == Integers{2, 2, 2, 2});
  const Graph random =
      net("ones = Constant <value = float[4] {1, 1, 1, 1}> ()\n"
          "some = Dropout <training_mode = 1> (ones)\n"
          "h = Reshape <shape = [4, 72]> (x)\n" +
          kHead);
  CHECK_FALSE(content_of(random, random.find_value("some")));  // each iteration draws anew
  CHECK(has(refusal("r = Range (zero, four, zero)\nh = Flatten (x)\n", "#initial int64 four = {4}, int64 zero = {0}"),
            "input 'delta' is 0"));
  CHECK(has(refusal("s = Flatten (x)\nr = Range (s, s, s)\nh = Flatten (x)\n"),
            "input 'start' ('s') is computed when the graph runs; expected a constant"));
  CHECK(has(refusal("r = Range (zero, most, one)\nh = Flatten (x)\n",
                    "#initial int64 zero = {0}, int64 one = {1}, int64 most = {100000000}"),
            "the output would have 100000000 elements; expected at most 2097152"));
}

TEST_CASE("a constant in the type of another value is known, whatever that value holds") {
  const Graph graph =
      net("least = Constant <value = int64 {-1}> ()\n"
          "most = Constant <value = int64 {2}> ()\n"
          "low = CastLike (least, x)\n"
          "high = CastLike (most, x)\n"
          "h0 = Clip (x, low, high)\n"
          "truth = Greater (x, low)\n"
          "signs = Constant <value = float[3] {0, 0.25, -2}> ()\n"
          "bits = CastLike (signs, truth)\n"
          "start = Constant <value_float = 1.9> ()\n"
          "from = CastLike (start, most)\n"
          "range = Range (from, last, from)\n"
          "y = CastLike (x, low)\n"
          "h = Mul (h0, y)\n" +
          kHead + "#initial int64 last = {4}");
  CHECK(integers(graph, "range") == std::vector<int64_t>{1, 2, 3});
  const auto bits = content_of(graph, graph.find_value("bits"));
  REQUIRE(bits);
  CHECK(*bits == std::vector<std::byte>{std::byte{0}, std::byte{1}, std::byte{1}});
  CHECK_FALSE(content_of(graph, graph.find_value("y")));
  const Graph step = make_program(graph, {}).training().graph;
  CHECK(float_attribute(step.nodes[step.find_node("h0")], "min") == -1);
  CHECK(float_attribute(step.nodes[step.find_node("h0")], "max") == 2);
}

TEST_CASE("a range of integers that are far apart has just the numbers that fit") {
  const Graph graph = net("far = Range (least, most, step)\nh = Flatten (x)\n" + kHead +
                          "#initial int64 least = {-9223372036854775807}, int64 most = {9223372036854775807}, "
                          "int64 step = {4611686018427387904}");
  CHECK(integers(graph, "far") ==
        std::vector<int64_t>{-9223372036854775807, -4611686018427387903, 1, 4611686018427387905});
}

TEST_CASE("what is computed of constants alone is bounded, for a node and for all of them") {
  const std::string large = "number = Constant <value_float = 0.5> ()\nlarge = Expand (number, side)\n";
  const std::string initial = "#initial int64[2] side = {2048, 2048}";
  const Graph graph = net(large + "product = MatMul (large, large)\nh = Flatten (x)\n" + kHead + initial);
  CHECK(content_of(graph, graph.find_value("large")));
  CHECK_FALSE(content_of(graph, graph.find_value("product")));  // 2^34 operations: computed when the graph runs
  std::string sums;
  for (int i = 0; i < 100; ++i) sums += fmt::format("y{} = ReduceSum (large)\n", i);
  CHECK(has(refusal(large + sums + "h = Flatten (x)\n", initial),
            "(ReduceSum): what follows from constants alone up to here is too much to compute"));
}

TEST_CASE("a mask of shifted windows, put together region by region, is known when a graph is read") {
  // As Swin transformers are exported. The last two rows of a 6×6 image are a region of their own, and tokens of a 3×3
  // window attend to those of their region alone.
  const Graph graph =
      net("nothing = ConstantOfShape (size)\n"
          "columns = Range (zero, six, one)\n"
          "band = Slice <starts = [-2], ends = [6], axes = [0]> (columns)\n"
          "rows = Unsqueeze <axes = [1]> (band)\n"
          "all_rows = Expand <shape = [2, 6]> (rows)\n"
          "all_columns = Expand <shape = [2, 6]> (columns)\n"
          "row = Unsqueeze <axes = [-1]> (all_rows)\n"
          "column = Unsqueeze <axes = [-1]> (all_columns)\n"
          "places = Concat <axis = -1> (row, column)\n"
          "second = Constant <value_float = 1.0> ()\n"
          "region = Expand <shape = [2, 6]> (second)\n"
          "regions = ScatterND (nothing, places, region)\n"
          "split = Reshape <shape = [2, 3, 2, 3]> (regions)\n"
          "windows = Transpose <perm = [0, 2, 1, 3]> (split)\n"
          "tokens = Reshape <shape = [4, 9]> (windows)\n"
          "from = Unsqueeze <axes = [2]> (tokens)\n"
          "to = Unsqueeze <axes = [1]> (tokens)\n"
          "apart = Sub (from, to)\n"
          "nought = Constant <value_float = 0.0> ()\n"
          "far = Constant <value_float = -100.0> ()\n"
          "same = Equal (apart, nought)\n"
          "mask = Where (same, nought, far)\n"
          "last = Slice <starts = [-1], ends = [4], axes = [0]> (mask)\n"
          "flat = Reshape <shape = [0, 8, 9]> (x)\n"
          "mixed = MatMul (flat, last)\n"
          "h = Flatten (mixed)\n" +
          kHead + "#initial int64[2] size = {6, 6}, int64 zero = {0}, int64 six = {6}, int64 one = {1}");
  const auto mask = content_of(graph, graph.find_value("mask"));
  REQUIRE(mask);
  std::vector<float> found(mask->size() / sizeof(float)), expected;
  std::memcpy(found.data(), mask->data(), mask->size());
  for (int window = 0; window < 4; ++window) {
    for (int i = 0; i < 9; ++i) {
      for (int j = 0; j < 9; ++j) expected.push_back(window >= 2 && (i < 3) != (j < 3) ? -100.0f : 0.0f);
    }
  }
  CHECK(found == expected);
  const Graph step = make_program(graph, {}).training().graph;
  CHECK_FALSE(step.find_op("ScatterND"));
  CHECK(step.values[step.find_value("last")].role == Role::Constant);
}

TEST_CASE("a shape that is computed follows the batch of each loop") {
  const Graph graph =
      net("extents = Shape <end = 1> (x)\n"
          "batch = Squeeze (extents)\n"
          "list = Unsqueeze (batch, first)\n"
          "flat = Reshape (x, rest)\n"
          "one = Reshape (flat, list2)\n"
          "h = Reshape (one, rest)\n" +
          kHead + "#initial int64[1] first = {0}, int64[2] rest = {0, -1}, int64[3] list2 = {0, 2, 36}");
  CHECK(integers(graph, "list") == std::vector<int64_t>{4});
  const Program program = make_program(graph, {});
  const Graph& validation = program.find(LoopRole::Validate)->graph;
  const auto shape_of = [](const Graph& g, const char* name) { return g.values[g.find_value(name)].type.shape; };
  CHECK(shape_of(program.training().graph, "one") == Shape{4, 2, 36});
  CHECK(shape_of(validation, "one") == Shape{5, 2, 36});
  CHECK(ints_attribute(node_of(validation, "one"), "shape") == std::vector<int64_t>{0, 2, 36});
  CHECK(node_of(validation, "one").inputs.size() == 1);
}

TEST_CASE("a constant operand that is none, or of the wrong kind, is refused") {
  CHECK(has(refusal("s = Flatten (x)\nh = Reshape (x, s)\n"),
            "node 'h' (Reshape): input 'shape' ('s') is computed when the graph runs; expected a constant"));
  CHECK(has(refusal("h = Reshape (x, s)\n", "#initial float[2] s = {4, 72}"),
            "'shape' ('s') is float[2], expected a list of integers"));
  CHECK(has(refusal("h = Reshape (x, s)\n", "#initial int64[2, 1] s = {4, 72}"),
            "is int64[2,1], expected a list of integers"));
  CHECK(has(refusal("h = Reshape (x)\n"), "attribute 'shape' (ints) is missing"));
  CHECK(
      has(refusal("h = Reshape <shape = [5, -1]> (x)\n"), "'shape' is (5, -1), and 288 elements are no multiple of 5"));
  CHECK(has(refusal("h = Reshape <shape = [-1, -1]> (x)\n"), "with more than one -1"));
  CHECK(has(refusal("h = Reshape <shape = [4, 71]> (x)\n"), "of 284 elements"));
  CHECK(has(refusal("h = Reshape <shape = [4, 2, 6, 6, 0]> (x)\n"), "whose 0 at 4"));
  CHECK(has(refusal("h = Squeeze <axes = [1]> (x)\n"), "axis 1 of input 'data', float[4,2,6,6], is not 1"));
  CHECK(has(refusal("h = Unsqueeze <axes = [6]> (x)\n"), "'axes' holds 6; expected -5 to 4"));
  CHECK(has(refusal("h = Unsqueeze <axes = [1, -5]> (x)\n"), "names axis 1 twice"));
}

TEST_CASE("what cannot be computed of constants is an error of the graph") {
  CHECK(has(refusal("extents = Shape (x)\nlast = Gather (extents, at)\nh = Unsqueeze <axes = [-1]> (x)\n",
                    "#initial int64[1] at = {7}"),
            "node 'last' (Gather): index 0 of 'indices' is 7; expected -4 to 3"));
  CHECK(has(refusal("extents = Shape (x)\nput = ScatterND (extents, at, one)\nh = Unsqueeze <axes = [-1]> (x)\n",
                    "#initial int64[1, 1] at = {4}, int64[1] one = {1}"),
            "node 'put' (ScatterND): index 0 of 'indices' is 4; expected -4 to 3"));
}

TEST_CASE("a constant operand needs an attribute of its name, and is optional") {
  Op op{.domain = "test",
        .name = "Odd",
        .doc = "odd",
        .inputs = {{.name = "axes", .constant = true}},
        .outputs = {{.name = "Y"}},
        .infer = [](InferContext&) {},
        .cpu = [](const KernelRequest&) { return std::unique_ptr<Kernel>(); }};
  CHECK(has(error_of([&] { check_record(op); }), "constant operand 'axes' is not optional"));
  op.inputs[0].arity = OperandSpec::Optional;
  CHECK(has(error_of([&] { check_record(op); }), "constant operand 'axes' has no attribute of the same name"));
}

}  // namespace constants_test
