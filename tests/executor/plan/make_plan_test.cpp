// SPDX-License-Identifier: Apache-2.0

// make_plan: golden dumps, liveness over many combinations of options, and what it refuses.
//
// After a wanted change of plans: ARBALEST_UPDATE_GOLDEN=1 build/tests/test_executor -tc='*golden*', then read the
// difference.

#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "executor/plan/make_plan.h"
#include "executor/plan/plan_part.h"
#include "graph/file/overrides.h"
#include "io/sources/data_order.h"
#include "ops/builtin_ops.h"
#include "tests/executor/fixture.h"
#include "tests/executor/plan/races.h"

using namespace arbalest;
using namespace arbalest::test;

namespace make_plan_test {
namespace {

std::filesystem::path source_root() {
  const char* root = std::getenv("ARBALEST_SOURCE");
  return root ? root : ".";
}

Graph example(const std::string& name, const std::string& source) {
  Graph graph = load_graph((source_root() / "examples" / name).string(), builtin_ops());
  apply_override(graph, "prefetch.source=" + source);
  return graph;
}

Plan plan_of(Graph graph, const SessionOptions& options) {
  const Prepared prepared = prepare(std::move(graph), options);
  return make_plan(prepared.program, prepared.request);
}

void check_golden(const std::string& name, const std::string& text) {
  const std::filesystem::path path = source_root() / "tests/executor/plan/golden" / name;
  if (std::getenv("ARBALEST_UPDATE_GOLDEN")) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    MESSAGE("written: ", path.string());
    return;
  }
  const std::string expected = read_whole_file(path.string());
  size_t line = 1, at = 0;
  while (at < std::min(text.size(), expected.size()) && text[at] == expected[at]) line += text[at++] == '\n';
  const auto line_at = [&](const std::string& from) {
    const size_t begin = at == 0 ? 0 : from.rfind('\n', at - 1) + 1;
    return begin > from.size() ? std::string() : from.substr(begin, from.find('\n', begin) - begin);
  };
  CHECK_MESSAGE(text == expected, path.string(), ":", line, "\n  expected: ", line_at(expected),
                "\n  found:    ", line_at(text), "\n  If the change is wanted, set ARBALEST_UPDATE_GOLDEN=1 once.");
}

int64_t count_tasks(const Plan& plan, Task::Kind kind) {
  return std::count_if(plan.tasks.begin(), plan.tasks.end(), [&](const Task& task) { return task.kind == kind; });
}

// That tasks run.
int64_t count_nodes(const Plan& plan, const std::string& op) {
  return std::count_if(plan.launches.begin(), plan.launches.end(), [&](const Launch& launch) {
    return plan.graphs[size_t(launch.program)].nodes[launch.node].op->qualified_name() == op;
  });
}

int64_t ticks(const Plan& plan, std::string_view clock) {
  for (const Clock& each : plan.clocks) {
    if (each.name == clock) return each.ticks;
  }
  return -1;
}

}  // namespace

TEST_CASE("golden plan: LeNet on one CPU") {
  SessionOptions options = on_cpus();
  options.length.epochs = 2;
  check_golden("lenet.txt", print_plan(plan_of(example("lenet.onnxtxt", "glyphs:?train=640&test=300"), options)));
}

TEST_CASE("golden plan: two CPUs with two learners each") {
  SessionOptions options = on_cpus(2, 2);
  options.length.epochs = 3;
  TinyNet net;
  net.layers = "h = arbalest.ConvBnRelu <filters = 4, kernel_shape = [3, 3]> (x)\n";
  net.validate = "batch = 16, every_epochs = 2";
  check_golden("two_devices.txt", print_plan(plan_of(tiny(net), options)));
}

