// SPDX-License-Identifier: Apache-2.0

// Layers become operators, and batch norms take in what follows them.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <set>
#include <stdexcept>

#include "graph/op.h"
#include "ops/builtin_ops.h"
#include "ops/norm/statistics_chunks.h"
#include "passes/program.h"
#include "tests/passes/passes_fixture.h"

using namespace arbalest;
using namespace arbalest::test;

TEST_CASE("layers expand into operators with parameters") {
  const Graph graph = expanded("h = arbalest.ConvBnRelu <filters = 4, kernel_shape = [3, 3]> (x)\n" + kHead);
  CHECK(op_names(graph) == std::vector<std::string>{"arbalest.Prefetch", "arbalest.Augment", "Conv",
                                                    "arbalest.BatchNormTraining", "Relu", "Flatten", "Gemm",
                                                    "arbalest.SoftmaxCrossEntropy", "arbalest.Accuracy",
                                                    "arbalest.Train", "arbalest.Validate"});
  CHECK(value(graph, "h.conv.weight").role == Role::Parameter);
  CHECK(value(graph, "h.bn.running_mean").role == Role::State);
  CHECK(value(graph, "logits.weight").type.shape == Shape{3, 4 * 6 * 6});
  CHECK(graph.carries.size() == 2);
  for (const Carry& carry : graph.carries) CHECK(graph.values[carry.current].role == Role::State);
}

TEST_CASE("running statistics that a file gives are states, not parameters") {
  const Program program = program_of_net(
      "c = arbalest.Conv <filters = 2, kernel_shape = [1, 1]> (x)\n"
      "h = BatchNormalization <training_mode = 1> (c, scale, bias, mean, variance)\n" +
      kHead +
      "#initial float[2] scale = {1, 1}, float[2] bias = {0, 0}, float[2] mean = {0, 0}, float[2] variance = {1, 1}");
  const Graph& step = program.training().graph;
  CHECK(value(step, "mean").view.base == program.training().arenas.statistics);
  CHECK(value(step, "scale").view.base == program.training().arenas.weights);
}

TEST_CASE("batch norm takes in the Relu after it") {
  Graph graph = expanded("h = arbalest.ConvBnRelu <filters = 4, kernel_shape = [3, 3]> (x)\n" + kHead);
  fuse_batch_norm(graph);
  check_sound(graph);
  CHECK(count_ops(graph, "Relu") == 0);
  const Node& norm = only(graph, "arbalest.BatchNormTraining");
  CHECK(int_attribute(norm, "relu") == 1);
  CHECK(norm.inputs.size() == 5);
}

TEST_CASE("batch norm takes in Add and Relu, whichever side it is on") {
  for (const char* sum : {"Add (n, x2)", "Add (x2, n)"}) {
    INFO(sum);
    Graph graph =
        expanded(fmt::format("x2 = Identity (x)\nn = arbalest.BatchNorm (x)\ns = {}\nh = Relu (s)\n", sum) + kHead);
    fuse_batch_norm(graph);
    check_sound(graph);
    CHECK(count_ops(graph, "Relu") == 0);
    CHECK(count_ops(graph, "Add") == 0);
    const Node& norm = only(graph, "arbalest.BatchNormTraining");
    REQUIRE(norm.inputs.size() == 6);
    CHECK(norm.inputs[5] == graph.find_value("x2"));
    CHECK(norm.outputs[0] == graph.find_value("h"));
  }
}

TEST_CASE("batch norm does not take in an Add that broadcasts") {
  for (const char* sum : {"Add (n, w)", "Add (w, n)"}) {
    INFO(sum);
    Graph graph = expanded(fmt::format("n = arbalest.BatchNorm (x)\ns = {}\nh = Relu (s)\n", sum) + kHead +
                           "#initial float[2, 1, 1] w = {0.1, 0.2}");
    fuse_batch_norm(graph);
    check_sound(graph);
    CHECK(count_ops(graph, "Add") == 1);
    CHECK(count_ops(graph, "Relu") == 1);
    CHECK(only(graph, "arbalest.BatchNormTraining").inputs.size() == 5);
  }
}

