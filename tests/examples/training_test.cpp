// SPDX-License-Identifier: Apache-2.0

// The examples train, on images as small as they take: every parameter moves, and the loss falls.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "executor/session/state.h"
#include "io/formats/safetensors.h"
#include "tests/examples/published.h"
#include "tests/examples/small_models.h"
#include "tests/executor/fixture.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace training_test {
namespace {

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
  options.length.epochs = options.length.iterations = kSteps;  // beyond the end of LeNet's schedule
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

}  // namespace training_test
