// SPDX-License-Identifier: Apache-2.0

// Samples that stay on the devices (Prefetch's cache = "device"): batches are made of them there, and everything else
// is as without.

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/files/file.h"
#include "base/random.h"
#include "executor/devices/device.h"
#include "executor/inference/inference.h"
#include "executor/segment/segment.h"
#include "executor/session/reading.h"
#include "executor/trace/trace_file.h"
#include "executor/training/checkpoint_folder.h"
#include "io/open/open_source.h"
#include "tests/executor/fixture.h"
#include "tests/executor/session/slow_source.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace device_cache_test {
namespace {

Graph cached(Graph graph, const char* where = "device") {
  graph.find_op("arbalest.Prefetch")->attributes.set("cache", std::string(where));
  return graph;
}

struct Told : Recorder {
  void kept(const SamplesKept& event) override { keeping.push_back(event); }
  void skipped(const SampleSkipped& event) override { skips.push_back(event); }
  std::vector<SamplesKept> keeping;
  std::vector<SampleSkipped> skips;
};

Told train(Graph graph, const SessionOptions& options) {
  Told recorder;
  run_training(std::move(graph), options, recorder);
  return recorder;
}

struct Trained {
  std::vector<uint8_t> weights;
  std::vector<double> losses;  // of validations

  bool operator==(const Trained&) const = default;
};

Trained trained(Graph graph, SessionOptions options, int64_t epochs = 3) {
  const TestFolder folder;
  options.numerics.deterministic = true;
  options.length.epochs = epochs;
  options.files.save = folder / "w.safetensors";
  Trained result;
  for (const Validated& validation : train(std::move(graph), options).validations) {
    result.losses.push_back(validation.loss);
  }
  result.weights = read_file(options.files.save);
  return result;
}

// Another source that counts what is read of it.
class Counting final : public Source {
 public:
  explicit Counting(const std::string& split = "train")
      : source_(open_source("glyphs:?train=96&test=50&size=16", split, 1)) {}
  int64_t size() const override { return source_->size(); }
  std::vector<Field> fields() const override { return source_->fields(); }
  void fill(std::span<const SampleRef> samples, std::span<std::byte* const> fields) const override {
    source_->fill(samples, fields);
    read += int64_t(samples.size());
  }
  std::string describe() const override { return source_->describe(); }

  mutable std::atomic<int64_t> read{0};

 private:
  const std::unique_ptr<Source> source_;
};

// A source whose samples are drawn anew by epoch and position.
class Drawn final : public Source {
 public:
  std::vector<Field> fields() const override {
    return {{"image", DataType::Uint8, {1, 16, 16}}, {"label", DataType::Int32, {}, 10}};
  }
  int64_t size() const override { return 64; }
  std::string describe() const override { return "drawn: 64 samples"; }
  void fill(std::span<const SampleRef> samples, std::span<std::byte* const> fields) const override {
    for (size_t n = 0; n < samples.size(); ++n) {
      const Random4 draw = philox(1, samples[n].epoch, samples[n].position);
      std::memset(fields[0] + n * 256, int(draw.word[0] % 2), 256);
    }
    std::memset(fields[1], 0, samples.size() * sizeof(int32_t));
  }
};

// Samples whose reading fails from one on.
class Failing final : public Source {
 public:
  explicit Failing(int64_t from) : from_(from) {}
  std::vector<Field> fields() const override { return source_->fields(); }
  int64_t size() const override { return source_->size(); }
  std::string describe() const override { return source_->describe(); }
  void fill(std::span<const SampleRef> samples, std::span<std::byte* const> fields) const override {
    for (const SampleRef& sample : samples) {
      if (sample.index >= from_) throw RunError("the disk is gone");
    }
    source_->fill(samples, fields);
  }

 private:
  const std::unique_ptr<Source> source_ = open_source("glyphs:?train=96&test=50&size=16", "train", 1);
  const int64_t from_;
};

TinyNet without_validation() {
  TinyNet net;
  net.validate = "";
  return net;
}

SessionOptions reading(std::shared_ptr<const Source> training) {
  SessionOptions options = on_cpus();
  options.sources.training = std::move(training);
  return options;
}

int64_t bytes_in(const Plan& plan, const std::string& arena) {
  for (const Arena& each : plan.arenas) {
    if (each.name == arena) return each.bytes;
  }
  return -1;
}

}  // namespace

TEST_CASE("device cache: what is trained is what is trained without, for learners, devices and fields of all kinds") {
  const Graph graph = tiny(recalibrated());
  for (const auto& [devices, learners] : {std::pair{1, 1}, {1, 3}, {2, 2}}) {
    INFO(devices, " devices, ", learners, " learners");
    CHECK(trained(cached(graph), on_cpus(devices, learners)) == trained(graph, on_cpus(devices, learners)));
  }
  TinyNet limited;
  limited.source = "glyphs:?train=96&test=50&size=16&limit=41";
  CHECK(trained(cached(tiny(limited)), on_cpus(2)) == trained(tiny(limited), on_cpus(2)));
}