TEST_CASE("of two batch norms that are added, the later one takes in the sum") {
  Graph graph =
      expanded("m = arbalest.BatchNorm (x)\nn = arbalest.BatchNorm (x)\ns = Add (n, m)\nh = Relu (s)\n" + kHead);
  fuse_batch_norm(graph);
  check_sound(graph);
  CHECK(count_ops(graph, "arbalest.BatchNormTraining") == 2);
  const Node& norm = graph.nodes[value(graph, "h").producer];
  REQUIRE(norm.inputs.size() == 6);
  CHECK(norm.inputs[5] == graph.find_value("m"));
}

TEST_CASE("a batch norm that others read stays as it is") {
  for (const char* reader : {"h = Add (r, n)\n", "h = Add (n, r)\n"}) {
    Graph graph = expanded("n = arbalest.BatchNorm (x)\nr = Relu (n)\n" + std::string(reader) + kHead);
    fuse_batch_norm(graph);
    CHECK(count_ops(graph, "Relu") == 1);
    CHECK(int_attribute(only(graph, "arbalest.BatchNormTraining"), "relu") == 0);
  }
  Graph twice = expanded("n = arbalest.BatchNorm (x)\ns = Add (n, n)\nh = Relu (s)\n" + kHead);
  fuse_batch_norm(twice);
  CHECK(count_ops(twice, "Add") == 1);
  CHECK(count_ops(twice, "Relu") == 1);
}

TEST_CASE("the gradient of a batch norm adds up what flows back into it") {
  const Program program = program_of_net(kResidual);
  const Graph& step = program.training().graph;
  CHECK(count_ops(step, "Add") == 0);
  const auto gradient_of = [&](const char* scale) -> const Node& {
    for (const Node& node : step.nodes) {
      if (node.op->qualified_name() == "arbalest.BatchNormGrad" && node.inputs[3] == step.find_value(scale))
        return node;
    }
    throw std::logic_error(scale);
  };
  // `a` is read by a convolution and by the sum. Its Relu's mask follows from its batch norm's input.
  const Node& first = gradient_of("a.bn.weight");
  REQUIRE(first.inputs.size() == 8);
  CHECK(first.inputs[2] == kNone);
  CHECK(first.inputs[6] == step.find_value("a.bn.bias"));
  const auto maker = [&](ValueId value) { return step.nodes[step.values[value].producer].op->name; };
  CHECK(std::set<std::string>{maker(first.inputs[0]), maker(first.inputs[7])} ==
        std::set<std::string>{"BatchNormGrad", "ConvGradInput"});
  // With a residual it is Y that the mask follows from.
  const Node& second = gradient_of("b.bn.weight");
  CHECK(second.inputs.size() == 6);
  CHECK(second.inputs[2] == step.find_value("h"));
}

namespace fusion_test {
namespace {

const int kProcessors = device_model(kUsualDevice).multiprocessors;

// The training step with statistics fused.
Graph fused_step(const std::string& body, const char* gpu = kUsualDevice) {
  ProgramOptions options;
  options.device = device_model(gpu);
  options.fused_kernels = true;
  Graph step = make_program(net(body), options).training().graph;
  check_sound(step);
  return step;
}

const Node& reader_of(const Graph& graph, ValueId value) {
  const auto found = std::find_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    return std::find(node.inputs.begin(), node.inputs.end(), value) != node.inputs.end();
  });
  REQUIRE(found != graph.nodes.end());
  return *found;
}

}  // namespace

