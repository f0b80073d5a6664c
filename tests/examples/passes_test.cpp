// The examples without each optional pass: small ones train alike, and those of full size plan.

#include <doctest/doctest.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "executor/devices/device.h"
#include "executor/plan/make_plan.h"
#include "graph/passes/program.h"
#include "tests/examples/published.h"
#include "tests/examples/small_models.h"
#include "tests/executor/fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace {

std::string nodes_of(const Prepared& prepared) {
  std::string text;
  for (const Loop& loop : prepared.program.loops) {
    for (const Node& node : loop.graph.nodes) text += node.name + " " + node.op->qualified_name() + "\n";
  }
  return text;
}

// Each optional pass, and all of them.
std::vector<std::set<std::string>> choices() {
  const std::vector<std::string> all = pass_names(true);
  std::vector<std::set<std::string>> choices = {{all.begin(), all.end()}};
  for (const std::string& name : all) choices.push_back({name});
  return choices;
}

// Of the training loss after each step, and of the validation's.
std::vector<double> losses_of(const Graph& graph, const SessionOptions& options) {
  const Recorder story = run(graph, options);
  std::vector<double> losses;
  for (const RunProgress& report : story.reports) losses.push_back(report.loss);
  REQUIRE(story.validations.size() == 1);
  losses.push_back(story.validations[0].loss);
  return losses;
}

void check_alike(const std::string& name, SessionOptions options, double rounding) {
  INFO(name);
  const auto small = std::find_if(small_models().begin(), small_models().end(),
                                  [&](const Small& model) { return model.name == name; });
  const auto known =
      std::find_if(published().begin(), published().end(), [&](const Published& model) { return model.name == name; });
  REQUIRE(small != small_models().end());
  const Graph graph = small_graph(*small, known->classes);
  options.length.epochs = kSteps;
  options.execution.report_every = 1;
  const std::string whole = nodes_of(prepare(graph, options));
  const std::vector<double> expected = losses_of(graph, options);
  for (const std::set<std::string>& without : choices()) {
    options.numerics.without = without;
    if (nodes_of(prepare(graph, options)) == whole) continue;
    const std::vector<double> losses = losses_of(graph, options);
    INFO(fmt::format("without {}: {:.6f}, with it {:.6f}", fmt::join(without, ", "), fmt::join(losses, " "),
                     fmt::join(expected, " ")));
    REQUIRE(losses.size() == expected.size());
    for (size_t i = 0; i < losses.size(); ++i) {
      CHECK(std::abs(losses[i] - expected[i]) <= rounding * (1 + std::abs(expected[i])));
    }
  }
}

}  // namespace

TEST_CASE("small examples train alike without each optional pass") {
  for (const Small& model : small_models()) check_alike(model.name, on_cpus(), 1e-4);
}

TEST_CASE("small examples train alike without each optional pass on GPUs") {
  if (cuda_device_count() == 0) {
    MESSAGE("SKIP: no CUDA device");
    return;
  }
  SessionOptions options;
  options.learners.devices = {{PlanDevice::Kind::Cuda, 0}};
  options.numerics.deterministic = true;
  for (const Small& model : small_models()) {
    options.numerics.precision = Precision::Fp32;
    check_alike(model.name, options, 1e-3);
    options.numerics.precision = Precision::Bf16;  // which has passes of its own
    check_alike(model.name, options, 5e-2);
  }
}

TEST_CASE("examples of full size plan for GPUs without each optional pass") {
  for (const char* name : {"resnet50", "vgg16_bn", "densenet121", "vit_s16"}) {
    const auto model =
        std::find_if(published().begin(), published().end(), [&](const Published& each) { return each.name == name; });
    for (const std::set<std::string>& without : choices()) {
      INFO(fmt::format("{} without {}", name, fmt::join(without, ", ")));
      Graph graph = example_graph(name);
      apply_override(graph, "prefetch.source=" + noise(model->image, model->classes, 50000));
      SessionOptions options;
      options.learners.devices = {{PlanDevice::Kind::Cuda, 0}};
      options.learners.strategy = Strategy::Kind::None;
      options.numerics.precision = Precision::Bf16;
      options.numerics.without = without;
      options.execution.threads = 2;
      const Prepared prepared = prepare(std::move(graph), options);
      CHECK_NOTHROW(verify(make_plan(prepared.program, prepared.request)));
    }
  }
}
