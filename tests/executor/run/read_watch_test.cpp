// SPDX-License-Identifier: Apache-2.0

// Reads that do not end: when they are late, with a clock of the test's own, and what becomes of a run.

#include "executor/run/read_watch.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <thread>

#include "io/open/open_source.h"
#include "tests/executor/fixture.h"
#include "tests/executor/run/child_process.h"
#include "tests/io/test_folder.h"
#include "tests/tools/redirected.h"

using namespace arbalest;
using namespace arbalest::test;
using namespace std::chrono_literals;

namespace read_watch_test {
namespace {

// Glyphs, of which one batch, not the first, is held up until it is let go.
class HeldUp final : public Source {
 public:
  explicit HeldUp(std::chrono::milliseconds longest) : longest_(longest) {}
  int64_t size() const override { return source_->size(); }
  std::vector<Field> fields() const override { return source_->fields(); }
  void fill(std::span<const SampleRef> samples, std::span<std::byte* const> fields) const override {
    if (samples.front().position == 16) std::this_thread::sleep_for(longest_);
    source_->fill(samples, fields);
  }
  std::string describe() const override { return source_->describe(); }
  double microseconds_per_sample() const override { return 0; }

 private:
  const std::unique_ptr<Source> source_ = open_source("glyphs:?train=96&test=50&size=16", "train", 1);
  const std::chrono::milliseconds longest_;
};

SessionOptions held_up(std::chrono::milliseconds longest, double timeout) {
  SessionOptions options = on_cpus();
  options.sources.training = std::make_shared<HeldUp>(longest);
  options.execution.read_timeout = timeout;
  return options;
}

Graph without_validation() {
  TinyNet net;
  net.validate = "";
  return tiny(net);
}

}  // namespace

TEST_CASE("a read is late after its time, and reported with its sample, however often it is asked") {
  const HeldUp source(0ms);
  ReadWatch watch(20);
  ReadWatch::Time now;
  const auto look = [&](std::chrono::milliseconds later) { return watch.late(now += later); };
  CHECK_FALSE(look(0s));
  std::optional<ReadWatch::Reading> first(std::in_place, &watch, source, SampleRef{.index = 7, .epoch = 2});
  for (int i = 0; i < 10; ++i) CHECK_FALSE(look(1s));
  const ReadWatch::Reading second(&watch, source, SampleRef{.index = 8}, 5);
  for (int i = 0; i < 11; ++i) CHECK_FALSE(look(1s));
  for (int i = 0; i < 2; ++i) {
    const auto late = look(1s);
    REQUIRE(late);
    CHECK(late->starts_with("sample 7: reading has not ended for 20 s (sample 7 of glyphs:"));
    CHECK(late->find("epoch 3)") != std::string::npos);
  }
  first.reset();
  CHECK_FALSE(look(1s));
  for (int i = 0; i < 7; ++i) look(1s);
  REQUIRE(look(1s));
  CHECK(look(0s)->starts_with("sample 8 and 4 more: reading has not ended"));
}

TEST_CASE("a process that stood still has not waited: at most a second counts between two looks") {
  const HeldUp source(0ms);
  ReadWatch watch(3);
  const ReadWatch::Reading reading(&watch, source, {});
  ReadWatch::Time now;
  CHECK_FALSE(watch.late(now));
  CHECK_FALSE(watch.late(now += 1h));
  CHECK_FALSE(watch.late(now += 1h));
  CHECK_FALSE(watch.late(now += 1h));
  CHECK(watch.late(now += 1h));
}

TEST_CASE("a read that has begun since the look before has waited for nothing yet") {
  const HeldUp source(0ms);
  ReadWatch watch(0.5);
  ReadWatch::Time now;
  CHECK_FALSE(watch.late(now));
  const ReadWatch::Reading reading(&watch, source, {});
  CHECK_FALSE(watch.late(now += 1h));  // as after a checkpoint that took its time
  CHECK_FALSE(watch.late(now += 500ms));
  CHECK(watch.late(now += 20ms));
}

TEST_CASE("a watch without a limit waits for ever, and a reader without a watch is reported to nobody") {
  const HeldUp source(0ms);
  ReadWatch watch(0);
  const ReadWatch::Reading reading(&watch, source, {}), unwatched(nullptr, source, {});
  ReadWatch::Time now;
  for (int i = 0; i < 1000; ++i) CHECK_FALSE(watch.late(now += 1s));
}

TEST_CASE("a run ends with an error where a read takes too long, once the thread that reads has come back") {
  const std::string error = message_of([] { run(without_validation(), held_up(1500ms, 0.3)); });
  CHECK(error.find("reading has not ended for 0.3 s") != std::string::npos);
  CHECK(error.find("of glyphs:") != std::string::npos);
  CHECK_NOTHROW(run(without_validation(), held_up(300ms, 20)));
  CHECK_NOTHROW(run(without_validation(), held_up(300ms, 0)));
}

TEST_CASE("data that take long to open are named meanwhile" * doctest::test_suite("alone")) {
  register_source({.name = "slow-to-open", .options = {}, .open = [](const SourceSpec&) {
                     std::this_thread::sleep_for(400ms);
                     return open_source("glyphs:?train=96&test=50&size=16", "train", 1);
                   }});
  const TestFolder folder;
  TinyNet net;
  net.source = "slow-to-open:";
  net.validate = "";
  const auto told = [&](double timeout) {
    SessionOptions options = on_cpus();
    options.execution.read_timeout = timeout;
    const Redirected errors((folder / "told").string(), stderr);
    prepare(tiny(net), options);
    return errors.lines();
  };
  CHECK(told(0.1) ==
        std::vector<std::string>{"arbalest: opening 'slow-to-open:', split 'train', has taken 0.1 s, and goes on"});
  CHECK(told(0).empty());
  CHECK(told(60).empty());
}

// Run by the next test, in a process of its own.
TEST_CASE("a run whose reader hangs" * doctest::skip()) {
  struct Tells final : RunObserver {
    void failed(const RunFailed& event) override { std::fprintf(stderr, "told: %s\n", event.message.c_str()); }
  } observer;
  run_training(without_validation(), held_up(1h, 0.5), observer);
}

TEST_CASE("where a thread that reads never comes back the process ends, after telling observers") {
  const auto began = std::chrono::steady_clock::now();
  const ChildProcess child = run_child("a run whose reader hangs");
  INFO(child.said);
  CHECK(child.status == 1);
  CHECK(std::chrono::steady_clock::now() - began < 30s);
  const size_t told = child.said.find("told: sample "), shown = child.said.find("arbalest: sample ");
  REQUIRE(told != std::string::npos);
  REQUIRE(shown != std::string::npos);
  CHECK(told < shown);
  CHECK(child.said.find("reading has not ended for 0.5 s", shown) != std::string::npos);
}

}  // namespace read_watch_test