TEST_CASE("two batch norms whose sum goes through Relu become one node, and so do their gradients") {
  const auto block = [](const std::string& projection, const std::string& end) {
    return fused_step(
        "a = arbalest.ConvBnRelu <filters = 16, kernel_shape = [3, 3]> (x)\n"
        "b = arbalest.ConvBnRelu <filters = 16, kernel_shape = [3, 3], relu = 0> (a)\n" +
        projection + "s = Add (b, p)\nr = Relu (s)\n" + end + kHead);
  };
  const std::string projected = "p = arbalest.ConvBnRelu <filters = 16, kernel_shape = [1, 1], relu = 0> (x)\n";
  const std::string pooled = "h = GlobalAveragePool (r)\n";
  const auto is_weight = [](const Graph& step, ValueId id, const char* name) { return id == step.find_value(name); };
  const Graph plain = block(projected, pooled);
  const Node& pair = only(plain, "arbalest.BatchNormPairTraining");
  CHECK(count_ops(plain, "arbalest.BatchNormTraining") == 1);  // that of `a`
  const bool right_first = is_weight(plain, pair.inputs[1], "p.bn.weight");
  CHECK(is_weight(plain, pair.inputs[right_first ? 6 : 1], "b.bn.weight"));
  CHECK(is_weight(plain, pair.inputs[right_first ? 1 : 6], "p.bn.weight"));
  CHECK((pair.inputs[10] != kNone) + (pair.inputs[11] != kNone) == 1);  // the 3 × 3 leaves partials
  CHECK(pair.outputs[0] == plain.find_value("r"));
  const Node& grad = only(plain, "arbalest.BatchNormPairGrad");
  CHECK(count_ops(plain, "arbalest.BatchNormGrad") == 1);
  CHECK(grad.inputs[1] == plain.find_value("r"));
  CHECK(grad.inputs[3] == kNone);
  for (const size_t i : {1, 2, 5, 6}) {
    CHECK(std::any_of(plain.carries.begin(), plain.carries.end(),
                      [&](const Carry& carry) { return carry.next == pair.outputs[i]; }));
  }

  const Graph left = block(projected,
                           "d = arbalest.ConvBnRelu <filters = 16, kernel_shape = [3, 3]> (r)\n"
                           "t = Add (d, r)\nh = GlobalAveragePool (t)\n");
  const Node& of_sums = only(left, "arbalest.BatchNormPairGrad");
  CHECK(of_sums.inputs[1] == kNone);
  CHECK(of_sums.inputs[3] != kNone);
  CHECK(of_sums.inputs.size() == 12);

  // A pointwise convolution that adds two gradients leaves sums of both batch norms.
  const Graph both = block(projected,
                           "d = arbalest.ConvBnRelu <filters = 8, kernel_shape = [1, 1]> (r)\n"
                           "e = arbalest.ConvBnRelu <filters = 16, kernel_shape = [1, 1], relu = 0> (d)\n"
                           "t = Add (e, r)\nu = Relu (t)\nh = GlobalAveragePool (u)\n");
  const Node& of_both = only(both, "arbalest.BatchNormPairGrad");
  REQUIRE(of_both.inputs.size() == 13);
  const Node& conv = both.nodes[both.values[of_both.inputs[3]].producer];
  CHECK(conv.op->name == "ConvGradInputSums");
  REQUIRE(conv.inputs.size() == 11);
  REQUIRE(conv.outputs.size() == 3);
  CHECK(conv.outputs[2] == of_both.inputs[12]);
  CHECK(conv.inputs[9] == of_both.inputs[8]);    // X2
  CHECK(conv.inputs[10] == of_both.inputs[10]);  // its mean

  // Another epsilon; a residual that is no batch norm's, or that something else reads.
  for (const std::string& other :
       {std::string("p = arbalest.Conv <filters = 16, kernel_shape = [1, 1]> (x)\n"),
        std::string("q = arbalest.ConvBnRelu <filters = 16, kernel_shape = [1, 1], relu = 0> (x)\np = Sigmoid (q)\n"),
        std::string("p = arbalest.ConvBnRelu <filters = 16, kernel_shape = [1, 1]> (x)\n"),
        std::string("q = arbalest.Conv <filters = 16, kernel_shape = [1, 1], bias = 0> (x)\n"
                    "p = arbalest.BatchNorm <epsilon = 0.001> (q)\n")}) {
    INFO(other);
    CHECK(count_ops(block(other, pooled), "arbalest.BatchNormPairTraining") == 0);
  }
  const Graph read = block(projected, "g = Add (r, p)\nh = GlobalAveragePool (g)\n");
  CHECK(count_ops(read, "arbalest.BatchNormPairTraining") == 0);
  CHECK(count_ops(read, "arbalest.BatchNormPairGrad") == 0);
}

