// SPDX-License-Identifier: Apache-2.0

// Filling of batches: in parts, as many at once as there are threads and slots, with the same content either way.

#include <doctest/doctest.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "base/files/file.h"
#include "base/random.h"
#include "executor/run/host_tasks.h"
#include "io/open/open_source.h"
#include "io/sources/data_order.h"
#include "tests/executor/fixture.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace fill_test {
namespace {

// Images of another source, which take as long as said; every pixel of a sample is moved by a number that is drawn by
// seed, epoch and position.
class Moved final : public Source {
 public:
  Moved(const std::string& split, double microseconds)
      : inner_(open_source("glyphs:?train=96&test=50&size=16", split, 1)), microseconds_(microseconds) {}

  std::vector<Field> fields() const override { return inner_->fields(); }
  int64_t size() const override { return inner_->size(); }
  double microseconds_per_sample() const override { return microseconds_; }
  std::string describe() const override { return "prepared " + inner_->describe(); }

  void fill(std::span<const SampleRef> samples, std::span<std::byte* const> fields) const override {
    const auto pixels = size_t(inner_->fields()[0].sample().bytes());
    std::vector<std::byte> raw(samples.size() * pixels);
    std::vector<std::byte*> inner = {raw.data(), fields[1]};
    inner_->fill(samples, inner);
    for (size_t s = 0; s < samples.size(); ++s) {
      const Random4 draw = philox(random_key(1, 2), samples[s].epoch, samples[s].position);
      for (size_t p = 0; p < pixels; ++p) {
        fields[0][s * pixels + p] = std::byte(uint8_t(raw[s * pixels + p]) / 2 + draw.word[0] % 16);
      }
    }
  }

 private:
  std::unique_ptr<Source> inner_;
  double microseconds_;
};

// A source whose fill() returns once so many calls are in it at the same time, or after a while.
class Meeting final : public Source {
 public:
  Meeting(int expected, double microseconds) : expected_(expected), microseconds_(microseconds) {}

  std::vector<Field> fields() const override {
    return {{"image", DataType::Uint8, {1, 4, 4}}, {"label", DataType::Int32, {}, 10}};
  }
  int64_t size() const override { return 16 * 64; }
  double microseconds_per_sample() const override { return microseconds_; }
  std::string describe() const override { return "meeting"; }

  void fill(std::span<const SampleRef> samples, std::span<std::byte* const> fields) const override {
    std::memset(fields[0], 0, samples.size() * 16);
    std::memset(fields[1], 0, samples.size() * sizeof(int32_t));
    std::unique_lock lock(mutex_);
    met_ = ++inside_ >= expected_ || met_;
    changed_.notify_all();
    changed_.wait_for(lock, std::chrono::seconds(5), [&] { return met_; });
    --inside_;
  }
  bool met() const {
    const std::scoped_lock lock(mutex_);
    return met_;
  }

 private:
  const int expected_;
  const double microseconds_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable int inside_ = 0;
  mutable bool met_ = false;
};

// A source that notes the epochs, positions and indices that it was asked for.
class Noting final : public Source {
 public:
  explicit Noting(const std::string& split) : inner_(open_source("glyphs:?train=96&test=50&size=16", split, 1)) {}

  std::vector<Field> fields() const override { return inner_->fields(); }
  int64_t size() const override { return inner_->size(); }
  double microseconds_per_sample() const override { return inner_->microseconds_per_sample(); }
  std::string describe() const override { return "noting " + inner_->describe(); }

  void fill(std::span<const SampleRef> samples, std::span<std::byte* const> fields) const override {
    inner_->fill(samples, fields);
    const std::scoped_lock lock(mutex_);
    for (const SampleRef& sample : samples) asked_[{sample.epoch, sample.position}] = sample.index;
  }
  std::map<std::pair<uint64_t, uint64_t>, int64_t> asked() const {
    const std::scoped_lock lock(mutex_);
    return asked_;
  }

 private:
  std::unique_ptr<Source> inner_;
  mutable std::mutex mutex_;
  mutable std::map<std::pair<uint64_t, uint64_t>, int64_t> asked_;  // indices, by epoch and position
};

std::vector<uint8_t> trained(double microseconds, int learners, const TestFolder& folder) {
  SessionOptions options = on_cpus(1, learners);
  options.execution.threads = 4;
  options.numerics.deterministic = true;
  options.length.epochs = 3;
  options.sources = {std::make_shared<Moved>("train", microseconds), std::make_shared<Moved>("test", microseconds)};
  options.files.save = folder / "weights.safetensors";
  run(tiny(recalibrated()), options);
  return read_file(options.files.save);
}

std::vector<std::string> fills_of(const Plan& plan) {
  std::vector<std::string> names;
  for (const Task& task : plan.tasks) {
    if (task.kind == Task::Kind::Fill) names.push_back(task.name);
  }
  return names;
}

}  // namespace

TEST_CASE("small batches are filled whole, others in parts for every thread, none of them small") {
  CHECK(fill_parts(64, 0, 16) == 1);
  CHECK(fill_parts(64, 3 * 32 * 32 / 4000.0, 16) == 1);    // CIFAR-10 from memory
  CHECK(fill_parts(64, 3 * 224 * 224 / 4000.0, 16) == 9);  // ImageNet's size from memory
  CHECK(fill_parts(64, 5000, 16) == 16);                   // decoded
  CHECK(fill_parts(64, 5000, 1) == 1);
  CHECK(fill_parts(4, 5000, 16) == 4);
  CHECK(fill_parts(4096, 5000, 1000) == kWidest);
}

