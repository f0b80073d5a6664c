// SPDX-License-Identifier: Apache-2.0

// How runs end, and what they leave behind: interrupts, targets, losses that diverge, files that cannot be written.

#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "executor/devices/device.h"
#include "executor/trace/trace_file.h"
#include "io/formats/safetensors.h"
#include "ops/builtin_ops.h"
#include "tests/executor/fixture.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace run_end_test {
namespace {

// Takes away the folder that a file is to be saved in, and ends the run so many validations later.
class Removing final : public Recorder {
 public:
  explicit Removing(std::filesystem::path folder, size_t more = 0) : folder_(std::move(folder)), more_(more) {}
  void progress(const RunProgress& event) override {
    Recorder::progress(event);
    std::filesystem::remove_all(folder_);
    if (validations.size() >= seen_ + more_) ended.request_stop();
  }
  void validation(const Validated& event) override {
    Recorder::validation(event);
    if (reports.empty()) seen_ = validations.size();
  }

  std::stop_source ended;

 private:
  const std::filesystem::path folder_;
  const size_t more_;
  size_t seen_ = 0;  // validations before the folder was gone
};

// The working directory and the folder for temporary files, as long as it lives.
class Surroundings {
 public:
  Surroundings(const std::string& working, const std::string& temporary) : before_(std::filesystem::current_path()) {
    std::filesystem::current_path(working);
    if (const char* folder = std::getenv("TMPDIR")) temporary_ = folder;
    setenv("TMPDIR", temporary.c_str(), 1);
  }
  ~Surroundings() {
    std::filesystem::current_path(before_);
    if (temporary_.empty()) unsetenv("TMPDIR");
    if (!temporary_.empty()) setenv("TMPDIR", temporary_.c_str(), 1);
  }

 private:
  const std::filesystem::path before_;
  std::string temporary_;
};

// A run without end, which ends once its folder is gone.
RunFinished interrupted_run(SessionOptions options, Removing& story) {
  options.length.epochs = 1'000'000;
  options.execution.report_every = 3;
  TinyNet net;
  net.train = "lr = 0.0005";  // every validation is better than the one before
  return run_training(tiny(net), options, story, story.ended.get_token());
}

// A file as an earlier run may have saved it; returns its content.
std::string saved_earlier(const std::string& path) {
  write_safetensors(path, {{{"x", DataType::Uint8, {1}, {7}}}, {{"graph", "earlier"}}});
  return read_whole_file(path);
}

}  // namespace

TEST_CASE("a loss that is not finite ends the run, which tells after how many iterations") {
  SessionOptions options = on_cpus();
  options.execution.report_every = 3;
  TinyNet net;
  net.validate = "";  // whose loss may be the first to be looked at
  net.train = "lr = 1e30";
  const TestFolder folder;
  options.files.trace = folder / "run.json.gz";
  Recorder recorder;
  const std::string message = message_of([&] { run_training(tiny(net), options, recorder); });
  REQUIRE(recorder.failures.size() == 1);
  CHECK(recorder.failures[0].trace == options.files.trace);
  const TracedRun traced = read_trace(options.files.trace).run;
  CHECK(traced.ended == RunEnd::Failed);
  CHECK(traced.message == message);
  CHECK(traced.precision == "fp32");
  CHECK(traced.batch > 0);
  CHECK(traced.models.size() == options.learners.devices.size());
  CHECK(traced.started.size() == std::string("2025-03-01T12:30:00Z").size());
  CHECK(traced.ended_after == recorder.failures[0].iteration);
  CHECK(message == recorder.failures[0].message);
  CHECK(message.starts_with("the loss is no longer finite after iteration "));
  CHECK(recorder.failures[0].iteration == recorder.reports.back().iteration);
  CHECK(recorder.failures[0].iteration % 3 == 0);
}

TEST_CASE("where one of several learners diverges, it is named") {
  SessionOptions options = on_cpus(2, 2);
  options.learners.strategy = "none";
  options.execution.report_every = 4;
  TinyNet net;
  net.validate = "";  // whose loss may be the first to be looked at
  net.train = "lr = 1e30";
  Recorder recorder;
  const std::string message = message_of([&] { run_training(tiny(net), options, recorder); });
  INFO(message);
  CHECK(contains(message, "learner 3 on cpu:1"));
}