TEST_CASE("convolutions of few channels leave statistics and sums to batch norms, others do not") {
  const auto block = [](const std::string& conv) {
    return "a = arbalest.ConvBnRelu <filters = 16, kernel_shape = [3, 3]> (x)\n"
           "b = arbalest.ConvBnRelu <" +
           conv +
           ", relu = 0> (a)\n"
           "s = Add (b, a)\nh = Relu (s)\n" +
           kHead;
  };
  const Graph step = fused_step(block("filters = 16, kernel_shape = [3, 3]"));
  const Node& conv = only(step, "arbalest.ConvStatistics");  // that of `a` has two channels to read
  const Node& gradient = only(step, "arbalest.ConvGradInputSums");
  CHECK(count_ops(step, "Conv") == 1);
  CHECK(count_ops(step, "arbalest.ConvGradInput") == 0);
  CHECK(reader_of(step, conv.outputs[1]).inputs[1] == step.find_value("b.bn.weight"));
  const Node& first = reader_of(step, gradient.outputs[1]);
  CHECK(first.inputs[3] == step.find_value("a.bn.weight"));
  CHECK(first.inputs[0] == gradient.outputs[0]);
  CHECK(int_attribute(first, "relu") == 1);
  CHECK(first.inputs[6] == step.find_value("a.bn.bias"));
  CHECK(gradient.inputs[7] == step.find_value("a.bn.bias"));
  CHECK(gradient.inputs[8] != kNone);  // what flows around the convolution

  for (const char* other :
       {"filters = 16, kernel_shape = [5, 5]", "filters = 16, kernel_shape = [3, 3], dilations = [2, 2]",
        "filters = 16, kernel_shape = [3, 3], group = 2"}) {
    INFO(other);
    const Graph plain = fused_step(block(other));
    CHECK(count_ops(plain, "arbalest.ConvStatistics") == 0);
    CHECK(count_ops(plain, "arbalest.ConvGradInputSums") == 0);
  }
}

TEST_CASE("pointwise convolutions leave statistics and sums, before a residual and without one") {
  const Graph step = fused_step(
      "a = arbalest.ConvBnRelu <filters = 16, kernel_shape = [3, 3], strides = [2, 2]> (x)\n"
      "b = arbalest.ConvBnRelu <filters = 16, kernel_shape = [3, 3], dilations = [2, 2], relu = 0> (a)\n"
      "s = Add (b, a)\nh1 = Relu (s)\n"
      "c = arbalest.ConvBnRelu <filters = 8, kernel_shape = [1, 1]> (h1)\n"
      "d = arbalest.ConvBnRelu <filters = 16, kernel_shape = [1, 1], relu = 0> (c)\n"
      "t = Add (d, h1)\nh = Relu (t)\n" +
      std::string(kHead));
  CHECK(count_ops(step, "arbalest.ConvStatistics") == 2);
  CHECK(count_ops(step, "arbalest.ConvGradInputSums") == 2);
  for (const Node& gradient : step.nodes) {
    if (gradient.op->qualified_name() != "arbalest.ConvGradInputSums") continue;
    const TensorType& image = step.values[gradient.outputs[0]].type;
    const int64_t chunk_pixels = int_attribute(gradient, "chunk_pixels");
    CHECK(chunk_pixels == pointwise_chunk_pixels(image.shape, kProcessors));
    const Node& norm = reader_of(step, gradient.outputs[1]);
    CHECK(int_attribute(norm, "chunk_pixels") == chunk_pixels);
    CHECK(norm.outputs.size() == 3);
    if (norm.inputs[3] == step.find_value("c.bn.weight")) {  // Relu's mask follows from what it reads anyway
      CHECK(int_attribute(norm, "relu") == 1);
      CHECK(norm.inputs[6] == step.find_value("c.bn.bias"));
      CHECK(gradient.inputs[3] == kNone);
      CHECK(gradient.inputs[7] == norm.inputs[6]);
      CHECK(gradient.inputs[8] == kNone);
    } else {  // the residual's gradient has passed Relu
      CHECK(norm.inputs[3] == step.find_value("b.bn.weight"));
      CHECK(int_attribute(norm, "relu") == 0);
      CHECK(gradient.inputs[3] == step.find_value("h1"));
      CHECK(gradient.inputs[8] != kNone);
    }
  }
}

TEST_CASE("convolutions of 3 x 3 of many channels leave statistics, and sums also where no residual comes before") {
  const auto step_of = [](int64_t filters, const std::string& more) {
    return fused_step(
        fmt::format("a = arbalest.ConvBnRelu <filters = {}, kernel_shape = [5, 5], pads = [4, 4, 4, 4]> (x)\n"
                    "h = arbalest.ConvBnRelu <filters = {}, kernel_shape = [3, 3]{}> (a)\n",
                    filters, filters, more) +
        kHead);
  };
  const Graph step = step_of(48, "");
  const Node& conv = only(step, "arbalest.ConvStatistics");
  const Node& gradient = only(step, "arbalest.ConvGradInputSums");
  for (const Node& node : {conv, gradient}) {
    const Shape& image = step.values[node.outputs[0]].type.shape;
    CHECK(int_attribute(node, "chunk_pixels") == halo_chunk_pixels(image, kProcessors));
  }
  CHECK(reader_of(step, gradient.outputs[1]).inputs[3] == step.find_value("a.bn.weight"));
  CHECK(count_ops(step_of(40, ""), "arbalest.ConvStatistics") == 0);
  CHECK(count_ops(step_of(48, ", strides = [2, 2]"), "arbalest.ConvStatistics") == 0);
  CHECK(count_ops(step_of(48, ", pads = [0, 0, 0, 0]"), "arbalest.ConvStatistics") == 0);
}

