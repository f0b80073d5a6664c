// SPDX-License-Identifier: Apache-2.0

// Batch norms that read the inputs of a Concat directly: which Concats are removed, and what replaces them.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "graph/field.h"
#include "ops/builtin_ops.h"
#include "ops/norm/batch_norms.h"
#include "tests/passes/passes_fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace concat_test {
namespace {

constexpr const char* kTraining = "arbalest.BatchNormPartsTraining";
constexpr const char* kGradient = "arbalest.BatchNormPartsGrad";
constexpr const char* kInference = "arbalest.BatchNormPartsInference";

std::string conv(const char* result, const char* x, int filters) {
  return fmt::format("{} = arbalest.Conv <filters = {}, kernel_shape = [3, 3], bias = 0> ({})\n", result, filters, x);
}

// One after the other, two layers that add channels to what they read, and a batch norm over all.
const std::string kNested = conv("a", "x", 4) + "n1 = arbalest.BatchNorm (a)\nr1 = Relu (n1)\n" + conv("b", "r1", 3) +
                            "ab = Concat <axis = 1> (a, b)\nn2 = arbalest.BatchNorm (ab)\nr2 = Relu (n2)\n" +
                            conv("c", "r2", 2) +
                            "abc = Concat <axis = -3> (ab, c)\nn3 = arbalest.BatchNorm (abc)\nh = Relu (n3)\n" + kHead;

const Node& maker(const Graph& graph, std::string_view name) {
  const NodeId producer = value(graph, name).producer;
  REQUIRE(producer != kNone);
  return graph.nodes[producer];
}

std::vector<std::string> parts_of(const Graph& graph, const Node& norm) {
  std::vector<std::string> names;
  const bool training = norm.op->name == "BatchNormPartsTraining";
  const size_t count = training ? training_parts(norm.inputs.size()) : inference_parts(norm.inputs.size());
  for (size_t i = 0; i < count; ++i) {
    const ValueId part = norm.inputs[training ? training_part(i) : inference_part(i)];
    names.push_back(graph.values[part].name);
    if (!training) continue;
    const Value& statistics = graph.values[norm.inputs[training_statistics(i)]];
    const Node& made = graph.nodes[statistics.producer];
    CHECK(made.op->qualified_name() == "arbalest.ChannelStatistics");
    CHECK(made.inputs == std::vector<ValueId>{part});
  }
  return names;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("DenseNet trains and is validated without a copy of what its layers read") {
  const char* root = std::getenv("ARBALEST_SOURCE");
  Graph graph = load_graph(fmt::format("{}/examples/densenet121.onnxtxt", root ? root : "."), builtin_ops());
  set_fields(*graph.find_op("arbalest.Prefetch"),
             {{"image", DataType::Uint8, {3, 224, 224}}, {"label", DataType::Int32, {}, 1000}});
  verify(graph);
  for (const bool bf16 : {false, true}) {
    ProgramOptions options;
    options.bf16 = options.fused_kernels = bf16;
    Program program = make_program(graph, options);
    const Graph& step = program.training().graph;
    check_sound(step);
    for (const char* op : {"Concat", "Slice", "Add", "Relu", "arbalest.ReluGrad", "arbalest.ChangeLayout"}) {
      CHECK_MESSAGE(count_ops(step, op) == 0, op);
    }
    // 58 layers, three transitions and the end read parts: those that layers add, and what each block begins with.
    CHECK(count_ops(step, kTraining) == 62);
    CHECK(count_ops(step, kGradient) == 62);
    CHECK(count_ops(step, "arbalest.ChannelStatistics") == 58 + 4);
    CHECK(count_ops(step, "arbalest.BatchNormTraining") == 59);
    CHECK(parts_of(step, maker(step, "active")).size() == 17);
    const Graph& validation = program.find(LoopRole::Validate)->graph;
    check_sound(validation);
    CHECK(count_ops(validation, kInference) == 62);
    CHECK(count_ops(validation, "arbalest.ChannelStatistics") == 0);
    CHECK(count_ops(validation, "Concat") == 0);
  }
}

TEST_CASE("nested Concats become the parts of batch norms, which share the statistics of each") {
  const Program program = program_of_net(kNested);
  const Graph& step = program.training().graph;
  for (const char* op : {"Concat", "Slice", "Add", "arbalest.BatchNormTraining"}) {
    CHECK_MESSAGE(count_ops(step, op) == 0, op);
  }
  CHECK(count_ops(step, "arbalest.ChannelStatistics") == 3);
  CHECK(parts_of(step, maker(step, "r1")) == Names{"a"});
  CHECK(parts_of(step, maker(step, "r2")) == Names{"a", "b"});
  CHECK(parts_of(step, maker(step, "h")) == Names{"a", "b", "c"});
  CHECK(int_attribute(maker(step, "h"), "relu") == 1);
  // Statistics are made as soon as what they are of is there.
  const NodeId made = value(step, "a").producer;
  CHECK(step.nodes[made + 1].op->qualified_name() == "arbalest.ChannelStatistics");

  // The last batch norm's gradient is computed first; each before it adds what is there of its parts to its own.
  std::vector<const Node*> gradients;
  for (const Node& node : step.nodes) {
    if (node.op->qualified_name() == kGradient) gradients.push_back(&node);
  }
  REQUIRE(gradients.size() == 3);
  const auto addend = [&](size_t norm, size_t part) { return gradients[norm]->inputs[gradient_addend(part)]; };
  const auto made_of = [&](size_t norm, size_t part) { return gradients[norm]->outputs[part_gradient(part)]; };
  for (size_t part = 0; part < 3; ++part) CHECK(addend(0, part) == kNone);
  CHECK(addend(1, 0) == made_of(0, 0));
  CHECK(addend(1, 1) == made_of(0, 1));
  CHECK(addend(2, 0) == made_of(1, 0));
  CHECK(gradients[2]->inputs[4] == step.find_value("n1.bias"));

  const Graph& validation = program.find(LoopRole::Validate)->graph;
  CHECK(count_ops(validation, "Concat") == 0);
  CHECK(parts_of(validation, maker(validation, "h")) == Names{"a", "b", "c"});
}

TEST_CASE("running statistics of batch norms over parts are merged, averaged and kept as any") {
  const Program program = program_of_net(kNested);
  const Value& statistics = program.training().graph.values[program.training().arenas.statistics];
  const Graph& step = program.training().graph;
  for (const char* norm : {"n1", "n2", "n3"}) {
    const Value& mean = value(step, fmt::format("{}.running_mean", norm));
    const Value& variance = value(step, fmt::format("{}.running_var", norm));
    CHECK(mean.view.base == program.training().arenas.statistics);
    CHECK(variance.view.offset_bytes - mean.view.offset_bytes == statistics.type.bytes() / 2);
  }
  Graph graph = net(kNested);
  graph.find_op("arbalest.Validate")->attributes.set("recalibrate", int64_t{2});
  const Program recalibrated = make_program(graph, {});
  const Graph& forward = recalibrated.find(LoopRole::Recalibrate)->graph;
  check_sound(forward);
  CHECK(count_ops(forward, kTraining) == 3);
  CHECK(count_ops(forward, "arbalest.ChannelStatistics") == 3);
  for (const Node& node : forward.nodes) {
    if (node.op->qualified_name() == kTraining) CHECK(float_attribute(node, "momentum") == 1);
  }
}

TEST_CASE("one Concat of several tensors becomes the parts of a batch norm") {
  const std::string body = conv("a", "x", 4) + conv("b", "x", 1) + conv("c", "x", 3);
  const Program program = program_of_net(body + "s = Concat <axis = 1> (a, b, a, c)\nn = arbalest.BatchNorm (s)\n" +
                                         "h = Relu (n)\n" + kHead);
  const Graph& step = program.training().graph;
  CHECK(count_ops(step, "Concat") == 0);
  CHECK(count_ops(step, "arbalest.ChannelStatistics") == 3);
  CHECK(parts_of(step, maker(step, "h")) == Names{"a", "b", "a", "c"});
  CHECK(count_ops(step, "Add") == 1);  // of the two gradients of `a`, which one node makes
}

TEST_CASE("a Concat that something else reads stays, as one part of those after it") {
  const std::string layers = conv("a", "x", 4) + conv("b", "x", 2) + "ab = Concat <axis = 1> (a, b)\n" +
                             "n = arbalest.BatchNorm (ab)\n" + conv("c", "n", 2) + "abc = Concat <axis = 1> (ab, c)\n";
  const std::string read = "m = arbalest.BatchNorm (abc)\np = Relu (ab)\ng = Concat <axis = 1> (m, p)\nh = Relu (g)\n";
  const Graph both = program_of_net(layers + read + kHead).training().graph;
  CHECK(count_ops(both, "Concat") == 2);
  CHECK(parts_of(both, maker(both, "m")) == Names{"ab", "c"});
  CHECK(parts_of(both, maker(both, "n")) == Names{"ab"});

  // If the last Concat stays, it copies the inputs of those in it, and these are removed.
  const Graph last = program_of_net(layers + "h = Relu (abc)\n" + kHead).training().graph;
  CHECK(count_ops(last, "Concat") == 1);
  CHECK(maker(last, "abc").inputs ==
        std::vector<ValueId>{last.find_value("a"), last.find_value("b"), last.find_value("c")});
  CHECK(parts_of(last, maker(last, "n")) == Names{"a", "b"});
}

TEST_CASE("Concats of other axes, of other layouts, and where a batch norm adds a residual stay") {
  const std::string two = conv("a", "x", 4) + conv("b", "x", 4);
  const std::string norm = "n = arbalest.BatchNorm (s)\n";
  for (const std::string& body :
       {two + "s = Concat <axis = 2> (a, b)\n" + norm + "h = Relu (n)\n",
        conv("a", "x", 4) + "b = Reshape <shape = [0, 4, 6, 3]> (x)\nr = Concat <axis = 3> (b, b)\n" +
            "s = Concat <axis = 1> (a, r)\n" + norm + "h = Relu (n)\n",
        two + conv("d", "x", 8) + "s = Concat <axis = 1> (a, b)\n" + norm + "t = Add (n, d)\nh = Relu (t)\n"}) {
    INFO(body);
    const Graph step = program_of_net(body + kHead).training().graph;
    CHECK(count_ops(step, kTraining) == 0);
    CHECK(count_ops(step, "Concat") + count_ops(step, "arbalest.Assemble") >= 1);
    CHECK(count_ops(step, "arbalest.BatchNormTraining") == 1);
  }
}

TEST_CASE("beyond the most parts a Concat of them is one part") {
  const auto parts = [](size_t count) {
    std::string text = "x";
    for (size_t i = 1; i < count; ++i) text += ", x";
    return text;
  };
  const std::string norm = "n = arbalest.BatchNorm (s)\nh = Relu (n)\n" + kHead;
  const auto step_of = [&](const std::string& concats) { return program_of_net(concats + norm).training().graph; };

  const Graph most = step_of(fmt::format("s = Concat <axis = 1> ({})\n", parts(kMostParts)));
  CHECK(count_ops(most, "Concat") == 0);
  CHECK(parts_of(most, maker(most, "h")).size() == kMostParts);

  const Graph flat = step_of(fmt::format("s = Concat <axis = 1> ({})\n", parts(kMostParts + 1)));
  CHECK(count_ops(flat, "Concat") == 1);
  CHECK(count_ops(flat, "arbalest.BatchNormTraining") == 1);

  const Graph nested = step_of(fmt::format("half = Concat <axis = 1> ({})\ns = Concat <axis = 1> (half, {})\n",
                                           parts(kMostParts - 1), parts(2)));
  CHECK(count_ops(nested, "Concat") == 1);
  CHECK(parts_of(nested, maker(nested, "h")) == Names{"half", "x", "x"});
}

TEST_CASE("a batch norm over parts may be frozen") {
  Graph graph = net(kNested);
  graph.nodes[graph.find_node("trained")].attributes.set("frozen", std::vector<std::string>{"n2.running_*"});
  const Graph step = make_program(graph, {}).training().graph;
  check_sound(step);
  CHECK(count_ops(step, kTraining) == 2);
  CHECK(parts_of(step, maker(step, "r2")) == Names{"a", "b"});
  CHECK(maker(step, "r2").op->qualified_name() == kInference);
  CHECK(count_ops(step, "Concat") == 1);  // for its gradient
}

TEST_CASE("a Concat stays for a batch norm whose statistics nodes compute, and goes for one that has them") {
  const auto step_of = [](const std::string& mean, const std::string& variance) {
    return program_of_net(conv("a", "x", 2) + conv("b", "x", 2) + "c = Concat <axis = 1> (a, b)\nm = Mul (w, w)\n" +
                          "v = Exp (u)\nn = BatchNormalization (c, s, t, " + mean + ", " + variance + ")\n" +
                          "h = Relu (n)\n" + kHead +
                          "#initial float[4] s = {1, 1, 1, 1}, float[4] t = {0, 0, 0, 0}, float[4] w = {1, 2, 3, 4}, "
                          "float[4] u = {0, 1, 0, 1}")
        .training()
        .graph;
  };
  for (const auto& [mean, variance] :
       {std::pair{"m", "v"}, std::pair{"m", "u"}, std::pair{"w", "v"}, std::pair{"w", "u"}}) {
    INFO(mean, variance);
    const Graph step = step_of(mean, variance);
    const bool made = std::string(mean) == "m" || std::string(variance) == "v";
    CHECK(count_ops(step, kInference) == (made ? 0 : 1));
  }
}

TEST_CASE("what flows back into a part is not written over where others read it, too") {
  // The sum's gradient is that of `a` and of `b` alike.
  const Graph step = program_of_net(conv("a", "x", 4) + conv("b", "x", 4) + "s = Concat <axis = 1> (a, b)\n" +
                                    "n = arbalest.BatchNorm (s)\n" + conv("c", "n", 4) +
                                    "t = Add (a, b)\nu = Add (t, c)\nh = Relu (u)\n" + kHead)
                         .training()
                         .graph;
  CHECK(count_ops(step, "Concat") == 0);
  CHECK(only(step, kGradient).inputs[gradient_addend(0)] == kNone);
  CHECK(only(step, kGradient).inputs[gradient_addend(1)] == kNone);
  CHECK(count_ops(step, "Add") == 2 + 2);  // forward, and a sum for each part

  // The same holds if it shares memory with values that others read.
  const Graph shared = program_of_net(
                           "a = arbalest.Linear <units = 4> (x)\nb = arbalest.Linear <units = 3> (x)\n"
                           "s = Concat <axis = 1> (a, b)\nn = arbalest.BatchNorm (s)\n"
                           "c = arbalest.Linear <units = 4> (n)\nf = Reshape <shape = [0, 2, 2]> (a)\n"
                           "g = Reshape <shape = [0, 2, 2]> (c)\nt = Add (f, g)\nh = Flatten (t)\n" +
                           kHead)
                           .training()
                           .graph;
  CHECK(only(shared, kGradient).inputs[gradient_addend(0)] == kNone);
}

}  // namespace concat_test
