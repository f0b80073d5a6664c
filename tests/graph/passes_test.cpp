// The passes, one by one: what each turns small graphs into.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "graph/field.h"
#include "graph/file/overrides.h"
#include "graph/passes/autodiff.h"
#include "graph/passes/program.h"
#include "tests/graph/file_fixture.h"
#include "tests/graph/net.h"

using namespace arbalest;
using namespace arbalest::test;

namespace {

std::vector<std::string> op_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const Node& node : graph.nodes) names.push_back(node.op->qualified_name());
  return names;
}

int64_t count_ops(const Graph& graph, std::string_view op) {
  return std::count_if(graph.nodes.begin(), graph.nodes.end(),
                       [&](const Node& node) { return node.op->qualified_name() == op; });
}

const Value& value(const Graph& graph, std::string_view name) {
  const ValueId id = graph.find_value(name);
  INFO("value ", std::string(name));
  REQUIRE(id != kNone);
  return graph.values[size_t(id)];
}

const Node& only(const Graph& graph, std::string_view op) {
  REQUIRE(count_ops(graph, op) == 1);
  return *std::find_if(graph.nodes.begin(), graph.nodes.end(),
                       [&](const Node& node) { return node.op->qualified_name() == op; });
}

// Producers, order and ids: what every pass must leave behind.
void check_sound(const Graph& graph) {
  std::vector<bool> defined(graph.values.size(), false);
  for (size_t v = 0; v < defined.size(); ++v) defined[v] = graph.values[v].producer == kNone;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    INFO("node ", graph.nodes[n].name);
    for (const ValueId input : graph.nodes[n].inputs) CHECK((input == kNone || defined[size_t(input)]));
    for (const ValueId output : graph.nodes[n].outputs) {
      if (output == kNone) continue;
      CHECK(graph.values[size_t(output)].producer == NodeId(n));
      defined[size_t(output)] = true;
    }
  }
  for (const Value& v : graph.values) CHECK((v.view.base == kNone || size_t(v.view.base) < graph.values.size()));
}

Graph expanded(const std::string& body) {
  Graph graph = net(body);
  expand_layers(graph);
  check_sound(graph);
  return graph;
}

Program program_of(const std::string& body, bool bf16 = false) {
  ProgramOptions options;
  options.bf16 = bf16;
  Program program = make_program(net(body), options);
  check_sound(program.training().graph);
  if (program.find(LoopRole::Validate)) check_sound(program.find(LoopRole::Validate)->graph);
  return program;
}

const std::string kHead = "logits = arbalest.Linear <units = 3> (h)\n" + std::string(kLoss);
const std::string kResidual =
    "a = arbalest.ConvBnRelu <filters = 4, kernel_shape = [3, 3]> (x)\n"
    "b = arbalest.ConvBnRelu <filters = 4, kernel_shape = [3, 3], relu = 0> (a)\n"
    "s = Add (b, a)\n"
    "h = Relu (s)\n" +
    kHead;

}  // namespace

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
  for (const Carry& carry : graph.carries) CHECK(graph.values[size_t(carry.current)].role == Role::State);
}

TEST_CASE("running statistics that a file gives are states, not parameters") {
  const Program program = program_of(
      "c = arbalest.Conv <filters = 2, kernel_shape = [1, 1]> (x)\n"
      "h = BatchNormalization <training_mode = 1> (c, scale, bias, mean, variance)\n" +
      kHead +
      "#initial float[2] scale = {1, 1}, float[2] bias = {0, 0}, float[2] mean = {0, 0}, float[2] variance = {1, 1}");
  const Graph& step = program.training().graph;
  CHECK(value(step, "mean").view.base == program.training().arenas.statistics);
  CHECK(value(step, "scale").view.base == program.training().arenas.weights);
}

