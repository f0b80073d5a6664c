// SPDX-License-Identifier: Apache-2.0

// Checkpoints of several ranks, of which each writes its part: they are whole or not there. Ranks are threads here.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <limits>
#include <thread>

#include "base/files/file.h"
#include "executor/training/checkpoint_writer.h"
#include "io/formats/safetensors.h"
#include "tests/executor/fixture.h"
#include "tests/executor/world/free_port.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace fs = std::filesystem;

namespace checkpoint_parts_test {
namespace {

constexpr int kRanks = 3;

// Runs a function as each rank of a world, and returns their errors: "": none.
std::vector<std::string> world(int size, const std::function<void(const std::shared_ptr<Ranks>&)>& each) {
  const int port = free_port();
  std::vector<std::future<std::string>> running;
  for (int rank = 0; rank < size; ++rank) {
    running.push_back(std::async(std::launch::async, [=, &each]() -> std::string {
      WorldSettings settings;
      settings.rank = rank;
      settings.size = size;
      settings.host = "127.0.0.1";
      settings.port = port;
      const auto ranks = std::make_shared<Ranks>(settings);
      std::string error = message_of([&] { each(ranks); });
      if (error.empty()) error = message_of([&] { ranks->end(); });
      return error;
    }));
  }
  std::vector<std::string> errors;
  for (auto& rank : running) errors.push_back(rank.get());
  return errors;
}

void check_none(const std::vector<std::string>& errors) {
  for (const std::string& error : errors) CHECK(error == "");
}

// The checkpoint of a run of three learners, with all arrays, and how they lie in memory.
struct Whole {
  std::shared_ptr<const CheckpointLayout> layout;
  Checkpoint checkpoint;

  Whole() {
    const TestFolder folder;
    TinyNet net;
    net.train = "lr = 0.05, momentum = 0.9, ema = 0.9";
    net.synchronize = "strategy = \"sma\", every = 2";
    SessionOptions options = on_cpus(kRanks);
    options.length.epochs = 1;
    options.checkpoints.folder = folder / "c";
    run(tiny(net), options);
    layout = std::make_shared<CheckpointLayout>(prepare(tiny(net), options).program.training());
    const auto file = newest_checkpoint(folder / "c");
    checkpoint = file->checkpoint;
    layout->decode(*file, checkpoint);
  }

  // Rank r's share of it, as a checkpoint after so many iterations.
  Checkpoint of_rank(int rank, int64_t iteration, const std::string& tag) const {
    Checkpoint part = checkpoint;
    part.position.iteration = iteration;
    part.parts.tag = tag;
    part.parts.of_ranks = {{1, 1}, {2, 1}};
    RunState& state = part.segment.state;
    for (size_t learner = 0; learner < kRanks; ++learner) {
      if (learner == size_t(rank)) continue;
      LearnerState& other = state.learners[learner];
      other.weights.clear();
      other.statistics.clear();
      other.slots.clear();
      part.segment.kept[learner].clear();
    }
    if (rank == 0) return part;
    state.frozen.clear();
    state.averages.clear();
    state.moving_average.weights.clear();
    part.keeps_validated = false;
    part.segment.validating = false;
    return part;
  }
};

const Whole& whole() {
  static const Whole once;
  return once;
}

constexpr const char *kTag = "0123456789abcdef", *kOther = "fedcba9876543210";

// The files of a checkpoint as ranks write them.
void put(const fs::path& folder, int64_t iteration, const std::string& tag = kTag) {
  const CheckpointFolder names(folder.string(), false);
  fs::create_directories(folder);
  for (const int rank : {1, 2}) {
    write_part(names.path_of(iteration), size_t(rank), *whole().layout, whole().of_rank(rank, iteration, tag));
  }
  write_checkpoint(names.path_of(iteration), *whole().layout, whole().of_rank(0, iteration, tag));
}

fs::path part_of(const fs::path& folder, int64_t iteration, size_t rank, const std::string& tag = kTag) {
  return part_path(CheckpointFolder(folder.string(), false).path_of(iteration), tag, rank);
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!entry.path().filename().string().starts_with(".")) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Ranks that write a checkpoint, and the errors that they have at the end. `change`: called before a rank writes.
struct Writing {
  int64_t iteration = 20, keep = 1;
  std::function<void(int rank, CheckpointWriter::Job& job)> change = {};
  std::function<std::string(int rank)> folder;
  std::vector<std::string> errors = std::vector<std::string>(kRanks);
  std::optional<CheckpointWriter::NotFinite> not_finite = {};

