// SPDX-License-Identifier: Apache-2.0

// Losses that are not finite: what rollbacks go back to, how often, and what they leave in the run's state.

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "executor/training/checkpoint_folder.h"
#include "ops/builtin_ops.h"
#include "tests/executor/session/divergence_fixture.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace fs = std::filesystem;

TEST_CASE("a run whose loss is not finite goes back to its newest checkpoint with a lower rate") {
  const TestFolder folder;
  SessionOptions options = rolling_back(folder / "c", 2);
  options.files.save = folder / "w.safetensors";
  const RunOutcome run = outcome(regression(), options);
  CHECK(run.error == "");
  const int64_t bad = 24 + 50 / 4 + 1;  // the iteration
  REQUIRE(run.story.rollbacks.size() == 2);
  for (size_t i = 0; i < 2; ++i) {
    const RolledBack& back = run.story.rollbacks[i];
    CHECK(back.from_iteration >= bad);
    CHECK(back.from_iteration < bad + 2);
    CHECK(back.iteration % 5 == 0);
    CHECK(back.iteration < bad);
    CHECK(back.path == fmt::format("{}/checkpoint-{:012}.safetensors", (folder / "c").string(), back.iteration));
    CHECK(back.times == int64_t(i) + 1);
    CHECK(back.rate_factor == (i == 0 ? 0.5 : 0.25));
    CHECK(back.reason.starts_with("the loss is no longer finite after iteration "));
  }
  REQUIRE(run.story.ends.size() == 1);
  CHECK(run.story.ends[0].reason == RunEnd::Complete);
  CHECK(run.story.ends[0].iteration == 96);
  CHECK(run.story.reports.back().learning_rate == doctest::Approx(0.05 * 0.25));
  CHECK(std::isfinite(run.story.reports.back().loss));
  for (const fs::path& path : checkpoints_in(folder / "c")) CHECK(is_finite(read_checkpoint(path)));
  CHECK(fs::exists(options.files.save));
}

TEST_CASE("a run that goes on after a rollback keeps the rate and how often it has gone back") {
  const TestFolder folder;
  SessionOptions options = rolling_back(folder / "c", 1);
  REQUIRE(outcome(regression(), options).error == "");
  for (const fs::path& path : checkpoints_in(folder / "c")) {
    if (path.filename().string() > "checkpoint-000000000060") fs::remove(path);
  }
  options.checkpoints.from = newest_checkpoint(folder / "c");
  REQUIRE(options.checkpoints.from);
  CHECK(options.checkpoints.from->checkpoint.monitor.rollbacks == 1);
  CHECK(options.checkpoints.from->checkpoint.monitor.rollback_factor == 0.5);
  options.sources.training = std::make_shared<Poisoned>(3, 50, 1);  // diverges once more
  const RunOutcome rest = outcome(regression(), options);
  CHECK(rest.error == "");
  CHECK(rest.story.reports.front().learning_rate == doctest::Approx(0.05 * 0.5));
  REQUIRE(rest.story.rollbacks.size() == 1);
  CHECK(rest.story.rollbacks[0].times == 2);
  CHECK(rest.story.reports.back().learning_rate == doctest::Approx(0.05 * 0.25));
}

TEST_CASE("a run that is killed after a rollback, before its next checkpoint, goes on with the lower rate") {
  const TestFolder folder;
  SessionOptions options = rolling_back(folder / "c", 1000);
  options.divergence.most_rollbacks = 1;
  options.checkpoints.iterations = 30;  // before the one whose loss is not finite; the next would be after it
  const RunOutcome run = outcome(regression(), options);
  CHECK_FALSE(run.error.empty());
  REQUIRE(run.story.rollbacks.size() == 1);
  const auto newest = newest_checkpoint(folder / "c");
  REQUIRE(newest);
  CHECK(newest->checkpoint.position.iteration == 30);
  CHECK(newest->checkpoint.monitor.rollbacks == 1);
  CHECK(newest->checkpoint.monitor.rollback_factor == 0.5);
  options.checkpoints.from = newest;
  options.sources.training = std::make_shared<Poisoned>(3, 50, 0);  // never diverges
  const RunOutcome rest = outcome(regression(), options);
  CHECK(rest.error == "");
  CHECK(rest.story.reports.front().learning_rate == doctest::Approx(0.05 * 0.5));
}

