// SPDX-License-Identifier: Apache-2.0

// From a graph to its loops: validation, recalibration, precision, and what is removed.

#include <doctest/doctest.h>

#include <ctime>
#include <utility>

#include "graph/file/overrides.h"
#include "tests/graph/file_fixture.h"
#include "tests/passes/net.h"
#include "tests/passes/passes_fixture.h"

using namespace arbalest;
using namespace arbalest::test;

TEST_CASE("bfloat16: activations and filters are lowered, the rest stays float") {
  const Program program = program_of_net(kResidual, true);
  const Graph& graph = program.training().graph;
  const ArenaValues& arenas = program.training().arenas;
  for (const char* name : {"a", "h", "logits"}) CHECK(value(graph, name).type.dtype == DataType::Bfloat16);
  for (const char* name : {"loss", "a.conv.weight", "a.bn.weight", "a.bn.running_mean", "a.conv.weight.gradient"}) {
    INFO(name);
    CHECK(value(graph, name).type.dtype == DataType::Float32);
  }
  REQUIRE(arenas.weights_lowered != kNone);
  CHECK(graph.values[arenas.weights_lowered].type ==
        TensorType{DataType::Bfloat16, graph.values[arenas.weights].type.shape});
  const Value &master = value(graph, "a.conv.weight"), &lowered = value(graph, "a.conv.weight.bf16");
  CHECK(lowered.view.base == arenas.weights_lowered);
  CHECK(lowered.view.offset_bytes * 2 == master.view.offset_bytes);
  CHECK(only(graph, "arbalest.Sgd").outputs.size() == 3);

  // Every operand has the precision that its operator asks for.
  for (const Graph* each : {&graph, &std::as_const(program.find(LoopRole::Validate)->graph)}) {
    for (const Node& node : each->nodes) {
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (node.inputs[i] == kNone) continue;
        const TensorType& type = each->values[node.inputs[i]].type;
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
  const Program program = program_of_net(kShared, true);
  CHECK(count_ops(program.training().graph, "Cast") > 0);
  CHECK(count_ops(program_of_net(kResidual, false).training().graph, "Cast") == 0);
}

TEST_CASE("losses, metrics and outputs keep their names after casts that change nothing") {
  const std::string body =
      "h = Flatten (x)\n"
      "logits = arbalest.Linear <units = 3> (h)\n"
      "l = arbalest.SoftmaxCrossEntropy (logits, label)\n"
      "between = Cast <to = 1> (l)\n"
      "loss = Cast <to = 1> (between)\n"
      "accuracy = arbalest.Accuracy (logits, label)\n"
      "again = Cast <to = 1> (accuracy)\n"
      "trained = arbalest.Train <lr = 0.1> (loss)\n"
      "report = arbalest.Validate (trained, loss, accuracy, again)\n";
  for (const bool bf16 : {false, true}) {
    const Program program = program_of_net(body, bf16);
    CHECK(only(program.training().graph, "arbalest.SoftmaxCrossEntropy").outputs[0] ==
          program.training().graph.find_value("loss"));
    CHECK(program.training().graph.find_op("Cast") == nullptr);
    const Loop& loop = *program.find(LoopRole::Validate);
    std::vector<std::string> names;
    for (const LoopMetric& metric : loop.metrics) {
      names.push_back(metric.name);
      CHECK(metric.better == (metric.name == "loss" ? MetricSpec::Better::Lower : MetricSpec::Better::Higher));
    }
    CHECK(names == std::vector<std::string>{"loss", "accuracy", "again"});
    CHECK(only(loop.graph, "Cast").outputs[0] == loop.graph.find_value("again"));
  }
}

TEST_CASE("two losses of which one is the other's cast are both there, and what is stored keeps its name") {
  const Graph graph = expanded(
      "h = Flatten (x)\n"
      "logits = arbalest.Linear <units = 3> (h)\n"
      "l = arbalest.SoftmaxCrossEntropy (logits, label)\n"
      "loss = Cast <to = 1> (l)\n"
      "stored = Cast <to = 1> (s)\n"
      "trained = arbalest.Train <lr = 0.1> (loss)\n"
      "report = arbalest.Validate (trained, l, loss, stored)\n"
      "#initial float s = {1}");
  const Node& report = only(graph, "arbalest.Validate");
  CHECK(graph.values[report.inputs[1]].name == "l");
  CHECK(graph.values[report.inputs[2]].name == "loss");
  CHECK(graph.values[report.inputs[3]].name == "s");
  CHECK(only(graph, "Cast").inputs[0] == graph.find_value("l"));
}

TEST_CASE("validation is the slice to its metrics, without randomness, on running statistics") {
  const Program program = program_of_net(kResidual);
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
  CHECK(graph.values[loop.arenas.weights].type ==
        program.training().graph.values[program.training().arenas.weights].type);
}

TEST_CASE("recalibration keeps forward alone and sums every batch norm's own statistics") {
  for (const bool bf16 : {false, true}) {
    const Program trained = program_of_net(kResidual, bf16);
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
        const View batch = graph.values[node.outputs[i]].view;
        CHECK(batch.base == sum.inputs[0]);
        CHECK(batch.offset_bytes == graph.values[node.inputs[i + 2]].view.offset_bytes);
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
  const Program program = program_of_net(
      "tally = arbalest.Conv <filters = 2, kernel_shape = [3, 3]> (x)\n"
      "weights = Relu (tally)\nvelocity = Relu (weights)\nh = Identity (velocity)\n" +
      kHead);
  for (const Loop* loop : {&program.training(), &std::as_const(*program.find(LoopRole::Validate))}) {
    const Value& tally = loop->graph.values[loop->arenas.tally];
    CHECK(tally.type == TensorType{DataType::Float64, {int64_t(loop->metrics.size()) + 1}});
    CHECK(tally.role == Role::State);
  }
}

TEST_CASE("what nobody needs goes") {
  const Program program = program_of_net("unread = Relu (x)\n" + kResidual);
  const Graph& graph = program.training().graph;
  CHECK(graph.find_value("unread") == kNone);
  CHECK(count_ops(graph, "arbalest.Accuracy") == 0);
  CHECK(count_ops(program.find(LoopRole::Validate)->graph, "arbalest.Accuracy") == 1);
  // Each value that is left is read, written, or the home of others.
  Table<ValueId, bool> used(graph.values.size(), false);
  for (const Node& node : graph.nodes) {
    for (const ValueId v : node.inputs) {
      if (v != kNone) used[v] = true;
    }
    for (const ValueId v : node.outputs) used[v] = true;
  }
  for (const Value& v : graph.values) {
    if (v.view.base != kNone) used[v.view.base] = true;
  }
  for (const ValueId v : used.ids()) {
    INFO(graph.values[v].name);
    CHECK(used[v]);
  }
}

TEST_CASE("a graph has one Prefetch, one Train and at most one Validate") {
  const auto refusal = [](const std::string& body) { return error_of([&] { program_of_net(body); }); };
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

TEST_CASE("losses and metrics count one row a sample, and refuse others") {
  const auto refusal = [](const std::string& body) { return error_of([&] { program_of_net(body); }); };
  CHECK(refusal(kResidual) == "");
  const std::string flattened = refusal(
      "t = Transpose <perm = [1, 0, 2, 3]> (x)\nrows = Flatten <axis = 2> (t)\n"
      "mse = arbalest.MeanSquaredError (rows, rows)\n" +
      kResidual);
  INFO(flattened);
  CHECK(flattened.find("'mse' (arbalest.MeanSquaredError): input '") != std::string::npos);
  CHECK(flattened.find("expected one row for each of the 4 samples of a batch") != std::string::npos);
}

// Comparing every new name with all others, and every layer's readers with all nodes, took 30 s.
TEST_CASE("twenty thousand layers are expanded in time that grows as their number does") {
  constexpr int kLayers = 20000;
  std::string body = "h0 = arbalest.Linear <units = 3> (x)\n";
  for (int i = 1; i < kLayers; ++i) body += fmt::format("h{} = arbalest.Linear <units = 3> (h{})\n", i, i - 1);
  const std::clock_t began = std::clock();
  const Graph graph = expanded(body + fmt::format("logits = Identity (h{})\n", kLayers - 1) + kLoss);
  CHECK(double(std::clock() - began) / CLOCKS_PER_SEC < 8);
  CHECK(value(graph, "h19999.weight").role == Role::Parameter);
  CHECK(graph.nodes[value(graph, "h7").producer].op->name == "Gemm");
}

TEST_CASE("names that many ask for are numbered in time that grows as their number does") {
  Graph graph;
  const std::clock_t began = std::clock();
  for (int i = 0; i < 30000; ++i) graph.add_value("x", {});
  CHECK(double(std::clock() - began) / CLOCKS_PER_SEC < 5);
  for (const int i : {1, 63, 64, 65, 1000, 29999}) {
    CHECK(graph.values[ValueId(i)].name == fmt::format("x:{}", i));
  }
  graph.rename(7, "y");
  CHECK(graph.values[graph.add_value("x", {})].name == "x:7");
}

TEST_CASE("a value is found by the name that it has now") {
  Graph graph = net(std::string("logits = arbalest.Linear <units = 3> (x)\n") + kLoss);
  const ValueId x = graph.find_value("x"), loss = graph.find_value("loss");
  graph.rename(x, "y");
  CHECK(graph.find_value("x") == kNone);
  CHECK(graph.find_value("y") == x);
  graph.rename(loss, "x");
  CHECK(graph.find_value("x") == loss);
  CHECK(graph.values[graph.add_value("x", {})].name == "x:1");
  CHECK(graph.values[graph.add_value("x", {})].name == "x:2");
  Graph copy = graph;
  copy.set_values({graph.values[x]});
  CHECK(copy.find_value("y") == ValueId(0));
  CHECK(copy.find_value("x") == kNone);
  CHECK(graph.find_value("x") == loss);
}

// Weights of batches have a node, an element of the gradients and a sum of the tally only if they vary. They have a
// node only if several batches make an update.
TEST_CASE("batches are weighed where their samples need not weigh the same") {
  struct Case {
    const char *loss, *attributes;
    bool sums, tallied, weighed;
  };
  const char* plain = "arbalest.SoftmaxCrossEntropy (logits, label)";
  const char* weighted = "arbalest.SoftmaxCrossEntropy <class_weights = [1.0, 2.0, 3.0]> (logits, label)";
  const char* ignoring = "arbalest.SoftmaxCrossEntropy <ignore_index = -1> (logits, label)";
  const Case cases[] = {{plain, "", true, false, false},
                        {plain, ", accumulate = 3, clip_norm = 1.0", false, false, false},
                        {weighted, "", false, true, false},
                        {weighted, "", true, true, true},
                        {weighted, ", accumulate = 3", false, true, true},
                        {ignoring, ", accumulate = 3, clip_norm = 1.0", false, true, true}};
  for (const Case& c : cases) {
    INFO(c.loss, c.attributes, c.sums);
    const Program program =
        make_program(net(fmt::format("h = Flatten (x)\nlogits = arbalest.Linear <units = 3> (h)\nloss = {}\n"
                                     "trained = arbalest.Train <lr = 0.1{}> (loss)\n"
                                     "report = arbalest.Validate (trained, loss)\n",
                                     c.loss, c.attributes)),
                     {.sums = c.sums, .after = {}});
    for (const Loop& loop : program.loops) {
      check_sound(loop.graph);
      CHECK(loop.sums == (c.tallied ? 3 : 2));
      CHECK(loop.graph.values[loop.arenas.tally].type.shape == Shape{int64_t(loop.sums)});
      CHECK(loop.metrics.at(0).means.at(0).weight == (c.tallied ? 2 : 0));
    }
    const Graph& graph = program.training().graph;
    const ArenaValues& arenas = program.training().arenas;
    CHECK(count_ops(graph, "arbalest.BatchWeight") == c.weighed);
    const auto elements = [&](ValueId value) { return graph.values[value].type.elements(); };
    CHECK(elements(arenas.gradients) == elements(arenas.weights) + (c.weighed ? 64 : 0));
    if (!c.weighed) continue;
    CHECK(int_attribute(only(graph, "arbalest.ClipFactor"), "weight") == elements(arenas.weights));
    const Value& weight = value(graph, "batch_weight");
    CHECK(weight.view.base == arenas.gradients);
    CHECK(weight.view.offset_bytes == elements(arenas.weights) * int64_t(sizeof(float)));
  }
}

TEST_CASE("a norm over one value is refused where it is to train") {
  const auto fault = [](const std::string& layers, const char* pad, bool trains) {
    Graph graph = net("f = Flatten (x)\n" + layers + "logits = arbalest.Linear <units = 3> (h)\n" + kLoss);
    graph.find_op("arbalest.Prefetch")->attributes.set("batch", int64_t{1});
    if (*pad != 0) graph.find_op("arbalest.Train")->attributes.set("frozen", std::vector<std::string>{pad});
    verify(graph);
    ProgramOptions options;
    options.trains = trains;
    return error_of([&] { make_program(std::move(graph), options); });
  };
  const std::string dense = "d = arbalest.Linear <units = 5> (f) h = arbalest.BatchNorm (d)\n";
  const std::string text = fault(dense, "", true);
  INFO(text);
  CHECK(text.find("net.onnxtxt:") == 0);
  CHECK(text.find("node 'h' (arbalest.BatchNormTraining): input 'X' is float[1,5]: the one value of a channel is "
                  "normalised by itself") != std::string::npos);
  CHECK(fault(dense, "h.*", true) == "");                                        // by its running statistics
  CHECK(fault(dense, "", false) == "");                                          // evaluated sample by sample
  CHECK(fault("n = arbalest.BatchNorm (x) h = Flatten (n)\n", "", true) == "");  // 36 pixels
  const std::string pixel = "p = GlobalAveragePool (x) n = InstanceNormalization (p, scale, bias) h = Flatten (n)\n";
  const std::string initial = "#initial float[2] scale = {1, 1}, float[2] bias = {0, 0}";
  const std::string of_instance =
      error_of([&] { make_program(net(pixel + "logits = arbalest.Linear <units = 3> (h)\n" + kLoss + initial), {}); });
  INFO(of_instance);
  CHECK(of_instance.find("one value is normalised by itself") != std::string::npos);
  const std::string sample =
      "p = ReduceMean <axes = [1, 2, 3]> (x) n = InstanceNormalization (p, scale, bias) "
      "h = Flatten (n)\nlogits = arbalest.Linear <units = 3> (h)\n";
  const std::string of_sample =
      error_of([&] { make_program(net(sample + kLoss + "#initial float[1] scale = {1}, float[1] bias = {0}"), {}); });
  INFO(of_sample);
  CHECK(of_sample.find("one value is normalised by itself") != std::string::npos);
}