  void write() {
    check_none(world(kRanks, [this](const std::shared_ptr<Ranks>& ranks) {
      const int rank = ranks->rank();
      const auto held = std::make_shared<const CheckpointFolder>(folder(rank), rank == 0);
      CheckpointWriter writer(held, keep, [] { return int64_t{0}; });
      CheckpointWriter::Job job = {whole().layout,   whole().of_rank(rank, iteration, kTag), {}, ranks, rank,
                                   ranks->name(rank)};
      if (change) change(rank, job);
      writer.write(std::move(job));
      writer.wait();
      errors[size_t(rank)] = writer.error();
      if (rank == 0) not_finite = writer.take_not_finite();
    }));
  }
};

}  // namespace

TEST_CASE("ranks write a checkpoint in parts, and any number of them reads it") {
  const TestFolder folder;
  Writing writing{.folder = [&](int) { return folder / "c"; }};
  writing.write();
  CHECK(writing.errors == std::vector<std::string>(kRanks));
  CHECK(names_in(folder / "c").size() == kRanks);
  Checkpoint all;
  const auto alone = newest_checkpoint(folder / "c");
  REQUIRE(alone);
  all = alone->checkpoint;
  whole().layout->decode(*alone, all);
  const RunState& expected = whole().checkpoint.segment.state;
  const auto same = [&](const RunState& found, size_t learner) {
    CHECK(found.learners[learner].weights == expected.learners[learner].weights);
    CHECK(found.learners[learner].slots == expected.learners[learner].slots);
    CHECK(found.averages[0].now == expected.averages[0].now);
    CHECK(found.moving_average.weights == expected.moving_average.weights);
  };
  for (size_t learner = 0; learner < kRanks; ++learner) same(all.segment.state, learner);
  for (int size = 2; size <= 4; ++size) {
    CAPTURE(size);
    check_none(world(size, [&](const std::shared_ptr<Ranks>& ranks) {
      const auto file = newest_checkpoint(folder / "c", ranks.get());
      REQUIRE(file);
      const int rank = ranks->rank();
      for (size_t part = 1; part < kRanks; ++part) CHECK(file->left.contains(part) == (int(part) % size != rank));
      for (int64_t learner = 0; learner < kRanks; ++learner) {
        Checkpoint own = file->checkpoint;
        whole().layout->decode(*file, own, {.all = false, .first_learner = learner, .learners = 1, .hosts = {0}});
        same(own.segment.state, size_t(learner));
        CHECK(own.segment.state.learners[size_t(learner + 1) % kRanks].weights.empty());
      }
      Checkpoint every = file->checkpoint;
      whole().layout->decode(*file, every);
      for (size_t learner = 0; learner < kRanks; ++learner) same(every.segment.state, learner);
    }));
  }
}

TEST_CASE("a checkpoint of which a part is missing, damaged or another's is left out, and the one before is taken") {
  const TestFolder folder;
  const fs::path path = folder / "c", part = part_of(path, 20, 2);
  const auto replaced = [&](const std::function<void()>& damage, const std::string& expected) {
    fs::remove_all(path);
    put(path, 10);
    put(path, 20);
    CHECK(newest_checkpoint(path)->checkpoint.position.iteration == 20);
    damage();
    CAPTURE(expected);
    const std::string told = message_of([&] { read_checkpoint(path / "checkpoint-000000000020.safetensors"); });
    CHECK_MESSAGE(contains(told, part.filename().string()), told);
    CHECK_MESSAGE(contains(told, expected), told);
    CHECK(contains(told, "checkpoint-000000000020.safetensors: not whole: "));
    CHECK(newest_checkpoint(path)->checkpoint.position.iteration == 10);
    check_none(world(2, [&](const std::shared_ptr<Ranks>& ranks) {
      CHECK(newest_checkpoint(path, ranks.get())->checkpoint.position.iteration == 10);
      CHECK(newest_finite_checkpoint(path, 21, ranks.get())->checkpoint.position.iteration == 10);
    }));
  };
  replaced([&] { fs::remove(part); }, "is missing");
  replaced([&] { fs::resize_file(part, fs::file_size(part) / 2); }, "safetensors");
  replaced([&] { fs::resize_file(part, 0); }, "safetensors");
  replaced([&] { fs::copy_file(part_of(path, 20, 1), part, fs::copy_options::overwrite_existing); },
           "is not rank 2's part of it, but of another checkpoint");
  replaced([&] { fs::copy_file(part_of(path, 10, 2), part, fs::copy_options::overwrite_existing); },
           "is not rank 2's part of it, but of another checkpoint");
  replaced(
      [&] {
        const TestFolder elsewhere;  // a run with the same iterations
        put(elsewhere / "c", 20, kOther);
        fs::copy_file(part_of(elsewhere / "c", 20, 2, kOther), part, fs::copy_options::overwrite_existing);
      },
      "is not rank 2's part of it, but of another checkpoint");
  for (const fs::path& each : {part_of(path, 10, 1), part_of(path, 20, 1)}) fs::remove(each);
  for (const std::string& error :
       world(2, [&](const std::shared_ptr<Ranks>& ranks) { newest_checkpoint(path, ranks.get()); })) {
    CHECK_MESSAGE(contains(error, "2 checkpoints are there, and none can be read"), error);
  }
}

TEST_CASE("a part is no checkpoint by itself") {
  const TestFolder folder;
  put(folder / "c", 20);
  const std::string told = message_of([&] { read_checkpoint(part_of(folder / "c", 20, 1)); });
  CHECK(contains(told, "one rank's part of a checkpoint, which is read with that: expected rank 0's file"));
  CHECK(checkpoints_in(folder / "c").size() == 1);
}

TEST_CASE("a rank that cannot write its part leaves no checkpoint, and the one before stays") {
  const TestFolder folder;
  put(folder / "c", 10, kOther);
  Writing writing{.folder = [&](int rank) { return rank == 1 ? folder / "nowhere" : folder / "c"; }};
  writing.write();
  CHECK(contains(writing.errors[0], "checkpoint-000000000020.safetensors: not written: rank 1 on "));
  CHECK(contains(writing.errors[0], "cannot be created"));
  CHECK(contains(writing.errors[1], "rank 1 on "));
  CHECK(writing.errors[2] == "");
  CHECK_FALSE(writing.not_finite);
  CHECK(newest_checkpoint(folder / "c")->checkpoint.position.iteration == 10);
  CHECK(names_in(folder / "c").size() == kRanks);  // rank 2's part is gone again
}

TEST_CASE("parts that rank 0 does not see where it looks leave no checkpoint, and the one before stays") {
  const TestFolder folder;
  put(folder / "c", 10, kOther);
  fs::create_directories(folder / "other");
  Writing writing{.change = [](int, CheckpointWriter::Job& job) { job.patience = std::chrono::seconds(1); },
                  .folder = [&](int rank) { return folder / (rank == 2 ? "other" : "c"); }};
  writing.write();
  CHECK(contains(writing.errors[0], "checkpoint-000000000020.safetensors: not written: the part 'checkpoint-"));
  CHECK(contains(writing.errors[0], "that rank 2 on "));
  CHECK(contains(writing.errors[0], " has written is not seen here"));
  CHECK(writing.errors[1] + writing.errors[2] == "");
  CHECK(newest_checkpoint(folder / "c")->checkpoint.position.iteration == 10);
  CHECK(names_in(folder / "c").size() == kRanks);
}

TEST_CASE("if rank 0 cannot write, the parts of others go") {
  const TestFolder folder;
  put(folder / "c", 10, kOther);
  fs::create_directories(fs::path(folder / "c") / "checkpoint-000000000020.safetensors");
  Writing writing{.folder = [&](int) { return folder / "c"; }};
  writing.write();
  CHECK(contains(writing.errors[0], "cannot be replaced: it is a folder"));
  CHECK(names_in(folder / "c").size() == kRanks + 1);
  CHECK(newest_checkpoint(folder / "c")->checkpoint.position.iteration == 10);
}

TEST_CASE(
    "values that are not finite are found where rank 0 asks, though a rank cannot write, and nothing is written") {
  for (const auto& [bad, full] : {std::pair{0, -1}, {2, -1}, {2, 0}, {2, 1}}) {  // `full`: a rank that cannot write
    CAPTURE(bad);
    CAPTURE(full);
    const TestFolder folder;
    put(folder / "c", 10, kOther);
    if (full == 0) fs::create_directories(fs::path(folder / "c") / "checkpoint-000000000020.safetensors");
    Writing writing{
        .change =
            [bad = bad](int rank, CheckpointWriter::Job& job) {
              if (rank != bad) return;
              auto& weights = job.checkpoint.segment.state.learners[size_t(rank)].weights;
              const float infinite = std::numeric_limits<float>::infinity();
              std::memcpy(weights.data(), &infinite, sizeof infinite);
            },
        .folder = [&, full = full](int rank) { return folder / (rank == 1 && full == 1 ? "nowhere" : "c"); }};
    writing.write();
    REQUIRE(writing.not_finite);
    CHECK(writing.not_finite->array == fmt::format("learner {}/weights", bad));
    CHECK(writing.not_finite->iteration == 20);
    CHECK(names_in(folder / "c").size() == size_t(kRanks) + (full == 0 ? 1 : 0));
    CHECK(newest_checkpoint(folder / "c")->checkpoint.position.iteration == 10);
  }
}

TEST_CASE("ranks go back to an earlier checkpoint together, though one of them has not gone back before") {
  const TestFolder folder;
  put(folder / "c", 10);
  put(folder / "c", 20);
  check_none(world(2, [&](const std::shared_ptr<Ranks>& ranks) {
    const auto found = [&](int64_t gone_back_to) {
      const auto file = checkpoint_to_go_back_to(folder / "c", 25, ranks->first() ? gone_back_to : -1, ranks.get());
      return file->checkpoint.position.iteration;
    };
    CHECK(found(-1) == 20);
    CHECK(found(20) == 10);
    CHECK(found(10) == 20);
  }));
}

TEST_CASE("a checkpoint without the average of a rank's host is refused") {
  const TestFolder folder;
  put(folder / "c", 20);
  const auto file = newest_checkpoint(folder / "c");
  Checkpoint own = file->checkpoint;
  own.segment.state.learners[1].host = 1;
  const CheckpointNeeds needs = {.all = false, .first_learner = 1, .learners = 1, .hosts = {1}};
  CHECK(message_of([&] { whole().layout->decode(*file, own, needs); }) ==
        "the checkpoint has no average for learners of host 1");
}

TEST_CASE("ranks that read different checkpoints of the same iteration take neither") {
  const TestFolder folder;
  for (const char* place : {"c", "other"}) put(folder / place, 10);
  put(folder / "c", 20);
  put(folder / "other", 20, kOther);
  check_none(world(2, [&](const std::shared_ptr<Ranks>& ranks) {
    const auto file = newest_checkpoint(folder / (ranks->first() ? "c" : "other"), ranks.get());
    CHECK(file->checkpoint.position.iteration == 10);
  }));
}

TEST_CASE("the one before goes only once a late part is there") {
  const TestFolder folder;
  const fs::path path = folder / "c";
  put(path, 10, kOther);
  Writing writing{.change =
                      [&](int rank, CheckpointWriter::Job&) {
                        if (rank != 2) return;
                        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
                        while (!fs::exists(part_of(path, 20, 1)) && std::chrono::steady_clock::now() < until) {
                          std::this_thread::sleep_for(std::chrono::milliseconds(5));
                        }
                        std::this_thread::sleep_for(std::chrono::milliseconds(200));
                        CHECK(checkpoints_in(path).size() == 1);
                        CHECK(newest_checkpoint(path)->checkpoint.position.iteration == 10);
                      },
                  .folder = [&](int) { return path.string(); }};
  writing.write();
  CHECK(writing.errors == std::vector<std::string>(kRanks));
  CHECK(newest_checkpoint(path)->checkpoint.position.iteration == 20);
  CHECK(names_in(path).size() == kRanks);
}

TEST_CASE("a rank that is lost while its part is waited for leaves the one before") {
  const TestFolder folder;
  const std::string path = (folder / "c").string();
  put(path, 10, kOther);
  const auto errors = world(2, [&](const std::shared_ptr<Ranks>& ranks) {
    if (ranks->rank() == 1) {
      ranks->exchange("there", "");
      throw RunError("gone");
    }
    CheckpointWriter writer(std::make_shared<const CheckpointFolder>(path), 1, [] { return int64_t{0}; });
    ranks->exchange("there", "");
    writer.write({whole().layout, whole().of_rank(0, 20, kTag), {}, ranks, 0, ranks->name(0)});
    writer.wait();
    CHECK(contains(writer.error(), "checkpoint-000000000020.safetensors: not written: rank 1 on "));
    CHECK(contains(writer.error(), " is lost"));
  });
  CHECK(errors[1] == "gone");
  CHECK(newest_checkpoint(path)->checkpoint.position.iteration == 10);
}

TEST_CASE("a thread that waits for parts is not forgotten with calls that are to come") {
  check_none(world(2, [](const std::shared_ptr<Ranks>& ranks) {
    std::future<size_t> waiting;
    if (ranks->first()) {
      waiting = std::async(std::launch::async, [&] { return ranks->gather("late", "a").size(); });
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      ranks->forget();
    }
    ranks->exchange("forgotten", "");
    if (!ranks->first()) ranks->gather("late", "b");
    if (ranks->first()) CHECK(waiting.get() == 2);
  }));
}

TEST_CASE("parts of no checkpoint go, those of checkpoints and of what comes stay") {
  const TestFolder folder;
  const fs::path path = folder / "c";
  const auto strays = [&](std::initializer_list<int64_t> iterations) {
    for (const int64_t iteration : iterations) {
      write_part(CheckpointFolder(path.string(), false).path_of(iteration), 1, *whole().layout,
                 whole().of_rank(1, iteration, kOther));
    }
  };
  put(path, 10);
  put(path, 20);
  strays({5, 10, 30});
  {
    const CheckpointFolder held(path.string());
    CHECK(names_in(path).size() == 2 * kRanks + 1);  // that after iteration 30 may be of one that is not seen yet
    strays({5, 10, 15, 30});
    held.prune(20, 2, 0);
    CHECK(names_in(path).size() == 2 * kRanks + 1);
    CHECK(fs::exists(part_of(path, 30, 1, kOther)));
    held.prune(20, 1, 0);
    CHECK(names_in(path).size() == kRanks + 1);
    CHECK_FALSE(fs::exists(part_of(path, 10, 1)));
  }
  strays({20});
  const fs::path kept = path / "checkpoint-000000000020.safetensors";
  fs::resize_file(kept, 10);
  CHECK(message_of([&] { read_checkpoint(kept); }) != "");
  const fs::path killed =
      path / (".checkpoint-000000000030.rank-1." + std::string(kTag) + ".safetensors.tmp-0123456789abcdef");
  std::ofstream(killed) << "x";
  const CheckpointFolder held(path.string());
  CHECK_FALSE(fs::exists(killed));
  std::ofstream(killed) << "x";
  held.prune(29, 1, 0);
  CHECK(fs::exists(killed));
  CHECK(fs::exists(part_of(path, 20, 1)));  // somebody may repair what names them
  fs::remove(kept);
  fs::create_symlink(kept.filename(), kept);  // which cannot be looked for
  held.prune(30, 1, 0);
  CHECK(fs::exists(part_of(path, 20, 1)));
  CHECK_FALSE(fs::exists(killed));
  CHECK_FALSE(fs::exists(part_of(path, 30, 1, kOther)));
  put(path, 40);
  remove_after(path, 20);
  CHECK_FALSE(fs::exists(part_of(path, 40, 1)));
  CHECK(fs::exists(part_of(path, 20, 1)));
}

TEST_CASE("ranks whose folders are not the same one are told so before anything is trained") {
  const TestFolder folder;
  const auto errors = world(kRanks, [&](const std::shared_ptr<Ranks>& ranks) {
    open_checkpoints((ranks->rank() == 1 ? folder / "other" : folder / "c").string(), ranks.get(),
                     std::chrono::seconds(1));
  });
  for (const std::string& error : errors) {
    CHECK(error == errors[0]);
    CHECK_MESSAGE(contains(error, fmt::format("--checkpoint {}: rank 1 on ", (folder / "other").string())), error);
    CHECK_MESSAGE(contains(error, "expected one folder that all ranks share"), error);
  }
  std::string deep = (folder / "c").string();  // in which what rank 0 leaves has a name, and a part has none
  while (deep.size() < PATH_MAX - 60) deep += "/.";
  for (const std::string& error : world(2, [&](const std::shared_ptr<Ranks>& ranks) {
         open_checkpoints(ranks->first() ? (folder / "c").string() : deep, ranks.get(), std::chrono::seconds(1));
       })) {
    CHECK_MESSAGE(contains(error, " cannot write its parts of checkpoints there: "), error);
  }
  check_none(world(kRanks, [&](const std::shared_ptr<Ranks>& ranks) {
    const auto held = open_checkpoints((folder / "c").string(), ranks.get());
    CHECK(held != nullptr);
    ranks->exchange("looked", "");
  }));
  CHECK(fs::is_empty(folder / "c"));
  check_none(world(2, [&](const std::shared_ptr<Ranks>& ranks) { CHECK(!open_checkpoints("", ranks.get())); }));
}

}  // namespace checkpoint_parts_test
