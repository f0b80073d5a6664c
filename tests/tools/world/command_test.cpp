// SPDX-License-Identifier: Apache-2.0

// `arbalest run` as several processes: each rank is one, started as another copy of this program.

#include <doctest/doctest.h>

#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/plain_message.h"
#include "base/process.h"
#include "base/time/clock.h"
#include "executor/devices/device.h"
#include "executor/world/connection.h"
#include "tests/tools/world/ranks.h"

#ifdef ARBALEST_GLOO

using namespace arbalest;
using namespace arbalest::test;

namespace world_command_test {
namespace {

int64_t ticks_of(pid_t process, const std::string& thread) {
  std::ifstream file(fmt::format("/proc/{}/task/{}/stat", process, thread));
  std::string text((std::istreambuf_iterator<char>(file)), {});
  std::istringstream fields(text.substr(std::min(text.rfind(')') + 2, text.size())));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  int64_t user = 0, system = 0;
  fields >> user >> system;
  return user + system;
}

// The thread of the process that is called so or, without a name, has taken most time apart from the main one; 0: none.
pid_t find_thread(pid_t process, const std::string& name) {
  pid_t found = 0;
  int64_t most = -1;
  for (const auto& entry : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", process))) {
    const std::string id = entry.path().filename().string();
    std::ifstream file(entry.path() / "comm");
    std::string called;
    std::getline(file, called);
    const int64_t ticks = ticks_of(process, id);
    if (name.empty() ? id == std::to_string(process) : called != name) continue;
    if (ticks <= most) continue;
    most = ticks;
    found = pid_t(std::stol(id));
  }
  return found;
}

// Stops a thread, as one that waits for a disk for ever would stand. False: the system does not let this process do so.
// It stays so until its process ends.
bool freeze(pid_t thread) {
  return ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) == 0 && ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) == 0;
}

// Takes the thread that gets the signal into a computation that lasts longer than the test.
void compute_for_long(int /*signal*/) {
  constexpr int64_t kLong = 100'000'000'000;  // ns of processor time
  for (const int64_t began = clock_ns(CLOCK_THREAD_CPUTIME_ID); clock_ns(CLOCK_THREAD_CPUTIME_ID) < began + kLong;) {
  }
}

