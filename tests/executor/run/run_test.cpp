// SPDX-License-Identifier: Apache-2.0

// Whole runs on CPUs with generated digits, and on a GPU if there is one.

#include <doctest/doctest.h>

#include <cmath>

#include "dsl/dsl.h"
#include "executor/devices/device.h"
#include "executor/trace/trace_file.h"
#include "io/formats/safetensors.h"
#include "ops/builtin_ops.h"
#include "tests/executor/fixture.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace run_test {
namespace {

bool same_tensors(const TensorFile& a, const TensorFile& b) {
  if (a.tensors.size() != b.tensors.size()) return false;
  for (const NamedTensor& tensor : a.tensors) {
    const NamedTensor* other = b.find(tensor.name);
    if (!other || other->bytes != tensor.bytes) return false;
  }
  return !a.tensors.empty();
}

TensorFile trained(const SessionOptions& options, const TestFolder& folder, const TinyNet& net) {
  SessionOptions saving = options;
  saving.files.save = folder / "weights.safetensors";
  run(tiny(net), saving);
  return read_safetensors(saving.files.save);
}

}  // namespace

TEST_CASE("a short run learns, and tells its story in order") {
  SessionOptions options = on_cpus();
  options.length.epochs = 3;
  options.execution.report_every = 10;
  const Recorder story = run(tiny(convolutional()), options);
  REQUIRE(story.starts.size() == 1);
  CHECK(story.starts[0].iterations_per_epoch == 40);
  CHECK(story.starts[0].iterations == 120);
  CHECK(story.starts[0].samples_per_epoch == 1280);
  CHECK(story.starts[0].parameters == 8 * 9 + 16 + 10 * 8 * 64 + 10);
  CHECK(story.starts[0].planned_peak_bytes > 32 * 8 * 256 * 4);
  REQUIRE(story.reports.size() == 12);
  for (size_t i = 0; i < story.reports.size(); ++i) CHECK(story.reports[i].iteration == int64_t(i + 1) * 10);
  CHECK(story.reports.front().learning_rate == doctest::Approx(0.05));
  REQUIRE(story.epochs.size() == 3);
  for (size_t e = 0; e < 3; ++e) CHECK(story.epochs[e].epoch == int64_t(e + 1));
  // An epoch's loss is the mean of its reports'.
  double mean = 0;
  for (size_t i = 0; i < 4; ++i) mean += story.reports[i].loss / 4;
  CHECK(story.epochs[0].loss == doctest::Approx(mean).epsilon(1e-9));
  CHECK(story.epochs[0].loss > story.epochs[2].loss);
  CHECK(story.epochs[2].loss < 1.0);  // log 10 = 2.3 at the start
  REQUIRE(!story.validating_shares.empty());
  for (const ValidationProgress& progress : story.validating_shares) {
    CHECK(progress.epoch >= 1);
    CHECK(progress.epoch <= 3);
    CHECK(progress.share > 0);
    CHECK(progress.share <= 1);
  }
  REQUIRE(story.validations.size() == 3);
  for (const Validated& validation : story.validations) CHECK(validation.samples == 300);
  CHECK(story.validations[2].iteration == 120);
  CHECK(story.validations[2].loss < story.validations[0].loss);
  CHECK(story.validations[2].metrics.at(0).first == "accuracy");
  CHECK(story.validations[2].metrics.at(0).second > 0.7);
  REQUIRE(story.ends.size() == 1);
  CHECK(story.ends[0].reason == RunEnd::Complete);
  CHECK(story.ends[0].images == 3 * 1280);
  CHECK(story.ends[0].last.loss == story.validations[2].loss);
  CHECK(story.failures.empty());
}