TEST_CASE("device cache: pinned slots hold indices alone, and each device has the samples, once for all its learners") {
  const Prepared prepared = prepare(cached(tiny(recalibrated())), on_cpus(2, 3));
  const Plan plan = make_plan(prepared.program, prepared.request);
  CHECK(bytes_in(plan, "cpu:0/learner 2/pinned batches") == 3 * aligned(sizeof(StepScalars) + 10 * 8));
  CHECK(bytes_in(plan, "cpu:1/learner 3/batches") == 2 * aligned(256 + aligned(10 * 256) + 10 * 4));
  for (const char* device : {"cpu:0", "cpu:1"}) {
    CHECK(bytes_in(plan, std::string(device) + "/training samples") == 96 * 256 + aligned(96 * 4));
    CHECK(bytes_in(plan, std::string(device) + "/validation samples") == aligned(50 * 256) + aligned(50 * 4));
  }
  const Prepared host = prepare(tiny(recalibrated()), on_cpus(2, 3));
  const Plan without = make_plan(host.program, host.request);
  CHECK(bytes_in(without, "cpu:0/training samples") == -1);
  std::set<std::string> names;
  for (const Task& task : plan.tasks) {
    if (task.kind == Task::Kind::CopyIn) names.insert(task.name.substr(task.name.rfind('/')));
  }
  CHECK(names == std::set<std::string>{"/take samples"});
}

TEST_CASE("device cache: where samples do not fit, the error says how much they take, and what else there is") {
  const Prepared prepared = prepare(cached(tiny({})), on_cpus());
  const Plan plan = make_plan(prepared.program, prepared.request);
  const int64_t needed = planned_bytes(plan, 0);
  CHECK_NOTHROW(check_memory(plan, {needed}));
  const std::string refusal = message_of([&] { check_memory(plan, {needed - 1}); });
  INFO(refusal);
  const int64_t samples = bytes_in(plan, "cpu:0/training samples") + bytes_in(plan, "cpu:0/validation samples");
  CHECK(contains(refusal, fmt::format("(cache = \"device\" of Prefetch) are {:.1f} MiB", double(samples) / (1 << 20))));
  CHECK(contains(refusal, "with cache = \"host\""));
}

TEST_CASE("device cache: samples are read once, before training, whatever epochs and segments follow") {
  const auto training = std::make_shared<Counting>(), validation = std::make_shared<Counting>("test");
  SessionOptions options = reading(training);
  options.sources.validation = validation;
  options.length.epochs = 4;
  const Told told = train(cached(tiny({})), options);
  const int64_t looked_at = 2 * 16;  // to see that they are the same in each epoch
  CHECK(training->read == 96 + looked_at);
  CHECK(validation->read == 50 + looked_at);
  REQUIRE(told.keeping.size() >= 2);
  CHECK(told.keeping.front().split == "train");
  CHECK(told.keeping.front().all == 96);
  CHECK(told.keeping.back().split == "test");
  CHECK(told.keeping.back().samples == 50);
  CHECK(std::count_if(told.keeping.begin(), told.keeping.end(),
                      [](const SamplesKept& event) { return event.samples == event.all; }) == 2);
  CHECK(told.keeping.back().bytes == aligned(50 * 256) + aligned(50 * 4));

  training->read = 0;
  options.learners.per_device = 0;
  options.learners.tuning = {.threshold = -1,
                             .warmup_seconds = 0,
                             .warmup_reports = 1,
                             .window_seconds = 0,
                             .steadiness = 0,
                             .most_windows = 1,
                             .most_learners = 4};  // always more, soon
  options.execution.report_every = 1;
  options.length.epochs = 9;
  const Told tuned = train(cached(tiny({})), options);
  REQUIRE(tuned.tunings.size() >= 1);
  CHECK(tuned.tunings[0].next > 1);
  CHECK(training->read == 96 + looked_at);
}

TEST_CASE("device cache: a segment that follows takes the samples as they are") {
  SessionOptions options = on_cpus();
  options.numerics.deterministic = true;
  const auto weights = [&](const Graph& graph) {
    Prepared prepared = prepare(graph, options);
    Told story;
    Monitor monitor(prepared.program, options.rules, story);
    prepared.request.iterations = 12;
    Segment first(prepared, options, {}, monitor);
    first.start_from(initial_values(prepared, options));
    first.run({}, nullptr);
    Segment second(prepared, options, first.cursor(), monitor);
    second.start_from(first.state());
    second.run({}, nullptr);
    return second.model().weights;
  };
  CHECK(weights(cached(tiny(without_validation()))) == weights(tiny(without_validation())));
}

TEST_CASE("device cache: sources that draw samples anew in each epoch are refused") {
  const std::string refusal =
      message_of([] { prepare(cached(tiny(without_validation())), reading(std::make_shared<Drawn>())); });
  CHECK(contains(refusal, "(arbalest.Prefetch)"));
  CHECK(contains(refusal, "'drawn: 64 samples' draws them anew in each epoch"));
  CHECK_NOTHROW(prepare(tiny(without_validation()), reading(std::make_shared<Drawn>())));
}

