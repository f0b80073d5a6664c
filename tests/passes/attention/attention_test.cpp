// SPDX-License-Identifier: Apache-2.0

// Matrix products with a Softmax between them become one Attention, and only if that is the same.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <functional>
#include <random>

#include "passes/pipeline.h"
#include "passes/program.h"
#include "tests/passes/loop_run.h"
#include "tests/passes/passes_fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace attention_test {
namespace {

// 9 tokens of 8, with queries, keys and values of 2 heads of 8. They are q4, k4 and v4, (4, 9, 2, 8), each of a product
// of its own, or all of one.
const std::string kApart =
    "tokens = Reshape <shape = [0, 9, 8]> (x)\n"
    "q3 = arbalest.Linear <units = 16, axis = -1> (tokens)\n"
    "k3 = arbalest.Linear <units = 16, axis = -1> (tokens)\n"
    "v3 = arbalest.Linear <units = 16, axis = -1> (tokens)\n";
const std::string kTogether =
    "tokens = Reshape <shape = [0, 9, 8]> (x)\n"
    "qkv = arbalest.Linear <units = 48, axis = -1> (tokens)\n"
    "q3, k3, v3 = Split <axis = 2> (qkv)\n";
const std::string kHeads =
    "q4 = Reshape <shape = [0, 0, 2, 8]> (q3)\n"
    "k4 = Reshape <shape = [0, 0, 2, 8]> (k3)\n"
    "v4 = Reshape <shape = [0, 0, 2, 8]> (v3)\n"
    "c = Constant <value_float = 0.25> ()\n"
    "two = Constant <value_float = 2.0> ()\n";
const std::string kTokens = kApart + kHeads;
const std::string kQ = "q = Transpose <perm = [0, 2, 1, 3]> (q4)\n";
const std::string kK = "k = Transpose <perm = [0, 2, 3, 1]> (k4)\n";
const std::string kV = "v = Transpose <perm = [0, 2, 1, 3]> (v4)\n";
const std::string kTokensAgain = "t = Transpose <perm = [0, 2, 1, 3]> (a)\nh = Flatten (t)\n";
const std::string kLogits = "logits = arbalest.Linear <units = 3> (h)\n" + std::string(kLoss);

// The mean loss of a validation batch in double, of weights and samples drawn by their names.
double loss_of(const Loop& loop) {
  const auto cpu = make_cpu_device();
  LoopRun run(loop, *cpu, DataType::Float64);
  for (const ValueId v : loop.graph.values.ids()) {
    const Value& value = loop.graph.values[v];
    if (value.producer != kNone || run.type(v).dtype != DataType::Float64) continue;
    std::mt19937 random(uint32_t(std::hash<std::string>{}(value.name)));
    std::vector<double> numbers(size_t(value.type.elements()));
    for (double& number : numbers) number = std::uniform_real_distribution<double>(-1, 1)(random);
    run.set(v, numbers);
  }
  const ValueId images = loop.fields[0];
  std::vector<double> pixels(size_t(run.type(images).elements()));
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = double(i * 37 % 256);
  run.set(images, pixels);
  StepScalars scalars;
  scalars.valid = int32_t(run.type(images).shape[0]);
  run.run(scalars);
  return run.get(loop.graph.find_value(loop.metrics[0].name))[0];
}

}  // namespace

