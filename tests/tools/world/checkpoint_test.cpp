// SPDX-License-Identifier: Apache-2.0

// Checkpoints of `arbalest run` as several processes, each of which writes the part with its own learners.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "executor/training/checkpoint.h"
#include "io/formats/safetensors.h"
#include "tests/tools/world/ranks.h"

#ifdef ARBALEST_GLOO

using namespace arbalest;
using namespace arbalest::test;

namespace fs = std::filesystem;

namespace world_checkpoint_test {
namespace {

constexpr const char* kValidated = "/checkpoint-000000000050";  // later ones follow a validation
const Words kRun = {"--strategy", "sma", "--set", "train.epochs=40"};

// The four CPUs of the run as devices of so many processes.
Words divided(int size) {
  return {"--devices", size == 1 ? "cpu:0-3" : size == 2 ? "cpu:0-1" : "cpu:0"};
}

// Starts the run, or goes on with it, in so many processes.
std::vector<std::unique_ptr<Rank>> start(const Place& place, int size, const Words& more = {}) {
  Words words = kRun, devices = divided(size);
  words.insert(words.end(), devices.begin(), devices.end());
  words.insert(words.end(), {"--checkpoint", place.path("c"), "--checkpoint-every", "7it", "--resume"});
  words.insert(words.end(), more.begin(), more.end());
  if (size > 1) return place.start(size, words);
  std::vector<std::unique_ptr<Rank>> one;
  one.push_back(std::make_unique<Rank>(place.command(words), place.path("errors 0")));
  return one;
}

// Ends the run in so many processes after some checkpoints.
void interrupt(const Place& place, int size, const Words& more = {}) {
  auto ranks = start(place, size, more);
  await_checkpoints(place.path("c"), 2);
  ranks.back()->send(SIGTERM);
  expect(kInterrupted, ranks);
}

std::vector<fs::path> parts_in(const fs::path& folder) {
  std::vector<fs::path> parts;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().find(".rank-") != std::string::npos) parts.push_back(entry.path());
  }
  std::sort(parts.begin(), parts.end());
  return parts;
}

}  // namespace

TEST_CASE("a checkpoint of four processes goes on in one, two and four, and that of one in two, to the same bits") {
  const std::vector<uint8_t> expected = alone(kRun);
  for (const auto& [before, after] : {std::pair{4, 4}, {4, 2}, {4, 1}, {1, 2}, {2, 4}}) {
    CAPTURE(before);
    CAPTURE(after);
    const Place place;
    interrupt(place, before);
    const CheckpointFile file = read_checkpoint(checkpoints_in(place.path("c")).front());
    CHECK(file.checkpoint.parts.of_ranks.size() == size_t(before - 1));
    CHECK(file.checkpoint.segment.state.learners.size() == 4);
    auto ranks = start(place, after);
    expect(kDone, ranks);
    CHECK(ranks[0]->errors().find("left out") == std::string::npos);
    CHECK(place.weights() == expected);
    for (const fs::path& path : checkpoints_in(place.path("c"))) read_checkpoint(path);  // or it throws
    CHECK(parts_in(place.path("c")).size() <= checkpoints_in(place.path("c")).size() * 3);
  }
}