TEST_CASE("checkpoints that a run has gone back past are removed, and no longer gone back to") {
  const TestFolder folder;
  SessionOptions options = rolling_back(folder / "c", 1000);
  options.length.iterations = 36;
  REQUIRE(outcome(regression(), options).error == "");
  options.length.iterations.reset();
  options.checkpoints.from = newest_checkpoint(folder / "c");
  options.checkpoints.iterations = 1000;                              // no more
  const std::vector<fs::path> before = checkpoints_in(folder / "c");  // a busy disk leaves out some
  REQUIRE(before.size() >= 3);
  const RunOutcome run = outcome(regression(), options);
  CHECK_FALSE(run.error.empty());
  REQUIRE(run.story.rollbacks.size() == 3);
  for (size_t i = 0; i < 3; ++i) CHECK(run.story.rollbacks[i].path == before[i].string());
  CHECK(checkpoints_in(folder / "c").front() == before[2]);
}

TEST_CASE("a rollback does not forget the best model, which was measured after its checkpoint") {
  const TestFolder folder;
  SessionOptions options = rolling_back(folder / "c", 1, 2);
  options.sources.validation = std::make_shared<Poisoned>(0, 0, 0);
  options.checkpoints.iterations = 40;
  options.divergence.rate_factor = 1e-6;  // nothing that is trained afterwards is better
  options.files.save_best = folder / "best.safetensors";
  const RunOutcome run =
      outcome(regression("lr = 0.05", "report = arbalest.Validate <batch = 8> (trained, loss)\n"), options);
  CHECK(run.error == "");
  REQUIRE(run.story.rollbacks.size() == 1);
  CHECK(run.story.rollbacks[0].iteration == 40);
  REQUIRE(run.story.validations.size() == 5);  // after 24, 48, again 48, 72 and 96 iterations
  const Validated& best = run.story.validations[1];
  CHECK(best.iteration == 48);
  CHECK(run.story.validations[2].iteration == 48);
  CHECK(run.story.validations[2].loss > best.loss);
  CHECK(run.story.validations[2].loss < run.story.validations[0].loss);
  CHECK(newest_checkpoint(folder / "c")->checkpoint.monitor.best_value == best.loss);
}

TEST_CASE("a run goes back as often as it may, and then ends") {
  const TestFolder folder;
  SessionOptions options = rolling_back(folder / "c", 1000);
  options.divergence.most_rollbacks = 2;
  options.divergence.rate_factor = 0.1;
  const RunOutcome run = outcome(regression(), options);
  CHECK(run.story.rollbacks.size() == 2);
  CHECK(contains(run.error, "the loss is no longer finite after iteration "));
  CHECK(run.error.ends_with("; the run has gone back to a checkpoint 2 times already"));
  REQUIRE(run.story.failures.size() == 1);
  CHECK(run.story.failures[0].message == run.error);
}

TEST_CASE("where there is no checkpoint yet a rollback ends the run, which says so") {
  const TestFolder folder;
  SessionOptions options = rolling_back(folder / "c", 1, 0, 3);
  const RunOutcome run = outcome(regression(), options);
  CHECK(run.story.rollbacks.empty());
  CHECK(run.error.ends_with(fmt::format("; '{}' has no checkpoint to go back to", (folder / "c").string())));
  options.checkpoints.folder = "";
  CHECK(outcome(regression(), options).error == "--on-nan rollback needs --checkpoint DIR");
}