TEST_CASE("attention is found in the forms that people and exporters write") {
  struct Form {
    std::string text;
    double scale;
  };
  for (const Form& form :
       {Form{kQ + kK + kV + "s = MatMul (q, k)\nw = Softmax (s)\na = MatMul (w, v)\n", 1},
        Form{kQ + kK + kV + "qs = Mul (q, c)\ns = MatMul (qs, k)\nw = Softmax <axis = 3> (s)\na = MatMul (w, v)\n",
             0.25},
        Form{kQ + kK + kV + "s = MatMul (q, k)\nd = Div (s, two)\nw = Softmax (d)\na = MatMul (w, v)\n", 0.5},
        Form{kQ + kK + kV +
                 "qs = Mul (c, q)\nks = Mul (k, two)\ns = MatMul (qs, ks)\nw = Softmax (s)\na = MatMul (w, v)\n",
             0.5},
        Form{kQ + kV +
                 "k2 = Transpose <perm = [0, 2, 1, 3]> (k4)\nall = Reshape <shape = [8, 9, 8]> (k2)\n"
                 "turned = Transpose <perm = [0, 2, 1]> (all)\nk = Reshape <shape = [4, 2, 8, 9]> (turned)\n"
                 "s = MatMul (q, k)\nw = Softmax (s)\na = MatMul (w, v)\n",
             1}}) {
    for (const bool together : {false, true}) {
      INFO(form.text);
      Graph graph = expanded((together ? kTogether : kApart) + kHeads + form.text + kTokensAgain + kLogits);
      fuse_attention(graph, true);
      check_sound(graph);
      CHECK(count_ops(graph, "Softmax") == 0);
      CHECK(count_ops(graph, "MatMul") == 0);
      const Node& attention = only(graph, together ? "arbalest.PackedAttention" : "arbalest.Attention");
      CHECK(float_attribute(attention, "scale") == doctest::Approx(form.scale));
      std::vector<std::string> operands;
      for (const ValueId input : attention.inputs) operands.push_back(graph.values[input].name);
      if (together) {
        CHECK(operands == std::vector<std::string>{"qkv"});
        CHECK(int_attribute(attention, "heads") == 2);
        CHECK(int_attribute(attention, "head_axis") == 2);
      } else {
        CHECK(operands == std::vector<std::string>{"q4", "k4", "v4"});
        CHECK(ints_attribute(attention, "head_axes") == std::vector<int64_t>{2, 2, 2, 2});
      }
      CHECK(attention.outputs[0] == graph.find_value("t"));
      CHECK(value(graph, "t").type.shape == Shape{4, 9, 2, 8});
      CHECK(value(graph, "t.statistics").type.shape == Shape{4, 2, 9, 1});
    }
  }
}

TEST_CASE("biases and masks that are added to the scores become attention's") {
  const std::string initial = "#initial float[9, 9] mask = {" + numbers(81) + "}, float[2, 9, 9] biases = {" +
                              numbers(162) + "}, float[4, 1, 9, 9] own = {" + numbers(324) + "}";
  for (const char* added : {"mask", "biases", "own"}) {
    for (const char* sum : {"m = Add (d, {})\n", "m = Add ({}, d)\n"}) {
      const std::string text = kTokens + kQ + kK + kV + "s = MatMul (q, k)\nd = Mul (s, c)\n" +
                               fmt::format(fmt::runtime(sum), added) + "w = Softmax (m)\na = MatMul (w, v)\n";
      INFO(text);
      Graph graph = expanded(text + kTokensAgain + kLogits + initial);
      fuse_attention(graph, true);
      check_sound(graph);
      CHECK(count_ops(graph, "Softmax") == 0);
      const Node& attention = only(graph, "arbalest.Attention");
      CHECK(float_attribute(attention, "scale") == 0.25);
      REQUIRE(attention.inputs.size() == 4);
      CHECK(graph.values[attention.inputs[3]].name == added);
    }
  }
}

TEST_CASE("biases of attention are trained, and masks are not") {
  const std::string mask = "mask = Constant <value = float[9, 9] {" + numbers(81) + "}> ()\n";
  for (const bool trained : {false, true}) {
    const std::string text = kTokens + kQ + kK + kV + mask + "s = MatMul (q, k)\nm = Add (s, " +
                             (trained ? "biases" : "mask") + ")\nw = Softmax (m)\na = MatMul (w, v)\n" + kTokensAgain +
                             kLogits + (trained ? "#initial float[2, 9, 9] biases = {" + numbers(162) + "}" : "");
    ProgramOptions options;
    options.bf16 = true;
    options.fused_kernels = true;
    const Program program = make_program(net(text), options);
    const Graph& training = program.training().graph;
    check_sound(training);
    const Node& gradient = only(training, "arbalest.AttentionGrad");
    CHECK(gradient.inputs.size() == 7);
    CHECK(gradient.outputs.size() == (trained ? 4 : 3));
    const ValueId bias = only(training, "arbalest.Attention").inputs[3];
    CHECK(training.values[bias].type.dtype == DataType::Bfloat16);
  }
}