Words frozen_words(const Place& place, const char* strategy, const char* every, const Words& more) {
  Words words = {"--strategy",     strategy, "--set",        "train.epochs=4000", "--device-timeout",   "3",
                 "--read-timeout", "5",      "--checkpoint", place.path("c"),     "--checkpoint-every", every};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Freezes a thread of rank 1, as find_thread() finds it, and checks that all ranks end in time. False: the system does
// not let this process do so.
bool end_by_frozen_thread(std::vector<std::unique_ptr<Rank>>& ranks, const std::string& name = "") {
  const pid_t frozen = find_thread(ranks[1]->process(), name);
  REQUIRE(frozen != 0);
  if (!freeze(frozen)) {
    MESSAGE("SKIP: threads of other processes cannot be stopped here");
    return false;
  }
  const auto began = WallTime::now();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (rank == 1) continue;
    CHECK(ranks[rank]->wait() == kFailed);
    const std::string why = ranks[rank]->errors();
    const auto says = [&](const char* part) { return why.find(part) != why.npos; };
    CHECK_MESSAGE((says("stands still at ") || says("all ranks wait") || says(" is lost: ")), why);
    has(why, "rank 1 ");
  }
  // Threads of the host have ten times --device-timeout.
  CHECK(WallTime::now() - began < std::chrono::seconds(50));
  int status = 0;
  for (pid_t found = 0; found != -1 && (found != frozen || (!WIFEXITED(status) && !WIFSIGNALED(status)));) {
    found = waitpid(frozen, &status, __WALL | WNOHANG);
    if (WallTime::now() - began > std::chrono::seconds(150)) ranks[1]->send(SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  CHECK(ranks[1]->wait() == kFailed);
  return true;
}

}  // namespace

// Not a test by itself.
TEST_CASE("one rank of a world") {
  const char* const given = std::getenv(kWords);
  if (!given) return;
  if (const char* const most = std::getenv(kMostOfFile)) {
    const rlimit limit = {std::stoul(most), std::stoul(most)};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    std::signal(SIGXFSZ, SIG_IGN);
  }
  std::istringstream lines{std::string(given)};
  Words words;
  for (std::string line; std::getline(lines, line);) words.push_back(line);
  const char* const spinning = std::getenv(kSpinning);
  const auto rank = std::find(words.begin(), words.end(), "--rank");
  if (spinning && words.end() - rank > 1 && rank[1] == spinning) {
    std::thread([] {
      for (std::atomic<int64_t> looks = 0;;) looks.fetch_add(1);
    }).detach();
  }
  std::signal(SIGRTMIN, compute_for_long);
  std::vector<const char*> pointers;
  for (const std::string& word : words) pointers.push_back(word.c_str());
  int status = kFailed;
  try {
    status = parse(pointers).run();
  } catch (const Error& error) {
    warn(plain_message(error));
    status = int(error.code());
  }
  std::fflush(stdout);
  std::_Exit(status);
}

TEST_CASE("four learners have the same weights, to the bit, as one, two and four processes") {
  for (const Words& more : {Words{"--strategy", "ssgd"}, Words{"--strategy", "sma"}, Words{"--strategy", "local"},
                            Words{"--strategy", "sma", "--recalibrate", "3", "--plateau", "1", "--metric", "auc"}}) {
    CAPTURE(more);
    const std::vector<uint8_t> expected = alone(more);
    for (const auto& [size, devices] : {std::pair{2, "cpu:0-1"}, {4, "cpu:0"}}) {
      CAPTURE(size);
      const Place place;
      Words words = more;
      words.insert(words.end(), {"--devices", devices, "--log", place.path("log")});
      auto ranks = place.start(size, words);
      expect(kDone, ranks);
      CHECK(place.weights() == expected);
      has(ranks[0]->errors(), "as --world-size " + std::to_string(size) + " says");
      for (int rank = 1; rank < size; ++rank) CHECK(ranks[size_t(rank)]->errors() == "");
      std::ifstream log(place.path("log"));
      int epochs = 0;
      for (std::string line; std::getline(log, line);) epochs += nlohmann::json::parse(line)["event"] == "epoch";
      CHECK(epochs == 4);
    }
  }
}

TEST_CASE("a killed rank ends all, and the same command goes on to the same bits") {
  for (const char* strategy : {"ssgd", "sma"}) {
    CAPTURE(strategy);
    const Words more = {"--strategy", strategy, "--set", "train.epochs=40"};
    const std::vector<uint8_t> expected = alone(more);
    const Place place;
    Words words = more;
    words.insert(words.end(), {"--devices", "cpu:0", "--checkpoint", place.path("c"), "--checkpoint-every", "7it"});
    words.insert(words.end(), {"--resume"});
    size_t checkpoints = 0;
    for (const size_t killed : {size_t{1}, size_t{0}, size_t{3}}) {
      CAPTURE(killed);
      auto ranks = place.start(4, words);
      await_checkpoints(place.path("c"), std::min<size_t>(3, ++checkpoints));
      ranks[killed]->send(SIGKILL);
      const auto began = WallTime::now();
      for (size_t rank = 0; rank < 4; ++rank) CHECK(ranks[rank]->wait() == (rank == killed ? -SIGKILL : kFailed));
      CHECK(WallTime::now() - began < std::chrono::seconds(30));
      for (size_t rank = 0; rank < 4; ++rank) {
        if (rank != killed) has(ranks[rank]->errors(), fmt::format("rank {} on {} is lost", killed, host_name()));
        if (rank != killed && rank > 0) has(ranks[rank]->errors(), fmt::format("arbalest: rank {} on", rank));
        // Between two stretches of the run it may wait for nothing.
        const bool waits =
            ranks[rank]->errors().find(fmt::format("; rank {} has waited for it at ", rank)) != std::string::npos;
        if (rank != killed && !waits)
          has(ranks[rank]->errors(), fmt::format("; rank {} waits for nothing from it", rank));
      }
    }
    auto ranks = place.start(4, words);
    expect(kDone, ranks);
    CHECK(place.weights() == expected);
  }
}

TEST_CASE("a rank that stands still is lost after a while, and ends by itself when it goes on") {
  const Place place;
  auto ranks = place.start(3, {"--strategy", "sma", "--set", "train.epochs=4000", "--devices", "cpu:0", "--checkpoint",
                               place.path("c"), "--checkpoint-every", "20it", "--lost-after", "4"});
  await_checkpoints(place.path("c"), 1);
  ranks[1]->send(SIGSTOP);
  const auto began = WallTime::now();
  for (const size_t rank : {size_t{0}, size_t{2}}) {
    CHECK(ranks[rank]->wait() == kFailed);
    has(ranks[rank]->errors(), fmt::format("rank 1 on {} is lost: nothing was heard of it for 4 s", host_name()));
  }
  CHECK(WallTime::now() - began < std::chrono::seconds(15));
  ranks[1]->send(SIGCONT);
  CHECK(ranks[1]->wait() == kFailed);
  has(ranks[1]->errors(), fmt::format("rank 1 on {} was itself silent for ", host_name()));
}

// The first thread is found by the run itself, the other one by what watches the connections. Where the rank spins, a
// library's thread looks for what the frozen one keeps from it.
TEST_CASE("a rank of which one thread stands still is lost, and ends as well") {
  struct Case {
    const char *strategy, *thread;
    bool spins;
  };
  for (const auto& [strategy, thread, spins] :
       {Case{"ssgd", "the device cpu:", false}, {"sma", "hears rank 0", false}, {"ssgd", "the device cpu:", true}}) {
    CAPTURE(thread);
    CAPTURE(spins);
    const Place place;
    const Words more = {"--devices", "cpu:0", "--lost-after", "4"};
    if (spins) setenv(kSpinning, "1", 1);
    auto ranks = place.start(3, frozen_words(place, strategy, "20it", more));
    unsetenv(kSpinning);
    await_checkpoints(place.path("c"), 1);
    if (!end_by_frozen_thread(ranks, thread)) return;
  }
}

namespace {

// Lets a thread of rank 1's device compute for ever, and checks how both ranks end. False: it was caught between two
// kernels, so that all ranks wait for each other, which they say.
bool ends_by_endless_kernel() {
  const Place place;
  std::string graph = kGraph;
  // Kernels that take long, and few parameters: the thread is hardly ever busy with something else.
  for (const auto& [from, to] : {std::pair{"filters = 4", "filters = 64"},
                                 {"size=16", "size=64"},
                                 {"batch = 8", "batch = 64"},
                                 {"h = Flatten (c)", "p = GlobalAveragePool (c)\n  h = Flatten (p)"}}) {
    graph.replace(graph.find(from), std::string(from).size(), to);
  }
  place.folder.write("g.onnxtxt", graph);
  auto ranks = place.start(2, {"--strategy", "sma", "--set", "train.epochs=4000", "--devices", "cpu:0",
                               "--device-timeout", "1", "--checkpoint", place.path("c"), "--checkpoint-every", "4it"});
  await_checkpoints(place.path("c"), 1);
  std::this_thread::sleep_for(std::chrono::seconds(5));  // rank 0 has heard where rank 1 is by then
  const pid_t process = ranks[1]->process(), computes = find_thread(process, "the device cpu:");
  REQUIRE(computes != 0);
  const auto is_busy = [&] {
    const int64_t before = ticks_of(process, std::to_string(computes));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return ticks_of(process, std::to_string(computes)) >= before + 2;
  };
  const auto until = WallTime::now() + std::chrono::seconds(10);
  while (!is_busy() && WallTime::now() < until) {
  }
  const auto computed = WallTime::now();
  REQUIRE(syscall(SYS_tgkill, process, computes, SIGRTMIN) == 0);
  for (const size_t rank : {size_t{1}, size_t{0}}) CHECK(ranks[rank]->wait() == kFailed);
  if (ranks[0]->errors().find("all ranks wait for each other") != std::string::npos) return false;
  CHECK(WallTime::now() - computed >= std::chrono::seconds(10));  // ten times --device-timeout
  has(ranks[1]->errors(), ": node '") && has(ranks[1]->errors(), " has computed for ");
  has(ranks[0]->errors(), fmt::format("rank 1 on {} is lost: ", host_name()));
  has(ranks[0]->errors(), " s before, it was at ") && has(ranks[0]->errors(), ", node '");
  has(ranks[0]->errors(), "; rank 0 has waited for it at ");
  // Once in a run: where cores are shared, perhaps before.
  has(ranks[0]->errors(), "nothing has completed for a while; waiting:\n");
  return true;
}

}  // namespace

TEST_CASE("a rank whose kernel computes for ever ends with its name, and the others say what they waited for") {
  constexpr int kMost = 5;
  int tried = 1;
  while (!ends_by_endless_kernel() && tried < kMost) ++tried;
  CHECK(tried < kMost);
}

TEST_CASE("a run that was started by hand is resumed rank by rank") {
  const Words more = {"--set", "train.epochs=40", "--devices", "cpu:0"};
  const Place whole, place;
  auto ranks = whole.start(2, more);
  expect(kDone, ranks);
  Words words = more;
  words.insert(words.end(), {"--checkpoint", place.path("c"), "--checkpoint-every", "7it"});
  ranks = place.start(2, words);
  await_checkpoints(place.path("c"), 1);
  ranks[1]->send(SIGKILL);
  for (const auto& rank : ranks) rank->wait();
  Rank unknown({"resume", place.path("c")}, place.path("errors"));
  CHECK(unknown.wait() == kWrong);
  has(unknown.errors(), "the run was started by hand, as 2 processes; expected --rank, which is this one's");
  std::vector<std::unique_ptr<Rank>> again;
  for (const char* rank : {"0", "1"}) {
    again.push_back(std::make_unique<Rank>(Words{"resume", place.path("c"), "--rank", rank}, place.path("errors")));
  }
  expect(kDone, again);
  CHECK(place.weights() == whole.weights());
}

TEST_CASE("a process that says it is one of several and is alone does not wait for ever") {
  const Place place;
  const std::string port = "127.0.0.1:" + std::to_string(free_port());
  for (const auto& [rank, message] : {std::pair{"0", "ranks 1, 2 of 3 did not come to rank 0, on "},
                                      {"1", "rank 1 of 3 finds no rank 0 at 127.0.0.1:"}}) {
    const Words words =
        place.command({"--rank", rank, "--world-size", "3", "--rendezvous", port, "--rendezvous-timeout", "0.5"});
    Rank alone(words, place.path("errors"));
    CHECK(alone.wait() == kFailed);
    has(alone.errors(), message);
  }
}

// Ranks of a world of three that are started one by one.
struct OneByOne {
  const Place place;
  const std::string port = "127.0.0.1:" + std::to_string(free_port());
  std::vector<std::unique_ptr<Rank>> ranks = std::vector<std::unique_ptr<Rank>>(3);

  void start(int rank) {
    const std::string number = std::to_string(rank);
    ranks[size_t(rank)] = std::make_unique<Rank>(
        place.command({"--strategy", "sma", "--devices", "cpu:0", "--rank", number, "--world-size", "3", "--rendezvous",
                       port, "--rendezvous-timeout", "200"}),
        place.path("errors " + number));
  }
  // Starts ranks 0 and 1, and returns once rank 0 says that the third alone is missing.
  void start_two() {
    start(1);
    start(0);
    const auto until = WallTime::now() + std::chrono::seconds(80);
    while (ranks[0]->errors().find(" for rank 2 of 3") == std::string::npos && WallTime::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    REQUIRE(has(ranks[0]->errors(), " for rank 2 of 3"));
  }
};

TEST_CASE("a rank that died while others were missing may be started again") {
  OneByOne world;
  world.start_two();
  world.ranks[1]->send(SIGKILL);
  CHECK(world.ranks[1]->wait() == -SIGKILL);
  world.start(1);
  world.start(2);
  expect(kDone, world.ranks);
}

TEST_CASE("a signal while ranks meet ends all that are there, at once, and says which rank got it") {
  for (const auto& [rank, signal] : {std::pair{size_t{1}, SIGTERM}, {size_t{0}, SIGINT}}) {
    OneByOne world;
    world.start_two();
    world.ranks[rank]->send(signal);
    world.ranks.pop_back();
    expect(kInterrupted, world.ranks);
    for (const auto& each : world.ranks) {
      has(each->errors(), fmt::format("rank {} on {} was interrupted by SIG{} before all ranks had begun", rank,
                                      host_name(), sigabbrev_np(signal)));
    }
  }
}

TEST_CASE("a signal to any rank ends all with a checkpoint after the same iteration") {
  const Words more = {"--strategy", "sma", "--set", "train.epochs=40"};
  const std::vector<uint8_t> expected = alone(more);
  const Place place;
  Words words = more;
  words.insert(words.end(), {"--devices", "cpu:0-1", "--checkpoint", place.path("c"), "--checkpoint-every", "9it"});
  words.insert(words.end(), {"--resume"});
  for (const auto& [rank, signal] : {std::pair{size_t{1}, SIGTERM}, {size_t{0}, SIGUSR1}, {size_t{1}, SIGINT}}) {
    const auto before = checkpoints_in(place.path("c"));
    auto ranks = place.start(2, words);
    const auto until = WallTime::now() + std::chrono::seconds(60);
    while (checkpoints_in(place.path("c")) == before && WallTime::now() < until) std::this_thread::yield();
    ranks[rank]->send(signal);
    expect(kInterrupted, ranks);
    has(ranks[0]->errors(), "interrupted ");
  }
  auto ranks = place.start(2, words);
  expect(kDone, ranks);
  CHECK(place.weights() == expected);
}

TEST_CASE("time limits and reached targets end all ranks alike") {
  const Place place;
  const Words more = {"--strategy", "ssgd", "--set", "train.epochs=4000", "--devices", "cpu:0"};
  Words timed = more;
  timed.insert(timed.end(), {"--time-limit", "1", "--checkpoint", place.path("c")});
  auto ranks = place.start(2, timed);
  expect(kInterrupted, ranks);
  CHECK(checkpoints_in(place.path("c")).size() == 1);
  Words until = more;
  until.insert(until.end(), {"--until", "accuracy>=0.05"});
  ranks = place.start(2, until);
  expect(kDone, ranks);
}

TEST_CASE("ranks that differ are refused everywhere, with both values") {
  const Place place;
  const auto trained = [&](const std::string& name, const std::string& seed) {
    auto ranks = place.start(1, {"--devices", "cpu:0", "--epochs", "1", "--seed", seed});
    expect(kDone, ranks);
    std::filesystem::rename(place.path("w"), place.path(name));
    return Words{"--weights", place.path(name)};
  };
  const auto refused = [&](const Words& own, const std::string& what, const Words& of_first = {}) {
    auto ranks = place.start(2, {"--strategy", "ssgd", "--devices", "cpu:0"}, {of_first, own});
    expect(kWrong, ranks);
    for (const auto& rank : ranks) {
      has(rank->errors(), fmt::format("rank 1 on {} differs from rank 0 on {}: {}", host_name(), host_name(), what));
    }
  };
  refused({"--seed", "5"}, "seed: 5; expected as on rank 0");
  refused({"--set", "train.lr=0.5"}, "graph: trained: ");
  refused({"--schedule-epochs", "9"}, "epochs of the schedule: 9;");
  const Words weights = trained("of rank 1", "5");
  refused(weights, "--weights: given;");
  refused(weights, "weights: ", trained("of rank 0", "6"));
  refused({"--epochs", "9"}, "epochs: 9;");
  refused({"--set", "prefetch.source=\"glyphs:?train=513&test=100&size=16\""}, "training data: ");
  refused({"--until", "accuracy>=0.5"}, "--until: ");
}

// Ranks with a GPU each: GPUs of their own where there are as many, else the first, for which NCCL takes them for two
// hosts, so that arrays go through sockets.
struct RanksWithGpus {
  const Place place;
  const bool apart = cuda_device_count() < 2;

  std::vector<std::unique_ptr<Rank>> start(const Words& more) const {
    const std::string port = "127.0.0.1:" + std::to_string(free_port());
    std::vector<std::unique_ptr<Rank>> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      const std::string number = std::to_string(rank);
      Words words = place.command(more);
      words.insert(words.end(), {"--world-size", "2", "--rank", number, "--rendezvous", port});
      words.insert(words.end(), {"--devices", apart ? "cuda:0" : "cuda:" + number});
      const Words variables = apart ? Words{"NCCL_HOSTID=host" + number} : Words{};
      ranks.push_back(std::make_unique<Rank>(words, place.path("errors " + number), variables));
    }
    return ranks;
  }
};

bool gpus_are_there() {
  if (cuda_device_count() > 0) return true;
  MESSAGE("SKIP: no CUDA device");
  return false;
}

TEST_CASE("two processes on GPUs have the same weights, to the bit, as two learners of one process") {
  if (!gpus_are_there()) return;
  for (const char* strategy : {"ssgd", "sma", "local"}) {
    CAPTURE(strategy);
    const RanksWithGpus world;
    const Place one;
    Words words = one.command({"--strategy", strategy, "--devices", "cuda:0", "--learners", "2"});
    Rank process(words, one.path("errors"));
    const int status = process.wait();
    CHECK_MESSAGE(status == kDone, process.errors());
    auto ranks = world.start({"--strategy", strategy});
    expect(kDone, ranks);
    CHECK(world.place.weights() == one.weights());
  }
}

TEST_CASE("a killed rank ends the others on GPUs, and the same command goes on to the same bits") {
  if (!gpus_are_there()) return;
  const Words more = {"--strategy", "ssgd", "--set", "train.epochs=100"};
  const RanksWithGpus whole;
  auto ranks = whole.start(more);
  expect(kDone, ranks);
  const RanksWithGpus world;
  const std::string folder = world.place.path("c");
  Words words = more;
  words.insert(words.end(), {"--checkpoint", folder, "--checkpoint-every", "50it", "--resume"});
  for (const size_t killed : {size_t{1}, size_t{0}}) {
    CAPTURE(killed);
    ranks = world.start(words);
    await_checkpoints(folder, killed == 1 ? 1 : 2);
    ranks[killed]->send(SIGKILL);
    const auto began = WallTime::now();
    CHECK(ranks[killed]->wait() == -SIGKILL);
    CHECK(ranks[1 - killed]->wait() == kFailed);
    CHECK(WallTime::now() - began < std::chrono::seconds(30));
    has(ranks[1 - killed]->errors(), fmt::format("rank {} on {} is lost", killed, host_name()));
  }
  ranks = world.start(words);
  expect(kDone, ranks);
  CHECK(world.place.weights() == whole.place.weights());
}

TEST_CASE("a rank with a GPU of which one thread stands still is lost, and ends as well") {
  if (!gpus_are_there()) return;
  for (const char* strategy : {"ssgd", "sma"}) {
    CAPTURE(strategy);
    const RanksWithGpus world;
    auto ranks = world.start(frozen_words(world.place, strategy, "600it", {}));
    await_checkpoints(world.place.path("c"), 2);
    if (!end_by_frozen_thread(ranks)) return;
  }
}

TEST_CASE("two ranks with the same GPU are told so") {
  if (!gpus_are_there()) return;
  const Place place;
  auto ranks = place.start(2, {"--strategy", "ssgd", "--devices", "cuda:0"});
  expect(kWrong, ranks);
  for (const auto& rank : ranks) has(rank->errors(), "have the same GPU (");
}

TEST_CASE("a model for each learner is refused in a world before anything runs") {
  const Place place;
  auto ranks = place.start(2, {"--strategy", "none"});
  expect(kWrong, ranks);
  has(ranks[0]->errors(), "the strategy 'none', by which learners do not agree, is for one process");
}

}  // namespace world_command_test
#endif