TEST_CASE("a plan for eight GPUs needs none") {
  SessionOptions options;
  for (int i = 0; i < 8; ++i) options.learners.devices.push_back({PlanDevice::Kind::Cuda, i});
  options.learners.per_device = 2;
  options.numerics.precision = Precision::Bf16;
  const Plan plan = plan_of(example("resnet20.onnxtxt", "synthetic:?size=50000"), options);
  const std::string text = print_plan(plan);
  CHECK(contains(text, "cuda:7/learner 15/step"));
  CHECK(contains(text, "cuda:0/validation/evaluate"));
  CHECK(contains(text, "cuda:7/validation/evaluate"));
  CHECK(count_tasks(plan, Task::Kind::Compute) == 16 * 2 + 8);  // steps and updates; evaluation on every device
  CHECK(count_tasks(plan, Task::Kind::Collective) == 2);        // models and statistics
  CHECK(ticks(plan, "batch") == 182 * (50000 / (16 * 128)));
}

// Bytes of the buckets in which S-SGD's gradients are averaged, in order.
std::vector<int64_t> bucket_bytes(int devices, int learners, double mib) {
  SessionOptions options = on_cpus(devices, learners);
  options.length.epochs = 2;
  TinyNet net = convolutional();  // 88 floats of the convolution and its norm, then 64 · 8 · 10 + 10 of the layer above
  net.synchronize = fmt::format("strategy = \"ssgd\", bucket_mib = {}", mib);
  const Plan plan = plan_of(tiny(net), options);
  std::vector<int64_t> found;
  for (const Task& task : plan.tasks) {
    if (!contains(task.name, "gradients")) continue;
    const Launch& launch = plan.launches[size_t(task.first_launch)];
    const Graph& graph = plan.graphs[size_t(launch.program)];
    found.push_back(graph.values[graph.nodes[launch.node].inputs[0]].type.bytes());
  }
  return found;
}

TEST_CASE("between devices the last bucket of gradients is small, where enough is left before it") {
  constexpr double kKibibyte = 1.0 / 1024;
  const std::vector<int64_t> whole = bucket_bytes(2, 1, 1);
  REQUIRE(whole.size() == 1);
  CHECK(whole[0] >= 4 * (5130 + 88));
  const std::vector<int64_t> cut = bucket_bytes(2, 1, 4 * kKibibyte);
  REQUIRE(cut.size() == 2);
  CHECK(cut[0] + cut[1] == whole[0]);
  CHECK(cut[1] >= 256);
  CHECK(cut[1] < 1024);
  CHECK(bucket_bytes(2, 1, 400 * kKibibyte).size() == 1);  // a sixteenth takes all
  CHECK(bucket_bytes(1, 2, 4 * kKibibyte) == whole);       // nothing travels
}

// By S-SGD's sums of several batches: one a bucket, and averaging that has work once an update.
void check_accumulation(const Plan& plan, int64_t accumulate, bool summed_in_buckets) {
  std::map<LaneId, int64_t> parts, sums;  // of a learner's step
  for (const Task& task : plan.tasks) {
    const bool averages = task.kind == Task::Kind::Average || task.kind == Task::Kind::Collective;
    const bool of_gradients = summed_in_buckets && averages && plan.clocks[task.clock].name == "batch";
    REQUIRE(task.every == (of_gradients ? accumulate : 1));
    if (plan.lanes[task.lane].kind != Lane::Kind::Compute) continue;
    ++parts[task.lane];
    for (int32_t i = 0; i < task.launches; ++i) {
      const Launch& launch = plan.launches[size_t(task.first_launch + i)];
      const Node& node = plan.graphs[size_t(launch.program)].nodes[launch.node];
      sums[task.lane] += node.op->qualified_name() == "arbalest.Accumulate";
    }
  }
  for (const auto& [lane, count] : parts) {
    REQUIRE(sums[lane] == (accumulate == 1 ? 0 : summed_in_buckets ? count - 1 : 1));
  }
}