TEST_CASE("what is not attention, or is read by others, stays as it is") {
  const std::string operands = kQ + kK + kV;
  for (const char* text : {
           "s = MatMul (q, k)\nw = Softmax (s)\nb = MatMul (w, v)\nu = MatMul (w, v)\na = Add (b, u)\n",
           "s = MatMul (q, k)\nw = Softmax (s)\nb = MatMul (w, v)\nu = MatMul (s, v)\na = Add (b, u)\n",
           "s = MatMul (q, k)\nw = Softmax <axis = 2> (s)\na = MatMul (w, v)\n",
           "s = MatMul (q, k)\nm = Mul (s, s)\nw = Softmax (m)\na = MatMul (w, v)\n",
           "s = MatMul (q, k)\nm = Mul (s, trained_factor)\nw = Softmax (m)\na = MatMul (w, v)\n",
           "s = MatMul (q, k)\nb = Add (s, mask)\nm = Mul (b, c)\nw = Softmax (m)\na = MatMul (w, v)\n",
           "s = MatMul (q, k)\nm = Add (s, s)\nw = Softmax (m)\na = MatMul (w, v)\n",
           "s = MatMul (q, k)\nm = Sub (s, mask)\nw = Softmax (m)\na = MatMul (w, v)\n",
           "s = MatMul (q, k)\nm = Add (s, mask)\nw = Softmax (m)\nu = MatMul (m, v)\nz = MatMul (w, v)\n"
           "a = Add (u, z)\n",
           "s = MatMul (q, k)\nw = Softmax (s)\nu = MatMul (w, w)\na = MatMul (u, v)\n",
           "one = Slice <starts = [0], ends = [1], axes = [1]> (v)\n"
           "s = MatMul (q, k)\nw = Softmax (s)\na = MatMul (w, one)\n",
       }) {
    INFO(text);
    Graph graph = expanded(kTokens + operands + text + kTokensAgain + kLogits + "#initial float[9, 9] mask = {" +
                           numbers(81) + "}, float[1] trained_factor = {2}");
    const std::vector<std::string> before = op_names(graph);
    fuse_attention(graph, true);
    CHECK(op_names(graph) == before);
  }
  // Heads of a depth that zeros would more than double, and of even ones.
  for (const auto& [shape, attentions] : {std::pair{"[0, 9, 8, 1]", 0}, {"[0, 9, 4, 2]", 1}, {"[0, 9, 2, 4]", 1}}) {
    Graph graph =
        expanded(fmt::format("tokens = Reshape <shape = {}> (x)\n", shape) +
                 "q = Transpose <perm = [0, 2, 1, 3]> (tokens)\nk = Transpose <perm = [0, 2, 3, 1]> (tokens)\n"
                 "s = MatMul (q, k)\nw = Softmax (s)\na = MatMul (w, q)\n" +
                 kTokensAgain + kLogits);
    fuse_attention(graph, true);
    CHECK(count_ops(graph, "arbalest.Attention") == attentions);
  }
}