TEST_CASE("a source that takes long is planned in parts, each with the slot's edges; its copy waits for all of them") {
  SessionOptions options = on_cpus();
  options.execution.threads = 4;
  options.sources = {std::make_shared<Moved>("train", 1000), std::make_shared<Moved>("test", 0)};
  const Prepared prepared = prepare(tiny(recalibrated()), options);
  const Plan plan = make_plan(prepared.program, prepared.request);
  CHECK(fills_of(plan) == std::vector<std::string>{"cpu:0/learner 0/fill 0", "cpu:0/learner 0/fill 1",
                                                   "cpu:0/learner 0/fill 2", "cpu:0/learner 0/fill 3",
                                                   "cpu:0/validation/fill", "cpu:0/recalibration/fill 0",
                                                   "cpu:0/recalibration/fill 1", "cpu:0/recalibration/fill 2",
                                                   "cpu:0/recalibration/fill 3"});
  for (const TaskId t : plan.tasks.ids()) {
    const Task& task = plan.tasks[t];
    if (task.kind != Task::Kind::Fill) continue;
    CHECK(task.parts == (contains(task.name, "validation") ? 1 : 4));
    int feeds = 0, freed = 0;
    for (const Edge& edge : plan.edges) {
      const bool feeds_copy = edge.from == t && plan.tasks[edge.to].kind == Task::Kind::CopyIn;
      feeds += feeds_copy && edge.distance == 0 && edge.why == Edge::Why::Data;
      freed += edge.to == t && edge.why == Edge::Why::Reuse && edge.distance == 3;
    }
    CHECK(feeds == 1);
    CHECK(freed == 1);
  }
}

TEST_CASE("parts change nothing in what is trained") {
  TestFolder folder;
  const std::vector<uint8_t> whole = trained(0, 1, folder);
  CHECK(trained(1000, 1, folder) == whole);  // parts of two and three samples
  CHECK(trained(75, 1, folder) == whole);    // of three and four
  CHECK(trained(1000, 2, folder) == trained(0, 2, folder));
}

TEST_CASE("as many fills run at once as there are threads: of one batch's parts, and of several batches") {
  const auto meets = [](int64_t depth, double microseconds) {
    TinyNet net;
    net.batch = 16;
    net.depth = depth;
    net.layers = "h = Flatten (x)\n";
    net.validate = "";
    SessionOptions options = on_cpus();
    options.execution.threads = 8;
    options.length.iterations = 8;
    const auto source = std::make_shared<Meeting>(8, microseconds);
    options.sources.training = source;
    run(tiny(net), options);
    return source->met();
  };
  CHECK(meets(1, 1000));  // eight parts of a batch
  CHECK(meets(8, 0));     // eight batches
  CHECK(meets(2, 250));   // two batches in eight parts each, eight of which fit
}

TEST_CASE("what a part throws names the part, and ends the run") {
  class Broken final : public Source {
   public:
    std::vector<Field> fields() const override {
      return {{"image", DataType::Uint8, {1, 4, 4}}, {"label", DataType::Int32, {}, 10}};
    }
    int64_t size() const override { return 64; }
    double microseconds_per_sample() const override { return 1000; }
    std::string describe() const override { return "broken"; }
    void fill(std::span<const SampleRef> samples, std::span<std::byte* const> fields) const override {
      if (samples.front().position == 16 + 8) throw RunError("no more pixels");
      std::memset(fields[0], 0, samples.size() * 16);
      std::memset(fields[1], 0, samples.size() * sizeof(int32_t));
    }
  };
  TinyNet net;
  net.batch = 16;
  net.layers = "h = Flatten (x)\n";
  net.validate = "";
  SessionOptions options = on_cpus();
  options.sources.training = std::make_shared<Broken>();
  const std::string message = message_of([&] { run(tiny(net), options); });
  CHECK(message == "cpu:0/learner 0/fill 1, device cpu:0, learner 0, batch 1: no more pixels");
}

TEST_CASE("recalibration takes an epoch's samples in its order, and draws for them by a key of its own") {
  const auto training = std::make_shared<Noting>("train");
  SessionOptions options = on_cpus();
  options.numerics.deterministic = true;
  options.length.epochs = 2;
  options.sources = {training, std::make_shared<Noting>("test")};
  run(tiny(recalibrated()), options);
  const DataOrder order(options.numerics.seed, training->size(), true);
  std::map<uint64_t, int64_t> drawn;  // samples, by the epoch that they draw by
  for (const auto& [key, index] : training->asked()) {
    const auto& [epoch, position] = key;
    CHECK(index == order.sample(epoch & ~uint64_t(kDrawsOfRecalibration), int64_t(position)));
    ++drawn[epoch];
  }
  CHECK(drawn[0] == 90);  // nine whole batches of ten
  CHECK(drawn[uint64_t(kDrawsOfRecalibration | 1)] == 30);
  CHECK(drawn[uint64_t(kDrawsOfRecalibration | 2)] == 30);
}

}  // namespace fill_test
