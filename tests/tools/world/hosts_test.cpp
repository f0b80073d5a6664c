// SPDX-License-Identifier: Apache-2.0

// Runs on several hosts that average with each other now and then. All hosts are this machine: a variable gives each
// rank's a name of its own.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "executor/devices/device.h"
#include "executor/training/checkpoint.h"
#include "io/formats/safetensors.h"
#include "tests/tools/world/ranks.h"

#ifdef ARBALEST_GLOO

using namespace arbalest;
using namespace arbalest::test;

namespace world_hosts_test {
namespace {

// A place whose graph averages between hosts each third time.
struct ApartPlace : Place {
  explicit ApartPlace(const std::string& strategy) {
    std::string text = kGraph;
    const std::string before = "(trained, loss";
    text.replace(text.find(before), before.size(), "(synced, loss");
    const std::string line = "  report";
    text.insert(
        text.find(line),
        fmt::format("  synced = arbalest.Synchronize <strategy = \"{}\", every_hosts = 3> (trained)\n", strategy));
    graph = folder.write("apart.onnxtxt", text).string();
  }

  std::vector<std::unique_ptr<Rank>> start_on(const Words& hosts, const Words& more) const {
    return start(int(hosts.size()), more, std::vector<Words>(hosts.size()), hosts);
  }
};

std::vector<uint8_t> trained_on(const Words& hosts, const std::string& strategy, Words more) {
  const ApartPlace place(strategy);
  more.insert(more.end(), {"--devices", hosts.size() == 2 ? "cpu:0-1" : "cpu:0"});
  auto ranks = place.start_on(hosts, more);
  expect(kDone, ranks);
  has(ranks[0]->errors(), hosts.back() == "a" ? " ranks on 1 host" : " ranks on 2 hosts");
  return place.weights();
}

}  // namespace

TEST_CASE("two hosts that average apart have the same weights, to the bit, with one process each and with two") {
  for (const char* strategy : {"sma", "local"}) {
    for (const Words& more :
         {Words{}, Words{"--recalibrate", "3", "--plateau", "1", "--metric", "auc"}, Words{"--set", "train.ema=0.9"}}) {
      CAPTURE(strategy);
      CAPTURE(more);
      const std::vector<uint8_t> expected = trained_on({"a", "b"}, strategy, more);
      CHECK(trained_on({"a", "a", "b", "b"}, strategy, more) == expected);
      CHECK(trained_on({"a", "a", "a", "a"}, strategy, more) != expected);
    }
  }
}

TEST_CASE("two hosts with a GPU each that average apart repeat their weights, to the bit") {
  const int gpus = cuda_device_count();
  if (gpus == 0) {
    MESSAGE("SKIP: no CUDA device");
    return;
  }
  const std::string second = gpus > 1 ? "cuda:1" : "cuda:0";
  const auto trained = [&](const std::string& strategy, const Words& hosts) {
    const ApartPlace place(strategy);
    auto ranks = place.start(2, {"--learners", "2"}, {{"--devices", "cuda:0"}, {"--devices", second}}, hosts);
    expect(kDone, ranks);
    return place.weights();
  };
  for (const char* strategy : {"sma", "local"}) {
    CAPTURE(strategy);
    const std::vector<uint8_t> weights = trained(strategy, {"a", "b"});
    CHECK(trained(strategy, {"a", "b"}) == weights);
    if (gpus > 1) CHECK(trained(strategy, {"a", "a"}) != weights);
  }
}

TEST_CASE("hosts that average apart go on to the same bits from a checkpoint between two of their averagings") {
  for (const char* strategy : {"sma", "local"}) {
    CAPTURE(strategy);
    const Words more = {"--set", "train.epochs=20"}, hosts = {"a", "a", "b", "b"};
    const std::vector<uint8_t> expected = trained_on(hosts, strategy, more);
    const ApartPlace place(strategy);
    Words words = more;
    words.insert(words.end(), {"--devices", "cpu:0", "--checkpoint", place.path("c"), "--checkpoint-every", "7it"});
    words.push_back("--resume");
    size_t checkpoints = 0;
    for (const size_t killed : {size_t{3}, size_t{0}}) {
      CAPTURE(killed);
      auto ranks = place.start_on(hosts, words);
      await_checkpoints(place.path("c"), ++checkpoints);
      ranks[killed]->send(SIGKILL);
      for (size_t rank = 0; rank < 4; ++rank) CHECK(ranks[rank]->wait() == (rank == killed ? -SIGKILL : kFailed));
    }
    auto ranks = place.start_on(hosts, words);
    await_checkpoints(place.path("c"), ++checkpoints);
    ranks[1]->send(SIGTERM);
    expect(kInterrupted, ranks);
    ranks = place.start_on(hosts, words);
    expect(kDone, ranks);
    CHECK(place.weights() == expected);
  }
}

TEST_CASE("a run goes on with its devices on another number of hosts") {
  const ApartPlace place("sma");
  const Words words = {"--set", "train.epochs=400", "--checkpoint", place.path("c"), "--checkpoint-every", "7it"};
  Words two = words, one = words;
  two.insert(two.end(), {"--devices", "cpu:0"});
  auto ranks = place.start_on({"a", "b"}, two);
  await_checkpoints(place.path("c"), 1);
  ranks[0]->send(SIGTERM);
  expect(kInterrupted, ranks);
  one.insert(one.end(), {"--devices", "cpu:0-1", "--resume"});
  Rank process(place.command(one), place.path("errors"));
  CHECK_MESSAGE(process.wait() == kDone, process.errors());
}

TEST_CASE("the first rank of each host keeps its host's average, and ranks on other hosts read all") {
  const ApartPlace place("sma");
  Words words = {"--set", "train.epochs=400", "--devices", "cpu:0", "--checkpoint", place.path("c")};
  words.insert(words.end(), {"--checkpoint-every", "7it", "--resume"});
  auto ranks = place.start_on({"a", "a", "b", "b"}, words);
  await_checkpoints(place.path("c"), 1);
  ranks[1]->send(SIGTERM);
  expect(kInterrupted, ranks);
  const std::filesystem::path newest = checkpoints_in(place.path("c")).front();
  const CheckpointParts parts = read_checkpoint(newest).checkpoint.parts;
  for (size_t rank = 0; rank < 4; ++rank) {
    CAPTURE(rank);
    const TensorFile file = read_safetensors(rank == 0 ? newest : part_path(newest, parts.tag, rank));
    const std::string weight = "average/" + file.tensors.front().name.substr(std::string("learner 0/weights/").size());
    CHECK((file.find(weight) != nullptr) == (rank == 0));
    CHECK((file.find("host 1/" + weight) != nullptr) == (rank == 2));
    if (rank > 0) CHECK(parts.of_ranks[rank - 1].host == (rank == 2 ? 1 : kNone));
  }
  words.insert(words.end(), {"--time-limit", "0.5"});
  ranks = place.start_on({"a", "b", "b", "b"}, words);
  expect(kInterrupted, ranks);
}

TEST_CASE("a host's name that is none is refused") {
  const ApartPlace place("sma");
  auto ranks = place.start_on({"a", "b\tc"}, {"--devices", "cpu:0", "--rendezvous-timeout", "1"});
  CHECK(ranks[1]->wait() == kWrong);
  has(ranks[1]->errors(), "ARBALEST_HOST is 'b\\x09c'; expected the name of a host, of 255 letters at most");
  CHECK(ranks[0]->wait() == kFailed);
}

}  // namespace world_hosts_test
#endif
