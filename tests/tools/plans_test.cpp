// SPDX-License-Identifier: Apache-2.0

// The summary that `arbalest plan` prints of each example, kept in tests/tools/plans, so that a change of passes or
// plans shows in review: tasks, nodes of each, memory.
//
// After a wanted change: ARBALEST_UPDATE_GOLDEN=1 build/tests/test_tools -tc='*summary of the plan*', then read the
// difference.

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>

#include "executor/plan/device_list.h"
#include "executor/plan/make_plan.h"
#include "executor/session/session.h"
#include "graph/file/overrides.h"
#include "tests/examples/published.h"
#include "tests/structure/sources.h"
#include "tools/command/plan_summary.h"

using namespace arbalest;
using namespace arbalest::test;

namespace plans_test {
namespace {

// The data sets of some examples need not be there: noise of the same shape stands for all.
std::string summary_of(const Published& model, const char* devices, int learners, Precision precision) {
  Graph graph = example_graph(model.name);
  apply_override(graph, "prefetch.source=" + noise(model.image, model.classes, 50000));
  SessionOptions options;
  options.learners.devices = parse_devices(devices, {});
  options.learners.per_device = learners;
  options.numerics.precision = precision;
  options.execution.threads = 2;
  options.length.epochs = 1;
  const Prepared prepared = prepare(std::move(graph), options);
  return summarize_plan(make_plan(prepared.program, prepared.request), prepared.recomputation);
}

}  // namespace

TEST_CASE("the summary of the plan of each example is the one that is kept") {
  for (const Published& model : published()) {
    const std::string text =
        summary_of(model, "cpu:0", 1, Precision::Fp32) + "\n" + summary_of(model, "cuda:0-1", 2, Precision::Bf16);
    const fs::path path = root() / "tests/tools/plans" / (model.name + ".txt");
    if (std::getenv("ARBALEST_UPDATE_GOLDEN") != nullptr) {
      fs::create_directories(path.parent_path());
      std::ofstream(path) << text;
    }
    CHECK_MESSAGE(content(path) == text, path.string(),
                  " is another plan: if that is wanted, set ARBALEST_UPDATE_GOLDEN=1 once, and read the difference");
  }
}

}  // namespace plans_test
