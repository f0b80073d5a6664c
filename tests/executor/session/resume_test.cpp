// SPDX-License-Identifier: Apache-2.0

// Runs that stand still and go on elsewhere: what they train is what they train without that, to the last bit.

#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "executor/segment/segment.h"
#include "io/open/open_source.h"
#include "ops/builtin_ops.h"
#include "tests/executor/fixture.h"
#include "tests/executor/session/slow_source.h"

using namespace arbalest;
using namespace arbalest::test;

namespace resume_test {
namespace {

// Two epochs of some iterations each, of all that a run has state for.
struct Case {
  std::string train = "lr = 0.05, momentum = 0.9";
  std::string synchronize = "strategy = \"sma\"";
  std::string validate = "batch = 16";
  int devices = 1, learners = 1;
  int64_t epochs = 3;
  ValidationRules rules;
  int slow = 0;                 // milliseconds that reading a validation batch takes at least
  std::vector<int> hosts = {};  // by device, the number of its host; empty: all are of one
};

constexpr const char* kSource = "glyphs:?train=140&test=70&size=16";

Graph graph_of(const Case& of) {
  return read_graph_text(
      fmt::format(
          "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
          "small () => (float loss)\n{{\n"
          "image, label = arbalest.Prefetch <source = \"{}\", batch = 4> ()\n"
          "x = arbalest.Augment <mean = [0.2], std = [0.3], pad = 2, flip = 1> (image)\n"
          "c = arbalest.ConvBnRelu <filters = 4, kernel_shape = [3, 3], strides = [2, 2]> (x)\n"
          "d = Dropout <ratio = 0.25, training_mode = 1> (c)\n"
          "noise = RandomNormalLike <scale = 0.05> (d)\n"
          "e = Add (d, noise)\n"
          "logits = arbalest.Linear <units = 10> (e)\n"
          "loss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
          "accuracy = arbalest.Accuracy (logits, label)\n"
          "trained = arbalest.Train <{}> (loss)\n"
          "synced = arbalest.Synchronize <{}> (trained)\n"
          "{}}}\n",
          kSource, of.train, of.synchronize,
          of.validate.empty() ? "" : "report = arbalest.Validate <" + of.validate + "> (synced, loss, accuracy)\n"),
      "small.onnxtxt", builtin_ops());
}

struct Ended {
  RunState state;
  ModelState model;
  Recorder story;
  int64_t iterations = 0;
  int64_t validating = 0;  // rests while a validation was under way
};

// A run that rests at each of these iterations and goes on with other memory.
Ended trained(const Case& of, const std::vector<int64_t>& rests) {
  SessionOptions options = on_cpus(of.devices, of.learners);
  options.numerics.deterministic = true;
  for (size_t d = 0; d < of.hosts.size(); ++d) options.learners.devices[d].host_number = of.hosts[d];
  options.length.epochs = of.epochs;
  options.rules = of.rules;
  if (of.slow > 0) {
    options.sources.validation = std::make_shared<SlowSource>(open_source(kSource, "test", 1), of.slow);
  }
  const Prepared prepared = prepare(graph_of(of), options);
  Ended end;
  std::optional<SegmentSnapshot> snapshot;
  std::optional<MonitorState> known;
  for (size_t part = 0; part <= rests.size(); ++part) {
    Monitor monitor(prepared.program, options.rules, end.story);
    if (known) monitor.restore(*known);
    Segment segment(prepared, options, {}, monitor);
    if (snapshot) segment.start_from(*snapshot);
    if (!snapshot) segment.start_from(initial_values(prepared, options));
    snapshot.reset();
    SegmentRests rest;
    if (part < rests.size()) {
      rest.first = rests[part];
      rest.rest = [&]() -> std::optional<int64_t> {
        snapshot = segment.own_snapshot();
        known = monitor.state();
        end.validating += snapshot->validating;
        return std::nullopt;
      };
    }
    monitor.begin();
    if (part < rests.size()) {
      segment.run({}, nullptr, rest);
      REQUIRE(snapshot);
      CHECK(snapshot->at.iterations == rests[part]);
      continue;
    }
    segment.run({}, nullptr);
    end.state = segment.state();
    end.model = segment.model();
    end.iterations = segment.iterations();
  }
  return end;
}

void check_same(const Ended& found, const Ended& expected) {
  REQUIRE(found.state.learners.size() == expected.state.learners.size());
  for (size_t j = 0; j < found.state.learners.size(); ++j) {
    const LearnerState &one = found.state.learners[j], &other = expected.state.learners[j];
    CHECK(one.weights == other.weights);
    CHECK(one.statistics == other.statistics);
    CHECK(one.slots == other.slots);
    CHECK(one.updates == other.updates);
  }
  REQUIRE(found.state.averages.size() == expected.state.averages.size());
  for (size_t h = 0; h < found.state.averages.size(); ++h) {
    CHECK(found.state.averages[h].now == expected.state.averages[h].now);
    CHECK(found.state.averages[h].before == expected.state.averages[h].before);
  }
  CHECK(found.state.moving_average.weights == expected.state.moving_average.weights);
  CHECK(found.model.weights == expected.model.weights);
  CHECK(found.model.statistics == expected.model.statistics);
  REQUIRE(found.story.validations.size() == expected.story.validations.size());
  for (size_t v = 0; v < found.story.validations.size(); ++v) {
    CHECK(found.story.validations[v].iteration == expected.story.validations[v].iteration);
    CHECK(found.story.validations[v].loss == expected.story.validations[v].loss);
    CHECK(found.story.validations[v].metrics == expected.story.validations[v].metrics);
    CHECK(found.story.validations[v].rate_factor == expected.story.validations[v].rate_factor);
  }
  REQUIRE(found.story.epochs.size() == expected.story.epochs.size());
  for (size_t e = 0; e < found.story.epochs.size(); ++e) {
    CHECK(found.story.epochs[e].loss == expected.story.epochs[e].loss);
  }
  // If a run rests within a group of iterations that are reported together, the group is reported in two parts.
  std::map<int64_t, double> losses;
  for (const RunProgress& report : found.story.reports) losses[report.iteration] = report.loss;
  for (const RunProgress& report : expected.story.reports) CHECK(losses.contains(report.iteration));
}

}  // namespace

TEST_CASE("a run that rests and goes on elsewhere trains the same bits") {
  std::vector<Case> cases;
  for (const auto& [devices, learners] : {std::pair{1, 1}, {1, 3}, {2, 1}, {2, 2}}) {
    cases.push_back({.devices = devices, .learners = learners});
    cases.push_back({.train = "lr = 0.05, momentum = 0.9, accumulate = 2",
                     .synchronize = "strategy = \"ssgd\"",
                     .devices = devices,
                     .learners = learners});
    cases.push_back({.train = "lr = 0.01, optimizer = \"adamw\", ema = 0.9",
                     .synchronize = "strategy = \"sma\", every = 2",
                     .devices = devices,
                     .learners = learners});
    cases.push_back({.train = "lr = 0.01, optimizer = \"muon\", momentum = 0.9, ema = 0.9",
                     .synchronize = "strategy = \"local\", every = 3",
                     .devices = devices,
                     .learners = learners});
    cases.push_back({.train = "lr = 0.05, schedule = \"cosine\"",
                     .synchronize = "strategy = \"papa\", every = 2, alpha = 0.25, follows_rate = 1",
                     .devices = devices,
                     .learners = learners});
    cases.push_back({.train = "lr = 0.05, ema = 0.9",
                     .synchronize = "strategy = \"diloco\", every = 3",
                     .devices = devices,
                     .learners = learners});
  }
  for (const char* strategy : {"sma", "local"}) {
    cases.push_back({.train = "lr = 0.05, ema = 0.9",
                     .synchronize = fmt::format("strategy = \"{}\", every_hosts = 2", strategy),
                     .devices = 3,
                     .hosts = {0, 1, 1}});
  }
  for (const Case& each : cases) {
    CAPTURE(each.train);
    CAPTURE(each.synchronize);
    CAPTURE(each.devices);
    CAPTURE(each.learners);
    const Ended whole = trained(each, {});
    const int64_t last = whole.iterations, epoch = last / each.epochs;
    for (const int64_t at : {int64_t{1}, epoch - 1, epoch, epoch + 1, epoch + 2, last - 1}) {
      CAPTURE(at);
      check_same(trained(each, {at}), whole);
    }
    check_same(trained(each, {2, 3, epoch, epoch + 1, 2 * epoch + 1}), whole);
  }
}

TEST_CASE("what draws in validation is told, and Arbalest's own operators do not draw there") {
  const auto draws = [](const std::string& note) { return note.find("random numbers") != note.npos; };
  const std::vector<std::string> notes = prepare(graph_of({}), on_cpus()).notes;
  const auto told = std::find_if(notes.begin(), notes.end(), draws);
  REQUIRE(told != notes.end());
  CHECK(told->starts_with("'noise' draws random numbers"));
  CHECK(std::count_if(notes.begin(), notes.end(), draws) == 1);
  Graph quiet = graph_of({});
  for (Node& node : quiet.nodes) {
    if (node.op->name == "RandomNormalLike") node.op = &quiet.op("Identity"), node.attributes = {};
  }
  const std::vector<std::string> without = prepare(std::move(quiet), on_cpus()).notes;
  CHECK(std::none_of(without.begin(), without.end(), draws));
}

TEST_CASE("a validation that is under way where a run rests is made again") {
  std::vector<Case> cases;
  cases.push_back({.slow = 40});
  cases.push_back({.train = "lr = 0.05, ema = 0.5", .devices = 2, .learners = 2, .slow = 40});
  cases.push_back({.validate = "batch = 16, recalibrate = 3", .devices = 2, .slow = 40});
  cases.push_back({.synchronize = "strategy = \"local\"", .learners = 2, .slow = 40});
  cases.push_back({.epochs = 5, .rules = {.plateau = 1, .plateau_factor = 0.5}, .slow = 15});
  for (const Case& each : cases) {
    CAPTURE(each.train);
    CAPTURE(each.validate);
    CAPTURE(each.devices);
    const Ended whole = trained(each, {});
    const int64_t epoch = whole.iterations / each.epochs;
    const Ended parts = trained(each, {epoch, epoch + 1, epoch + 2, 2 * epoch - 1, 2 * epoch + 3});
    CHECK(parts.validating > 2);
    check_same(parts, whole);
  }
}

}  // namespace resume_test
