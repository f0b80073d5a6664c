// Losses that are not finite: what rollbacks go back to, how often, and what they leave in the run's state.

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <thread>

#include "executor/devices/device.h"
#include "executor/training/checkpoint_folder.h"
#include "io/formats/safetensors.h"
#include "tests/executor/fixture.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace fs = std::filesystem;

namespace {

// Vectors with a target that follows from them, read slowly enough for the disk to keep up. The sample at a position of
// an epoch's order holds a NaN the first `times` times that it is read.
class Poisoned final : public Source {
 public:
  Poisoned(uint64_t epoch, uint64_t position, int times) : epoch_(epoch), position_(position), left_(times) {}
  int64_t size() const override { return 96; }
  std::vector<Field> fields() const override {
    return {{"x", DataType::Float32, {6}}, {"target", DataType::Float32, {1}}};
  }
  void fill(std::span<const SampleRef> samples, std::span<std::byte* const> fields) const override {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    auto* x = reinterpret_cast<float*>(fields[0]);
    auto* target = reinterpret_cast<float*>(fields[1]);
    for (size_t s = 0; s < samples.size(); ++s, x += 6) {
      for (int i = 0; i < 6; ++i) x[i] = std::sin(float(samples[s].index * 7 + i * 3));
      target[s] = x[0] - x[3];
      const bool here = samples[s].epoch == epoch_ && samples[s].position == position_;
      if (here && left_.fetch_sub(1) > 0) x[2] = std::numeric_limits<float>::quiet_NaN();
    }
  }
  double microseconds_per_sample() const override { return 0; }
  std::string describe() const override { return "poisoned"; }

 private:
  const uint64_t epoch_, position_;
  mutable std::atomic<int> left_;
};

Graph regression(const std::string& train = "lr = 0.05, momentum = 0.9", const std::string& more = "") {
  return read_graph_text(fmt::format("<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
                                     "g () => (float loss)\n{{\n"
                                     "x, target = arbalest.Prefetch <source = \"memory:\", batch = 4> ()\n"
                                     "a = arbalest.Linear <units = 8> (x)\n"
                                     "b = Relu (a)\n"
                                     "c = arbalest.Linear <units = 1> (b)\n"
                                     "loss = arbalest.MeanSquaredError (c, target)\n"
                                     "trained = arbalest.Train <{}> (loss)\n{}}}\n",
                                     train, more),
                         "g.onnxtxt", builtin_ops());
}

// 24 iterations an epoch of one learner; a checkpoint after each fifth.
SessionOptions rolling_back(const std::string& folder, int times, uint64_t epoch = 1, uint64_t position = 50) {
  SessionOptions options = on_cpus();
  options.numerics.deterministic = true;
  options.length.epochs = 4;
  options.execution.report_every = 2;
  options.sources.training = std::make_shared<Poisoned>(epoch, position, times);
  options.divergence.then = OnDivergence::Rollback;
  options.checkpoints.folder = folder;
  options.checkpoints.resume = true;
  options.checkpoints.iterations = 5;
  options.checkpoints.keep = 1000;
  return options;
}

struct Outcome {
  Recorder story;
  std::string error;
};

Outcome outcome(Graph graph, const SessionOptions& options) {
  Outcome result;
  const std::atomic<bool> interrupted{false};
  result.error = message_of([&] { run_training(std::move(graph), options, result.story, interrupted); });
  return result;
}

}  // namespace

TEST_CASE("a run whose loss is not finite goes back to its newest checkpoint with a lower rate") {
  const TestFolder folder;
  SessionOptions options = rolling_back(folder / "c", 2);
  options.files.save = folder / "w.safetensors";
  const Outcome run = outcome(regression(), options);
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
  CHECK(run.story.ends[0].reason == "complete");
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
  const Outcome rest = outcome(regression(), options);
  CHECK(rest.error == "");
  CHECK(rest.story.reports.front().learning_rate == doctest::Approx(0.05 * 0.5));
  REQUIRE(rest.story.rollbacks.size() == 1);
  CHECK(rest.story.rollbacks[0].times == 2);
  CHECK(rest.story.reports.back().learning_rate == doctest::Approx(0.05 * 0.25));
}