TEST_CASE("two CPU devices with two learners each run and report") {
  SessionOptions options = on_cpus(2, 2);
  options.length.epochs = 4;
  const Recorder story = run(tiny(convolutional()), options);
  REQUIRE(story.starts.size() == 1);
  CHECK(story.starts[0].devices == std::vector<std::string>{"cpu:0", "cpu:1"});
  CHECK(story.starts[0].iterations_per_epoch == 10);
  CHECK(story.epochs.size() == 4);
  CHECK(story.validations.size() == 4);
  CHECK(story.epochs[3].loss < story.epochs[0].loss);
  CHECK(story.ends.at(0).images == 4 * 1280);
}

TEST_CASE("an epoch consumes every sample once, over all learners") {
  // Nothing is learned, so the mean loss over the epoch is that over the split, which validation takes as it is. All
  // learners start alike; any sample left out or taken twice shows, as losses differ by far more than the tolerance.
  TinyNet net;
  net.train = "lr = 0.0";
  net.validate = "batch = 96, split = \"train\"";
  for (const auto& [devices, learners] : {std::pair{1, 1}, {1, 3}, {2, 2}}) {
    SessionOptions options = on_cpus(devices, learners);
    options.length.epochs = 2;
    const Recorder story = run(tiny(net), options);
    REQUIRE(story.epochs.size() == 2);
    REQUIRE(story.validations.size() == 2);
    for (size_t e = 0; e < 2; ++e) {
      INFO(devices, " devices, ", learners, " learners, epoch ", e);
      CHECK(story.epochs[e].loss == doctest::Approx(story.validations[e].loss).epsilon(1e-6));
    }
  }
}

TEST_CASE("the same seed gives the same bits, another seed other weights") {
  SessionOptions options = on_cpus();
  options.numerics.deterministic = true;
  options.length.iterations = 20;
  const TestFolder folder;
  const TensorFile first = trained(options, folder, convolutional(320));
  CHECK(same_tensors(first, trained(options, folder, convolutional(320))));
  options.numerics.seed = 2;
  CHECK_FALSE(same_tensors(first, trained(options, folder, convolutional(320))));
}

TEST_CASE("validation's first batches are read before the epoch's training has ended") {
  const TestFolder folder;
  SessionOptions options = on_cpus();
  options.length.epochs = 2;
  options.files.trace = folder / "run.json.gz";
  const Recorder story = run(tiny(convolutional()), options);
  CHECK(story.ends.at(0).trace == options.files.trace);
  const TraceFile trace = read_trace(options.files.trace);
  const SpanIndex spans(trace);
  const auto task = [&](std::string_view name) {
    for (const TaskId id : trace.plan.tasks.ids()) {
      if (trace.plan.tasks[id].name == name) return id;
    }
    return TaskId(kNone);
  };
  const TaskId step = task("cpu:0/learner 0/step"), fill = task("cpu:0/validation/fill"),
               snapshot = task("cpu:0/validation/snapshot");
  REQUIRE(step != kNone);
  REQUIRE(fill != kNone);
  CHECK(spans.of(step).size() == 80);
  CHECK(spans.of(fill).size() == 6);
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    const TaskSpan* last = spans.find(step, epoch * 40 + 39);
    const TaskSpan *first_fill = spans.find(fill, epoch * 3), *copied = spans.find(snapshot, epoch);
    REQUIRE(last);
    REQUIRE(first_fill);
    REQUIRE(copied);
    CHECK(first_fill->ended < last->ended);
    CHECK(copied->started >= last->ended);
  }
  CHECK(trace.nodes.size() >= 80 * 8);
}

TEST_CASE("a source that stays on the device trains without travelling") {
  TinyNet net;
  net.source = "synthetic:?shape=1x16x16&size=64";
  net.train = "lr = 0.05, momentum = 0.9";
  SessionOptions options = on_cpus();
  options.length.epochs = 10;
  const Recorder story = run(tiny(net), options);
  REQUIRE(story.epochs.size() == 10);
  CHECK(story.epochs[9].loss < story.epochs[0].loss / 2);  // one batch, learned by heart
  CHECK(story.validations.size() == 10);
  CHECK(story.validations[0].samples == 64);
}