TEST_CASE("plans are live for all combinations of options") {
  SessionOptions base = on_cpus();
  TinyNet with, without;
  without.validate = "";
  with.layers = without.layers = "h = arbalest.ConvBnRelu <filters = 4, kernel_shape = [3, 3]> (x)\n";
  // Without validation, with it, recalibrating; for updates of their own, towards an average, or from which they may
  // start again; by batches of an update.
  Program programs[3][3][3];
  for (int64_t batches = 1; batches <= 3; ++batches) {
    for (int averaging = 0; averaging < 3; ++averaging) {
      const auto made = [&](int kind) -> Program& { return programs[kind][averaging][batches - 1]; };
      with.train = without.train =
          fmt::format("lr = 0.1, accumulate = {}{}", batches, averaging == 2 ? ", schedule = \"step\"" : "");
      base.learners.per_device = 1 + (averaging > 0);
      made(0) = prepare(tiny(without), base).program;
      made(1) = prepare(tiny(with), base).program;
      base.rules.recalibrate = 3;
      made(2) = prepare(tiny(with), base).program;
      base.rules.recalibrate = 0;
    }
  }
  int64_t made = 0;
  // A round of odometer digits, so that every pair of choices comes up without making all 3^8 plans.
  for (int64_t i = 0; i < 800; ++i) {
    const auto digit = [&](int64_t stride, int64_t count) { return (i / stride + i * stride) % count; };
    PlanRequest request;
    request.devices = cpus(int(1 + digit(1, 3)));
    request.learners = int32_t(1 + digit(2, 3));
    const auto learners = int64_t(request.devices.size()) * request.learners;
    StrategyOptions strategy{
        .name = strategy_names()[size_t(digit(59, 6))], .every = 1 + digit(61, 4), .bucket_bytes = 1 + digit(67, 900)};
    if (strategy_spec(strategy.name).averages_hosts_apart) strategy.every_hosts = 1 + digit(83, 4);
    for (size_t d = 1; d < request.devices.size(); ++d)
      request.devices[d].host_number = int32_t(digit(89, 2) * int64_t(d));
    strategy = resolved(strategy, learners, programs[0][0][0].train);
    const StrategySpec& facts = strategy_spec(strategy.name);
    const int64_t averaging = facts.restarts ? 1 + digit(79, 2) : int(facts.corrects);
    Program& program = programs[std::min<int64_t>(2, digit(7, 4))][averaging][digit(71, 3)];
    request.strategy = strategy;
    program.validate_every = 1 + digit(3, 3);
    program.training().depth = digit(5, 5);
    program.ema = digit(73, 2) == 0 ? 0 : 0.99;
    const int64_t rounds = (1 + digit(11, 5)) * program.accumulate;
    request.training_samples = learners * 8 * rounds + digit(13, 7);
    request.validation_samples = 1 + digit(17, 40);
    request.epochs = 1 + digit(19, 4);
    request.iterations = digit(23, 3) == 0 ? program.accumulate + digit(29, 11) : 0;
    request.training_batches = BatchOrigin(digit(31, 3));
    request.validation_batches = BatchOrigin(digit(37, 3));
    request.run_ahead = int32_t(1 + digit(41, 3));
    request.device_slots = int32_t(1 + digit(43, 3));
    request.report_every = digit(47, 5);
    request.validation_lead = digit(53, 9);
    request.host_threads = int32_t(1 + digit(59, 4));
    request.training_fill_time = double(1000 * digit(61, 2));
    const int64_t filling =
        request.training_batches != BatchOrigin::Host
            ? 1
            : fill_parts(program.training().batch, request.training_fill_time, request.host_threads);
    INFO("combination ", i);
    Plan plan;
    REQUIRE_NOTHROW(plan = make_plan(program, request));  // verifies it
    const int64_t iterations = request.iterations > 0 ? request.iterations : request.epochs * rounds;
    REQUIRE(ticks(plan, "batch") == iterations);
    const int64_t validators = strategy.name == "none" ? 1 : int64_t(request.devices.size());
    REQUIRE(count_nodes(plan, "arbalest.MovingAverage") == (program.ema > 0) * validators);
    const bool validates = count_tasks(plan, Task::Kind::Snapshot) > 0;
    const int64_t parts = program.find(LoopRole::Recalibrate) ? 2 : 1;  // of a validator: evaluating, recalibrating
    REQUIRE(count_tasks(plan, Task::Kind::Fill) ==
            learners * filling + validates * validators * (1 + (parts - 1) * filling));
    if (program.find(LoopRole::Validate)) {
      // After every validate_every epochs, and after the last whole one.
      const int64_t epochs = iterations / rounds;
      const int64_t expected = (epochs + program.validate_every - 1) / program.validate_every;
      REQUIRE(ticks(plan, "validation") == expected);
      REQUIRE(count_tasks(plan, Task::Kind::Snapshot) == (expected > 0) * validators * parts);
    }
    REQUIRE(edge_leads(plan).size() == plan.edges.size());  // every edge is bounded by a cycle
    REQUIRE(Races(plan).first() == "");
    check_accumulation(plan, program.accumulate, strategy.name == "ssgd");
    ++made;
  }
  CHECK(made == 800);
}