TEST_CASE("batch norm takes in the Relu behind it") {
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

TEST_CASE("what flows back into a broadcast operand is summed over the axes of the broadcast") {
  const Program program =
      program_of("s = Mul (x, w)\nh = Add (v, s)\n" + kHead + "#initial float[2, 1, 1] w = {1, 2}, float v = {0.5}");
  const Graph& step = program.training().graph;
  CHECK(count_ops(step, "arbalest.SumTo") == 2);
  CHECK(value(step, "w.gradient").type == TensorType{DataType::Float32, {2, 1, 1}});
  CHECK(value(step, "v.gradient").type == TensorType{DataType::Float32, {}});
  CHECK(count_ops(step, "arbalest.AddGradA") == 0);
}

TEST_CASE("of two batch norms that are added, the later one takes in the sum") {
  Graph graph =
      expanded("m = arbalest.BatchNorm (x)\nn = arbalest.BatchNorm (x)\ns = Add (n, m)\nh = Relu (s)\n" + kHead);
  fuse_batch_norm(graph);
  check_sound(graph);
  CHECK(count_ops(graph, "arbalest.BatchNormTraining") == 2);
  const Node& norm = graph.nodes[size_t(value(graph, "h").producer)];
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

TEST_CASE("gradients of a value that is read twice are summed") {
  Graph graph = expanded(
      "c = arbalest.Conv <filters = 2, kernel_shape = [3, 3]> (x)\n"
      "r = Relu (c)\n"
      "h = Add (c, r)\n" +
      kHead);
  const ValueId weight = graph.find_value("c.weight"), loss = graph.find_value("loss");
  const size_t before = graph.nodes.size();
  const auto gradients = add_gradients(graph, loss, std::vector<ValueId>{weight});
  check_sound(graph);
  REQUIRE(gradients.size() == 1);
  CHECK(graph.values[size_t(gradients[0])].type == graph.values[size_t(weight)].type);
  int sums = 0;
  for (size_t n = before; n < graph.nodes.size(); ++n) {
    CHECK(graph.nodes[n].stage == Stage::Backward);
    sums += graph.nodes[n].op->name == "Add";
  }
  CHECK(sums == 1);
}

TEST_CASE("gradients of what is no scalar, or depends on nothing, are refused") {
  Graph graph = expanded("h = arbalest.Conv <filters = 2, kernel_shape = [3, 3]> (x)\n" + kHead);
  const std::vector<ValueId> wrt = {graph.find_value("h.weight")};
  CHECK(error_of([&] { add_gradients(graph, graph.find_value("logits"), wrt); }).find("expected a scalar") !=
        std::string::npos);
  CHECK(error_of([&] { add_gradients(graph, graph.find_value("loss"), {}); }).find("depends on no parameter") !=
        std::string::npos);
}

TEST_CASE("weights, gradients and statistics are views of flat arenas") {
  const Program program = program_of(kResidual);
  const Graph& graph = program.training().graph;
  const ArenaValues& arenas = program.training().arenas;
  constexpr int64_t kAlign = 256;
  std::vector<std::pair<int64_t, NodeId>> finished;  // offset in the arena, node that makes the gradient
  for (const ValueId arena : {arenas.weights, arenas.gradients, arenas.statistics}) {
    REQUIRE(arena != kNone);
    std::vector<std::pair<int64_t, int64_t>> ranges;
    for (const Value& member : graph.values) {
      // What is written in place (a carry's `next`) has no view of its own.
      if (member.view.base != arena) continue;
      CHECK(member.view.offset_bytes % kAlign == 0);
      ranges.emplace_back(member.view.offset_bytes, member.view.offset_bytes + member.type.bytes());
      if (arena == arenas.gradients) finished.emplace_back(member.view.offset_bytes, member.producer);
    }
    std::sort(ranges.begin(), ranges.end());
    CHECK(ranges.size() == (arena == arenas.statistics ? 4 : 8));
    for (size_t i = 1; i < ranges.size(); ++i) CHECK(ranges[i - 1].second <= ranges[i].first);
    CHECK(ranges.front().first == 0);
    CHECK(ranges.back().second <= graph.values[size_t(arena)].type.bytes());
  }
  std::sort(finished.begin(), finished.end());
  for (size_t i = 1; i < finished.size(); ++i) CHECK(finished[i - 1].second <= finished[i].second);
  for (const char* name : {"a.conv.weight", "b.bn.bias", "logits.weight"}) {
    const Value &weight = value(graph, name), &gradient = value(graph, name + std::string(".gradient"));
    CHECK(weight.view.offset_bytes == gradient.view.offset_bytes);
    CHECK(weight.type == gradient.type);
  }
  const Node& update = only(graph, "arbalest.Sgd");
  CHECK(update.stage == Stage::Update);
  CHECK(update.inputs == std::vector<ValueId>{arenas.gradients, arenas.weights, arenas.slots.at(0).value});
  CHECK(float_attribute(update, "momentum") == 0.9);
}

TEST_CASE("a parameter that two operators read has one gradient, in float") {
  for (const bool bf16 : {false, true}) {
    const Program program = program_of(kShared, bf16);
    const Graph& graph = program.training().graph;
    const Value& gradient = value(graph, "w.gradient");
    CHECK(gradient.type == TensorType{DataType::Float32, value(graph, "w").type.shape});
    CHECK(gradient.view.base == program.training().arenas.gradients);
  }
}

TEST_CASE("a parameter that does not reach the loss is an error") {
  const std::string message =
      error_of([] { program_of("idle = arbalest.Linear <units = 2> (x)\nh = Relu (x)\n" + kHead); });
  CHECK(message.find("node 'idle' (") != std::string::npos);  // the layer, not Train
  CHECK(message.find("'idle.weight' does not influence the loss 'loss'") != std::string::npos);
  const std::string none =
      error_of([] { program_of("p = GlobalAveragePool (x)\nlogits = Flatten (p)\n" + std::string(kLoss)); });
  CHECK(none.find("no parameters to train") != std::string::npos);
}

TEST_CASE("bfloat16: activations and filters are lowered, the rest stays float") {
  const Program program = program_of(kResidual, true);
  const Graph& graph = program.training().graph;
  const ArenaValues& arenas = program.training().arenas;
  for (const char* name : {"a", "h", "logits"}) CHECK(value(graph, name).type.dtype == DataType::Bfloat16);
  for (const char* name : {"loss", "a.conv.weight", "a.bn.weight", "a.bn.running_mean", "a.conv.weight.gradient"}) {
    INFO(name);
    CHECK(value(graph, name).type.dtype == DataType::Float32);
  }
  REQUIRE(arenas.weights_lowered != kNone);
  CHECK(graph.values[size_t(arenas.weights_lowered)].type ==
        TensorType{DataType::Bfloat16, graph.values[size_t(arenas.weights)].type.shape});
  const Value &master = value(graph, "a.conv.weight"), &lowered = value(graph, "a.conv.weight.bf16");
  CHECK(lowered.view.base == arenas.weights_lowered);
  CHECK(lowered.view.offset_bytes * 2 == master.view.offset_bytes);
  CHECK(only(graph, "arbalest.Sgd").outputs.size() == 3);

  // Every operand has the precision that its operator asks for.
  for (const Graph* each : {&graph, &std::as_const(program.find(LoopRole::Validate)->graph)}) {
    for (const Node& node : each->nodes) {
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        const TensorType& type = each->values[size_t(node.inputs[i])].type;
        if (!is_floating(type.dtype) || type.dtype == DataType::Float64 || node.op->name == "Cast") continue;
        INFO(node.name, " input ", i);
        CHECK((type.dtype == DataType::Bfloat16) == node.op->input_spec(i)->lowered);
      }
    }
  }
  const Graph& evaluation = program.find(LoopRole::Validate)->graph;
  CHECK(value(evaluation, "a.conv.weight.bf16").view.base == program.find(LoopRole::Validate)->arenas.weights_lowered);
}

TEST_CASE("bfloat16: casts stand where float is read as bfloat16") {
  // The bias is not lowered by itself, but Add reads it as an activation.
  const Program program = program_of(kShared, true);
  CHECK(count_ops(program.training().graph, "arbalest.Cast") > 0);
  CHECK(count_ops(program_of(kResidual, false).training().graph, "arbalest.Cast") == 0);
}

TEST_CASE("validation is the slice to its metrics, without randomness, on running statistics") {
  const Program program = program_of(kResidual);
  REQUIRE(program.find(LoopRole::Validate));
  const Loop& loop = *program.find(LoopRole::Validate);
  CHECK(loop.batch == 5);
  CHECK(program.training().batch == 4);
  const auto names_of = [](const Loop& each) {
    std::vector<std::string> names;
    for (const LoopMetric& metric : each.metrics) names.push_back(metric.name);
    return names;
  };
  CHECK(names_of(loop) == std::vector<std::string>{"loss", "accuracy"});
  CHECK(names_of(program.training()) == std::vector<std::string>{"loss", "accuracy"});
  // In training the loss's kernel counts, and there is none for the accuracy.
  CHECK(count_ops(program.training().graph, "arbalest.Accuracy") == 0);
  CHECK(only(program.training().graph, "arbalest.SoftmaxCrossEntropy").outputs.size() == 2);
  CHECK(only(loop.graph, "arbalest.SoftmaxCrossEntropy").outputs.size() == 1);
  const Graph& graph = loop.graph;
  CHECK(count_ops(graph, "arbalest.BatchNormInference") == 2);
  CHECK(count_ops(graph, "arbalest.BatchNormTraining") == 0);
  for (const char* op : {"arbalest.Train", "arbalest.Validate", "arbalest.Sgd", "arbalest.Prefetch"}) {
    CHECK(count_ops(graph, op) == 0);
  }
  CHECK(int_attribute(only(graph, "arbalest.Augment"), "random") == 0);
  CHECK(int_attribute(only(program.training().graph, "arbalest.Augment"), "random") == 1);
  CHECK(value(graph, "logits").type.shape == Shape{5, 3});
  CHECK(loop.fields == std::vector<ValueId>{graph.find_value("image"), graph.find_value("label")});
  // The arenas are laid out as training's, so that a snapshot is one copy each.
  for (const char* name : {"a.conv.weight", "b.bn.running_var"}) {
    CHECK(value(graph, name).view.offset_bytes == value(program.training().graph, name).view.offset_bytes);
  }
  CHECK(graph.values[size_t(loop.arenas.weights)].type ==
        program.training().graph.values[size_t(program.training().arenas.weights)].type);
}

TEST_CASE("recalibration keeps forward alone and sums every batch norm's own statistics") {
  for (const bool bf16 : {false, true}) {
    const Program trained = program_of(kResidual, bf16);
    Graph source = net(kResidual);
    apply_override(source, "validate.recalibrate=23");
    const Program program = make_program(std::move(source), {.bf16 = bf16, .validators = 3, .after = {}});
    REQUIRE(program.find(LoopRole::Recalibrate));
    const Graph& graph = program.find(LoopRole::Recalibrate)->graph;
    const ArenaValues& arenas = program.find(LoopRole::Recalibrate)->arenas;
    check_sound(graph);
    CHECK(program.find(LoopRole::Recalibrate)->batches == 8);
    CHECK(count_ops(graph, "arbalest.Sgd") == 0);
    CHECK(count_ops(graph, "arbalest.BatchNormGrad") == 0);
    CHECK(int_attribute(only(graph, "arbalest.Augment"), "random") == 1);
    CHECK(count_ops(graph, "arbalest.BatchNormTraining") == 2);
    const Node& sum = only(graph, "arbalest.Accumulate");
    CHECK(float_attribute(sum, "scale") == 1.0 / 8);
    CHECK(sum.inputs[1] == arenas.statistics);
    for (const Node& node : graph.nodes) {
      if (node.op->name != "BatchNormTraining") continue;
      CHECK(float_attribute(node, "momentum") == 1);
      for (const size_t i : {1, 2}) {
        const View batch = graph.values[size_t(node.outputs[i])].view;
        CHECK(batch.base == sum.inputs[0]);
        CHECK(batch.offset_bytes == graph.values[size_t(node.inputs[i + 2])].view.offset_bytes);
      }
    }
    // Nothing but the sums goes from batch to batch.
    REQUIRE(graph.carries.size() == 1);
    CHECK(graph.carries[0].current == arenas.statistics);
    // Weights and statistics of training fit in as they are.
    for (const char* name : {"a.conv.weight", "b.bn.weight", "logits.bias", "a.bn.running_mean", "b.bn.running_var"}) {
      CHECK(value(graph, name).view.offset_bytes == value(trained.training().graph, name).view.offset_bytes);
    }
  }
}

TEST_CASE("a value may be called tally, weights or velocity") {
  const Program program = program_of(
      "tally = arbalest.Conv <filters = 2, kernel_shape = [3, 3]> (x)\n"
      "weights = Relu (tally)\nvelocity = Relu (weights)\nh = Identity (velocity)\n" +
      kHead);
  for (const Loop* loop : {&program.training(), &std::as_const(*program.find(LoopRole::Validate))}) {
    const Value& tally = loop->graph.values[size_t(loop->arenas.tally)];
    CHECK(tally.type == TensorType{DataType::Float64, {int64_t(loop->metrics.size()) + 1}});
    CHECK(tally.role == Role::State);
  }
}

TEST_CASE("what nobody needs goes") {
  const Program program = program_of("unread = Relu (x)\n" + kResidual);
  const Graph& graph = program.training().graph;
  CHECK(graph.find_value("unread") == kNone);
  CHECK(count_ops(graph, "arbalest.Accuracy") == 0);
  CHECK(count_ops(program.find(LoopRole::Validate)->graph, "arbalest.Accuracy") == 1);
  // Each value that is left is read, written, or the home of others.
  std::vector<bool> used(graph.values.size(), false);
  for (const Node& node : graph.nodes) {
    for (const ValueId v : node.inputs) used[size_t(v)] = true;
    for (const ValueId v : node.outputs) used[size_t(v)] = true;
  }
  for (const Value& v : graph.values) {
    if (v.view.base != kNone) used[size_t(v.view.base)] = true;
  }
  for (size_t v = 0; v < used.size(); ++v) {
    INFO(graph.values[v].name);
    CHECK(used[v]);
  }
}

TEST_CASE("a graph has one Prefetch, one Train and at most one Validate") {
  const auto refusal = [](const std::string& body) { return error_of([&] { program_of(body); }); };
  const std::string second = "again = arbalest.Train <lr = 0.1> (loss)\n";
  CHECK(refusal(kResidual + second).find("a second arbalest.Train") != std::string::npos);
  CHECK(refusal("i2, l2 = arbalest.Prefetch <source = \"synthetic:\", batch = 4, fields = [\"image "
                "uint8[2,6,6]\", \"label int32[]\"]> ()\n" +
                kResidual)
            .find("a second arbalest.Prefetch") != std::string::npos);
  Graph graph = net(
      "h = Relu (x)\nlogits = arbalest.Linear <units = 3> (h)\nloss = arbalest.SoftmaxCrossEntropy (logits, label)\n");
  CHECK(error_of([&] { make_program(graph, {}); }).find("has no arbalest.Train node") != std::string::npos);
}

TEST_CASE("images and filters are channels-last, and the examples need no change of layout") {
  for (const char* name : {"lenet", "mlp", "resnet20", "resnet32", "resnet50"}) {
    INFO(std::string(name));
    const char* root = std::getenv("ARBALEST_SOURCE");
    Graph graph = load_graph(fmt::format("{}/examples/{}.onnxtxt", root ? root : ".", name), builtin_ops());
    for (Node& node : graph.nodes) {
      if (node.op->name != "Prefetch") continue;
      const bool mnist = std::string_view(name) == "lenet" || std::string_view(name) == "mlp";
      node.attributes.set("source", "synthetic:");
      set_fields(node, {{"image", DataType::Uint8, mnist ? Shape{1, 28, 28} : Shape{3, 256, 256}},
                        {"label", DataType::Int32, {}, 10}});
    }
    verify(graph);
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
  const Program program = program_of(
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
  CHECK(step.values[size_t(conv.inputs[0])].name == "scaled.channels_last");
  for (const Node& node : step.nodes) {
    if (node.op->name != "MulGradB") continue;
    CHECK(step.values[size_t(node.inputs[0])].type.layout == Layout::RowMajor);
  }
}

TEST_CASE("a value that is wanted channels-last by several changes once") {
  const Program program = program_of(
      "t = Transpose <perm = [0, 1, 3, 2]> (x)\n"
      "a = Conv (t, v)\nb = Conv (t, w)\nh = Add (a, b)\n" +
      kHead + "#initial float[2, 2, 3, 3] v = {" + numbers(36) + "}, float[2, 2, 3, 3] w = {" + numbers(36) + "}");
  const Graph& validation = program.find(LoopRole::Validate)->graph;
  CHECK(count_ops(validation, "arbalest.ChangeLayout") == 1);
}

TEST_CASE("filters that another operator wants row-major are laid out for the first") {
  Graph graph = expanded("c = Conv (x, w)\nt = Transpose (w)\nh = Conv (c, w)\n" + kHead +
                         "#initial float[2, 2, 3, 3] w = {" + numbers(36) + "}");
  place_layouts(graph);
  check_sound(graph);
  CHECK(value(graph, "w").type.layout == Layout::ChannelsLast);
  CHECK(count_ops(graph, "arbalest.ChangeLayout") == 0);  // Transpose takes what there is
}
