// SPDX-License-Identifier: Apache-2.0

// The examples: graph files and C++ say the same, and they are the published models.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>
#include <set>
#include <sstream>

#include "examples/models.h"
#include "examples/photos/chexnet.h"
#include "examples/photos/photos.h"
#include "executor/plan/make_plan.h"
#include "executor/session/state.h"
#include "graph/field.h"
#include "graph/file/onnx_file.h"
#include "graph/file/overrides.h"
#include "ops/builtin_ops.h"
#include "ops/check/lints.h"
#include "passes/passes.h"
#include "tests/examples/published.h"
#include "tests/executor/fixture.h"
#include "tests/graph/file_fixture.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace models_test {
namespace {

// Verified for samples of the model's size.
Graph verified(Graph graph, const Published& model) {
  set_fields(graph.nodes[0], {{"image", DataType::Uint8, model.image}, {"label", DataType::Int32, {}, model.classes}});
  verify(graph);
  return graph;
}

// Operators in order, with every attribute's effective value and the operands' types, and the parameters with how they
// start: all but names.
std::string meaning(Graph graph) {
  expand_layers(graph);
  std::string text;
  for (const Node& node : graph.nodes) {
    text += node.op->qualified_name();
    for (const AttributeSpec& spec : node.op->attributes) {
      const Attribute* written = node.attributes.find(spec.name);
      const std::optional<Attribute> value = written ? convert(*written, spec.kind) : spec.fallback;
      text += fmt::format(" {}={}", spec.name, value ? to_string(*value) : "?");
    }
    for (const ValueId v : node.inputs) {
      if (v == kNone) continue;
      const Value& value = graph.values[v];
      text += fmt::format(" {}", to_string(value.type));
      if (value.role == Role::Parameter || value.role == Role::Constant)
        text += fmt::format(" {}:{}", int(value.initializer.kind), value.initializer.a);
    }
    text += " ->";
    for (const ValueId v : node.outputs) {
      if (v != kNone) text += fmt::format(" {}", to_string(graph.values[v].type));
    }
    text += '\n';
  }
  return text;
}

// The first line in which two texts differ.
std::string first_difference(const std::string& a, const std::string& b) {
  std::istringstream left(a), right(b);
  std::string l, r;
  while (true) {
    const bool more_left = bool(std::getline(left, l)), more_right = bool(std::getline(right, r));
    if (!more_left && !more_right) return "";
    if (more_left != more_right || l != r) return (more_left ? l : "end") + "\n" + (more_right ? r : "end");
  }
}

const ExampleModel& in_cpp(const std::string& name) {
  for (const ExampleModel& model : example_models()) {
    if (model.name == name) return model;
  }
  FAIL("examples/models.h has no model '", name, "'");
  throw;
}

double forward_macs(const Loop& loop) {
  double macs = 0;
  for (const Node& node : loop.graph.nodes) {
    static const std::set<std::string> multiplying = {"Conv", "ConvRelu", "Gemm", "MatMul"};
    if (node.stage != Stage::Forward || !multiplying.contains(node.op->name)) continue;
    macs += node.op->cost(loop.graph, node).flops / 2 / double(loop.batch);
  }
  return macs;
}

}  // namespace

TEST_CASE("every example is a file, a C++ model and a line of what is published") {
  const char* root = std::getenv("ARBALEST_SOURCE");
  std::set<std::string> files, models, lines;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(root ? root : ".") + "/examples")) {
    if (entry.path().extension() == ".onnxtxt") files.insert(entry.path().stem());
  }
  for (const ExampleModel& model : example_models()) models.insert(model.name);
  for (const Published& model : published()) lines.insert(model.name);
  CHECK(files == models);
  CHECK(files == lines);
}

TEST_CASE("the C++ examples are the graphs of the files") {
  for (const Published& expected : published()) {
    INFO(expected.name);
    const ExampleModel& example = in_cpp(expected.name);
    Model model(example.name);
    example.build(model, example.source);
    const Graph file = example_graph(expected.name);
    CHECK(file.name == example.name);
    CHECK(first_difference(meaning(verified(model.graph(), expected)), meaning(verified(file, expected))) == "");
    CHECK(lint(verified(file, expected)) == std::vector<std::string>{});
  }
  Model model("resnet");
  CHECK_THROWS_WITH(build_resnet(model, "synthetic:", 35), "depth is 35; expected 18, 34, 50 or 101");
  CHECK_THROWS_WITH(build_cifar_resnet(model, "synthetic:", 34), "depth is 34; expected 6n + 2");
}

