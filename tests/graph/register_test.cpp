// SPDX-License-Identifier: Apache-2.0

// Operators that a program adds by itself.

#include <doctest/doctest.h>

#include <cmath>
#include <thread>

#include "dsl/dsl.h"
#include "graph/file/graph_file.h"
#include "graph/measures.h"
#include "ops/builtin_ops.h"
#include "ops/check/check_operator.h"
#include "ops/cpu.h"
#include "passes/program.h"
#include "tests/passes/net.h"

using namespace arbalest;
using namespace arbalest::test;

namespace register_test {
namespace {

// Y = factor · X², any layout.
Op square(const std::string& name) {
  return {.domain = "my",
          .name = name,
          .doc = "factor · X²",
          .inputs = {{.name = "X"}},
          .outputs = {{.name = "Y"}},
          .attributes = {{"factor", AttributeKind::Float, Attribute(1.0), "of the square"}},
          .layout = std::nullopt,
          .infer = [](InferContext& c) { c.set_output(0, c.input(0)); },
          .grad =
              [](GradContext& c) {
                const ValueId twice = c.add("Add", "twice", {c.input(0), c.input(0)}, 1)[0];
                const ValueId slope = c.add("Mul", "slope", {twice, c.output_gradient(0)}, 1)[0];
                if (float_attribute(c.node(), "factor") == 1.0) c.set_input_gradient(0, slope);
              },
          .samples =
              [] {
                return std::vector<Sample>{{.name = "matrix", .inputs = {{{DataType::Float32, {3, 5}}}}},
                                           {.name = "image", .inputs = {{{DataType::Float32, {2, 3, 4, 5}}}}}};
              },
          .cpu = floating_kernel([](const KernelRequest& request, auto element) {
            using T = decltype(element);
            const auto factor = Wide<T>(float_attribute(request.node, "factor"));
            return make_kernel([factor, count = request.outputs[0].elements()](const KernelContext& context) {
              const T* x = input<T>(context, 0);
              T* y = output<T>(context, 0);
              for (int64_t i = 0; i < count; ++i) y[i] = narrow<T>(factor * widen(x[i]) * widen(x[i]));
            });
          })};
}

// But for the kernel that these operators have none of.
std::vector<std::string> faults_of(const Op& op) {
  std::vector<std::string> faults = check_operator(op);
  std::erase(faults, op.qualified_name() + ": there is a kernel for CPUs and none for CUDA");
  return faults;
}

std::string refusal(Op op) {
  try {
    register_operator(std::move(op));
  } catch (const GraphError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("a program's own operator: in graph files, in the DSL, through the passes, and in the harness") {
  CHECK(builtin_ops().find("my.Square") == nullptr);
  register_operator(square("Square"));
  REQUIRE(builtin_ops().find("my.Square"));
  CHECK(faults_of(*builtin_ops().find("my.Square")).empty());

  const std::string text =
      "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1, \"my\" : 1]>\n"
      "net () => (float loss) {\n"
      "image, label = arbalest.Prefetch <source = \"synthetic:\", batch = 4,"
      " fields = [\"image uint8[2,6,6]\", \"label int32[]\"]> ()\n"
      "x = arbalest.Augment (image)\n"
      "c = arbalest.Conv <filters = 3, kernel_shape = [3, 3]> (x)\n"
      "s = my.Square (c)\n"
      "logits = arbalest.Linear <units = 3> (s)\n" +
      std::string(kLoss) + "}";
  Graph graph = read_graph_text(text, "own.onnxtxt", builtin_ops());
  verify(graph);
  const Program program = make_program(std::move(graph), {});
  const Graph& step = program.training().graph;
  CHECK(step.find_node("s") != kNone);
  CHECK(step.find_value("s.twice") != kNone);

  Model model("own");
  const auto [image, label] = prefetch(model, {.source = "synthetic:", .batch = 4});
  const arbalest::Tensor augmented = model.add("arbalest.Augment", {image}, {})[0];
  const arbalest::Tensor squared = model.add("my.Square", {augmented}, {})[0];
  CHECK(squared.name() == "square");
}

TEST_CASE("a program's own operator may be called as one of the library's in another domain") {
  register_operator(square("BatchNormTraining"));
  register_operator(square("Prefetch"));
  const std::string text =
      "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1, \"my\" : 1]>\n"
      "net () => (float loss) {\n"
      "image, label = arbalest.Prefetch <source = \"synthetic:\", batch = 4,"
      " fields = [\"image uint8[2,6,6]\", \"label int32[]\"]> ()\n"
      "x = arbalest.Augment (image)\n"
      "p = my.Prefetch (x)\n"
      "s = my.BatchNormTraining (p)\n"
      "logits = arbalest.Linear <units = 3> (s)\n" +
      std::string(kLoss) + "}";
  Graph graph = read_graph_text(text, "own.onnxtxt", builtin_ops());
  verify(graph);
  const Program program = make_program(std::move(graph), {});
  CHECK(program.training().arenas.statistics == kNone);
  const Graph& validation = program.find(LoopRole::Validate)->graph;
  CHECK(validation.nodes.at(validation.find_node("p")).attributes.empty());
}

TEST_CASE("an operator that cannot be one is refused, with the reason") {
  CHECK(refusal(square("Once")) == "accepted");
  CHECK(refusal(square("Once")) == "operator 'my.Once' is registered already");
  Op relu = square("Relu");
  relu.domain = "";
  CHECK(refusal(std::move(relu)) == "operator 'Relu' is registered already");
  const auto without = [](auto remove) {
    Op op = square("Incomplete");
    remove(op);
    return refusal(std::move(op));
  };
  const auto refused = [](const std::string& message, const char* reason) {
    INFO(message);
    CHECK(message.find("cannot be registered: ") != std::string::npos);
    CHECK(message.find(reason) != std::string::npos);
  };
  refused(without([](Op& op) { op.name = ""; }), "no name");
  refused(without([](Op& op) { op.doc = ""; }), "Op::doc");
  refused(without([](Op& op) { op.infer = nullptr; }), "Op::infer");
  refused(without([](Op& op) { op.cpu = nullptr; }), "neither a kernel");
  refused(without([](Op& op) { op.expand = [](ExpandContext&) {}; }), "never run");
  refused(without([](Op& op) { op.outputs.clear(); }), "no outputs");
  refused(without([](Op& op) { op.inputs.insert(op.inputs.begin(), {.name = "all", .arity = OperandSpec::Variadic}); }),
          "'all' is variadic but not the last");
  refused(without([](Op& op) { op.attributes[0].kind = AttributeKind::String; }), "expected string");
  CHECK(builtin_ops().find("my.Incomplete") == nullptr);
}

TEST_CASE("the harness finds what is wrong with a program's own operator") {
  Op op = square("Wrong");
  op.samples = [] {
    return std::vector<Sample>{
        {.name = "tripled", .inputs = {{{DataType::Float32, {3, 5}}}}, .attributes = {{"factor", 3.0}}}};
  };
  const std::vector<std::string> faults = faults_of(op);  // its gradient is for a factor of 1 only
  REQUIRE(faults.size() == 1);
  CHECK(faults[0] == "my.Wrong, sample 'tripled', gradient: no gradient for input 0");
}

TEST_CASE("operators are registered and looked up by several threads at once") {
  const size_t before = builtin_ops().all().size();
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 50; ++i) {
        Op op = square("Thread" + std::to_string(t) + "x" + std::to_string(i));
        op.samples = nullptr;  // the other tests take every operator through its samples
        op.cpu = nullptr;
        op.expand = [](ExpandContext&) {};
        register_operator(std::move(op));
        for (const Op& known : builtin_ops().all()) CHECK_FALSE(known.name.empty());
      }
    });
  }
  threads.clear();
  CHECK(builtin_ops().all().size() == before + 200);
  CHECK(builtin_ops().find("my.Thread3x49"));
}

TEST_CASE("operators say that they compare if they take labels or targets") {
  int comparing = 0;
  for (const Op& op : builtin_ops().all()) {
    CAPTURE(op.qualified_name());
    const bool compares = op.domain == "arbalest" && !op.internal && op.name != "MixImages" && op.inputs.size() >= 2 &&
                          (op.inputs[1].name == "label" || op.inputs[1].name == "target");
    CHECK(op.compares.has_value() == compares);
    comparing += compares ? 1 : 0;
  }
  CHECK(comparing == 9);
}

}  // namespace register_test
