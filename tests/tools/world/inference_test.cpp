// SPDX-License-Identifier: Apache-2.0

// Evaluation and prediction as several processes, and the trace of a run of several that fails.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "executor/trace/trace_file.h"
#include "tests/tools/world/ranks.h"

#ifdef ARBALEST_GLOO

using namespace arbalest;
using namespace arbalest::test;

namespace world_inference_test {
namespace {

std::string text_of(const std::string& path) {
  const std::vector<uint8_t> bytes = read_file(path);
  return {bytes.begin(), bytes.end()};
}

// Waits until the process handles the signal: the system tells which ones it does, as bits of a number.
void await_handler(pid_t process, int signal) {
  const std::string path = fmt::format("/proc/{}/status", process), key = "SigCgt:";
  for (const auto until = WallTime::now() + std::chrono::seconds(60); WallTime::now() < until;) {
    std::ifstream status(path);
    for (std::string line; std::getline(status, line);) {
      if (!line.starts_with(key)) continue;
      if ((std::stoull(line.substr(key.size()), nullptr, 16) >> (signal - 1) & 1) != 0) return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  FAIL("the process never handled the signal");
}

// A place with a trained model.
struct TrainedPlace : Place {
  TrainedPlace() {
    Rank process(command({"--devices", "cpu:0"}), path("errors"));
    REQUIRE(process.wait() == kDone);
  }

  // The words of each rank of a world; those of the only process for size 1.
  std::vector<Words> words_of(const Words& given, int size, const std::string& devices) const {
    const std::string port = "127.0.0.1:" + std::to_string(free_port());
    std::vector<Words> all;
    for (int rank = 0; rank < size; ++rank) {
      Words words = given;
      words.insert(words.end(), {"--weights", path("w"), "--devices", devices, "--threads", "1"});
      words.insert(words.end(), {"--world-size", std::to_string(size)});
      if (size > 1) words.insert(words.end(), {"--rank", std::to_string(rank), "--rendezvous", port});
      all.push_back(std::move(words));
    }
    return all;
  }

  // Returns the first rank's output; the others must print nothing.
  std::string printed(const Words& given, int size, const std::string& devices) const {
    std::vector<std::unique_ptr<Rank>> ranks;
    const std::vector<Words> all = words_of(given, size, devices);
    const auto output = [&](int rank) { return path("output " + std::to_string(rank)); };
    for (int rank = 0; rank < size; ++rank) {
      const std::string errors = path("errors " + std::to_string(rank));
      ranks.push_back(std::make_unique<Rank>(all[size_t(rank)], errors, Words{}, output(rank)));
    }
    expect(kDone, ranks);
    for (int rank = 1; rank < size; ++rank) CHECK(text_of(output(rank)) == "");
    return text_of(output(0));
  }
};

}  // namespace

TEST_CASE("evaluation as several processes measures what one with as many devices does") {
  const TrainedPlace place;
  const Words words = {"evaluate", place.graph, "--json"};
  const auto report = [&](int size, const std::string& devices) {
    auto made = nlohmann::json::parse(place.printed(words, size, devices));
    CHECK(made["samples"] == 100);
    made.erase("seconds");
    return made;
  };
  const auto expected = report(1, "cpu:0-3");
  CHECK(expected.contains("auc"));
  CHECK(expected["confusion"].size() == 10);
  CHECK(report(2, "cpu:0-1") == expected);
  CHECK(report(4, "cpu:0") == expected);
}

TEST_CASE("prediction as several processes prints the lines of one, in order") {
  const TrainedPlace place;
  for (const Words& words : {Words{"predict", place.graph, "--top", "3"},
                             Words{"predict", place.graph, "--value", "logits", "--format", "csv"}}) {
    const std::string expected = place.printed(words, 1, "cpu:0");
    CHECK(std::count(expected.begin(), expected.end(), '\n') >= 100);
    CHECK(place.printed(words, 3, "cpu:0") == expected);
    CHECK(place.printed(words, 2, "cpu:0-1") == expected);
  }
}

TEST_CASE("processes that evaluate other weights are refused, and a process that is lost ends the others") {
  const TrainedPlace place;
  std::vector<Words> all = place.words_of({"evaluate", place.graph}, 2, "cpu:0");
  std::vector<std::unique_ptr<Rank>> ranks;
  const auto start = [&] {
    ranks.clear();
    for (size_t rank = 0; rank < all.size(); ++rank) {
      ranks.push_back(std::make_unique<Rank>(all[rank], place.path("errors " + std::to_string(rank))));
    }
  };
  for (std::string& word : all[1]) {
    if (word == place.path("w")) word = place.path("changed");
  }
  std::vector<uint8_t> bytes = place.weights();
  bytes[bytes.size() - 3] ^= 1;
  place.folder.write("changed", std::string(bytes.begin(), bytes.end()));
  start();
  expect(kWrong, ranks);
  has(ranks[0]->errors(), fmt::format("rank 1 on {} differs from rank 0 on {}: weights: ", host_name(), host_name()));
  // Noise, which takes no time to make, and more of it than any machine looks at meanwhile.
  all = place.words_of(
      {"evaluate", place.graph, "--set", "prefetch.source=\"synthetic:?shape=1x16x16&classes=10&size=8&test=20000000\"",
       "--set", "report.batch=1"},
      2, "cpu:0");
  start();
  std::this_thread::sleep_for(std::chrono::seconds(4));
  ranks[1]->send(SIGKILL);
  CHECK(ranks[1]->wait() == -SIGKILL);
  CHECK(ranks[0]->wait() == kFailed);
  has(ranks[0]->errors(), fmt::format("rank 1 on {} is lost", host_name()));
}

TEST_CASE("an interrupt ends evaluation and prediction with the status of an interrupted run, and saves nothing") {
  const TrainedPlace place;
  for (const char* name : {"predict", "evaluate"}) {
    const std::vector<Words> words = place.words_of(
        {name, place.graph, "--set", "prefetch.source=\"synthetic:?shape=1x16x16&classes=10&size=8&test=20000000\"",
         "--set", "report.batch=1"},
        1, "cpu:0");
    Rank process(words[0], place.path("errors"));
    await_handler(process.process(), SIGUSR1);  // as the pass begins; SIGINT has one of doctest's before
    process.send(SIGUSR1);
    CHECK(process.wait() == kInterrupted);
    has(process.errors(), "ending after the batches already read; once more to stop at once\n");
    has(process.errors(), "interrupted");
  }
}

TEST_CASE("each rank that is left keeps its part of the trace of a run that fails") {
  const Place place;
  const Words words = {"--strategy",         "ssgd",  "--set",        "train.epochs=4000",
                       "--devices",          "cpu:0", "--checkpoint", place.path("c"),
                       "--checkpoint-every", "20it",  "--trace",      place.path("t.json.gz")};
  auto ranks = place.start(3, words);
  await_checkpoints(place.path("c"), 1);
  ranks[1]->send(SIGKILL);
  for (const size_t rank : {size_t{0}, size_t{2}}) CHECK(ranks[rank]->wait() == kFailed);
  const TraceFile first = read_trace(place.path("t.json.gz")), third = read_trace(place.path("t.rank2.json.gz"));
  for (const TraceFile* trace : {&first, &third}) {
    CHECK(trace->run.ended == RunEnd::Failed);
    has(trace->run.message, fmt::format("rank 1 on {} is lost", host_name()));
    CHECK(trace->tasks.size() > 20);
    CHECK(trace->plan.devices.size() == 1);
  }
  CHECK(to_string(third.plan.devices[0]) == fmt::format("{}.2/cpu:0", host_name()));
  CHECK_THROWS(read_trace(place.path("t.rank1.json.gz")));
}

}  // namespace world_inference_test
#endif