TEST_CASE("device cache: noise that would stay on the device anyway is taken like other samples") {
  TinyNet net = without_validation();
  net.source = "synthetic:?shape=1x16x16&classes=10&size=64";
  const Trained all = trained(cached(tiny(net)), on_cpus(), 2);
  net.source += "&delay=1";  // made anew for each batch
  CHECK(all == trained(tiny(net), on_cpus(), 2));
}

TEST_CASE("device cache: an error, and an interrupt, while samples are read") {
  const Graph graph = cached(tiny(without_validation()));
  CHECK(contains(message_of([&] { train(graph, reading(std::make_shared<Failing>(40))); }),
                 "samples 0 to 95: the disk is gone"));

  const auto slow =
      std::make_shared<SlowSource>(open_source("glyphs:?train=2000&test=50&size=16", "train", 1), 50);  // eight parts
  struct Interrupting : Recorder {
    void kept(const SamplesKept&) override { stop.request_stop(); }
    std::stop_source stop;
  };
  Interrupting recorder;
  run_training(graph, reading(slow), recorder, recorder.stop.get_token());
  REQUIRE(recorder.ends.size() == 1);
  CHECK(recorder.ends[0].reason == RunEnd::Interrupted);
  CHECK(recorder.ends[0].iteration == 0);
}

TEST_CASE("device cache: a read that takes too long ends the run") {
  const auto hung = std::make_shared<SlowSource>(open_source("glyphs:?train=96&test=50&size=16", "train", 1), 700);
  const SessionOptions options = on_cpus();
  Prepared prepared = prepare(cached(tiny(without_validation())), options);
  prepared.training = hung;
  prepared.watch = std::make_shared<ReadWatch>(0.3);
  Told story;
  Monitor monitor(prepared.program, options.rules, story);
  Segment segment(prepared, options, {}, monitor);
  segment.start_from(initial_values(prepared, options));
  const std::string error = message_of([&] { segment.run({}, nullptr); });
  CHECK(contains(error, "reading has not ended for 0.3 s"));
}

TEST_CASE("device cache: a run that goes on from a checkpoint reads the samples again, and ends with the same bits") {
  const TestFolder folder;
  SessionOptions options = on_cpus(1, 2);
  options.checkpoints.folder = folder / "checkpoints";
  options.checkpoints.iterations = 5;
  options.checkpoints.keep = 100;
  const Trained whole = trained(cached(tiny({})), options);
  const std::vector<std::filesystem::path> files = checkpoints_in(options.checkpoints.folder);
  REQUIRE(files.size() > 1);
  for (size_t later = 1; later < files.size(); ++later) std::filesystem::remove(files[later]);
  options.checkpoints.resume = true;
  options.checkpoints.from = newest_checkpoint(options.checkpoints.folder);
  REQUIRE(options.checkpoints.from);
  CHECK(trained(cached(tiny({})), options).weights == whole.weights);
}

TEST_CASE("device cache: the trace names what makes batches, and no batch waits for its samples" *
          doctest::test_suite("alone")) {
  const TestFolder folder;
  SessionOptions options = on_cpus();
  options.files.trace = folder / "run.json.gz";
  options.execution.sample_ms = 0;
  options.length.epochs = 4;
  const Told told = train(cached(tiny(convolutional())), options);
  CHECK_FALSE(told.ends.at(0).input.bound());
  const TraceFile trace = read_trace(options.files.trace);
  int64_t taken = 0;
  for (const TaskSpan& span : trace.tasks) taken += trace.plan.tasks[span.task].name == "cpu:0/learner 0/take samples";
  CHECK(taken == told.ends.at(0).iteration);
}

TEST_CASE("device cache: a pass over a split takes no notice of it") {
  Inference with(cached(tiny({})), on_cpus(2), {}), without(tiny({}), on_cpus(2), {});
  CHECK(with.run().loss == without.run().loss);
}

TEST_CASE("device cache: on a GPU what is trained is what is trained without") {
  if (cuda_device_count() == 0) {
    MESSAGE("SKIP: no CUDA device");
    return;
  }
  for (const int learners : {1, 3}) {
    SessionOptions options = on_cpus(1, learners);
    options.learners.devices = {{PlanDevice::Kind::Cuda, 0}};
    const Graph graph = tiny(recalibrated());
    CHECK(trained(cached(graph), options) == trained(graph, options));
  }
  SessionOptions tuned = on_cpus();
  tuned.learners.devices = {{PlanDevice::Kind::Cuda, 0}};
  tuned.learners.per_device = 0;
  tuned.length.epochs = 30;
  CHECK(train(cached(tiny({})), tuned).ends.at(0).reason == RunEnd::Complete);
}

}  // namespace device_cache_test