TEST_CASE("each rank's file has its own learners, and rank 0's what is of all") {
  const Place place;
  const Words kinds = {"--learners", "2", "--set", "train.ema=0.9", "--set", "train.frozen=c.*"};
  Words words = kRun, more = kinds;
  words.insert(words.end(), kinds.begin(), kinds.end());
  more.insert(more.end(), {"--save-best", place.path("best")});
  const std::vector<uint8_t> expected = alone(words);
  auto ranks = start(place, 4, more);
  const auto until = WallTime::now() + std::chrono::seconds(60);
  const auto validated = [&] {
    const std::vector<fs::path> there = checkpoints_in(place.path("c"));
    return !there.empty() && parts_in(place.path("c")).size() >= 3 && there.front() > place.path("c") + kValidated;
  };
  while (!validated() && WallTime::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ranks.back()->send(SIGTERM);
  expect(kInterrupted, ranks);
  const fs::path newest = checkpoints_in(place.path("c")).front();
  const CheckpointParts parts = read_checkpoint(newest).checkpoint.parts;
  for (size_t rank = 0; rank < 4; ++rank) {
    CAPTURE(rank);
    const TensorFile file = read_safetensors(rank == 0 ? newest : part_path(newest, parts.tag, rank));
    const auto any = [&](const std::string& begin) {
      return std::any_of(file.tensors.begin(), file.tensors.end(),
                         [&](const NamedTensor& tensor) { return tensor.name.starts_with(begin); });
    };
    for (size_t learner = 0; learner < 8; ++learner) {
      CHECK(any(fmt::format("learner {}/weights/", learner)) == (learner / 2 == rank));
    }
    for (const char* of_all : {"average/", "moving average/", "frozen/", "validated/"}) {
      CAPTURE(of_all);
      CHECK(any(of_all) == (rank == 0));
    }
  }
  ranks = start(place, 4, more);
  expect(kDone, ranks);
  CHECK(place.weights() == expected);
}

TEST_CASE("a run goes on from the checkpoint before one of which a part is missing, to the same bits") {
  const std::vector<uint8_t> expected = alone(kRun);
  const Place place;
  interrupt(place, 4);
  const fs::path newest = checkpoints_in(place.path("c")).front();
  const fs::path part = part_path(newest, read_checkpoint(newest).checkpoint.parts.tag, 3);
  REQUIRE(fs::remove(part));
  auto ranks = start(place, 2);
  expect(kDone, ranks);
  has(ranks[0]->errors(), fmt::format("{}: not whole: rank 3's part '{}' is missing; it is left out", newest.string(),
                                      part.filename().string()));
  CHECK(place.weights() == expected);
}

TEST_CASE("ranks with folders of their own are refused on all of them") {
  const Place place;
  auto ranks = place.start(
      3, {"--strategy", "sma", "--devices", "cpu:0", "--resume", "--rendezvous-timeout", "3"},
      {{"--checkpoint", place.path("c")}, {"--checkpoint", place.path("c")}, {"--checkpoint", place.path("other")}});
  expect(kWrong, ranks);
  for (const auto& rank : ranks) {
    has(rank->errors(), fmt::format("--checkpoint {}: rank 2 on ", place.path("other")));
    has(rank->errors(), "expected one folder that all ranks share");
  }
}

TEST_CASE("a rank without room for its part says so, and rank 0 too; the checkpoint before stays") {
  const Place place;
  interrupt(place, 2);
  const std::vector<fs::path> before = checkpoints_in(place.path("c"));
  Words words = place.command(kRun), devices = divided(2);
  words.insert(words.end(), devices.begin(), devices.end());
  words.insert(words.end(), {"--checkpoint", place.path("c"), "--checkpoint-every", "7it", "--resume"});
  words.insert(words.end(), {"--world-size", "2", "--rendezvous", "127.0.0.1:" + std::to_string(free_port())});
  std::vector<std::unique_ptr<Rank>> ranks;
  for (const char* rank : {"0", "1"}) {
    Words own = words;
    own.insert(own.end(), {"--rank", rank});
    const Words full = {std::string(kMostOfFile) + "=60000"};  // bytes: less than a part has
    ranks.push_back(
        std::make_unique<Rank>(own, place.path(std::string("errors ") + rank), *rank == '1' ? full : Words{}));
  }
  for (const auto& rank : ranks) CHECK(rank->wait() == kFailed);
  const std::string part = ".safetensors: cannot be written: File too large";
  has(ranks[1]->errors(), "arbalest: rank 1 on ");
  has(ranks[1]->errors(), part + "; training goes on without this checkpoint");
  has(ranks[0]->errors(), ".safetensors: not written: rank 1 on ");
  has(ranks[0]->errors(), part + "; training goes on without this checkpoint");
  CHECK(checkpoints_in(place.path("c")) == before);
  for (const fs::path& path : before) read_checkpoint(path);
}

TEST_CASE("a checkpoint and its parts are no weights") {
  const Place place;
  interrupt(place, 2);
  const fs::path newest = checkpoints_in(place.path("c")).front();
  const auto refused = [&](const fs::path& path, const std::string& expected) {
    Rank process({"evaluate", place.graph, "--weights", path.string()}, place.path("errors evaluate"));
    CHECK(process.wait() == kWrong);
    has(process.errors(), expected);
  };
  refused(newest, "found a checkpoint of a run, expected weights");
  refused(part_path(newest, read_checkpoint(newest).checkpoint.parts.tag, 1),
          "found one rank's part of a checkpoint of a run, expected weights");
}

}  // namespace world_checkpoint_test
#endif
