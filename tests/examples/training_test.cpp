// The examples train, on images as small as they take: every parameter moves, and the loss falls.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "executor/session/state.h"
#include "graph/file/overrides.h"
#include "io/formats/safetensors.h"
#include "tests/examples/published.h"
#include "tests/executor/fixture.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace {

struct Small {
  std::string name;
  Shape image;
  int64_t narrow;  // channels and units are divided by this
  std::vector<std::string> overrides;
};

// A source of noise gives the same batch in each epoch, mirrored or not, so that even a few steps lower its loss.
const std::vector<Small>& small_models() {
  static const std::vector<Small> models = {
      {"lenet", {1, 28, 28}, 1, {"train.warmup=0"}},
      {"mlp", {1, 28, 28}, 1, {"train.warmup=0"}},
      {"resnet20", {3, 16, 16}, 1, {"train.lr=0.02"}},
      {"resnet32", {3, 16, 16}, 1, {"train.lr=0.02"}},
      {"resnet44", {3, 16, 16}, 1, {"train.lr=0.02"}},
      {"resnet18", {3, 64, 64}, 8, {"train.warmup=0", "train.lr=0.01"}},
      {"resnet50", {3, 64, 64}, 8, {"train.warmup=0", "train.lr=0.01"}},
      {"resnet101", {3, 64, 64}, 8, {"train.warmup=0", "train.lr=0.01"}},
      {"vgg16", {3, 32, 32}, 8, {"train.lr=0.01"}},
      {"vgg16_bn", {3, 32, 32}, 8, {"train.lr=0.01"}},
      {"densenet121", {3, 64, 64}, 8, {"train.lr=0.01"}},
      {"mobilenet_v3_large", {3, 64, 64}, 8, {"train.warmup=0", "train.lr=0.01"}},
      {"efficientnet_b0", {3, 64, 64}, 8, {"train.warmup=0", "train.lr=0.01"}},
      {"vit_s16", {3, 32, 32}, 1, {"train.warmup=0", "train.lr=0.0002"}},
      {"convnext_tiny", {3, 64, 64}, 8, {"train.warmup=0", "train.lr=0.001"}},
  };
  return models;
}

constexpr int64_t kBatch = 4, kSteps = 4;

// Divides the attribute where the node has it.
void divide(Node& node, const char* attribute, int64_t by) {
  if (node.attributes.find(attribute))
    node.attributes.set(attribute, std::max<int64_t>(1, int_attribute(node, attribute) / by));
}

Graph small_graph(const Small& model, int64_t classes) {
  Graph graph = example_graph(model.name);
  for (Node& node : graph.nodes) {
    divide(node, "filters", model.narrow);
    divide(node, "group", model.narrow);  // depthwise convolutions alone have it
    if (node.name != "logits") divide(node, "units", model.narrow);
  }
  // Each batch of an epoch is another one, so an epoch is a batch.
  std::vector<std::string> overrides = {"prefetch.source=" + noise(model.image, classes, kBatch) + "&test=4",
                                        "prefetch.batch=4", "validate.batch=4", "validate.every_epochs=4"};
  overrides.insert(overrides.end(), model.overrides.begin(), model.overrides.end());
  for (const std::string& assignment : overrides) apply_override(graph, assignment);
  return graph;
}

// The parameters as a run of the graph starts with them.
TensorFile initial_weights(const Graph& graph, const SessionOptions& options) {
  const Prepared prepared = prepare(graph, options);
  const Loop& loop = prepared.program.training();
  TensorFile file;
  append_tensors(file, loop.graph, loop.arenas.weights,
                 initial_content(loop.graph, loop.arenas.weights, options.numerics.seed));
  return file;
}

void check_trains(const Small& model, int64_t classes) {
  const TestFolder folder;
  const Graph graph = small_graph(model, classes);
  SessionOptions options = on_cpus();
  options.length.epochs = kSteps;
  options.execution.report_every = 1;
  const TensorFile before = initial_weights(graph, options);
  options.files.save = folder / "weights.safetensors";
  const Recorder story = run(graph, options);
  REQUIRE(story.reports.size() == size_t(kSteps));
  std::string losses;
  for (const RunProgress& report : story.reports) losses += fmt::format(" {:.4f}", report.loss);
  INFO("losses", losses);
  CHECK(std::abs(story.reports[0].loss - std::log(double(classes))) < 1);
  CHECK(story.reports.back().loss < story.reports.front().loss);
  REQUIRE(story.validations.size() == 1);
  CHECK(std::isfinite(story.validations[0].loss));
  const TensorFile after = read_safetensors(folder / "weights.safetensors");
  for (const NamedTensor& parameter : before.tensors) {
    const NamedTensor* trained = after.find(parameter.name);
    REQUIRE(trained);
    CHECK_MESSAGE(trained->bytes != parameter.bytes, parameter.name, " did not move");
  }
}

}  // namespace

TEST_CASE("examples learn on small images, and every parameter moves") {
  for (const Published& known : published()) {
    INFO(known.name);
    const auto small = std::find_if(small_models().begin(), small_models().end(),
                                    [&](const Small& model) { return model.name == known.name; });
    REQUIRE(small != small_models().end());
    check_trains(*small, known.classes);
  }
}