TEST_CASE("several learners go back together, in whichever segment they are") {
  const std::vector<std::string> strategies = {"ssgd", "sma", "local", "papa", "diloco"};
  for (const std::string& strategy : strategies) {
    CAPTURE(strategy);
    const TestFolder folder;
    SessionOptions options = rolling_back(folder / "c", 1);
    options.learners.devices = cpus(2);
    options.learners.per_device = 2;
    options.learners.strategy = strategy;
    options.checkpoints.iterations = 2;
    options.length.epochs = 6;
    const RunOutcome run = outcome(regression(), options);
    CHECK(run.error == "");
    CHECK(run.story.rollbacks.size() == 1);
    CHECK(run.story.ends.size() == 1);
    // Ended by the next run, with another number of learners, whose segment begins later.
    options.learners.per_device = 1;
    options.sources.training = std::make_shared<Poisoned>(5, 80, 1);
    for (const fs::path& path : checkpoints_in(folder / "c")) {
      if (path.filename().string() > "checkpoint-000000000025") fs::remove(path);
    }
    options.checkpoints.from = newest_checkpoint(folder / "c");
    const RunOutcome rest = outcome(regression(), options);
    CHECK(rest.error == "");
    CHECK(rest.story.rollbacks.size() == 1);
    CHECK(rest.story.ends.size() == 1);
  }
}

TEST_CASE("what an optimiser keeps may be infinite in a checkpoint that is gone back to, and nothing else") {
  const auto finite = [](const std::string& name) {
    CheckpointFile file;
    NamedTensor tensor{name, DataType::Float32, {2}, std::vector<uint8_t>(2 * sizeof(float))};
    const float values[] = {1, std::numeric_limits<float>::infinity()};
    std::memcpy(tensor.bytes.data(), values, sizeof values);
    file.tensors.tensors.push_back(std::move(tensor));
    return is_finite(file);
  };
  CHECK(finite("learner 0/square/a.weight"));
  CHECK(finite("frozen/mask"));
  for (const char* name : {"learner 0/weights/a.weight", "learner 1/statistics/n.mean", "learner 0/state/accumulated",
                           "average/a.weight", "moving average/a.weight", "validated/weights/a.weight"}) {
    CAPTURE(name);
    CHECK_FALSE(finite(name));
  }
}

namespace rollback_test {
namespace {

// A batch norm takes a number of 1e30 for what it is, so that the loss stays finite and the running variance does not.
Graph normalised() {
  return read_graph_text(
      "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
      "g () => (float loss)\n{\n"
      "x, target = arbalest.Prefetch <source = \"memory:\", batch = 4> ()\n"
      "n = arbalest.BatchNorm (x)\n"
      "a = arbalest.Linear <units = 1> (n)\n"
      "loss = arbalest.MeanSquaredError (a, target)\n"
      "trained = arbalest.Train <lr = 0.05> (loss)\n}\n",
      "g.onnxtxt", builtin_ops());
}

}  // namespace

TEST_CASE("statistics that are infinite while the loss is finite are found by the next checkpoint") {
  const TestFolder folder;
  SessionOptions options = rolling_back(folder / "c", 0);
  options.sources.training = std::make_shared<Poisoned>(1, 50, 1, 1e30f);
  const int64_t bad = 24 + 50 / 4 + 1;
  {
    INFO("with --on-nan rollback");
    const RunOutcome run = outcome(normalised(), options);
    CHECK(run.error == "");
    REQUIRE(run.story.rollbacks.size() == 1);
    const RolledBack& back = run.story.rollbacks[0];
    CHECK(back.from_iteration >= bad);  // of a checkpoint after it: the first, if the disk keeps up
    CHECK(back.iteration < bad);
    CHECK(contains(back.reason,
                   fmt::format("is no longer finite after iteration {}, though the loss is", back.from_iteration)));
    CHECK(contains(back.reason, "statistics"));
    REQUIRE(run.story.ends.size() == 1);
    CHECK(run.story.ends[0].iteration == 96);
    for (const fs::path& path : checkpoints_in(folder / "c")) CHECK(is_finite(read_checkpoint(path)));
  }
  {
    INFO("without");
    options.checkpoints.folder = folder / "d";
    options.divergence.then = OnDivergence::Stop;
    options.sources.training = std::make_shared<Poisoned>(1, 50, 1, 1e30f);
    const RunOutcome run = outcome(normalised(), options);
    CHECK(contains(run.error, " is no longer finite after iteration "));
    CHECK(contains(run.error, ", though the loss is; try a lower learning rate"));
    REQUIRE(!run.story.reports.empty());
    CHECK(std::isfinite(run.story.reports.back().loss));
    const auto newest = newest_checkpoint(folder / "d");
    REQUIRE(newest);
    CHECK(newest->checkpoint.position.iteration < bad);
  }
}

}  // namespace rollback_test