TEST_CASE("checkpoints that a run has gone back behind are removed, and no longer gone back to") {
  const TestFolder folder;
  SessionOptions options = rolling_back(folder / "c", 1000);
  options.length.iterations = 36;
  REQUIRE(outcome(regression(), options).error == "");
  options.length.iterations.reset();
  options.checkpoints.from = newest_checkpoint(folder / "c");
  options.checkpoints.iterations = 1000;  // no more
  const Outcome run = outcome(regression(), options);
  CHECK_FALSE(run.error.empty());
  std::vector<int64_t> back;
  for (const RolledBack& each : run.story.rollbacks) back.push_back(each.iteration);
  CHECK(back == std::vector<int64_t>{36, 35, 30});
  CHECK(checkpoints_in(folder / "c").front().filename() == "checkpoint-000000000030.safetensors");
}

TEST_CASE("a rollback does not forget the best model, which was measured after its checkpoint") {
  const TestFolder folder;
  SessionOptions options = rolling_back(folder / "c", 1, 2);
  options.sources.validation = std::make_shared<Poisoned>(0, 0, 0);
  options.checkpoints.iterations = 40;
  options.divergence.rate_factor = 1e-6;  // nothing that is trained afterwards is better
  options.files.save_best = folder / "best.safetensors";
  const Outcome run =
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
  const Outcome run = outcome(regression(), options);
  CHECK(run.story.rollbacks.size() == 2);
  CHECK(contains(run.error, "the loss is no longer finite after iteration "));
  CHECK(run.error.ends_with("; the run has gone back to a checkpoint 2 times already"));
  REQUIRE(run.story.failures.size() == 1);
  CHECK(run.story.failures[0].message == run.error);
}

TEST_CASE("where there is no checkpoint yet a rollback ends the run, which says so") {
  const TestFolder folder;
  SessionOptions options = rolling_back(folder / "c", 1, 0, 3);
  const Outcome run = outcome(regression(), options);
  CHECK(run.story.rollbacks.empty());
  CHECK(run.error.ends_with(fmt::format("; '{}' has no checkpoint to go back to", (folder / "c").string())));
  options.checkpoints.folder = "";
  CHECK(outcome(regression(), options).error == "--on-nan rollback needs --checkpoint DIR");
}

TEST_CASE("several learners go back together, in whichever segment they are") {
  const std::vector<std::string> strategies = {"ssgd", "sma", "local"};
  for (const std::string& strategy : strategies) {
    CAPTURE(strategy);
    const TestFolder folder;
    SessionOptions options = rolling_back(folder / "c", 1);
    options.learners.devices = cpus(2);
    options.learners.per_device = 2;
    options.learners.strategy = parse_strategy(strategy);
    options.checkpoints.iterations = 2;
    options.length.epochs = 6;
    const Outcome run = outcome(regression(), options);
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
    const Outcome rest = outcome(regression(), options);
    CHECK(rest.error == "");
    CHECK(rest.story.rollbacks.size() == 1);
    CHECK(rest.story.ends.size() == 1);
  }
}

namespace {

// Of a run that ends where its numbers go wrong.
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
    options.learners.strategy = Strategy::Kind::Ssgd;
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
  const Outcome back = outcome(regression(), options);
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
  CHECK(contains(sums, " no longer finite after iteration "));
  CHECK(contains(sums, "; in iteration "));
  CHECK_FALSE(contains(sums, "before"));
}

