// The C++ DSL: the examples say what the example files say, and what it builds can be saved.

#include <doctest/doctest.h>

#include <cstdlib>

#include "examples/lenet.h"
#include "examples/resnet32.h"
#include "examples/resnet50.h"
#include "graph/field.h"
#include "graph/file/graph_file.h"
#include "graph/op.h"
#include "graph/passes/passes.h"
#include "tests/graph/file_fixture.h"

using namespace arbalest;

namespace {

std::string example(const std::string& name) {
  const char* root = std::getenv("ARBALEST_SOURCE");
  return (std::filesystem::path(root ? root : ".") / "examples" / name).string();
}

// Operators in order, with every attribute's effective value and the operands' types, and the parameters with how they
// start: all but names.
std::string meaning(Graph graph, const Shape& image, bool expand) {
  set_fields(graph.nodes[0], {{"image", DataType::Uint8, image}, {"label", DataType::Int32, {}}});
  verify(graph);
  if (expand) expand_layers(graph);
  std::string text;
  for (const Node& node : graph.nodes) {
    text += node.op->qualified_name();
    for (const AttributeSpec& spec : node.op->attributes) {
      const Attribute* written = node.attributes.find(spec.name);
      const std::optional<Attribute> value = written ? convert(*written, spec.kind) : spec.fallback;
      text += fmt::format(" {}={}", spec.name, value ? to_string(*value) : "?");
    }
    for (const ValueId v : node.inputs) text += fmt::format(" {}", to_string(graph.values[size_t(v)].type));
    for (const ValueId v : node.inputs) {
      const Value& value = graph.values[size_t(v)];
      if (value.role == Role::Parameter)
        text += fmt::format(" {}:{}", int(value.initializer.kind), value.initializer.a);
    }
    text += " ->";
    for (const ValueId v : node.outputs) text += fmt::format(" {}", to_string(graph.values[size_t(v)].type));
    text += '\n';
  }
  return text;
}

}  // namespace

TEST_CASE("LeNet in the DSL is the graph of the file") {
  Model model("lenet");
  build_lenet(model, "glyphs:");
  const Graph file = load_graph(example("lenet.onnxtxt"), builtin_ops());
  CHECK(meaning(model.graph(), {1, 28, 28}, false) == meaning(file, {1, 28, 28}, false));
  // Layers have the same names, so that either reads the other's weights.
  for (const Node& node : file.nodes) {
    INFO(node.name);
    if (node.op->expand) CHECK(model.graph().find_node(node.name) != kNone);
  }
}

TEST_CASE("ResNet-32 in the DSL is the graph of the file") {
  Model model("resnet32");
  build_resnet32(model, "cifar10:data/cifar10");
  const Graph file = load_graph(example("resnet32.onnxtxt"), builtin_ops());
  CHECK(meaning(model.graph(), {3, 32, 32}, true) == meaning(file, {3, 32, 32}, true));
}

TEST_CASE("ResNet-18 and ResNet-50 in the DSL are the graphs of the files") {
  for (const int depth : {18, 50}) {
    const std::string name = "resnet" + std::to_string(depth);
    INFO(name);
    Model model(name);
    build_resnet(model, "synthetic:?shape=3x224x224&classes=1000&size=1281167", depth);
    const Graph file = load_graph(example(name + ".onnxtxt"), builtin_ops());
    CHECK(meaning(model.graph(), {3, 224, 224}, true) == meaning(file, {3, 224, 224}, true));
  }
  Model model("resnet34");
  CHECK(error_of([&] { build_resnet(model, "synthetic:", 34); }) == "depth is 34; expected 18 or 50");
}

TEST_CASE("what the DSL builds is saved and reads back as it was") {
  Model lenet("lenet"), resnet("resnet32"), deep("resnet50");
  build_lenet(lenet, "glyphs:");
  build_resnet32(resnet, "cifar10:data/cifar10");
  build_resnet(deep, "synthetic:?shape=3x224x224&classes=1000&size=1281167", 50);
  const FileTestFolder folder;
  for (const Model* model : {&lenet, &resnet, &deep}) {
    for (const char* name : {"saved.onnxtxt", "saved.onnx"}) {
      INFO(model->graph().name, " ", name);
      model->save(folder.file(name));
      CHECK(difference(model->graph(), load_graph(folder.file(name), builtin_ops())) == "");
    }
  }
}

TEST_CASE("the DSL refuses unknown operators, taken names and tensors of other models") {
  Model model("one"), other("two");
  auto [image, label] = prefetch(model, {.source = "synthetic:"});
  const Tensor x = augment(image, {}).named("x");
  CHECK(x.name() == "x");
  CHECK(error_of([&] { model.add("Rellu", {x}, {}); }).find("did you mean 'Relu'?") != std::string::npos);
  CHECK(error_of([&] { model.add("arbalest.Sgd", {x}, {}); }).find("unknown operator") != std::string::npos);
  CHECK(error_of([&] { relu(x).named("x"); }).find("'x' is taken") != std::string::npos);
  CHECK(error_of([&] { other.add("Relu", {x}, {}); }).find("'x' belongs to another model") != std::string::npos);
}
