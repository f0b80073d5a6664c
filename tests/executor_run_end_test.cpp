// How runs end, and what they leave behind: interrupts, targets, losses that diverge, files that cannot be written.

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "executor/trace_file.h"
#include "io/safetensors.h"
#include "tests/executor_fixture.h"
#include "tests/io_test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace {

// Takes away the folder that a file is to be saved in.
class Removing final : public Recorder {
 public:
  explicit Removing(std::filesystem::path folder) : folder_(std::move(folder)) {}
  void progress(const RunProgress&) override { std::filesystem::remove_all(folder_); }

 private:
  const std::filesystem::path folder_;
};

}  // namespace

TEST_CASE("a loss that is not finite ends the run, which tells after how many iterations") {
  SessionOptions options = on_cpus();
  options.report_every = 3;
  TinyNet net;
  net.train = "lr = 1e30";
  Recorder recorder;
  const std::atomic<bool> interrupted{false};
  const std::string message = message_of([&] { train(tiny(net), options, recorder, interrupted); });
  REQUIRE(recorder.failures.size() == 1);
  CHECK(message == recorder.failures[0].message);
  CHECK(message.starts_with("the loss is no longer finite after iteration "));
  CHECK(recorder.failures[0].iteration == recorder.reports.back().iteration);
  CHECK(recorder.failures[0].iteration % 3 == 0);
}

TEST_CASE("a run too short for an epoch neither validates nor reports an epoch") {
  for (const Precision precision : {Precision::Fp32, Precision::Bf16}) {
    SessionOptions options = on_cpus();
    options.precision = precision;
    options.iterations = 5;
    const Recorder story = run(tiny({}), options);
    CHECK(story.validations.empty());
    CHECK(story.epochs.empty());
    CHECK(story.reports.size() == 5);
    CHECK(story.ends.at(0).iteration == 5);
    CHECK_FALSE(story.ends[0].validated);
  }
}

TEST_CASE("an interrupt ends the run after an iteration, and saves") {
  class Interrupting final : public Recorder {
   public:
    explicit Interrupting(std::atomic<bool>& flag) : flag_(flag) {}
    void progress(const RunProgress& event) override {
      Recorder::progress(event);
      flag_.store(true);
    }

   private:
    std::atomic<bool>& flag_;
  };
  const TestFolder folder;
  SessionOptions options = on_cpus();
  options.epochs = 100000;
  options.report_every = 3;
  options.save = folder / "weights.safetensors";
  std::atomic<bool> flag{false};
  Interrupting story(flag);
  const RunFinished end = train(tiny({}), options, story, flag);
  CHECK(end.reason == "interrupted");
  CHECK(end.iteration >= 3);
  CHECK(end.iteration < 1200000);
  CHECK(end.images == end.iteration * 8);
  CHECK(read_safetensors(options.save).metadata.at("iteration") == std::to_string(end.iteration));
  CHECK(story.ends.size() == 1);
}

TEST_CASE("an interrupt before the first iteration leaves an earlier run's file as it is") {
  const TestFolder folder;
  SessionOptions options = on_cpus();
  options.save = folder / "weights.safetensors";
  std::ofstream(options.save) << "an earlier run's";
  options.trace = folder / "run.json.gz";
  Recorder story;
  const std::atomic<bool> interrupted{true};
  const RunFinished end = train(tiny({}), options, story, interrupted);
  CHECK(end.reason == "interrupted");
  CHECK(end.iteration == 0);
  CHECK(end.weights.empty());
  CHECK(end.trace.empty());
  CHECK(read_whole_file(options.save) == "an earlier run's");
  CHECK(story.reports.empty());
}

TEST_CASE("a best model that cannot be saved is told and does not end the run") {
  const TestFolder folder;
  std::filesystem::create_directory(folder / "best");
  SessionOptions options = on_cpus();
  options.epochs = 2;
  options.save = folder / "weights.safetensors";
  options.save_best = folder / "best" / "weights.safetensors";
  Removing story(folder / "best");
  const std::atomic<bool> interrupted{false};
  const RunFinished end = train(tiny({}), options, story, interrupted);
  CHECK(end.reason == "complete");
  CHECK(contains(end.best_error, options.save_best));
  CHECK(end.best_weights.empty());
  CHECK(end.weights == options.save);
  CHECK(std::filesystem::exists(options.save));
}

TEST_CASE("where the last model cannot be saved, the trace is written") {
  const TestFolder folder;
  std::filesystem::create_directory(folder / "last");
  SessionOptions options = on_cpus();
  options.save = folder / "last" / "weights.safetensors";
  options.trace = folder / "run.json.gz";
  Removing story(folder / "last");
  const std::atomic<bool> interrupted{false};
  CHECK(contains(message_of([&] { train(tiny({}), options, story, interrupted); }), options.save));
  CHECK(read_trace(options.trace).tasks.size() > 10);
  CHECK(story.ends.empty());
  CHECK(story.failures.size() == 1);
}

TEST_CASE("a schedule that ends before the run is noted") {
  SessionOptions options = on_cpus();
  options.epochs = 4;
  TinyNet net;
  net.train = "lr = 0.1, schedule = \"linear\", epochs = 2.0, lr_end = 0.01";
  CHECK(contains(run(tiny(net), options).starts.at(0).note,
                 "ends after epoch 2 of 4, with its last rate; --set train.epochs=4 stretches it"));
  options.epochs = 2;
  CHECK(run(tiny(net), options).starts.at(0).note.empty());
  options.epochs = 4;
  net.train = "lr = 0.1, schedule = \"linear\"";
  CHECK(run(tiny(net), options).starts.at(0).note.empty());
}

TEST_CASE("a target that is met ends the run") {
  SessionOptions options = on_cpus();
  options.epochs = 1000;
  options.rules.targets = {parse_target("accuracy >= 0.5"), parse_target("loss < 2")};
  const Recorder story = run(tiny(convolutional()), options);
  REQUIRE(story.ends.size() == 1);
  CHECK(story.ends[0].reason == "until");
  CHECK(story.ends[0].iteration < 1000 * 40);
  REQUIRE(story.ends[0].targets.size() == 2);
  CHECK(story.ends[0].targets[0].seconds > 0);
  options.rules.targets = {parse_target("acuracy >= 0.5")};
  CHECK(contains(message_of([&] { run(tiny(convolutional()), options); }),
                 "validation has no metric 'acuracy'; did you mean 'accuracy'?"));
}