TEST_CASE("a run too short for an epoch neither validates nor reports an epoch") {
  for (const Precision precision : {Precision::Fp32, Precision::Bf16}) {
    SessionOptions options = on_cpus();
    options.numerics.precision = precision;
    options.length.iterations = 5;
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
    explicit Interrupting(std::stop_source& flag) : flag_(flag) {}
    void progress(const RunProgress& event) override {
      Recorder::progress(event);
      flag_.request_stop();
    }

   private:
    std::stop_source& flag_;
  };
  const TestFolder folder;
  SessionOptions options = on_cpus();
  options.length.epochs = 100000;
  options.execution.report_every = 3;
  options.files.save = folder / "weights.safetensors";
  options.files.trace = folder / "run.json.gz";
  options.execution.interrupted_by = [] { return "SIGTERM"; };
  std::stop_source flag;
  Interrupting story(flag);
  const RunFinished end = run_training(tiny({}), options, story, flag.get_token());
  CHECK(end.reason == RunEnd::Interrupted);
  CHECK(end.interrupted_by == "SIGTERM");
  const TracedRun traced = read_trace(options.files.trace).run;
  CHECK(traced.ended == RunEnd::Interrupted);
  CHECK(traced.message == "SIGTERM");
  CHECK(traced.ended_after == end.iteration);
  CHECK(end.iteration >= 3);
  CHECK(end.iteration < 1200000);
  CHECK(end.images == end.iteration * 8);
  CHECK(read_safetensors(options.files.save).metadata.at("iteration") == std::to_string(end.iteration));
  CHECK(story.ends.size() == 1);
}

TEST_CASE("an interrupt before the first iteration leaves an earlier run's file as it is") {
  const TestFolder folder;
  SessionOptions options = on_cpus();
  options.files.save = folder / "weights.safetensors";
  const std::string earlier = saved_earlier(options.files.save);
  options.files.trace = folder / "run.json.gz";
  Recorder story;
  std::stop_source stop;
  stop.request_stop();
  const RunFinished end = run_training(tiny({}), options, story, stop.get_token());
  CHECK(end.reason == RunEnd::Interrupted);
  CHECK(end.iteration == 0);
  CHECK(end.weights.empty());
  CHECK(end.trace.empty());
  CHECK(read_whole_file(options.files.save) == earlier);
  CHECK(story.reports.empty());
}

TEST_CASE("a best model that cannot be saved is reported and does not end the run") {
  const TestFolder folder;
  std::filesystem::create_directory(folder / "best");
  SessionOptions options = on_cpus();
  options.rules.metric = "loss";
  options.files.save = folder / "weights.safetensors";
  options.files.save_best = folder / "best" / "weights.safetensors";
  Removing story(folder / "best", 4);
  const RunFinished end = interrupted_run(options, story);
  CHECK(end.reason == RunEnd::Interrupted);
  CHECK(contains(end.best_error, options.files.save_best));
  CHECK(end.best_weights.empty());
  CHECK(end.weights == options.files.save);
  CHECK(std::filesystem::exists(options.files.save));
}

TEST_CASE("where no validation is a best one, the file of the best is reported as missing") {
  const TestFolder folder;
  const Graph graph = read_graph_text(
      "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
      "one () => (float loss)\n{\n"
      "image, label = arbalest.Prefetch <source = \"glyphs:?train=16&test=1&size=16\", batch = 8> ()\n"
      "x = arbalest.Augment <mean = [0.2], std = [0.3]> (image)\n"
      "logits = arbalest.Linear <units = 10> (x)\n"
      "loss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
      "auc = arbalest.AUC (logits, label)\n"  // of one sample
      "trained = arbalest.Train <lr = 0.1> (loss)\n"
      "report = arbalest.Validate (trained, loss, auc)\n}\n",
      "one.onnxtxt", builtin_ops());
  SessionOptions options = on_cpus();
  options.files.save_best = folder / "best.safetensors";
  Recorder story;
  const RunFinished end = run_training(graph, options, story);
  CHECK(contains(end.best_error, "best.safetensors: 'auc' was undefined in every validation"));
  CHECK_FALSE(std::filesystem::exists(options.files.save_best));
}