TEST_CASE("a pass that hands out values of the batch itself keeps the batch until they are copied") {
  TinyNet net;
  net.source = "glyphs:?train=96&test=300&size=16";
  const Graph graph = tiny(net);
  for (const int devices : {1, 2}) {
    for (const char* output : {"image", "label", "x", "logits"}) {
      INFO(std::string(output));
      const Prepared prepared = prepare_inference(graph, on_cpus(devices), {"", {output}});
      Plan plan = make_inference_plan(prepared.program, prepared.request);
      Races races(plan);
      CHECK(races.first() == "");
      CHECK(races.count() > 20);
      if (output != std::string("image") && output != std::string("label")) continue;
      const auto frees_batch = [&](const Edge& edge) {
        return plan.tasks[edge.from].kind == Task::Kind::CopyOut && edge.what == "batch";
      };
      plan.edges.erase(std::remove_if(plan.edges.begin(), plan.edges.end(), frees_batch), plan.edges.end());
      CHECK(Races(plan).first() != "");
    }
  }
}

TEST_CASE("an update waits for the average of all devices only where it may start again from it") {
  SessionOptions options = on_cpus(2, 2);
  TinyNet net;
  net.synchronize = "strategy = \"sma\"";
  // Tasks of averaging that an update waits for, and of how many groups before its own.
  const auto waits = [&](const char* train, int64_t plateau) {
    net.train = train;
    options.rules.plateau = plateau;
    const Plan plan = plan_of(tiny(net), options);
    REQUIRE(Races(plan).first() == "");
    std::map<std::string, int64_t> found;
    for (const Edge& edge : plan.edges) {
      const Task& from = plan.tasks[edge.from];
      if (from.kind == Task::Kind::Average && plan.tasks[edge.to].name == "cpu:0/learner 0/update") {
        found[from.name] = edge.distance;
      }
    }
    return found;
  };
  using Waits = std::map<std::string, int64_t>;
  const Waits lasting = {{"cpu:0/average", 1}}, smooth = {{"cpu:0/sum", 1}};
  CHECK(waits("lr = 0.1, schedule = \"cosine\", epochs = 2.0", 0) == smooth);
  CHECK(waits("lr = 0.1", 0) == smooth);
  CHECK(waits("lr = 0.1", 3) == lasting);
  CHECK(waits("lr = 0.1, schedule = \"step\"", 0) == lasting);
  CHECK(waits("lr = 0.1, schedule = \"multistep\", milestones = [1]", 0) == lasting);
}

TEST_CASE("plans of learners on two devices have no races, and have them without edges of reuse") {
  SessionOptions options = on_cpus(2, 2);
  options.length.epochs = 3;
  for (const char* strategy : {"strategy = \"sma\"", "strategy = \"ssgd\"", "strategy = \"local\", every = 2",
                               "strategy = \"sma\", every_hosts = 3", "strategy = \"local\", every_hosts = 3"}) {
    INFO(std::string(strategy));
    options.learners.devices[1].host_number = std::string_view(strategy).find("hosts") != std::string_view::npos;
    TinyNet net = convolutional();
    net.source = "glyphs:?train=256&test=50&size=16";
    net.synchronize = strategy;
    net.train += ", ema = 0.99";
    const Plan plan = plan_of(tiny(net), options);
    REQUIRE(Races(plan).first() == "");
    int racing = 0;
    for (const EdgeId e : plan.edges.ids()) {
      if (plan.edges[e].why != Edge::Why::Reuse) continue;
      Plan without = plan;
      without.edges.erase(without.edges.begin() + int64_t(e));
      racing += Races(without).first() != "";  // others are implied by the rest of the plan
    }
    CHECK(racing >= 15);
  }
}