TEST_CASE("statistics are fused as far as the GPU has kernels for them") {
  const auto fused = [](const char* gpu, const char* first, const char* second) {
    const std::string body = fmt::format(
        "a = arbalest.ConvBnRelu <filters = 16, kernel_shape = [{}]> (x)\n"
        "h = arbalest.ConvBnRelu <filters = 16, kernel_shape = [{}]> (a)\n",
        first, second);
    return count_ops(fused_step(body + kHead, gpu), "arbalest.ConvStatistics");
  };
  CHECK(fused("H100", "5, 5", "3, 3") == 1);
  CHECK(fused("A100", "5, 5", "3, 3") == 1);
  CHECK(fused("RTX 4090", "5, 5", "3, 3") == 0);  // too little shared memory for few channels
  CHECK(fused("H100", "5, 5", "1, 1") == 1);
  CHECK(fused("A100", "5, 5", "1, 1") == 0);  // pointwise ones are Hopper's
  CHECK(fused("B200", "5, 5", "1, 1") == 0);
}

TEST_CASE("tiles with a border fill their places, and chunks of them cover an image without a rest, but for the last") {
  for (const Shape& image :
       {Shape{64, 64, 56, 56}, Shape{64, 128, 28, 28}, Shape{64, 256, 14, 14}, Shape{64, 512, 7, 7},
        Shape{64, 64, 224, 224}, Shape{3, 200, 9, 6}, Shape{1, 8, 1, 1}, Shape{45, 72, 5, 6}}) {
    INFO(to_string(image));
    const HaloTile tile = halo_tile(image, kProcessors);
    const int64_t pixels = image[0] * image[2] * image[3], chunk_pixels = halo_chunk_pixels(image, kProcessors);
    REQUIRE(tile.pixels() > 0);
    CHECK(image[2] % tile.rows == 0);
    CHECK(image[3] % tile.width == 0);
    const int64_t last = (tile.images - 1) * (image[2] + 1) * tile.pitch + (tile.rows - 1) * tile.pitch + tile.width;
    CHECK(last <= tile.places);
    CHECK(tile.count(image) * tile.pixels() >= pixels);
    CHECK((tile.count(image) - 1) * tile.pixels() < pixels);
    CHECK(chunk_pixels % (2 * tile.pixels()) == 0);
    const int64_t slices = (image[1] + pointwise_slice_channels(image) - 1) / pointwise_slice_channels(image);
    CHECK(pixel_chunks(image, chunk_pixels).chunks * slices <= kProcessors);
    CHECK((tile.rows == image[2] || tile.images == 1));
  }
  for (const int64_t side : {7, 14, 28, 56, 112, 224}) CHECK(fills_halo_tiles({64, 64, side, side}, kProcessors));
  CHECK(!fills_halo_tiles({64, 64, 131, 131}, kProcessors));  // a prime number
  CHECK(!fills_halo_tiles({2, 64, 3, 3}, kProcessors));
}

TEST_CASE("a convolution that is folded by its stride leaves statistics where a row of taps is 64 elements") {
  const auto fused = [](const char* conv) {
    const Graph step = fused_step("h = arbalest.ConvBnRelu <filters = 16, " + std::string(conv) + "> (x)\n" + kHead);
    return count_ops(step, "arbalest.ConvStatistics");
  };
  // The image has two channels, so 8 when folded by 2: a row of 64 elements is eight taps.
  CHECK(fused("kernel_shape = [15, 15], strides = [2, 2], pads = [7, 7, 7, 7]") == 1);
  CHECK(fused("kernel_shape = [15, 15], strides = [2, 2], pads = [6, 6, 6, 6]") == 1);
  CHECK(fused("kernel_shape = [7, 7], strides = [2, 2], pads = [3, 3, 3, 3]") == 0);
  CHECK(fused("kernel_shape = [15, 15], strides = [2, 2], pads = [7, 7, 6, 6]") == 0);
  CHECK(fused("kernel_shape = [15, 15], strides = [3, 3], pads = [7, 7, 7, 7]") == 0);
}

