// SPDX-License-Identifier: Apache-2.0

// Losses that are not finite: the node that is to blame.

#include <doctest/doctest.h>

#include "executor/training/checkpoint_folder.h"
#include "ops/builtin_ops.h"
#include "tests/executor/session/divergence_fixture.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace find_nan_test {
namespace {

// Runs a graph whose numbers go wrong, and returns the error that ends the run, which names the place.
std::string place(const std::string& layers, const std::string& train, SessionOptions options,
                  std::shared_ptr<const Source> source = nullptr) {
  options.divergence.find = true;
  options.length.epochs = 2;
  options.sources.training = source ? source : std::make_shared<Poisoned>(99, 0, 0);
  const std::string text = fmt::format(
      "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
      "g () => (float loss)\n{{\n"
      "x, target = arbalest.Prefetch <source = \"memory:\", batch = 4> ()\n"
      "a = arbalest.Linear <units = 8> (x)\n{}"
      "c = arbalest.Linear <units = 1> (b)\n"
      "loss = arbalest.MeanSquaredError (c, target)\n"
      "trained = arbalest.Train <{}> (loss)\n}}\n",
      layers, train);
  return outcome(read_graph_text(text, "g.onnxtxt", builtin_ops()), options).error;
}

}  // namespace

TEST_CASE("--find-nan names the node that makes the first value that is not finite") {
  // A root of what is negative for some samples.
  const std::string root = place("s = Sqrt (a)\nb = Relu (s)\n", "lr = 0.01", on_cpus());
  CAPTURE(root);
  CHECK(root.starts_with("the loss is no longer finite after iteration 1"));
  CHECK(contains(root, "; in iteration 1 node 's' (Sqrt) of learner 0 on cpu:0 makes 's', float[4,8]: "));
  CHECK(contains(root, "nan, the first at ["));
  CHECK(contains(root, "\n  of 'a', float[4,8]: -"));
}

TEST_CASE("--find-nan tells of a batch that holds what is not finite") {
  for (const int devices : {1, 2}) {
    SessionOptions options = on_cpus(devices, 2);
    options.learners.strategy = "ssgd";
    const std::string batch =
        place("b = Relu (a)\n", "lr = 0.01, momentum = 0.9", options, std::make_shared<Poisoned>(1, 22, 1));
    CAPTURE(batch);
    // Batches of 4: position 22 is in batch 5 of the second epoch.
    const int learners = 2 * devices, iteration = 24 / learners + 5 / learners + 1, learner = 5 % learners;
    CHECK(contains(batch, fmt::format("is no longer finite after iteration {}", iteration)));
    CHECK(contains(batch, fmt::format("in iteration {} node 'a", iteration)));
    CHECK(contains(batch, fmt::format(" of learner {} on cpu:{} reads 'x', float[4,6]: ", learner, learner / 2)));
    CHECK(contains(batch, "1 of 24 elements is nan, the first at [2, 2]"));
  }
}

TEST_CASE("--find-nan finds an update that leaves the weights infinite before any loss is") {
  const std::string update = place("b = Relu (a)\n", "lr = 1e39", on_cpus());
  CAPTURE(update);
  CHECK(
      update.starts_with("the weights of learner 0 on cpu:0 are no longer finite after iteration 1; in iteration 1 "));
  CHECK(contains(update, "node 'update' (arbalest.Sgd) of learner 0 on cpu:0 makes '"));
}

TEST_CASE("--find-nan changes nothing in what is trained, and tells of the place in a rollback") {
  const TestFolder folder;
  SessionOptions options = rolling_back(folder / "c", 0);
  options.files.save = folder / "w.safetensors";
  REQUIRE(outcome(regression(), options).error == "");
  const std::string without = read_whole_file(options.files.save);
  options = rolling_back(folder / "d", 0);
  options.files.save = folder / "v.safetensors";
  options.divergence.find = true;
  REQUIRE(outcome(regression(), options).error == "");
  CHECK(read_whole_file(options.files.save) == without);
  CHECK_FALSE(checkpoints_in(folder / "d").empty());
  options.sources.training = std::make_shared<Poisoned>(1, 50, 1);
  options.checkpoints.folder = folder / "e";
  const RunOutcome back = outcome(regression(), options);
  CHECK(back.error == "");
  REQUIRE(back.story.rollbacks.size() == 1);
  CHECK(back.story.rollbacks[0].from_iteration == 24 + 50 / 4 + 1);
  CHECK(contains(back.story.rollbacks[0].reason, "reads 'x'"));
}

TEST_CASE("--find-nan passes by infinities that are meant, and sees sums of gradients") {
  // The mask's infinities are constants; Min takes them out again.
  SessionOptions options = on_cpus();
  const std::string masked = "inf = Constant <value_float = inf> ()\nm = Min (a, inf)\nb = Relu (m)\n";
  CHECK(place(masked, "lr = 0.01", options) == "");
  const std::string sums = place("e = Exp (a)\nb = Mul (e, e)\n", "lr = 1e30, accumulate = 3", options);
  CAPTURE(sums);
  CHECK(contains(sums, " no longer finite after iteration "));
  CHECK(contains(sums, "; in iteration "));
  CHECK(contains(sums, " of learner 0 on cpu:0 makes '"));
}

}  // namespace find_nan_test