TEST_CASE("where the last model cannot be saved, the trace is written") {
  const TestFolder folder;
  std::filesystem::create_directory(folder / "last");
  std::filesystem::create_directory(folder / "working");
  SessionOptions options = on_cpus();
  options.files.save = folder / "last" / "weights.safetensors";
  options.files.trace = folder / "run.json.gz";
  Removing story(folder / "last");
  const Surroundings nowhere(folder / "working", folder / "missing");
  std::filesystem::remove(folder / "working");
  CHECK(contains(message_of([&] { interrupted_run(options, story); }), options.files.save));
  CHECK(read_trace(options.files.trace).tasks.size() > 10);
  CHECK(story.ends.empty());
  CHECK(story.failures.size() == 1);
}

TEST_CASE("a trace that cannot be written is reported, and how training ended as well") {
  const TestFolder folder;
  std::filesystem::create_directory(folder / "traces");
  SessionOptions options = on_cpus();
  options.files.save = folder / "weights.safetensors";
  options.files.trace = folder / "traces" / "run.json.gz";
  Removing story(folder / "traces");
  const RunFinished end = interrupted_run(options, story);
  CHECK(end.reason == RunEnd::Interrupted);
  CHECK(end.trace.empty());
  CHECK(contains(end.trace_error, options.files.trace));
  CHECK(story.failures.empty());
  REQUIRE(story.ends.size() == 1);
  CHECK(story.ends[0].trace_error == end.trace_error);
  CHECK(std::filesystem::exists(options.files.save));
}

TEST_CASE("a model whose file cannot be written is saved elsewhere, over no other file") {
  const TestFolder folder;
  std::filesystem::create_directory(folder / "working");
  const auto saved = [&](const std::string& temporary) {
    std::filesystem::create_directory(folder / "last");
    SessionOptions options = on_cpus();
    options.files.save = folder / "last" / "weights.safetensors";
    Removing story(folder / "last");
    const Surroundings here(folder / "working", temporary);
    const RunFinished end = interrupted_run(options, story);
    CHECK(end.reason == RunEnd::Interrupted);
    CHECK(contains(end.weights_error, options.files.save));
    REQUIRE(story.checkpoints.size() == 1);
    CHECK(story.checkpoints[0].path == end.weights);
    CHECK(read_safetensors(end.weights).metadata.at("iteration") == std::to_string(end.iteration));
    return end.weights;
  };
  CHECK(std::filesystem::equivalent(saved(folder.string()), folder / "working" / "weights.safetensors"));
  std::ofstream(folder / "working" / "weights.safetensors") << "another";
  CHECK(std::filesystem::equivalent(saved(folder.string()), folder / "working" / "weights-1.safetensors"));
  CHECK(read_whole_file(folder / "working" / "weights.safetensors") == "another");
  {
    std::filesystem::create_directory(folder / "last");
    SessionOptions options = on_cpus();
    options.files.save = folder / "last" / "weights.safetensors";
    options.files.rescues = false;
    Removing story(folder / "last");
    const Surroundings here(folder / "working", folder.string());
    CHECK(contains(message_of([&] { interrupted_run(options, story); }), options.files.save));
    CHECK_FALSE(std::filesystem::exists(folder / "working" / "weights-2.safetensors"));
  }
  // The weights go to the folder for temporary files if the working directory is gone too.
  std::filesystem::create_directory(folder / "temporary");
  {
    std::filesystem::create_directory(folder / "last");
    std::filesystem::create_directory(folder / "gone");
    SessionOptions options = on_cpus();
    options.files.save = folder / "last" / "weights.safetensors";
    Removing story(folder / "last");
    const Surroundings here(folder / "gone", folder / "temporary");
    std::filesystem::remove(folder / "gone");
    CHECK(interrupted_run(options, story).weights == folder / "temporary" / "weights.safetensors");
  }
  CHECK(std::filesystem::exists(folder / "temporary" / "weights.safetensors"));
}

