// SPDX-License-Identifier: Apache-2.0

// Updates in parts: parameters of one learner are updated as soon as their gradients are there.

#include <doctest/doctest.h>

#include <set>

#include "executor/plan/strategy.h"
#include "graph/op.h"
#include "graph/optimizer.h"
#include "ops/builtin_ops.h"
#include "passes/passes.h"
#include "tests/executor/fixture.h"
#include "tests/executor/plan/races.h"

using namespace arbalest;
using namespace arbalest::test;

namespace update_parts_test {
namespace {

StepCut cut_step(const PlanInputs& in) {
  return in.strategy().cut_step(in);
}

// 13.7 million parameters in five layers. The parts, in the order of the backward pass: the last two, whose bias of ten
// has padding after it; the two before, one each; the first.
TinyNet large(const std::string& train) {
  TinyNet net;
  net.layers =
      "h0 = arbalest.Linear <units = 2048> (x)\nr0 = Relu (h0)\n"
      "h1 = arbalest.Linear <units = 2048> (r0)\nr1 = Relu (h1)\n"
      "h2 = arbalest.Linear <units = 2048> (r1)\nr2 = Relu (h2)\n"
      "h3 = arbalest.Linear <units = 2304> (r2)\nh = Relu (h3)\n";
  net.train = "lr = 0.01, " + train;
  return net;
}

// Activations of 4 MiB, 14 times, and after them a layer whose gradient takes 32 MiB.
TinyNet wide() {
  TinyNet net;
  net.batch = 32;
  net.layers = "r0 = arbalest.Conv <filters = 128, kernel_shape = [1, 1]> (x)\n";
  for (int i = 0; i < 7; ++i) {
    net.layers += fmt::format(
        "c{0} = arbalest.Conv <filters = 128, kernel_shape = [1, 1]> (r{1})\nr{0} = Sigmoid (c{0})\n", i + 1, i);
  }
  net.layers += "f = Flatten (r7)\nh = arbalest.Linear <units = 256> (f)\n";
  net.train = "lr = 0.01, momentum = 0.9";
  return net;
}

constexpr const char* kWhole = ", clip_norm = 1e30";  // a norm of all gradients: one update; its factor is 1

SessionOptions short_run(Precision precision = Precision::Fp32) {
  SessionOptions options = on_cpus();
  options.numerics.precision = precision;
  options.length.iterations = 6;
  options.execution.report_every = 1;
  return options;
}

Plan plan_of(const TinyNet& net, PlanDevice device = {PlanDevice::Kind::Cpu, 0}) {
  SessionOptions options = short_run();
  options.learners.devices = {device};
  const Prepared ready = prepare(tiny(net), options);
  return make_plan(ready.program, ready.request);
}

// The launches of the training step, with whether each is of an update.
struct Step {
  std::vector<const Launch*> launches;
  std::vector<bool> updates;