TEST_CASE("names that the plan uses for itself may be the graph's") {
  Graph graph = tiny({.source = "synthetic:?shape=1x16x16&size=64"});
  graph.rename(graph.find_value("image"), "batch");
  graph.rename(graph.find_value("hidden"), "tally");
  graph.rename(graph.find_value("h"), "weights");
  SessionOptions options = on_cpus();
  options.length.epochs = 1;
  CHECK(run(std::move(graph), options).validations.size() == 1);
}

TEST_CASE("a model in the DSL trains as the file that it is saved to") {
  Model model("small");
  auto [image, label] = prefetch(model, {.source = "glyphs:?train=96&test=50&size=16", .batch = 8});
  Tensor x = augment(image, {.pad = 2, .mean = {0.2}, .std = {0.3}});
  x = max_pool(relu(batch_norm(conv(x, {.filters = 4, .kernel = 3}))));
  const Tensor logits = linear(x, {.units = 10});
  const Tensor loss = softmax_cross_entropy(logits, label).named("loss");
  validate(train(loss, {.lr = 0.05, .momentum = 0.9}), {loss, accuracy(logits, label)}, {.batch = 25});

  const TestFolder folder;
  SessionOptions options = on_cpus();
  options.numerics.deterministic = true;
  options.length.epochs = 2;
  options.files.save = folder / "weights.safetensors";
  const Recorder built = run(model.graph(), options);
  const TensorFile weights = read_safetensors(options.files.save);
  model.save(folder / "small.onnxtxt");
  const Recorder saved = run(load_graph(folder / "small.onnxtxt", builtin_ops()), options);
  CHECK(same_tensors(weights, read_safetensors(options.files.save)));
  REQUIRE(built.validations.size() == 2);
  CHECK(built.validations[1].loss == saved.validations.at(1).loss);
}

TEST_CASE("bfloat16 trains on the CPU as well") {
  SessionOptions options = on_cpus();
  options.length.epochs = 3;
  options.numerics.precision = Precision::Bf16;
  const Recorder story = run(tiny(convolutional()), options);
  REQUIRE(story.validations.size() == 3);
  CHECK(story.epochs[2].loss < 1.0);
  CHECK(story.validations[2].metrics.at(0).second > 0.7);
}

TEST_CASE("a graph that cannot be run is refused, and the observer hears of it") {
  TinyNet net;
  net.source = "glyps:";
  Recorder recorder;
  SessionOptions options = on_cpus();
  const std::string message = message_of([&] { run_training(tiny(net), options, recorder); });
  CHECK(contains(message, "tiny.onnxtxt:4:"));
  REQUIRE(recorder.failures.size() == 1);
  CHECK(recorder.failures[0].message == message);
  CHECK(recorder.starts.empty());
  net.source = "glyphs:?train=7&test=10&size=16";
  CHECK(contains(message_of([&] { run(tiny(net), options); }), "7 training samples"));
}

TEST_CASE("a GPU reaches the loss that the CPU reaches") {
  if (cuda_device_count() == 0) {
    MESSAGE("SKIP: no CUDA device");
    return;
  }
  SessionOptions options = on_cpus();
  options.length.epochs = 3;
  const Recorder reference = run(tiny(convolutional()), options);
  options.learners.devices = {{PlanDevice::Kind::Cuda, 0}};
  for (const Precision precision : {Precision::Fp32, Precision::Tf32, Precision::Bf16}) {
    INFO(name_of(precision));
    options.numerics.precision = precision;
    const Recorder story = run(tiny(convolutional()), options);
    REQUIRE(story.epochs.size() == 3);
    REQUIRE(story.validations.size() == 3);
    CHECK(story.epochs[2].loss == doctest::Approx(reference.epochs[2].loss).epsilon(0.15));
    CHECK(std::abs(story.validations[2].metrics[0].second - reference.validations[2].metrics[0].second) < 0.06);
  }
}

}  // namespace run_test