TEST_CASE("what is left of a group of iterations at the end is reported") {
  SessionOptions options = on_cpus();
  options.execution.report_every = 1;
  options.length.iterations = 17;  // an epoch has 12
  options.numerics.deterministic = true;
  const Recorder each = run(tiny({}), options);
  REQUIRE(each.reports.size() == 17);
  options.execution.report_every = 3;
  const Recorder story = run(tiny({}), options);
  std::vector<int64_t> told;
  for (const RunProgress& report : story.reports) told.push_back(report.iteration);
  CHECK(told == std::vector<int64_t>{3, 6, 9, 12, 15, 17});
  const double expected = (each.reports[15].loss + each.reports[16].loss) / 2;
  CHECK(story.reports.back().loss == doctest::Approx(expected).epsilon(1e-6));
  CHECK(story.reports.back().images_per_second > 0);
  CHECK(story.epochs.size() == 1);
}

TEST_CASE("a model that is not finite fails the run and replaces no file") {
  const TestFolder folder;
  // The loss is not finite in iterations that no whole group has; the last update makes weights that are not.
  for (const auto& [rate, iterations] : {std::pair{"1e30", 5}, {"1e39", 1}}) {
    SessionOptions options = on_cpus();
    options.execution.report_every = 100;
    options.length.iterations = iterations;
    options.files.save = (folder / "weights.safetensors").string();
    const std::string earlier = saved_earlier(options.files.save);
    TinyNet net;
    net.validate = "";  // whose loss may be the first to be looked at
    net.train = fmt::format("lr = {}", rate);
    INFO(rate);
    Recorder story;
    const std::string message = message_of([&] { run_training(tiny(net), options, story); });
    CHECK(contains(message, fmt::format("no longer finite after iteration {}", iterations)));
    CHECK(story.ends.empty());
    CHECK(story.failures.size() == 1);
    CHECK(read_whole_file(options.files.save) == earlier);
  }
}

TEST_CASE("a slow observer holds up no training") {
  class Slow final : public Recorder {
   public:
    explicit Slow(std::stop_source& flag) : flag_(flag) {}
    void progress(const RunProgress& event) override {
      Recorder::progress(event);
      if (reports.size() > 1) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      flag_.request_stop();
    }

   private:
    std::stop_source& flag_;
  };
  const TestFolder folder;
  std::stop_source flag;
  Slow story(flag);
  SessionOptions options = on_cpus();
  options.length.epochs = 1'000'000;
  options.execution.report_every = 3;
  options.files.save = folder / "weights.safetensors";  // otherwise an interrupted run saves in the working directory
  const RunFinished end = run_training(tiny({}), options, story, flag.get_token());
  // It trained on while its first report was being looked at.
  CHECK(end.iteration > 30);
  CHECK(story.epochs.size() > 1);
  CHECK(std::is_sorted(story.epochs.begin(), story.epochs.end(),
                       [](const EpochEnded& a, const EpochEnded& b) { return a.epoch < b.epoch; }));
  CHECK(story.validations.size() + 2 >= story.epochs.size());
}

TEST_CASE("a schedule that ends before the run, or after it, is noted") {
  SessionOptions options = on_cpus();
  options.length.epochs = 4;
  TinyNet net;
  net.train = "lr = 0.1, schedule = \"linear\", epochs = 2.0, lr_end = 0.01";
  CHECK(contains(run(tiny(net), options).starts.at(0).note,
                 "ends after epoch 2 of 4, with its last rate; --set train.epochs=4 stretches it"));
  options.length.epochs = 2;
  CHECK(run(tiny(net), options).starts.at(0).note.empty());
  options.length.epochs = 1;
  CHECK(run(tiny(net), options).starts.at(0).note ==
        "the run ends after epoch 1 of 2 of the learning rate's schedule, at a rate of 0.055; --set train.epochs=1 "
        "shortens it");
  options.length.iterations = 3;  // epochs that are no whole number are taken with iterations alone
  CHECK(contains(run(tiny(net), options).starts.at(0).note, " with --iterations 3 shortens it"));
  options.length.iterations.reset();
  options.length.epochs = 4;
  net.train = "lr = 0.1, schedule = \"linear\"";
  CHECK(run(tiny(net), options).starts.at(0).note.empty());
}

