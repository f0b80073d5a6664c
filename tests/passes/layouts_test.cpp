// SPDX-License-Identifier: Apache-2.0

// Memory layouts: what lies channels-last, and where a conversion stands.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/passes/net.h"
#include "tests/passes/passes_fixture.h"
#include "tests/passes/program_numbers.h"

using namespace arbalest;
using namespace arbalest::test;

TEST_CASE("images and filters are channels-last, and the examples need no change of layout") {
  for (const char* name : {"lenet", "mlp", "resnet20", "resnet32", "resnet50"}) {
    INFO(std::string(name));
    const Graph graph = example(name);
    for (const bool bf16 : {false, true}) {
      const Program program = make_program(graph, {.bf16 = bf16});
      for (const Loop& loop : program.loops) {
        CHECK(count_ops(loop.graph, "arbalest.ChangeLayout") == 0);
        for (const Value& v : loop.graph.values) {
          if (v.type.shape.size() == 4) CHECK_MESSAGE(v.type.layout == Layout::ChannelsLast, v.name);
        }
      }
    }
  }
}

TEST_CASE("a tensor of rank 4 that is no image is row-major, and changes where an operator wants images") {
  const Program program = program_of_net(
      "heads = Transpose <perm = [0, 2, 1, 3]> (x)\n"  // (4, 6, 2, 6)
      "scaled = Mul (heads, w)\n"
      "c = Conv (scaled, filters)\n"
      "h = Flatten (c)\n" +
      kHead + "#initial float[6, 1, 1] w = {1, 2, 3, 4, 5, 6}, float[1, 6, 2, 1] filters = {" + numbers(12) + "}");
  const Graph& step = program.training().graph;
  CHECK(value(step, "x").type.layout == Layout::ChannelsLast);
  CHECK(value(step, "heads").type.layout == Layout::RowMajor);
  CHECK(value(step, "scaled").type.layout == Layout::RowMajor);
  CHECK(value(step, "scaled.channels_last").type.layout == Layout::ChannelsLast);
  CHECK(value(step, "filters").type.layout == Layout::ChannelsLast);
  CHECK(value(step, "filters.gradient").type.layout == Layout::ChannelsLast);
  CHECK(count_ops(step, "arbalest.ChangeLayout") == 2);  // forward, and its gradient back
  const Node& conv = only(step, "Conv");
  CHECK(step.values[conv.inputs[0]].name == "scaled.channels_last");
  for (const Node& node : step.nodes) {
    if (node.op->name != "MulGradB") continue;
    CHECK(step.values[node.inputs[0]].type.layout == Layout::RowMajor);
  }
}

TEST_CASE("a value that is wanted channels-last by several changes once") {
  const Program program = program_of_net(
      "t = Transpose <perm = [0, 1, 3, 2]> (x)\ns = Softmax (t)\n"
      "a = Conv (s, v)\nb = Conv (s, w)\nh = Add (a, b)\n" +
      kHead + "#initial float[2, 2, 3, 3] v = {" + numbers(36) + "}, float[2, 2, 3, 3] w = {" + numbers(36) + "}");
  const Graph& validation = program.find(LoopRole::Validate)->graph;
  CHECK(count_ops(validation, "arbalest.ChangeLayout") == 1);
}

TEST_CASE("a split whose parts are wanted channels-last is turned once, and so is a sum next to a convolution") {
  const auto validation = [](const std::string& body, int channels) {
    const std::string filter =
        fmt::format("#initial float[{0}, {0}, 3, 3] v = {{{1}}}", channels, numbers(9 * channels * channels));
    const std::string turned =
        "t = Transpose <perm = [0, 1, 3, 2]> (x)\ns = Softmax (t)\nd = Concat <axis = 1> (s, s)\n";
    return program_of_net(turned + body + kHead + filter).find(LoopRole::Validate)->graph;
  };
  const auto changes = [&](const std::string& body, int channels) {
    return count_ops(validation(body, channels), "arbalest.ChangeLayout");
  };
  const std::string split = "p, q = Split <axis = 1, num_outputs = 2> ",
                    conv = "a = Conv <pads = [1, 1, 1, 1]> (p, v)\n";
  const std::string both = conv + "b = Conv <pads = [1, 1, 1, 1]> (q, v)\nh = Concat <axis = 1> (a, b)\n";
  CHECK(changes(split + "(d)\n" + both, 2) == 1);
  CHECK(changes("r = Sigmoid (d)\n" + split + "(r)\n" + both, 2) == 1);
  CHECK(changes(split + "(s)\n" + both, 1) == 0);  // one channel lies alike in both orders
  // Both the convolution and the sum read one value; its other order is read by none.
  const Graph sum = validation("c = Conv <pads = [1, 1, 1, 1]> (s, v)\nh = Add (c, s)\n", 2);
  CHECK(count_ops(sum, "arbalest.ChangeLayout") == 1);
  for (const ValueId input : only(sum, "Add").inputs) {
    CHECK(sum.values[input].type.layout == Layout::ChannelsLast);
  }
}

TEST_CASE("filters that another operator wants row-major are laid out for the first") {
  Graph graph = expanded("c = Conv (x, w)\nt = Transpose (w)\nh = Conv (c, w)\n" + kHead +
                         "#initial float[2, 2, 3, 3] w = {" + numbers(36) + "}");
  place_layouts(graph);
  check_sound(graph);
  CHECK(value(graph, "w").type.layout == Layout::ChannelsLast);
  CHECK(count_ops(graph, "arbalest.ChangeLayout") == 0);  // Transpose takes what there is
}

