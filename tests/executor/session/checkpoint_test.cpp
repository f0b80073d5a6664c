// SPDX-License-Identifier: Apache-2.0

// Checkpoints as files: runs that go on from any of them end with the bits of the run that was not stopped.

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/files/file.h"
#include "executor/training/checkpoint_folder.h"
#include "io/formats/safetensors.h"
#include "io/open/open_source.h"
#include "ops/builtin_ops.h"
#include "tests/executor/fixture.h"
#include "tests/executor/session/slow_source.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace fs = std::filesystem;

namespace checkpoint_test {
namespace {

constexpr const char* kSource = "glyphs:?train=140&test=70&size=16";

struct Case {
  std::string train = "lr = 0.05, momentum = 0.9";
  std::string synchronize = "strategy = \"sma\"";
  int devices = 1, learners = 1;
  ValidationRules rules;
  std::string validate = "batch = 16";
};

Graph graph_of(const Case& of, int64_t batch = 4) {
  TinyNet net;
  net.source = kSource;
  net.batch = batch;
  net.layers = "c = arbalest.ConvBnRelu <filters = 4, kernel_shape = [3, 3], strides = [2, 2]> (x)\nh = Flatten (c)\n";
  net.train = of.train;
  net.synchronize = of.synchronize;
  net.validate = of.validate;
  return tiny(net);
}

SessionOptions options_of(const Case& of, const std::string& folder) {
  SessionOptions options = on_cpus(of.devices, of.learners);
  options.numerics.deterministic = true;
  options.length.epochs = 3;
  options.rules = of.rules;
  options.checkpoints.folder = folder;
  options.checkpoints.resume = true;
  options.checkpoints.iterations = 5;
  options.checkpoints.keep = 1000;
  options.sources.training = std::make_shared<SlowSource>(open_source(kSource, "train", 1), 1);  // so the disk keeps up
  return options;
}

struct Saved {
  std::vector<uint8_t> weights, best;
  Recorder story;
  bool operator==(const Saved& other) const { return weights == other.weights && best == other.best; }
};

Saved saved(const Case& of, SessionOptions options, const TestFolder& folder, int64_t batch = 4) {
  options.files.save = folder / "weights.safetensors";
  options.files.save_best = folder / "best.safetensors";
  options.checkpoints.from = newest_checkpoint(options.checkpoints.folder);
  Saved result;
  result.story = run(graph_of(of, batch), options);
  result.weights = read_file(options.files.save);
  if (fs::exists(options.files.save_best)) result.best = read_file(options.files.save_best);
  return result;
}

}  // namespace

TEST_CASE("a run goes on from each of its checkpoints to the same files") {
  std::vector<Case> cases;
  cases.push_back({});
  cases.push_back({.train = "lr = 0.01, optimizer = \"adamw\", ema = 0.9, accumulate = 2",
                   .synchronize = "strategy = \"ssgd\"",
                   .devices = 2,
                   .learners = 2});
  cases.push_back({.synchronize = "strategy = \"sma\", every = 3", .devices = 2, .learners = 2});
  cases.push_back({.synchronize = "strategy = \"local\", every = 2",
                   .learners = 3,
                   .rules = {.plateau = 1, .plateau_factor = 0.5}});
  cases.push_back({.synchronize = "strategy = \"papa\", every = 2, alpha = 0.1", .devices = 2, .learners = 2});
  cases.push_back({.synchronize = "strategy = \"diloco\", every = 2, momentum = 0.5", .devices = 2, .learners = 2});
  cases.push_back({.train = "lr = 0.3", .learners = 2, .rules = {.patience = 1}});
  cases.push_back({.rules = {.targets = {parse_target("accuracy >= 0.2")}, .recalibrate = 2}});
  for (const Case& each : cases) {
    CAPTURE(each.train);
    CAPTURE(each.synchronize);
    const TestFolder whole_folder, checkpoints;
    const Saved whole = saved(each, options_of(each, checkpoints / "all"), whole_folder);
    const std::vector<fs::path> files = checkpoints_in(checkpoints / "all");
    REQUIRE(files.size() > 2);
    for (const fs::path& file : files) {
      CAPTURE(file.filename().string());
      const TestFolder folder;
      fs::create_directories(folder / "one");
      fs::copy_file(file, fs::path(folder / "one") / file.filename());
      if (fs::exists(whole_folder / "best.safetensors")) {  // as the run left it, or a better one of later
        fs::copy_file(whole_folder / "best.safetensors", folder / "best.safetensors");
      }
      const Saved rest = saved(each, options_of(each, folder / "one"), folder);
      CHECK(rest == whole);
      REQUIRE(rest.story.starts.size() == 1);
      CHECK(rest.story.starts[0].resumed == (fs::path(folder / "one") / file.filename()).string());
      CHECK(rest.story.ends[0].reason == whole.story.ends[0].reason);
      CHECK(rest.story.ends[0].last.loss == whole.story.ends[0].last.loss);
      CHECK(rest.story.ends[0].best == whole.story.ends[0].best);
    }
  }
}

namespace {

// Epochs of 5 iterations, which are over sooner than a run comes to rest.
SessionOptions short_epochs(const Case& of, const std::string& folder, int64_t epochs) {
  SessionOptions options = options_of(of, folder);
  options.sources.training = nullptr;
  options.checkpoints.iterations = 0;
  options.checkpoints.seconds = 1000;
  options.length.epochs = epochs;
  return options;
}

std::vector<std::pair<int64_t, Metrics>> validations(const Recorder& story) {
  std::vector<std::pair<int64_t, Metrics>> found;
  for (const Validated& each : story.validations) found.emplace_back(each.iteration, each.metrics);
  return found;
}

}  // namespace

TEST_CASE("a run that a validation has ended goes on as if it had not") {
  for (const ValidationRules& rules :
       {ValidationRules{.targets = {parse_target("accuracy >= 0.05")}}, ValidationRules{.patience = 1}}) {
    for (const auto& [devices, learners] : {std::pair{1, 1}, {2, 2}}) {
      const Case plain{.devices = devices, .learners = learners};
      Case ends = plain;
      ends.rules = rules;
      const TestFolder whole_folder, folder;
      const Saved whole = saved(plain, short_epochs(plain, whole_folder / "all", 12), whole_folder, 28);
      const Saved ended = saved(ends, short_epochs(ends, folder / "all", 12), folder, 28);
      const RunFinished& end = ended.story.ends.at(0);
      CHECK(end.weights_iteration == end.last.iteration);
      CHECK(end.weights_epoch == end.last.epoch);
      const Saved rest = saved(plain, short_epochs(plain, folder / "all", 12), folder, 28);
      CHECK(rest == whole);
      std::vector<std::pair<int64_t, Metrics>> all = validations(ended.story);
      const auto more = validations(rest.story);
      all.insert(all.end(), more.begin(), more.end());
      CHECK(all == validations(whole.story));
    }
  }
}

TEST_CASE("a run that was validated at its end, out of step, goes on") {
  const Case each{.validate = "batch = 16, every_epochs = 3"};
  const TestFolder whole_folder;
  const Saved whole = saved(each, short_epochs(each, whole_folder / "all", 8), whole_folder, 28);
  for (const int64_t epochs : {1, 2, 4, 5}) {
    CAPTURE(epochs);
    const TestFolder folder;
    const Saved first = saved(each, short_epochs(each, folder / "all", epochs), folder, 28);
    CHECK(first.story.validations.back().epoch == epochs);
    const Saved rest = saved(each, short_epochs(each, folder / "all", 8), folder, 28);
    CHECK(rest.weights == whole.weights);
    std::vector<int64_t> at;
    for (const Validated& validated : rest.story.validations) at.push_back(validated.epoch);
    CHECK(at == (epochs < 3 ? std::vector<int64_t>{3, 6, 8} : std::vector<int64_t>{6, 8}));
    CHECK(validations(rest.story).back() == validations(whole.story).back());
  }
}

TEST_CASE("a run goes on with its own data only") {
  const auto data = [](float scale, int32_t shift) {
    std::vector<float> x(24 * 4);
    std::vector<int32_t> label(24);
    for (size_t i = 0; i < x.size(); ++i) x[i] = scale * float(i % 7);
    for (size_t i = 0; i < label.size(); ++i) label[i] = int32_t(i + size_t(shift)) % 3;
    TensorFile file;
    file.tensors = {{"x", DataType::Float32, {24, 4}, std::vector<uint8_t>(x.size() * 4)},
                    {"label", DataType::Int32, {24}, std::vector<uint8_t>(label.size() * 4)}};
    std::memcpy(file.tensors[0].bytes.data(), x.data(), x.size() * 4);
    std::memcpy(file.tensors[1].bytes.data(), label.data(), label.size() * 4);
    return file;
  };
  const TestFolder folder;
  const auto write = [&](const TensorFile& train) {
    write_safetensors(folder / "train.safetensors", train);
    write_safetensors(folder / "test.safetensors", data(1, 0));
  };
  const Graph graph = read_graph_text(
      fmt::format("<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\nown () => (float loss)\n{{\n"
                  "x, label = arbalest.Prefetch <source = \"tensors:{}\", batch = 4> ()\n"
                  "logits = arbalest.Linear <units = 3> (x)\n"
                  "loss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
                  "trained = arbalest.Train <lr = 0.1> (loss)\n"
                  "report = arbalest.Validate <batch = 24> (trained, loss)\n}}\n",
                  folder.string()),
      "own.onnxtxt", builtin_ops());
  SessionOptions options = on_cpus();
  options.checkpoints.folder = folder / "ck";
  options.checkpoints.resume = true;
  options.length.epochs = 1;
  write(data(1, 0));
  run(graph, options);
  options.length.epochs = 2;
  options.checkpoints.from = newest_checkpoint(options.checkpoints.folder);
  for (const TensorFile& other : {data(2, 0), data(1, 1)}) {
    write(other);
    CHECK(contains(message_of([&] { run(graph, options); }), "training data's checksum: "));
  }
  write(data(1, 0));
  CHECK(run(graph, options).ends.at(0).epoch == 2);
}

}  // namespace checkpoint_test