TEST_CASE("heads of a depth that no engine takes are padded in bfloat16, and compute the same") {
  const std::string packed =
      "tokens = Reshape <shape = [0, 8, 9]> (x)\nrows = arbalest.Linear <units = 54, axis = -1> (tokens)\n"
      "all = Reshape <shape = [0, 8, 3, 2, 9]> (rows)\nheads = Transpose <perm = [2, 0, 3, 1, 4]> (all)\n"
      "q5, k5, v5 = Split <axis = 0> (heads)\nq = Reshape <shape = [-1, 2, 8, 9]> (q5)\n"
      "keys = Reshape <shape = [-1, 2, 8, 9]> (k5)\nv = Reshape <shape = [-1, 2, 8, 9]> (v5)\n"
      "k = Transpose <perm = [0, 1, 3, 2]> (keys)\ns = MatMul (q, k)\nw = Softmax (s)\na = MatMul (w, v)\n"
      "t = Transpose <perm = [0, 2, 1, 3]> (a)\nh = Flatten (t)\n";
  const auto text = [](const char* order, const char* last) {
    return fmt::format(
        "tokens = Reshape <shape = [0, 8, 9]> (x)\nq3 = arbalest.Linear <units = 9, axis = -1> (tokens)\n"
        "k3 = arbalest.Linear <units = 9, axis = -1> (tokens)\nv3 = arbalest.Linear <units = 9, axis = -1> (tokens)\n"
        "q = Reshape <shape = [{0}]> (q3)\nkeys = Reshape <shape = [{0}]> (k3)\nv = Reshape <shape = [{0}]> (v3)\n"
        "k = Transpose <perm = [{1}]> (keys)\ns = MatMul (q, k)\nw = Softmax (s)\na = MatMul (w, v)\n"
        "h = Flatten (a)\n",
        order, last);
  };
  for (const std::string& body : {packed + kLogits, text("0, 1, 8, 9", "0, 1, 3, 2") + kLogits,
                                  text("0, 1, 1, 8, 9", "0, 1, 2, 4, 3") + kLogits}) {
    INFO(body);
    ProgramOptions options;
    for (const std::string& name : pass_names(true)) options.without.insert(name);
    const Loop plain = *make_program(net(body), options).find(LoopRole::Validate);
    Loop fused = plain, floats = plain;
    fuse_attention(floats.graph, false);
    CHECK(op_names(floats.graph) == op_names(plain.graph));
    fuse_attention(fused.graph, true);
    check_sound(fused.graph);
    CHECK(count_ops(fused.graph, "Softmax") == 0);
    const bool together = body.starts_with(packed);
    const Node& attention = only(fused.graph, together ? "arbalest.PackedAttention" : "arbalest.Attention");
    for (const ValueId each : attention.inputs) {
      CHECK(fused.graph.values[each].type.shape.back() == (together ? 3 * 2 * 16 : 16));
    }
    CHECK(loss_of(plain) > 0.1);
    CHECK(loss_of(fused) == doctest::Approx(loss_of(plain)).epsilon(1e-12));
  }
}

TEST_CASE("scores and weights that the graph gives back stay") {
  for (const char* kept : {"s", "m", "w"}) {
    Graph graph =
        expanded(kTokens + kQ + kK + kV + "s = MatMul (q, k)\nm = Add (s, mask)\nw = Softmax (m)\na = MatMul (w, v)\n" +
                 kTokensAgain + kLogits + "#initial float[9, 9] mask = {" + numbers(81) + "}");
    graph.outputs.push_back(graph.find_value(kept));
    fuse_attention(graph, true);
    CHECK(count_ops(graph, "arbalest.Attention") == 0);
  }
}

TEST_CASE("attention is fused if the program asks for it, in training and in validation") {
  const std::string text =
      kTokens + kQ + kK + kV + "s = MatMul (q, k)\nw = Softmax (s)\na = MatMul (w, v)\n" + kTokensAgain + kLogits;
  for (const bool fuse : {false, true}) {
    ProgramOptions options;
    options.bf16 = true;
    options.fused_kernels = fuse;
    const Program program = make_program(net(text), options);
    const Graph &training = program.training().graph, &validation = program.find(LoopRole::Validate)->graph;
    check_sound(training);
    CHECK(count_ops(training, "arbalest.Attention") == int64_t(fuse));
    CHECK(count_ops(training, "arbalest.AttentionGrad") == int64_t(fuse));
    CHECK(count_ops(validation, "arbalest.Attention") == int64_t(fuse));
    CHECK(count_ops(training, "Softmax") == int64_t(!fuse));
    CHECK((count_ops(training, "Transpose") == 0) == fuse);
    if (!fuse) continue;
    CHECK(value(training, "t").type.dtype == DataType::Bfloat16);
    CHECK(value(training, "t.statistics").type.dtype == DataType::Float32);
    CHECK(value(validation, "t").type.shape == Shape{5, 9, 2, 8});
  }
}

}  // namespace attention_test