TEST_CASE("Flatten of one pixel shares its input's memory, and of several moves elements") {
  const auto step_of = [](const std::string& pool) {
    return program_of_net("c = arbalest.Conv <filters = 4, kernel_shape = [3, 3]> (x)\n" + pool + "h = Flatten (p)\n" +
                          kHead)
        .training()
        .graph;
  };
  const Graph one = step_of("p = GlobalAveragePool (c)\n");
  CHECK(count_ops(one, "arbalest.FlattenInPlace") == 1);
  CHECK(count_ops(one, "arbalest.UnflattenInPlace") == 1);
  CHECK(count_ops(one, "Flatten") == 0);
  const Graph several = step_of("p = MaxPool <kernel_shape = [2, 2]> (c)\n");
  CHECK(count_ops(several, "arbalest.FlattenInPlace") == 0);
  CHECK(count_ops(several, "Flatten") == 1);
}

TEST_CASE("an image that is transposed to have its channels last, and back, stays where it is") {
  const Program program = program_of_net(
      "c = arbalest.Conv <filters = 4, kernel_shape = [3, 3]> (x)\n"
      "pixels = Transpose <perm = [0, 2, 3, 1]> (c)\n"
      "norm = arbalest.LayerNorm (pixels)\n"
      "back = Transpose <perm = [0, 3, 1, 2]> (norm)\n"
      "d = arbalest.Conv <filters = 2, kernel_shape = [1, 1]> (back)\n"
      "swapped = Transpose <perm = [0, 1, 3, 2]> (d)\n"
      "h = Flatten (swapped)\n" +
      kHead);
  const Graph& step = program.training().graph;
  CHECK(count_ops(step, "arbalest.TransposeInPlace") == 4);  // two forward, two backward
  CHECK(count_ops(step, "Transpose") == 2);                  // what moves elements, and its gradient
  CHECK(value(step, "pixels").type.layout == Layout::RowMajor);
  CHECK(value(step, "back").type.layout == Layout::ChannelsLast);
}

TEST_CASE("a sum that is wanted channels-last has its operands so") {
  const Program program = program_of_net(
      "c = arbalest.Conv <filters = 2, kernel_shape = [3, 3]> (x)\nt = Transpose <perm = [0, 1, 3, 2]> (x)\n"
      "s = Add (t, c)\nd = arbalest.Conv <filters = 2, kernel_shape = [3, 3]> (s)\nh = GlobalAveragePool (d)\n" +
      kHead);
  const Graph& step = program.training().graph;
  CHECK(value(step, "s").type.layout == Layout::ChannelsLast);
  for (const Node& node : step.nodes) {
    if (node.is("arbalest.ChangeLayout")) CHECK(node.inputs[0] != step.find_value("s"));
  }
}

TEST_CASE("losses of elements take predictions and targets as they lie, in one order or in two") {
  // c is channels-last, and t row-major.
  const std::string images = "c = arbalest.Conv <filters = 2, kernel_shape = [3, 3]> (x)\n",
                    rows = "t = Transpose <perm = [0, 1, 3, 2]> (x)\n", soft = rows + "s = Sigmoid (t)\n";
  const std::string end =
      "trained = arbalest.Train <lr = 0.1> (loss)\nreport = arbalest.Validate <batch = 5> (trained, loss)\n";
  const std::string mean = "loss = ReduceMean <keepdims = 0> (q)\n";
  const std::string entropy =
      "f = Constant <value_floats = [2.0, 0.5]> ()\nw = Reshape <shape = [2, 1, 1]> (f)\np = Sigmoid (c)\nlp = Log "
      "(p)\nn = Neg (c)\np0 = Sigmoid (n)\nl0 = Log (p0)\na = Mul (s, lp)\nb = Mul (a, w)\n"
      "one = Constant <value_float = 1.0> ()\ns0 = Sub (one, s)\nd = Mul (s0, l0)\ne = Add (b, d)\nq = Neg (e)\n";
  struct Loss {
    std::string as_operator, spelled;
  };
  for (const Loss& loss :
       {Loss{rows + "loss = arbalest.MeanSquaredError (c, t)\n", rows + "d = Sub (c, t)\nq = Mul (d, d)\n" + mean},
        Loss{rows + "loss = arbalest.L1Loss (t, c)\n", rows + "d = Sub (c, t)\nq = Abs (d)\n" + mean},
        Loss{"loss = arbalest.MeanSquaredError (c, x)\n", "d = Sub (c, x)\nq = Mul (d, d)\n" + mean},
        Loss{soft + "loss = arbalest.SigmoidCrossEntropy <pos_weight = [2.0, 0.5]> (c, s)\n", soft + entropy + mean},
        Loss{"s = Sigmoid (x)\nloss = arbalest.SigmoidCrossEntropy <pos_weight = [2.0, 0.5]> (c, s)\n",
             "s = Sigmoid (x)\n" + entropy + mean}}) {
    INFO(loss.as_operator);
    const auto run = [](const Program& program) {
      return numbers_of(program, {}, *make_cpu_device(), DataType::Float64);
    };
    const Program program = program_of_net(images + loss.as_operator + end);
    CHECK(count_ops(program.training().graph, "arbalest.ChangeLayout") == 0);
    const Numbers expected = run(program_of_net(images + loss.spelled + end));
    CHECK(difference(run(program), expected, 1e-9) == "");
  }
}