TEST_CASE("a schedule that raises the learning rate is noted") {
  TinyNet net;
  net.train = "lr = 0.02, schedule = \"cosine\", lr_end = 0.5, epochs = 1.0";
  CHECK(run(tiny(net), on_cpus()).starts.at(0).note ==
        "node 'trained' (arbalest.Train): the learning rate rises from lr = 0.02 to lr_end = 0.5 in the course of the "
        "run");
}

TEST_CASE("a strategy that begins where the run has ended is noted") {
  SessionOptions options = on_cpus(1, 2);
  options.length.epochs = 2;
  TinyNet net;
  net.synchronize = "strategy = \"ssgd\"";
  net.later = {"strategy = \"papa\", from = 1", "strategy = \"local\", from = 2"};
  CHECK(contains(run(tiny(net), options).starts.at(0).note,
                 "the run ends after epoch 2, before strategy local takes its turn: its 'from' is 2"));
  net.later.pop_back();
  CHECK_FALSE(contains(run(tiny(net), options).starts.at(0).note, "takes its turn"));
}

TEST_CASE("epochs at a rate of 0, after the schedule's end, are refused") {
  SessionOptions options = on_cpus();
  options.length.epochs = 4;
  TinyNet net;
  net.train = "lr = 0.1, schedule = \"linear\", epochs = 2.0";
  CHECK(contains(message_of([&] { run(tiny(net), options); }),
                 "schedule ends after epoch 2, and the run has 4: the rate would be 0 in the others; expected --set "
                 "train.epochs=4, which stretches the schedule, or --epochs 2"));
  options.length.epochs = 2;
  CHECK(run(tiny(net), options).starts.at(0).note.empty());
  net.train = "lr = 0.1, schedule = \"step\", step_size = 1.0, epochs = 2.0";
  options.length.epochs = 4;
  CHECK(run(tiny(net), options).starts.at(0).note.empty());  // rates become smaller, and are never 0
}

TEST_CASE("learners that share one processor are noted") {
  SessionOptions options = on_cpus();
  options.length.iterations = 1;
  CHECK(run(tiny({}), options).starts.at(0).note.empty());
  for (const auto& [devices, learners] : {std::pair{1, 2}, {2, 1}}) {
    options = on_cpus(devices, learners);
    options.length.iterations = 1;
    CHECK(contains(run(tiny({}), options).starts.at(0).note, "2 learners share this processor"));
  }
}

TEST_CASE("bf16 on a CPU without instructions for it is noted") {
  SessionOptions options = on_cpus();
  options.length.iterations = 1;
  CHECK(run(tiny({}), options).starts.at(0).note.empty());
  options.numerics.precision = Precision::Bf16;
  const std::string note = run(tiny({}), options).starts.at(0).note;
  CHECK(contains(note, "no instructions for bf16") == !cpu_has_bfloat16());
  CHECK(note.empty() == cpu_has_bfloat16());
}

TEST_CASE("a target that is met ends the run") {
  SessionOptions options = on_cpus();
  options.length.epochs = 1000;
  options.rules.targets = {parse_target("accuracy >= 0.5"), parse_target("loss < 2")};
  const Recorder story = run(tiny(convolutional()), options);
  REQUIRE(story.ends.size() == 1);
  CHECK(story.ends[0].reason == RunEnd::Until);
  CHECK(story.ends[0].iteration < 1000 * 40);
  REQUIRE(story.ends[0].targets.size() == 2);
  CHECK(story.ends[0].targets[0].seconds > 0);
  options.rules.targets = {parse_target("acuracy >= 0.5")};
  CHECK(contains(message_of([&] { run(tiny(convolutional()), options); }),
                 "validation has no metric 'acuracy'; expected loss or accuracy; did you mean 'accuracy'?"));
}

}  // namespace run_end_test
