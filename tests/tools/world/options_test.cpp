// SPDX-License-Identifier: Apache-2.0

// Options of `arbalest run` by which several processes decide together: four learners are one process, two or four.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>

#include "executor/trace/trace_file.h"
#include "executor/world/connection.h"
#include "tests/io/image_files.h"
#include "tests/tools/world/ranks.h"
#include "tools/view/viewer_data.h"

#ifdef ARBALEST_GLOO

using namespace arbalest;
using namespace arbalest::test;
using nlohmann::json;

namespace world_options_test {
namespace {

constexpr std::pair<int, const char*> kWorlds[] = {{1, "cpu:0-3"}, {2, "cpu:0-1"}, {4, "cpu:0"}};

// Several layers whose values can be computed again.
constexpr const char* kDeep =
    "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
    "g () => () {\n"
    "  image, label = arbalest.Prefetch <source = \"glyphs:?train=256&test=100&size=16\", batch = 8> ()\n"
    "  x = arbalest.Augment <pad = 1> (image)\n"
    "  a = arbalest.ConvBnRelu <filters = 8, kernel_shape = [3, 3]> (x)\n"
    "  b = arbalest.ConvBnRelu <filters = 8, kernel_shape = [3, 3]> (a)\n"
    "  c = arbalest.ConvBnRelu <filters = 8, kernel_shape = [3, 3]> (b)\n"
    "  h = GlobalAveragePool (c)\n"
    "  f = Flatten (h)\n"
    "  logits = arbalest.Linear <units = 10> (f)\n"
    "  loss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
    "  trained = arbalest.Train <lr = 0.02, momentum = 0.9, epochs = 2.0> (loss)\n"
    "  report = arbalest.Validate <batch = 20> (trained, loss)\n"
    "}\n";

// Runs four learners as a world of this size. Returns what rank `told` says on standard error.
std::string run(const Place& place, int size, Words words, int status = kDone, size_t told = 0) {
  const auto world = std::find_if(std::begin(kWorlds), std::end(kWorlds), [&](auto w) { return w.first == size; });
  words.insert(words.end(), {"--devices", world->second, "--log", place.path("log")});
  auto ranks = place.start(size, words);
  expect(status, ranks);
  return ranks[told]->errors();
}

// The log's lines of an event.
std::vector<json> events(const Place& place, const std::string& event) {
  std::vector<json> found;
  std::ifstream log(place.path("log"));
  for (std::string line; std::getline(log, line);) {
    found.push_back(json::parse(line));
    if (found.back()["event"] != event) found.pop_back();
  }
  return found;
}

// Removes the names of learners' devices, which differ from world to world.
std::string without_devices(const std::string& text) {
  return std::regex_replace(text, std::regex("learner ([0-9]) on [^ ]*cpu:[0-9]"), "learner $1");
}

std::string after(const std::string& text, const std::string& part) {
  return has(text, part) ? without_devices(text.substr(text.find(part))) : "";
}

// Two epochs that end well, with a checkpoint after each.
Words two_epochs(const Place& place, const char* strategy) {
  return {"--strategy",
          strategy,
          "--checkpoint",
          place.path("c"),
          "--checkpoint-every",
          "1ep",
          "--resume",
          "--log-every",
          "1",
          "--epochs",
          "2"};
}

// The same run for two epochs more, with a learning rate that makes the loss infinite.
Words diverging(const Place& place, const char* strategy, const Words& more) {
  Words words = two_epochs(place, strategy);
  words.back() = "4";
  words.insert(words.end(), {"--change", "train.lr=1e6"});
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Photos of two classes, three of which are no images: two of training and one of validation.
void write_photos(const Place& place) {
  for (int i = 0; i < 80; ++i) {
    const bool tests = i >= 64, bright = i % 2 == 1;
    TestImage image = test_image(16, 16, 3, 20, uint64_t(i));
    for (uint8_t& value : image.bytes) value = uint8_t(value / 2 + (bright ? 128 : 0));
    const std::string name = fmt::format("photos/{}/{}/{}.png", tests ? "test" : "train", bright ? "b" : "a", i);
    const bool broken = i == 9 || i == 42 || i == 71;
    place.folder.write(name, broken ? FileBytes{'n', 'o'} : encode_png(image));
  }
}

std::string graph_of_photos(const Place& place) {
  return fmt::format(
      "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
      "photos () => () {{\n"
      "  image, label = arbalest.Prefetch <source = \"folder:{}\", batch = 4> ()\n"
      "  pixels = arbalest.ResizeCrop <size = [12, 12]> (image)\n"
      "  x = arbalest.Augment <mean = [0.5], std = [0.25]> (pixels)\n"
      "  logits = arbalest.Linear <units = 2> (x)\n"
      "  loss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
      "  accuracy = arbalest.Accuracy (logits, label)\n"
      "  auc = arbalest.AUC (logits, label)\n"
      "  trained = arbalest.Train <lr = 0.001, momentum = 0.9, epochs = 2.0> (loss)\n"
      "  report = arbalest.Validate <batch = 3> (trained, loss, accuracy, auc)\n"
      "}}\n",
      place.path("photos"));
}

}  // namespace

TEST_CASE("a world whose loss is not finite goes back to the same checkpoint everywhere") {
  for (const char* strategy : {"ssgd", "sma"}) {
    CAPTURE(strategy);
    std::vector<uint8_t> expected;
    for (const auto& [size, devices] : kWorlds) {
      CAPTURE(size);
      const Place place;
      run(place, size, two_epochs(place, strategy));
      const Words words = diverging(place, strategy, {"--on-nan", "rollback", "--nan-rate-factor", "1e-9"});
      run(place, size, words);
      const std::vector<json> back = events(place, "rollback");
      REQUIRE(back.size() == 1);
      CHECK(back[0]["iteration"] == 32);
      CHECK(back[0]["from_iteration"] > 32);
      CHECK(back[0]["rate_factor"] == 1e-9);
      has(back[0]["reason"], " no longer finite after iteration ");
      CHECK(events(place, "end").back()["iteration"] == 64);
      if (size == 1) expected = place.weights();
      CHECK(place.weights() == expected);
    }
  }
}

TEST_CASE("a world whose end alone shows that it is not finite goes back, too") {
  const Place place;
  run(place, 2, two_epochs(place, "ssgd"));
  Words words = diverging(place, "ssgd", {"--on-nan", "rollback", "--nan-rate-factor", "1e-9"});
  std::replace(words.begin(), words.end(), std::string("1ep"), std::string("9ep"));
  run(place, 2, words);
  const std::vector<json> back = events(place, "rollback");
  REQUIRE(back.size() == 1);
  CHECK(back[0]["from_iteration"] == 64);
  CHECK(events(place, "end").back()["iteration"] == 64);
}

TEST_CASE("a world that goes back too often ends everywhere, with the same error") {
  const Place place;
  run(place, 2, two_epochs(place, "ssgd"));
  const Words words = diverging(place, "ssgd", {"--on-nan", "rollback", "--nan-rate-factor", "1"});
  for (const size_t rank : {size_t{0}, size_t{1}}) {
    has(run(place, 2, words, kFailed, rank), "; the run has gone back to a checkpoint 3 times already");
  }
}

TEST_CASE("--find-nan names the same node and learner in worlds of any size, at each rank") {
  std::string expected;
  for (const auto& [size, devices] : kWorlds) {
    for (const int rank : {0, size - 1}) {
      CAPTURE(size);
      CAPTURE(rank);
      const Place place;
      const Words words = {"--strategy", "ssgd", "--set", "train.lr=1e24", "--find-nan"};
      const std::string told = after(run(place, size, words, kFailed, size_t(rank)), "; in iteration ");
      has(told, " of learner 0 makes ");
      if (size == 1) expected = told;
      CHECK(told == expected);
    }
  }
}

TEST_CASE("--find-nan changes nothing in what a world trains") {
  const Words words = {"--strategy", "sma", "--epochs", "2"};
  const std::vector<uint8_t> expected = alone(words);
  const Place place;
  run(place, 2, {"--strategy", "sma", "--epochs", "2", "--find-nan"});
  CHECK(place.weights() == expected);
}

TEST_CASE("what any rank cannot read is counted, told once and left out of what all measure") {
  std::vector<uint8_t> expected;
  json validation;
  for (const auto& [size, devices] : kWorlds) {
    CAPTURE(size);
    Place place;
    write_photos(place);
    place.graph = place.folder.write("p.onnxtxt", graph_of_photos(place)).string();
    run(place, size, {"--strategy", "ssgd", "--skip-bad", "3"});
    std::vector<std::string> told;
    for (const json& event : events(place, "skipped")) told.push_back(event["sample"]);
    std::sort(told.begin(), told.end());
    REQUIRE(told.size() == 3);
    has(told[0], "test/b/71.png");
    has(told[1], "train/a/42.png");
    has(told[2], "train/b/9.png");
    json last = events(place, "validation").back();
    CHECK(last["left_out"] == 1);
    CHECK(last["samples"] == 15);
    if (size == 1) {
      expected = place.weights();
      validation = last;
    }
    CHECK(place.weights() == expected);
    for (const char* name : {"loss", "accuracy", "auc"}) CHECK(last[name] == validation[name]);
  }
}

TEST_CASE("the samples that a world may skip are counted over all ranks") {
  Place place;
  write_photos(place);
  place.graph = place.folder.write("p.onnxtxt", graph_of_photos(place)).string();
  // In one epoch each sample is read by one rank.
  const Words words = {"--strategy", "ssgd", "--skip-bad", "2", "--epochs", "1"};
  for (const size_t rank : {size_t{0}, size_t{3}}) {
    has(run(place, 4, words, kFailed, rank), "--skip-bad 2 is used up, a greater number goes on");
  }
}

TEST_CASE("a memory limit is met by the same plan everywhere, and takes no bit from what a world trains") {
  std::vector<uint8_t> expected;
  int64_t limit = 0;
  for (const auto& [size, devices] : kWorlds) {
    CAPTURE(size);
    Place place;
    place.graph = place.folder.write("d.onnxtxt", std::string(kDeep)).string();
    if (size == 1) {
      run(place, size, {"--strategy", "ssgd"});
      expected = place.weights();
      limit = events(place, "start").at(0)["planned_peak_bytes"].get<int64_t>() * 7 / 8;
    }
    run(place, size, {"--strategy", "ssgd", "--memory-limit", std::to_string(limit)});
    CHECK(place.weights() == expected);
    const json start = events(place, "start").back();
    CHECK(start["planned_peak_bytes"] <= limit);
    CHECK(start["memory_limit"]["values_computed_again"] > 0);
  }
}

TEST_CASE("a memory limit that is too low is refused at every rank") {
  const Place place;
  for (const size_t rank : {size_t{0}, size_t{1}}) {
    has(run(place, 2, {"--strategy", "ssgd", "--memory-limit", "1KiB"}, kWrong, rank), " is too low: ");
  }
}

TEST_CASE("ranks look for the number of learners together, and go on with it") {
  Place place;
  place.options = {"--threads", "1"};
  Words words = {"--strategy",   "sma",           "--learners", "auto",         "--set", "train.epochs=100000",
                 "--checkpoint", place.path("c"), "--resume",   "--time-limit", "8"};
  run(place, 2, words, kInterrupted);
  const std::vector<json> tuned = events(place, "tune");
  REQUIRE(!tuned.empty());
  CHECK(tuned[0]["learners"] == 1);
  const json end = events(place, "end").back();
  CHECK(end["learners"] == tuned.back()["next_learners"]);
  words.back() = "1";
  run(place, 2, words, kInterrupted);
  CHECK(events(place, "resume").back()["learners"] == end["learners"]);
}

TEST_CASE("rank 0 gets the state of the others only if something needs it") {
  constexpr int64_t kWeights = 16 << 20;  // bytes: 256 x 16 384
  const std::string graph =
      "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
      "g () => () {\n"
      "  image, label = arbalest.Prefetch <source = \"glyphs:?train=64&test=20&size=16\", batch = 8> ()\n"
      "  x = Cast <to = 1> (image)\n"
      "  h = Flatten (x)\n"
      "  logits = arbalest.Linear <units = 16384> (h)\n"
      "  loss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
      "  trained = arbalest.Train <lr = 0.02, momentum = 0.9, epochs = 1.0> (loss)\n"
      "}\n";
  const auto peak = [&](bool saves) {
    Place place;
    place.graph = place.folder.write("g.onnxtxt", graph).string();
    if (!saves) place.options = {"--threads", "1"};
    auto ranks = place.start(2, {"--strategy", "ssgd", "--devices", "cpu:0"});
    expect(kDone, ranks);
    return ranks[0]->peak_bytes();
  };
  // The other's weights and momentum alone are twice the weights, packed and unpacked.
  CHECK(peak(true) - peak(false) > 3 * kWeights);
}

TEST_CASE("rank 0 writes one trace of all ranks, on one clock") {
  for (const auto& [size, devices] : {std::pair{2, "cpu:0-1"}, {4, "cpu:0"}}) {
    CAPTURE(size);
    const Place place;
    run(place, size, {"--strategy", "ssgd", "--trace", place.path("t.json.gz")});
    const TraceFile trace = read_trace(place.path("t.json.gz"));
    CHECK(trace.run.ranks == size);
    CHECK(trace.run.clock_error > 0);
    CHECK(trace.unfinished == 0);
    REQUIRE(trace.plan.devices.size() == 4);
    CHECK(to_string(trace.plan.devices[3]) == fmt::format("{}.{}/cpu:{}", host_name(), size - 1, size == 2 ? 1 : 0));
    CHECK(trace.run.models.size() == 4);
    // The spans of each instance of an all-reduce, one of each rank, by name and instance.
    std::map<std::pair<std::string, int64_t>, std::vector<TaskSpan>> collectives;
    std::map<int32_t, int> steps;  // by learner
    for (const TaskSpan& span : trace.tasks) {
      const Task& task = trace.plan.tasks[span.task];
      if (task.kind == Task::Kind::Compute && task.learner != kNone) ++steps[task.learner];
      if (task.kind != Task::Kind::Collective || task.clock != 0) continue;
      collectives[{task.name.substr(task.name.find('/')), span.instance}].push_back(span);
    }
    CHECK(steps.size() == 4);
    REQUIRE(collectives.size() >= 64);
    for (const auto& [name, spans] : collectives) {
      REQUIRE(spans.size() == size_t(size));
      int64_t last_start = 0, first_end = INT64_MAX;
      for (const TaskSpan& span : spans) {
        last_start = std::max(last_start, span.started);
        first_end = std::min(first_end, span.ended);
      }
      CHECK(last_start <= first_end + 2 * trace.run.clock_error);  // none ends before all have come
    }
    const json head = json::parse(viewer_data(trace, "t").head.dump());
    CHECK(head["devices"][0] == host_name() + ".0/cpu:0");
    has(head["verdict"]["notes"].dump(), fmt::format("Times of {}", size));
  }
}

TEST_CASE("ranks whose arrays would travel by other libraries are refused, and MPI's if the others are to go on") {
  // Exit statuses and what rank 1 says, of two ranks with words of their own which MPI seems to have started.
  const auto run_two = [](const Words& first, const Words& second, int status) {
    const Place place;
    const std::string port = "127.0.0.1:" + std::to_string(free_port());
    std::vector<std::unique_ptr<Rank>> ranks;
    for (const Words& own : {first, second}) {
      const std::string rank = std::to_string(ranks.size());
      Words words = place.command({"--devices", "cpu:0", "--strategy", "sma", "--rendezvous", port});
      words.insert(words.end(), {"--rank", rank, "--world-size", "2"});
      words.insert(words.end(), own.begin(), own.end());
      ranks.push_back(std::make_unique<Rank>(words, place.path("errors " + rank), Words{"OMPI_COMM_WORLD_SIZE=2"}));
    }
    expect(status, ranks);
    return ranks[1]->errors();
  };
  const Words mpi = {"--collectives", "mpi"}, continued = {"--collectives", "mpi", "--on-lost", "continue"};
  const std::string other = run_two({}, mpi, kWrong);
  has(other, "--collectives");
  has(other, "gloo");
  has(run_two({}, {"--lost-after", "4"}, kWrong), "--lost-after");
  has(run_two(continued, continued, kWrong), "--on-lost continue: MPI ends all processes if one is lost");
#ifndef ARBALEST_MPI
  has(run_two(mpi, mpi, kFailed), "--collectives mpi: this build has no MPI; expected one with -Dmpi=enabled");
#endif
}

}  // namespace world_options_test
#endif