namespace {

struct Skipping {
  std::string train = "lr = 0.05, momentum = 0.9";
  std::string strategy = "none";
  int devices = 1, learners = 1;
  Precision precision = Precision::Fp32;
};

Graph normed(const Skipping& of) {
  return read_graph_text(fmt::format("<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
                                     "g () => (float loss)\n{{\n"
                                     "x, target = arbalest.Prefetch <source = \"memory:\", batch = 4> ()\n"
                                     "a = arbalest.Linear <units = 8> (x)\n"
                                     "n = arbalest.BatchNorm (a)\n"
                                     "b = Relu (n)\n"
                                     "c = arbalest.Linear <units = 1> (b)\n"
                                     "loss = arbalest.MeanSquaredError (c, target)\n"
                                     "trained = arbalest.Train <{}> (loss)\n}}\n",
                                     of.train),
                         "g.onnxtxt", builtin_ops());
}

// So many iterations of a run in which the batch at `bad` of the second epoch is poisoned.
SessionOptions skipping(const Skipping& of, const std::string& folder, uint64_t bad = 50) {
  SessionOptions options = on_cpus(of.devices, of.learners);
  options.learners.strategy = parse_strategy(of.strategy);
  options.numerics.deterministic = true;
  options.numerics.precision = of.precision;
  options.length.epochs = 4;
  options.execution.report_every = 2;
  options.sources.training = std::make_shared<Poisoned>(1, bad, 1000);
  options.divergence.then = OnDivergence::Skip;
  options.checkpoints.folder = folder;
  options.checkpoints.resume = true;
  return options;
}

// What the run's last checkpoint holds of its learners, without what counts batches.
std::map<std::string, std::vector<uint8_t>> learned(const std::string& folder) {
  std::map<std::string, std::vector<uint8_t>> arrays;
  const auto newest = newest_checkpoint(folder);
  REQUIRE(newest);
  for (const NamedTensor& tensor : newest->tensors.tensors) {
    const bool counts = tensor.name.ends_with("/tally") || tensor.name.ends_with("/kept_statistics") ||
                        tensor.name.ends_with("/accumulated");
    if (!counts) arrays[tensor.name] = tensor.bytes;
  }
  return arrays;
}

}  // namespace

TEST_CASE("an update whose loss is not finite is skipped and leaves everything as it was") {
  const std::vector<Skipping> cases = {
      {},
      {.train = "lr = 0.05, momentum = 0.9", .precision = Precision::Bf16},
      {.train = "lr = 0.05, nesterov = 1, momentum = 0.5, clip_norm = 0.3, rate_patterns = [\"c.*\"], "
                "rate_factors = [0.5]"},
      {.train = "lr = 0.01, optimizer = \"adamw\", weight_decay = 0.1"},
      {.train = "lr = 0.01, optimizer = \"lamb\", weight_decay = 0.1"},
      {.train = "lr = 0.01, optimizer = \"rmsprop\", accumulate = 2"},
  };
  for (const Skipping& each : cases) {
    CAPTURE(each.train);
    const TestFolder folder;
    const int64_t accumulate = contains(each.train, "accumulate") ? 2 : 1;
    const int64_t bad = (24 + 50 / 4) / accumulate * accumulate;  // iterations before the update
    for (const int64_t more : {int64_t{0}, accumulate}) {
      SessionOptions options = skipping(each, folder / std::to_string(more));
      options.length.iterations = bad + more;
      const Outcome run = outcome(normed(each), options);
      REQUIRE(run.error == "");
      CHECK(run.story.ends.at(0).skipped_updates == (more > 0 ? 1 : 0));
    }
    const auto before = learned(folder / "0"), after = learned(folder / std::to_string(accumulate));
    CHECK(before.size() > 6);
    CHECK(before == after);
    const Outcome whole = outcome(normed(each), skipping(each, folder / "whole"));
    CHECK(whole.error == "");
    CHECK(whole.story.ends.at(0).skipped_updates == 1);
    int64_t told = 0;
    for (const RunProgress& report : whole.story.reports) {
      told += report.skipped_updates;
      CHECK(std::isfinite(report.loss));
    }
    CHECK(told == 1);
    CHECK(learned(folder / "whole") != before);
  }
}

TEST_CASE("GPUs skip updates, and find what is not finite, as CPUs do") {
  if (cuda_device_count() < 1) {
    MESSAGE("SKIP: no CUDA device");
    return;
  }
  for (const char* strategy : {"ssgd", "sma", "local", "none"}) {
    for (const Precision precision : {Precision::Fp32, Precision::Bf16}) {
      CAPTURE(strategy);
      const TestFolder folder;
      const Skipping of{.strategy = strategy, .learners = 2, .precision = precision};
      SessionOptions options = skipping(of, folder / "c");
      options.learners.devices = {{PlanDevice::Kind::Cuda, 0}};
      const Outcome run = outcome(normed(of), options);
      CHECK(run.error == "");
      REQUIRE(run.story.ends.size() == 1);
      CHECK(run.story.ends[0].skipped_updates == (std::string(strategy) == "ssgd" ? 2 : 1));
      CHECK(std::isfinite(run.story.reports.back().loss));
      options.divergence = {.find = true};
      options.checkpoints = {};
      options.sources.training = std::make_shared<Poisoned>(1, 50, 1000);
      CHECK(contains(outcome(normed(of), options).error, " of learner 0 on cuda:0 reads 'x', float[4,6]: "));
    }
  }
}