TEST_CASE("make_plan refuses what cannot be planned") {
  const SessionOptions base = on_cpus();
  const Prepared prepared = prepare(tiny({}), base);
  const auto refusal = [&](const std::function<void(PlanRequest&)>& change) {
    PlanRequest request = prepared.request;
    request.rounds = 0;
    change(request);
    return message_of([&] { make_plan(prepared.program, request); });
  };
  CHECK(refusal([](PlanRequest&) {}) == "");
  CHECK(contains(refusal([](PlanRequest& r) { r.devices.clear(); }), "no device"));
  CHECK(contains(refusal([](PlanRequest& r) { r.learners = 0; }), "0 learners per device"));
  CHECK(contains(refusal([](PlanRequest& r) { r.run_ahead = 0; }), "run-ahead is 0"));
  CHECK(contains(refusal([](PlanRequest& r) { r.epochs = 0; }), "0 epochs to train"));
  CHECK(contains(refusal([](PlanRequest& r) { r.validation_samples = 0; }), "validation split holds no samples"));
  CHECK(contains(refusal([](PlanRequest& r) { r.training_samples = 7; }),
                 "7 training samples, and one update of 1 learner takes 8: a batch of 8 each; arbalest.Prefetch's "
                 "'batch' may be 7 at most"));
  CHECK(contains(
      refusal([](PlanRequest& r) { r.learners = 13; }),
      "96 training samples, and one update of 13 learners takes 104: a batch of 8 each; there is enough for 12"));
  CHECK(refusal([](PlanRequest& r) { r.training_samples = 0; }) != "");
  CHECK(refusal([](PlanRequest& r) { r.device_slots = 0; }) != "");
  TinyNet net;
  net.train = "lr = 0.1, accumulate = 3";
  Prepared accumulating = prepare(tiny(net), base);
  accumulating.request.rounds = 7;
  CHECK(message_of([&] { make_plan(accumulating.program, accumulating.request); }) ==
        "7 iterations an epoch, expected a multiple of the 3 batches of an update");
}

TEST_CASE("samples of an update are counted without wrapping") {
  constexpr int64_t kLarge = int64_t{1} << 32;
  const auto refusal = [](int64_t learners, int64_t batch, int64_t accumulate) -> std::string {
    try {
      return std::to_string(rounds_of(1000, learners, batch, accumulate));
    } catch (const GraphError& error) {
      return error.what();
    }
  };
  CHECK(refusal(2, 10, 5) == "50");
  for (const std::string& message :
       {refusal(2, kLarge, kLarge), refusal(kLarge, kLarge, 1), refusal(kLarge, 1, kLarge)}) {
    CAPTURE(message);
    CHECK(message.find("the samples of an update") != std::string::npos);
    CHECK(message.find("more than can be counted") != std::string::npos);
  }
  CHECK(refusal(1, kLarge, 1).find("1000 training samples") == 0);
  CHECK(refusal(1, 0, 1).find("expected at least 1") != std::string::npos);
}

TEST_CASE("a plan of 128 hosts with eight devices each is made and proven in ten seconds" *
          doctest::test_suite("alone")) {
  SessionOptions options = on_cpus(8, 1);
  const std::vector<PlanDevice> of_each = options.learners.devices;
  options.learners.devices.clear();
  for (int32_t host = 0; host < 128; ++host) {
    for (const PlanDevice& device : of_each) {
      options.learners.devices.push_back({device.kind, device.index, host, fmt::format("host{}", host), host});
    }
  }
  options.learners.strategy = "ssgd";
  const Prepared prepared =
      prepare(example("resnet50.onnxtxt", "synthetic:?shape=3x224x224&classes=1000&size=1281167"), options);
  const auto began = std::chrono::steady_clock::now();
  const Plan whole = make_plan(prepared.program, prepared.request);
  REQUIRE(rank_count(whole) == 128);
  size_t tasks = 0;
  for (int32_t rank = 0; rank < 128; ++rank) tasks += part_of(whole, rank).tasks.size();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  MESSAGE(whole.tasks.size(), " tasks, ", took.count(), " s");
  CHECK(tasks > whole.tasks.size());
  CHECK(took.count() < 10);
}

}  // namespace make_plan_test