  explicit Step(const Plan& plan) {
    for (const Task& task : plan.tasks) {
      if (task.kind != Task::Kind::Compute || task.learner != 0 || !launches.empty()) continue;
      for (int32_t i = 0; i < task.launches; ++i) {
        const Launch& launch = plan.launches[size_t(task.first_launch + i)];
        launches.push_back(&launch);
        const Node& node = plan.graphs[size_t(launch.program)].nodes[launch.node];
        updates.push_back(node.op->optimizer.has_value());
      }
    }
  }
  int64_t count() const { return std::count(updates.begin(), updates.end(), true); }
};

// Several buckets of 16 KiB or more, and a small one at last.
TinyNet of_buckets(const std::string& train = "") {
  TinyNet net;
  net.layers =
      "n0 = arbalest.ConvBnRelu <filters = 16, kernel_shape = [3, 3], strides = [2, 2]> (x)\n"
      "h0 = arbalest.Linear <units = 32> (n0)\nr0 = Relu (h0)\n"
      "h1 = arbalest.Linear <units = 256> (r0)\nr1 = Relu (h1)\n"
      "h2 = arbalest.Linear <units = 48> (r1)\nh = Relu (h2)\n";
  net.train = "lr = 0.01" + train;
  net.synchronize = fmt::format("strategy = \"ssgd\", bucket_mib = {}", 16.0 / 1024);
  return net;
}

StepCut cut_of(const TinyNet& net, int devices, int learners) {
  const Prepared ready = prepare(tiny(net), on_cpus(devices, learners));
  return cut_step({ready.program, ready.request});
}

// Losses and metrics, in order.
std::vector<double> told(const Recorder& run) {
  std::vector<double> numbers;
  for (const auto& report : run.reports) numbers.push_back(report.loss);
  for (const Validated& validation : run.validations) {
    numbers.push_back(validation.loss);
    for (const auto& metric : validation.metrics) numbers.push_back(metric.second);
  }
  return numbers;
}

}  // namespace

TEST_CASE("parts of an update hold each parameter once, and none that is read afterwards") {
  const SessionOptions options = short_run();
  const Prepared ready = prepare(tiny(large("momentum = 0.9")), options);
  const StepCut cut = cut_step({ready.program, ready.request});
  const Loop& loop = ready.program.training();
  REQUIRE(cut.updates.size() == 4);
  int64_t offset = 0;
  for (const UpdatePart& part : cut.updates) {
    CHECK(part.offset == offset);
    CHECK(part.elements > 0);
    offset += part.elements;
  }
  // Gaps between parameters are updated, too.
  const Plan plan = make_plan(ready.program, ready.request);
  const Placement& placement = plan.handles.loops.front().replicas.front().placement;
  const auto arena_of = [&](const char* value) {
    const Operand& operand = placement.of[loop.graph.find_value(value)];
    return plan.arenas[plan.buffers[operand.buffer].arena].name;
  };
  CHECK(cut.updates[0].gaps.size() == 1);
  CHECK(contains(arena_of("logits.bias.gradient"), "/activations"));
  CHECK(cut.updates[1].gaps.empty());
  CHECK(contains(arena_of("h2.weight.gradient"), "/activations"));
  const Table<ValueId, View> storage = shared_storage(loop.graph);
  const Table<ValueId, Value>& values = loop.graph.values;
  CHECK(offset == values[loop.arenas.weights].type.elements());
  std::set<NodeId> after;
  for (const UpdatePart& part : cut.updates) {
    after.insert(part.after);
    for (NodeId n = part.after + 1; n < loop.graph.nodes.end_id(); ++n) {
      if (n == cut.update) continue;
      const Node& node = loop.graph.nodes[n];
      for (const std::vector<ValueId>& operands : {node.inputs, node.outputs}) {
        for (const ValueId value : operands) {
          if (value == kNone) continue;
          const View& view = storage[value];
          const bool of_part = view.base == loop.arenas.weights || view.base == loop.arenas.gradients;
          CHECK_FALSE((of_part && part.holds(view.offset_bytes)));
        }
      }
    }
  }
  CHECK(after.size() == 4);
}

TEST_CASE("an update in parts is in the step where its gradients are there, without races, and takes less memory") {
  const Plan parts = plan_of(large("momentum = 0.9")), whole = plan_of(large(std::string("momentum = 0.9") + kWhole));
  const Step step(parts);
  CHECK(Step(whole).count() == 1);
  REQUIRE(step.count() == 4);
  CHECK(step.updates.front() == false);
  const auto first = std::find(step.updates.begin(), step.updates.end(), true);
  CHECK(step.updates.end() - first > 6);  // the backward pass goes on after it
  Races races(parts);
  CHECK(races.first() == "");
  constexpr int64_t kLayer = (2048 * 2048 + 2048) * 4;  // bytes of gradients: two layers share their memory
  CHECK(planned_bytes(parts, 0) <= planned_bytes(whole, 0) - kLayer);

  const Plan on_gpu = plan_of(large("momentum = 0.9"), {PlanDevice::Kind::Cuda, 0});
  const Step recorded(on_gpu);
  REQUIRE(recorded.count() == 4);
  for (size_t i = 0; i < recorded.launches.size(); ++i) {
    if (recorded.updates[i]) CHECK(recorded.launches[i]->aside);
  }
}

TEST_CASE("a large gradient comes where activations have left room for it, and is updated apart") {
  const Prepared ready = prepare(tiny(wide()), short_run());
  const Program early = make_program(ready.graph, {});
  const auto makes_it = [](const Program& program) {
    const Graph& graph = program.training().graph;
    const NodeId maker = graph.values[graph.find_value("h.weight.gradient")].producer;
    REQUIRE(maker != kNone);
    NodeId last = graph.nodes.end_id() - 1;
    while (graph.nodes[last].stage != Stage::Backward) --last;
    return std::pair(maker, last);  // and the last of the backward pass
  };
  CHECK(makes_it(early).first < makes_it(early).second - 14);
  CHECK(makes_it(ready.program).first > makes_it(early).first + 6);
  CHECK(makes_it(ready.program).first < makes_it(ready.program).second);  // no later than need be
  const StepCut cut = cut_step({ready.program, ready.request});
  const auto& values = ready.program.training().graph.values;
  const Value& gradient = values[ready.program.training().graph.find_value("h.weight.gradient")];
  const auto part = std::find_if(cut.updates.begin(), cut.updates.end(),
                                 [&](const UpdatePart& each) { return each.holds(gradient.view.offset_bytes); });
  REQUIRE(part != cut.updates.end());
  CHECK(part->offset * 4 == gradient.view.offset_bytes);
  CHECK(part->elements == gradient.type.elements());
  Plan late = make_plan(ready.program, ready.request);
  CHECK(Races(late).first() == "");
  CHECK(planned_bytes(late, 0) < planned_bytes(make_plan(early, ready.request), 0) - (22 << 20));
}

TEST_CASE("large gradients for which activations leave no room stay where they are") {
  TinyNet net;
  net.layers = "h0 = arbalest.Linear <units = 4096> (x)\n";
  for (int i = 0; i < 3; ++i) {
    net.layers += fmt::format("r{0} = Relu (h{0})\nh{1} = arbalest.Linear <units = 4096> (r{0})\n", i, i + 1);
  }
  net.layers += "h = Relu (h3)\n";
  net.train = "lr = 0.01, momentum = 0.9";
  const Prepared ready = prepare(tiny(net), short_run());
  const Program early = make_program(ready.graph, {});
  CHECK(print_plan(make_plan(ready.program, ready.request)) == print_plan(make_plan(early, ready.request)));
}

TEST_CASE("a large gradient does not come after what reads it, or may write over its operands") {
  const Prepared ready = prepare(tiny(wide()), short_run());
  enum class Other : uint8_t { Reads, Writes, ReadsGradient };  // what a node after it does
  const auto moved = [&](Other does) {
    Program program = make_program(ready.graph, {});
    Graph& graph = program.training().graph;
    const auto maker = [&] { return graph.values[graph.find_value("h.weight.gradient")].producer; };
    Table<NodeId, int64_t> key(graph.nodes.size());
    for (const NodeId n : key.ids()) key[n] = 10 * int64_t(n);
    const NodeId made = maker();
    const Node& node = graph.nodes[made];
    const ValueId read = does == Other::ReadsGradient ? node.outputs[0] : node.inputs[1];
    const char* op = does == Other::Writes ? "arbalest.FlattenInPlace" : "Flatten";
    const NodeId other = graph.add_node(builtin_ops().get(op), "other", {read}, 1, {{"axis", int64_t{1}}});
    graph.nodes[other].stage = Stage::Backward;
    infer(graph, other);
    key.push_back(key[made + 3] + 1);
    reorder_nodes(graph, key);
    const NodeId before = graph.find_node("other");
    REQUIRE(maker() < before);
    delay_gradients(graph, program.training().arenas);
    return maker() > graph.find_node("other");
  };
  CHECK(moved(Other::Reads));
  CHECK_FALSE(moved(Other::Writes));
  CHECK_FALSE(moved(Other::ReadsGradient));
}

TEST_CASE("small models, norms of all gradients, several batches and averaging leave the update whole") {
  CHECK(Step(plan_of(TinyNet())).count() == 1);
  CHECK(Step(plan_of(large("optimizer = \"lars\", momentum = 0.9"))).count() == 1);
  CHECK(Step(plan_of(large("accumulate = 2"))).count() == 1);
  SessionOptions options = short_run();
  options.learners.per_device = 2;
  const Prepared ready = prepare(tiny(large("momentum = 0.9")), options);
  CHECK(cut_step({ready.program, ready.request}).updates.empty());
}

TEST_CASE("between devices what the last bucket of gradients lacks is updated while that travels") {
  for (const int learners : {1, 2}) {
    CAPTURE(learners);
    const Prepared ready = prepare(tiny(of_buckets(", momentum = 0.9")), on_cpus(2, learners));
    const StepCut cut = cut_step({ready.program, ready.request});
    REQUIRE(cut.buckets.size() > 2);
    Plan plan = make_plan(ready.program, ready.request);
    CHECK(Races(plan).first() == "");
    const auto task = [&](const std::string& name) {
      const auto found =
          std::find_if(plan.tasks.begin(), plan.tasks.end(), [&](const Task& each) { return each.name == name; });
      REQUIRE(found != plan.tasks.end());
      return TaskId(found - plan.tasks.begin());
    };
    const auto all_reduce = [&](size_t bucket) { return task(fmt::format("all-reduce gradients {}", bucket)); };
    const auto waits = [&](TaskId of, size_t bucket) {
      return std::any_of(plan.edges.begin(), plan.edges.end(), [&, all = all_reduce(bucket)](const Edge& edge) {
        return edge.from == all && edge.to == of && edge.distance == 0;
      });
    };
    // Bytes of the gradients that a task's first node with such a name reads.
    const auto gradients = [&](TaskId id, const char* op, size_t operand) {
      const Task& of = plan.tasks[id];
      for (int32_t i = of.first_launch; i < of.first_launch + of.launches; ++i) {
        const Launch& launch = plan.launches[size_t(i)];
        const Graph& graph = plan.graphs[size_t(launch.program)];
        const Node& node = graph.nodes[launch.node];
        if (node.op->qualified_name() == op) return graph.values[node.inputs[operand]].type.bytes();
      }
      return int64_t{0};
    };
    int64_t whole = 0;
    for (size_t bucket = 0; bucket < cut.buckets.size(); ++bucket) {
      whole += gradients(all_reduce(bucket), "arbalest.AllReduce", 0);
    }
    const int64_t last = gradients(all_reduce(cut.buckets.size() - 1), "arbalest.AllReduce", 0);
    for (const Replica& replica : plan.handles.loops.front().replicas) {
      const std::string prefix = fmt::format("cpu:{}/learner {}/update ", replica.device, replica.learner);
      const TaskId first = task(prefix + "0"), second = task(prefix + "1");
      CHECK(second == replica.update());
      CHECK(gradients(first, "arbalest.Sgd", UpdateOperands::kGradients) == whole - last);
      CHECK(gradients(second, "arbalest.Sgd", UpdateOperands::kGradients) == last);
      for (size_t bucket = 0; bucket < cut.buckets.size(); ++bucket) {
        CHECK(waits(first, bucket) == (bucket + 1 < cut.buckets.size()));
        CHECK(waits(second, bucket) == (bucket + 1 == cut.buckets.size()));
      }
    }
  }
  CHECK(cut_of(of_buckets(), 2, 1).early > 0);
  CHECK(cut_of(of_buckets(kWhole), 2, 1).early == 0);
  CHECK(cut_of(of_buckets(", optimizer = \"lars\", momentum = 0.9"), 2, 1).early == 0);
  CHECK(cut_of(of_buckets(", optimizer = \"muon\", momentum = 0.9"), 2, 1).early == 0);
  CHECK(cut_of(of_buckets(", accumulate = 2"), 2, 1).early == 0);
  CHECK(cut_of(of_buckets(), 1, 2).early == 0);  // nothing travels
  TinyNet one = of_buckets();
  one.synchronize = "strategy = \"ssgd\"";
  CHECK(cut_of(one, 2, 1).early == 0);
}

TEST_CASE("an update in two tasks changes no bit") {
  for (const int learners : {1, 2}) {
    for (const std::string train : {", momentum = 0.9, weight_decay = 0.01, ema = 0.9",
                                    ", optimizer = \"adamw\", weight_decay = 0.1, decay_norms = 0, frozen = [\"h0*\"]",
                                    ", optimizer = \"rmsprop\", no_decay = [\"h2*\"], weight_decay = 0.1"}) {
      for (const Precision precision : {Precision::Fp32, Precision::Bf16}) {
        CAPTURE(learners);
        INFO(train);
        CAPTURE(int(precision));
        SessionOptions options = on_cpus(2, learners);
        options.numerics.precision = precision;
        options.length.iterations = 6;
        options.execution.report_every = 1;
        CHECK(cut_of(of_buckets(train), 2, learners).early > 0);
        const Recorder two = run(tiny(of_buckets(train)), options);
        const Recorder whole = run(tiny(of_buckets(train + kWhole)), options);
        REQUIRE(two.reports.size() == 6);
        REQUIRE(!two.validations.empty());
        CHECK(told(two) == told(whole));
        CHECK(two.reports.front().loss != two.reports.back().loss);
      }
    }
  }
}

TEST_CASE("an update in parts changes no bit") {
  TinyNet one = wide(), other = wide();
  other.train += kWhole;
  SessionOptions few = short_run();
  few.length.iterations = 2;
  CHECK(run(tiny(one), few).reports.back().loss == run(tiny(other), few).reports.back().loss);
  for (const std::string train :
       {"momentum = 0.9, weight_decay = 0.01", "optimizer = \"adamw\", weight_decay = 0.1, decay_norms = 0",
        "optimizer = \"rmsprop\", no_decay = [\"h2*\"], weight_decay = 0.1, ema = 0.9"}) {
    for (const Precision precision : {Precision::Fp32, Precision::Bf16}) {
      if (precision == Precision::Bf16 && train.starts_with("optimizer")) continue;
      INFO(train);
      const Recorder parts = run(tiny(large(train)), short_run(precision));
      const Recorder whole = run(tiny(large(train + kWhole)), short_run(precision));
      REQUIRE(parts.reports.size() > 2);
      REQUIRE(parts.reports.size() == whole.reports.size());
      CHECK(told(parts) == told(whole));
      CHECK(parts.reports.front().loss != parts.reports.back().loss);
    }
  }
}

}  // namespace update_parts_test