TEST_CASE("the examples on files are the same graphs in C++") {
  const char* root = std::getenv("ARBALEST_SOURCE");
  const auto check = [&](const std::string& name, const Field& label, const auto& build) {
    INFO(name);
    Model model(name);
    build(model);
    Graph file = load_graph(fmt::format("{}/examples/photos/{}.onnxtxt", root ? root : ".", name), builtin_ops());
    Graph built = model.graph();
    for (Graph* graph : {&file, &built}) {
      set_fields(graph->nodes[0], {{"image", DataType::String, {}}, label});
      verify(*graph);
    }
    CHECK(first_difference(meaning(built), meaning(file)) == "");
    CHECK(lint(file) == std::vector<std::string>{});
  };
  check("chexnet", {"label", DataType::Float32, {3}},
        [](Model& model) { build_chexnet(model, "csv:data/xrays/labels.csv?labels=pneumonia,bacteria,virus", 3); });
  check("photos", {"label", DataType::Int32, {}, 101},
        [](Model& model) { build_photos(model, "folder:data/caltech101", 101); });
}

TEST_CASE("LeNet's layers have the same names in C++, so that either reads the other's weights") {
  Model model("lenet");
  build_lenet(model, "glyphs:");
  for (const Node& node : example_graph("lenet").nodes) {
    INFO(node.name);
    if (node.op->expand) CHECK(model.graph().find_node(node.name) != kNone);
  }
}

TEST_CASE("examples are written and read back as they were") {
  const TestFolder folder;
  for (const ExampleModel& example : example_models()) {
    Model model(example.name);
    example.build(model, example.source);
    for (const Graph& graph : {model.graph(), example_graph(example.name)}) {
      INFO(example.name);
      CHECK(difference(graph, read_graph_text(write_graph_text(graph), "again", builtin_ops())) == "");
      const std::string binary = folder / "model.onnx";
      write_onnx(graph, binary);
      CHECK(difference(graph, load_graph(binary, builtin_ops())) == "");
    }
  }
}

TEST_CASE("stages of the examples have the published shapes") {
  for (const Published& expected : published()) {
    INFO(expected.name);
    const Graph graph = verified(example_graph(expected.name), expected);
    for (const auto& [name, shape] : expected.stages) {
      INFO(name);
      const ValueId id = graph.find_value(name);
      REQUIRE(id != kNone);
      const Shape& found = graph.values[id].type.shape;
      CHECK(Shape(found.begin() + 1, found.end()) == shape);
    }
  }
}

TEST_CASE("examples have the published parameters and work, and plan for two GPUs") {
  for (const Published& expected : published()) {
    INFO(expected.name);
    Graph graph = example_graph(expected.name);
    apply_override(graph, "prefetch.source=" + noise(expected.image, expected.classes, 50000));
    SessionOptions options;
    options.learners.devices = {{PlanDevice::Kind::Cuda, 0}, {PlanDevice::Kind::Cuda, 1}};
    options.execution.threads = 2;
    const Prepared prepared = prepare(std::move(graph), options);
    CHECK(parameter_count(prepared.program.training().graph) == expected.parameters);
    CHECK(forward_macs(prepared.program.training()) / 1e9 == doctest::Approx(expected.giga_macs).epsilon(0.005));
    const Plan plan = make_plan(prepared.program, prepared.request);
    CHECK(plan.devices.size() == 2);
    CHECK_NOTHROW(verify(plan));
  }
}

TEST_CASE("examples need no change of memory layout") {
  for (const Published& model : published()) {
    INFO(model.name);
    const Graph graph = verified(example_graph(model.name), model);
    for (const bool bf16 : {false, true}) {
      const Program program = make_program(graph, {.bf16 = bf16});
      for (const Loop& loop : program.loops) {
        for (const Node& node : loop.graph.nodes) {
          const bool keys = node.name.ends_with("/keys.grad_input.row_major");  // attention moves them once each way
          CHECK_MESSAGE((keys || node.op->qualified_name() != "arbalest.ChangeLayout"), node.name);
        }
      }
    }
  }
}

}  // namespace models_test