TEST_CASE("where no update is skipped a run that may skip them trains the same bits") {
  for (const Skipping& each : {Skipping{}, Skipping{.strategy = "ssgd", .devices = 2, .learners = 2},
                               Skipping{.strategy = "sma", .learners = 2}}) {
    CAPTURE(each.strategy);
    const TestFolder folder;
    for (const OnDivergence then : {OnDivergence::Stop, OnDivergence::Skip}) {
      SessionOptions options = skipping(each, folder / std::to_string(int(then)), 1000);
      options.divergence.then = then;
      REQUIRE(outcome(normed(each), options).error == "");
    }
    CHECK(learned(folder / "0") == learned(folder / "2"));
  }
}

TEST_CASE("each learner skips for itself, but with S-SGD all alike") {
  for (const char* strategy : {"ssgd", "sma", "local", "none"}) {
    for (const int devices : {1, 2}) {
      CAPTURE(strategy);
      CAPTURE(devices);
      const TestFolder folder;
      const Skipping of{.strategy = strategy, .devices = devices, .learners = 2};
      const Outcome run = outcome(normed(of), skipping(of, folder / "c"));
      CHECK(run.error == "");
      const bool together = std::string(strategy) == "ssgd";
      CHECK(run.story.ends.at(0).skipped_updates == (together ? 2 * devices : 1));
      const auto arrays = learned(folder / "c");
      if (!together) continue;
      for (const auto& [name, bytes] : arrays) {
        if (!name.starts_with("learner 0/weights/")) continue;
        for (int learner = 1; learner < 2 * devices; ++learner) {
          CHECK(arrays.at(fmt::format("learner {}/{}", learner, name.substr(10))) == bytes);
        }
      }
    }
  }
}

TEST_CASE("a run that skips all updates ends, and one that goes on knows what it has skipped") {
  const TestFolder folder;
  const Skipping of;
  SessionOptions options = skipping(of, folder / "c");
  options.length.epochs = 20;
  class Hopeless final : public Source {
   public:
    int64_t size() const override { return 96; }
    std::vector<Field> fields() const override {
      return {{"x", DataType::Float32, {6}}, {"target", DataType::Float32, {1}}};
    }
    void fill(std::span<const SampleRef> samples, std::span<std::byte* const> fields) const override {
      auto* x = reinterpret_cast<float*>(fields[0]);
      std::fill_n(x, samples.size() * 6, std::numeric_limits<float>::infinity());
      std::fill_n(reinterpret_cast<float*>(fields[1]), samples.size(), 1.0f);
    }
    std::string describe() const override { return "poisoned"; }
  };
  options.sources.training = std::make_shared<Hopeless>();
  const Outcome run = outcome(normed(of), options);
  CHECK(contains(run.error, "the last 100 updates up to iteration 100 have been skipped"));
  CHECK(run.story.reports.size() == 50);
  CHECK(run.story.reports.back().skipped_updates == 2);
  CHECK(std::isnan(run.story.reports.back().loss));
}

TEST_CASE("a run that skips goes on from its checkpoints") {
  const TestFolder folder;
  const Skipping of{.train = "lr = 0.05, momentum = 0.9, accumulate = 2"};
  SessionOptions options = skipping(of, folder / "c");
  REQUIRE(outcome(normed(of), options).error == "");
  SessionOptions part = skipping(of, folder / "d");
  part.length.iterations = 37;  // within the update that is skipped
  REQUIRE(outcome(normed(of), part).error == "");
  part.length.iterations.reset();
  part.checkpoints.from = newest_checkpoint(folder / "d");
  const Outcome rest = outcome(normed(of), part);
  CHECK(rest.error == "");
  CHECK(rest.story.ends.at(0).skipped_updates == 1);
  CHECK(learned(folder / "d") == learned(folder / "c"));
  part.divergence.then = OnDivergence::Stop;
  part.checkpoints.from = newest_checkpoint(folder / "d");
  CHECK(outcome(normed(of), part).error != "");
  part.divergence = {.find = true, .then = OnDivergence::Skip};
  CHECK(outcome(normed(of), part).error == "--find-nan ends a run where --on-nan skip goes on");
}
