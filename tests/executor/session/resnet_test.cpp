// ResNet-18 and ResNet-50 of the examples: their size and work are the published ones, and a shrunken one trains.

#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>

#include "executor/session/state.h"
#include "graph/file/overrides.h"
#include "tests/executor/fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace {

Graph example(const std::string& name, const std::vector<std::string>& overrides) {
  const char* root = std::getenv("ARBALEST_SOURCE");
  Graph graph = load_graph(std::string(root ? root : ".") + "/examples/" + name + ".onnxtxt", builtin_ops());
  for (const std::string& assignment : overrides) apply_override(graph, assignment);
  return graph;
}

// Of the forward pass, for one sample.
struct Work {
  double flops = 0;  // of all operators
  double macs = 0;   // multiply-accumulates of convolutions and matrix products
};

Work forward_work(const Loop& loop) {
  Work work;
  for (const Node& node : loop.graph.nodes) {
    if (node.stage != Stage::Forward || !node.op->cost) continue;
    const double flops = node.op->cost(loop.graph, node).flops / double(loop.batch);
    work.flops += flops;
    if (node.op->name == "Conv" || node.op->name == "Gemm") work.macs += flops / 2;
  }
  return work;
}

}  // namespace

TEST_CASE("ResNets for ImageNet have the published parameters and work") {
  struct Published {
    const char* name;
    int64_t parameters;
    double macs;  // of the convolutions and the last layer, for an image of 224 x 224
  };
  for (const Published& expected :
       {Published{"resnet18", 11689512, 1814073344}, Published{"resnet50", 25557032, 4089184256}}) {
    INFO(expected.name);
    const Prepared prepared = prepare(example(expected.name, {}), on_cpus());
    CHECK(parameter_count(prepared.program.training().graph) == expected.parameters);
    const Work work = forward_work(prepared.program.training());
    CHECK(work.macs == expected.macs);
    CHECK(work.flops == doctest::Approx(2 * expected.macs).epsilon(0.05));
  }
}

// A source of noise gives the same batch each time, mirrored or not, so that even three steps lower its loss.
TEST_CASE("ResNet-50 starts at the logarithm of its classes and learns, on small images") {
  Graph graph = example("resnet50", {"prefetch.source=synthetic:?shape=3x32x32&classes=1000&size=12",
                                     "prefetch.batch=4", "validate.batch=4", "train.warmup=0", "train.lr=0.001"});
  SessionOptions options = on_cpus();
  options.length.iterations = 3;  // an epoch
  options.execution.report_every = 1;
  const Recorder story = run(std::move(graph), options);
  REQUIRE(story.reports.size() == 3);
  CHECK(std::abs(story.reports[0].loss - std::log(1000)) < 0.7);  // four samples; logits deviate by about 0.7
  CHECK(story.reports[1].loss < story.reports[0].loss);
  CHECK(story.reports[2].loss < story.reports[1].loss);
  REQUIRE(story.validations.size() == 1);
  CHECK(std::isfinite(story.validations[0].loss));
  REQUIRE(story.validations[0].metrics.size() == 2);
  CHECK(story.validations[0].metrics[1].first == "top5");
}