TEST_CASE("rows are cut into equal tiles") {
  CHECK(row_tile_pixels(112) == 112);
  CHECK(row_tile_pixels(150) == 75);
  CHECK(row_tile_pixels(300) == 100);
  CHECK(row_tile_pixels(131) == 1);  // a prime number
}

TEST_CASE("chunks of pointwise convolutions are whole tiles, for two blocks a processor") {
  for (const Shape& image : {Shape{256, 64, 56, 56}, Shape{256, 256, 56, 56}, Shape{64, 2048, 7, 7},
                             Shape{1, 4096, 1, 1}, Shape{3, 8, 5, 5}}) {
    INFO(to_string(image));
    const int64_t pixels = image[0] * image[2] * image[3], chunk_pixels = pointwise_chunk_pixels(image, kProcessors);
    const PixelChunks chunks = pixel_chunks(image, chunk_pixels);
    CHECK(chunks.pixels % kPointwiseTilePixels == 0);
    CHECK((chunks.chunks - 1) * chunks.pixels < pixels);
    CHECK(chunks.chunks * chunks.pixels >= pixels);
    const int64_t slices = (image[1] + pointwise_slice_channels(image) - 1) / pointwise_slice_channels(image);
    CHECK(chunks.chunks * slices <= 2 * kProcessors);
  }
}

TEST_CASE("chunks of statistics cover an image without a rest, but for the last") {
  for (const Shape& image : {Shape{64, 16, 32, 32}, Shape{129, 16, 16, 16}, Shape{3, 32, 17, 19}, Shape{601, 64, 8, 8},
                             Shape{1, 16, 1, 1}, Shape{2, 12, 90, 300}}) {
    for (const int learners : {1, 4, 16, 1000}) {
      INFO(to_string(image), ", ", learners, " learners");
      const StatisticsChunks c = statistics_chunks(image, learners);
      const int64_t pixels = image[0] * image[2] * image[3];
      CHECK(image[2] % c.tile_rows == 0);
      CHECK(c.chunk_rows == c.tiles_per_chunk * c.tile_rows * image[3]);
      CHECK((c.chunks - 1) * c.chunk_rows < pixels);
      CHECK(c.chunks * c.chunk_rows >= pixels);
      CHECK(c.chunks <= std::max(8, 256 * 4 / std::max(learners, 4)));
      // The attribute alone says the same.
      CHECK(pixel_chunks(image, c.chunk_rows).chunks == c.chunks);
    }
  }
  CHECK(fills_tiles({1, 16, 32, 32}));
  CHECK(fills_tiles({4, 64, 8, 8}));
  CHECK(fills_tiles({4, 16, 5, 5}));  // as far as it can
  CHECK(!fills_tiles({1, 16, 37, 37}));
}

TEST_CASE("a sum of gradients that others read too stays") {
  Graph graph = expanded("n = arbalest.BatchNorm (x)\nh = Relu (n)\n" + kHead);
  CHECK(count_ops(graph, "Add") == 0);
  const ValueId n = graph.find_value("n"), h = graph.find_value("h");
  const Node norm = only(graph, "arbalest.BatchNormTraining");
  const NodeId add = graph.add_node(builtin_ops().get("Add"), "sum", {n, h}, 1);
  infer(graph, add);
  const ValueId sum = graph.nodes[add].outputs[0];
  const auto add_gradient = [&](const char* name) {
    infer(graph, graph.add_node(builtin_ops().get("arbalest.BatchNormGrad"), name,
                                {sum, norm.inputs[0], kNone, norm.inputs[1], norm.outputs[3], norm.outputs[4]}, 3));
  };
  add_gradient("one");
  Graph alone = graph;
  add_gradient("other");
  fuse_gradient_sums(graph);
  check_sound(graph);
  CHECK(count_ops(graph, "Add") == 1);
  fuse_gradient_sums(alone);
  check_sound(alone);
  CHECK(count_ops(alone, "Add") == 0);
}

}  // namespace fusion_test
