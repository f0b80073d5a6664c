// SPDX-License-Identifier: Apache-2.0

// `arbalest run --on-lost continue`: ranks are killed, and the others go on with the learners that are left.

#include <doctest/doctest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <future>
#include <latch>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "executor/devices/device.h"
#include "executor/trace/trace_file.h"
#include "executor/training/checkpoint.h"
#include "executor/world/ranks.h"
#include "io/formats/safetensors.h"
#include "tests/executor/world/free_port.h"
#include "tests/tools/world/ranks.h"
#include "tools/command/world_setup.h"

#ifdef ARBALEST_GLOO

using namespace arbalest;
using namespace arbalest::test;
using nlohmann::json;

namespace world_lost_test {
namespace {

std::vector<json> events(const Place& place) {
  std::vector<json> found;
  std::ifstream log(place.path("log"));
  for (std::string line; std::getline(log, line);) {
    if (!log.eof()) found.push_back(json::parse(line));
  }
  return found;
}

int64_t count(const std::vector<json>& all, const std::string& event) {
  return std::count_if(all.begin(), all.end(), [&](const json& each) { return each["event"] == event; });
}

// Waits until the log has so many events of a kind.
void await(const Place& place, const std::string& event, int64_t least) {
  const auto until = WallTime::now() + std::chrono::seconds(60);
  while (count(events(place), event) < least && WallTime::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  REQUIRE(count(events(place), event) >= least);
}

Words going_on(const Place& place, const char* strategy, const char* epochs, Words words = {"--devices", "cpu:0"}) {
  words.insert(words.end(), {"--strategy", strategy, "--set", epochs, "--on-lost", "continue"});
  words.insert(words.end(), {"--log", place.path("log")});
  return words;
}

std::vector<float> floats_in(const TensorFile& file, const std::string& name) {
  const NamedTensor* tensor = file.find(name);
  REQUIRE(tensor);
  std::vector<float> values(tensor->bytes.size() / sizeof(float));
  std::memcpy(values.data(), tensor->bytes.data(), tensor->bytes.size());
  return values;
}

// Checks that the place's model is the mean of so many learners of its last checkpoint.
void is_mean_of_learners(const Place& place, int learners) {
  REQUIRE(!checkpoints_in(place.path("c")).empty());
  const TensorFile kept = read_checkpoint(checkpoints_in(place.path("c")).front()).tensors;
  const TensorFile model = read_safetensors(place.path("w"));
  CHECK_FALSE(kept.find(fmt::format("learner {}/weights/{}", learners, model.tensors.front().name)));
  int compared = 0;
  for (const NamedTensor& tensor : model.tensors) {
    if (!kept.find("learner 0/weights/" + tensor.name)) continue;  // statistics
    std::vector<float> mean(floats_in(model, tensor.name).size(), 0);
    for (int j = 0; j < learners; ++j) {
      const std::vector<float> one = floats_in(kept, fmt::format("learner {}/weights/{}", j, tensor.name));
      for (size_t i = 0; i < mean.size(); ++i) mean[i] += one[i] / float(learners);
    }
    const std::vector<float> found = floats_in(model, tensor.name);
    for (size_t i = 0; i < mean.size(); ++i) CHECK(found[i] == doctest::Approx(mean[i]).epsilon(1e-5));
    ++compared;
  }
  CHECK(compared > 2);
}

using Start = std::function<std::vector<std::unique_ptr<Rank>>(const Place&, const Words&)>;  // three ranks

// Kills ranks of a run, and starts them again.
void come_back(const char* strategy, const Words& devices, const Start& start) {
  CAPTURE(strategy);
  const Place place;
  Words words = going_on(place, strategy, "train.epochs=80", devices);
  words.insert(words.end(), {"--checkpoint", place.path("c")});
  auto ranks = start(place, words);
  int64_t returned = 0;
  for (const size_t killed : {size_t{1}, size_t{2}}) {
    await(place, "progress", 1);
    ranks[killed]->send(SIGKILL);
    CHECK(ranks[killed]->wait() == -SIGKILL);
    await(place, "lost", returned + 1);
    ranks[killed] = ranks[killed]->again();
    await(place, "returned", ++returned);
    const int64_t reports = count(events(place), "progress");
    await(place, "progress", reports + 1);
  }
  expect(kDone, ranks);
  has(ranks[0]->errors(), "came back");
  has(ranks[0]->errors(), "again after iteration ");
  for (const json& event : events(place)) {
    if (event["event"] == "returned") CHECK(event["learners"] == 3);
  }
  CHECK(events(place).back()["reason"] == "complete");
  if (std::string(strategy) == "local") is_mean_of_learners(place, 3);
}

}  // namespace

TEST_CASE("a killed rank that is started again trains with the others, and the model is of all") {
  for (const char* strategy : {"local", "sma"}) {
    come_back(strategy, {"--devices", "cpu:0"},
              [](const Place& place, const Words& words) { return place.start(3, words); });
  }
}

TEST_CASE("ranks with GPUs go on without one that is killed, and with it again") {
  const int gpus = cuda_device_count();
  if (gpus == 0) {
    MESSAGE("SKIP: no CUDA device");
    return;
  }
  const std::vector<Words> devices = {
      {"--devices", "cuda:0"}, {"--devices", gpus > 1 ? "cuda:1" : "cuda:0"}, {"--devices", "cuda:0"}};
  for (const char* strategy : {"local", "sma"}) {
    come_back(strategy, {}, [&](const Place& place, const Words& words) {
      return place.start(3, words, devices, {"a", "b", "c"});
    });
  }
}

TEST_CASE("rank 0 that is left alone takes the others back, one by one or together") {
  const Place place;
  auto ranks = place.start(3, going_on(place, "sma", "train.epochs=4000"));
  await(place, "progress", 1);
  for (const size_t rank : {size_t{1}, size_t{2}}) ranks[rank]->send(SIGKILL);
  for (const size_t rank : {size_t{1}, size_t{2}}) CHECK(ranks[rank]->wait() == -SIGKILL);
  await(place, "lost", 1);
  for (const size_t rank : {size_t{1}, size_t{2}}) ranks[rank] = ranks[rank]->again();
  const auto all_there = [&] {
    const std::vector<json> all = events(place);
    return std::any_of(all.begin(), all.end(),
                       [](const json& event) { return event["event"] == "returned" && event["learners"] == 3; });
  };
  const auto until = WallTime::now() + std::chrono::seconds(60);
  while (!all_there() && WallTime::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(all_there());
  await(place, "progress", count(events(place), "progress") + 1);
  ranks[2]->send(SIGTERM);
  expect(kInterrupted, ranks);
}

TEST_CASE("a rank that comes back and differs is refused by name, and the others train on") {
  const Place place;
  auto ranks = place.start(3, going_on(place, "sma", "train.epochs=4000"));
  await(place, "progress", 1);
  const auto refused = [&](const std::unique_ptr<Rank>& rank, int status, const std::string& expected) {
    CHECK(rank->wait() == status);
    has(rank->errors(), expected);
    await(place, "progress", count(events(place), "progress") + 1);
  };
  // One that is there.
  const std::string host = host_name();
  refused(ranks[1]->again(), kFailed, fmt::format("rank 1 on {} is there, and would be there twice", host));
  ranks[1]->send(SIGKILL);
  CHECK(ranks[1]->wait() == -SIGKILL);
  await(place, "lost", 1);
  refused(ranks[1]->again({"--seed", "7"}), kWrong, fmt::format("differs from rank 0 on {}: seed: 7", host));
  refused(ranks[1]->again({"--set", "prefetch.source=glyphs:?train=520&test=100&size=16"}), kWrong,
          "differs from rank 0");
  refused(ranks[1]->again({"--learners", "2"}), kWrong, "differs from rank 0");
  refused(ranks[1]->again({}, {"ARBALEST_HOST=elsewhere"}), kFailed,
          fmt::format("was on {} before; expected the same host", host));
  has(ranks[0]->errors(), fmt::format("rank 1 on {} does not come back: ", host));
  ranks[1] = ranks[1]->again();
  await(place, "returned", 1);
  ranks[0]->send(SIGTERM);
  expect(kInterrupted, ranks);
}

TEST_CASE("ranks that are killed one after the other leave the others training, down to the last") {
  for (const char* strategy : {"sma", "local"}) {
    CAPTURE(strategy);
    const Place place;
    Words words = going_on(place, strategy, "train.epochs=4000");
    words.insert(words.end(), {"--checkpoint", place.path("c"), "--trace", place.path("t.json.gz")});
    auto ranks = place.start(4, words);
    int64_t lost = 0;
    for (const size_t killed : {size_t{2}, size_t{1}, size_t{3}}) {
      await(place, "progress", 1);
      const auto began = WallTime::now();
      ranks[killed]->send(SIGKILL);
      await(place, "lost", ++lost);
      const int64_t reports = count(events(place), "progress");
      await(place, "progress", reports + 1);
      CHECK(WallTime::now() - began < std::chrono::seconds(15));  // far below where machines are not busy
      CHECK(ranks[killed]->wait() == -SIGKILL);
    }
    ranks[0]->send(SIGTERM);
    CHECK(ranks[0]->wait() == kInterrupted);
    has(ranks[0]->errors(), fmt::format("goes on without rank 1 on {} after iteration ", host_name()));
    std::vector<int> learners;
    for (const json& event : events(place)) {
      if (event["event"] == "lost") learners.push_back(event["learners"]);
    }
    CHECK(learners == std::vector<int>{3, 2, 1});
    CHECK(events(place).back()["reason"] == "interrupted");
    CHECK(!checkpoints_in(place.path("c")).empty());
    const TraceFile trace = read_trace(place.path("t.json.gz"));
    // The learners that are left end the epoch, and the next is planned anew.
    const std::set<SegmentBegin> begins = {SegmentBegin::RanksLost, SegmentBegin::PlannedAnew};
    CHECK(begins.contains(trace.run.begins));
    CHECK(trace.run.first > 0);
  }
}

TEST_CASE("a run that goes on without ranks is checkpointed, and goes on with all of them again") {
  const Place place;
  Words words = going_on(place, "sma", "train.epochs=4000");
  words.insert(words.end(), {"--checkpoint", place.path("c"), "--checkpoint-every", "20it", "--resume"});
  auto ranks = place.start(3, words);
  await_checkpoints(place.path("c"), 1);
  ranks[1]->send(SIGKILL);
  await(place, "lost", 1);
  await(place, "progress", count(events(place), "progress") + 1);
  ranks[2]->send(SIGTERM);
  CHECK(ranks[1]->wait() == -SIGKILL);
  for (const size_t rank : {size_t{0}, size_t{2}}) CHECK(ranks[rank]->wait() == kInterrupted);
  const std::filesystem::path from = checkpoints_in(place.path("c")).front();
  ranks = place.start(3, words);
  const auto until = WallTime::now() + std::chrono::seconds(60);
  while (std::filesystem::exists(from) && WallTime::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ranks[1]->send(SIGKILL);  // it comes back though that checkpoint is gone
  CHECK(ranks[1]->wait() == -SIGKILL);
  await(place, "lost", 2);
  ranks[1] = ranks[1]->again();
  await(place, "returned", 1);
  ranks[2]->send(SIGTERM);
  expect(kInterrupted, ranks);
  has(ranks[0]->errors(), "the checkpoint is of 2 learners, and the run goes on with 3");
}

TEST_CASE("the loss of rank 0 ends a run that is to go on") {
  const Place place;
  const Words words = going_on(place, "sma", "train.epochs=4000");
  auto ranks = place.start(3, words);
  await(place, "progress", 1);
  ranks[0]->send(SIGKILL);
  CHECK(ranks[0]->wait() == -SIGKILL);
  for (const size_t rank : {size_t{1}, size_t{2}}) {
    CHECK(ranks[rank]->wait() == kFailed);
    has(ranks[rank]->errors(), fmt::format("rank 0 on {} is lost", host_name()));
  }
}

TEST_CASE("a run without a learner's own model to go on with refuses to go on") {
  const auto refused = [](const Words& more, const char* expected) {
    const Place place;
    Words words = {"--devices", "cpu:0", "--on-lost", "continue"};
    words.insert(words.end(), more.begin(), more.end());
    auto ranks = place.start(2, words);
    expect(kWrong, ranks);
    has(ranks[0]->errors(), expected);
  };
  refused(
      {"--strategy", "ssgd"},
      "--on-lost continue: by the strategy 'ssgd' learners cannot go on from what each of them has; expected sma or "
      "local");
  const Place place;
  Rank wrong(place.command({"--on-lost", "carry-on"}), place.path("errors"));
  CHECK(wrong.wait() == kWrong);
  has(wrong.errors(), "--on-lost: found 'carry-on'; expected end or continue");
}

TEST_CASE("ranks with uneven devices have the bits of one process, skip what none can read, and are interrupted") {
  const Words more = {"--strategy", "sma", "--set", "train.epochs=40", "--skip-bad", "2"};  // which weights keep
  const std::vector<uint8_t> expected = alone(more);
  const Place place;
  Words words = more;
  words.insert(words.end(), {"--checkpoint", place.path("c"), "--checkpoint-every", "9it", "--resume"});
  const std::vector<Words> own = {{"--devices", "cpu:0"}, {"--devices", "cpu:0-2"}};
  for (const size_t interrupted : {size_t{1}, size_t{0}}) {
    const auto before = checkpoints_in(place.path("c"));
    auto ranks = place.start(2, words, own);
    const auto until = WallTime::now() + std::chrono::seconds(60);
    while (checkpoints_in(place.path("c")) == before && WallTime::now() < until) std::this_thread::yield();
    ranks[interrupted]->send(SIGTERM);
    expect(kInterrupted, ranks);
  }
  auto ranks = place.start(2, words, own);
  expect(kDone, ranks);
  CHECK(place.weights() == expected);
}

TEST_CASE("bench scaling measures all devices of a world, and rank 0's own alone") {
  const Place place;
  const auto start = [&](const Words& more, const Words& of_second = {}, const char* windows = "2") {
    const std::string port = "127.0.0.1:" + std::to_string(free_port());
    std::vector<std::unique_ptr<Rank>> ranks;
    for (const char* rank : {"0", "1"}) {
      Words words = {"bench",        "scaling",
                     place.graph,    "--devices",
                     "cpu:0",        "--windows",
                     windows,        "--window-seconds",
                     "0.05",         "--warmup-seconds",
                     "0.05",         "--json",
                     "--rank",       rank,
                     "--world-size", "2",
                     "--rendezvous", port};
      const Words& own = rank == std::string("1") && !of_second.empty() ? of_second : more;
      words.insert(words.end(), own.begin(), own.end());
      ranks.push_back(std::make_unique<Rank>(words, place.path(std::string("errors ") + rank), Words{},
                                             place.path(std::string("out ") + rank)));
    }
    return ranks;
  };
  auto ranks = start({"--device-counts", "1,2", "--learners", "1,2"});
  expect(kDone, ranks);
  std::ifstream out(place.path("out 0"));
  std::vector<int> devices;
  for (std::string line; std::getline(out, line);) {
    if (!line.starts_with("{\"event\":\"cell\"")) continue;
    const json cell = json::parse(line);
    devices.push_back(cell["device_count"]);
    CHECK(cell["images_per_second"] > 0);
  }
  CHECK(devices == std::vector<int>{1, 1, 2, 2});
  const std::vector<uint8_t> silent = read_file(place.path("out 1"));
  CHECK(std::string(silent.begin(), silent.end()).find("cell") == std::string::npos);
  auto wrong = start({"--device-counts", "3"});
  expect(kWrong, wrong);
  has(wrong[0]->errors(), "--device-counts");
  wrong = start({"--device-counts", "1,2"}, {"--device-counts", "2"});
  expect(kWrong, wrong);
  has(wrong[0]->errors(), fmt::format("differs from rank 0 on {}: --device-counts: 2; expected as on", host_name()));
  // A signal between cells of rank 0 alone ends both ranks.
  auto asked = start({"--device-counts", "1,2", "--learners", "1,2"}, {}, "60");
  const auto measured = [&] {
    const std::vector<uint8_t> told = read_file(place.path("out 0"));
    return std::string(told.begin(), told.end()).find("{\"event\":\"cell\"") != std::string::npos;
  };
  const auto until = WallTime::now() + std::chrono::seconds(60);
  while (!measured() && WallTime::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  asked[0]->send(SIGINT);
  expect(kInterrupted, asked);
}

TEST_CASE("the loss of rank 0 while others wait for the end is an error, also where runs go on") {
  for (const int gone : {0, 1}) {
    CAPTURE(gone);
    const int port = free_port();
    std::latch here(3);  // nobody leaves before all know that all are here
    const auto joined = [&](int rank, const std::function<int(Ranks&)>& run) {
      return std::async(std::launch::async, [=, &here] {
        WorldSettings world;
        world.rank = rank;
        world.size = 3;
        world.host = "127.0.0.1";
        world.port = port;
        Ranks ranks(world);
        ranks.exchange("all are here", "");
        here.arrive_and_wait();
        return run(ranks);
      });
    };
    const auto ends = [](Ranks& ranks) {
      return run_as_rank(
          &ranks, [] { return kDone; }, OnLost::Continue);
    };
    std::vector<std::future<int>> running;
    for (int rank = 0; rank < 3; ++rank) {
      running.push_back(joined(rank, rank == gone ? [](Ranks&) { return kDone; } : std::function<int(Ranks&)>(ends)));
    }
    CHECK(running[size_t(gone)].get() == kDone);  // it leaves without a word
    for (int rank = 0; rank < 3; ++rank) {
      CAPTURE(rank);
      if (rank == gone) continue;
      if (gone == 0) CHECK_THROWS_AS(running[size_t(rank)].get(), RunError);
      if (gone == 1) CHECK(running[size_t(rank)].get() == kDone);
    }
  }
}

}  // namespace world_lost_test
#endif
