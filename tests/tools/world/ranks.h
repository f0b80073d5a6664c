// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ranks of `arbalest run` for tests: each is a process, another copy of this program.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/files/file.h"
#include "executor/training/checkpoint_folder.h"
#include "tests/executor/world/free_port.h"
#include "tests/io/test_folder.h"
#include "tests/tools/command_line.h"

namespace arbalest::test {

using Words = std::vector<std::string>;
using WallTime = std::chrono::steady_clock;

inline constexpr const char* kWords = "ARBALEST_TEST_WORDS";        // of a rank's command line, a line each
inline constexpr const char* kMostOfFile = "ARBALEST_TEST_MOST";    // bytes that the rank may write into a file
inline constexpr const char* kSpinning = "ARBALEST_TEST_SPINNING";  // the rank that has a thread that always looks
inline constexpr const char* kGraph =
    "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
    "g () => () {\n"
    "  image, label = arbalest.Prefetch <source = \"glyphs:?train=512&test=100&size=16\", batch = 8> ()\n"
    "  x = arbalest.Augment <pad = 1> (image)\n"
    "  c = arbalest.ConvBnRelu <filters = 4, kernel_shape = [3, 3]> (x)\n"
    "  h = Flatten (c)\n"
    "  logits = arbalest.Linear <units = 10> (h)\n"
    "  loss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
    "  accuracy = arbalest.Accuracy (logits, label)\n"
    "  auc = arbalest.AUC (logits, label)\n"
    "  trained = arbalest.Train <lr = 0.02, momentum = 0.9, epochs = 4.0> (loss)\n"
    "  report = arbalest.Validate <batch = 20> (trained, loss, accuracy, auc)\n"
    "}\n";

// A process that runs a command line.
class Rank {
 public:
  // `variables`: "NAME=value", besides those of this process.
  Rank(const Words& words, const std::string& errors, Words variables = {}, const std::string& output = "/dev/null")
      : words_(words), errors_(errors), variables_(variables) {
    variables.push_back(std::string(kWords) + "=");
    for (const std::string& word : words) variables.back() += word + "\n";
    std::vector<char*> environment;
    for (char** entry = environ; *entry; ++entry) environment.push_back(*entry);
    for (std::string& variable : variables) environment.push_back(variable.data());
    environment.push_back(nullptr);
    std::string program = "/proc/self/exe", filter = "--test-case=one rank of a world", quiet = "--no-intro=1";
    std::vector<char*> arguments = {program.data(), filter.data(), quiet.data(), nullptr};
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    REQUIRE(posix_spawn(&process_, program.c_str(), &files, nullptr, arguments.data(), environment.data()) == 0);
    posix_spawn_file_actions_destroy(&files);
  }
  ~Rank() {
    if (process_ == 0) return;
    send(SIGKILL);
    wait();
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // Another process with the same command line, and other words after it.
  std::unique_ptr<Rank> again(const Words& more = {}, const Words& variables = {}) const {
    Words words = words_;
    words.insert(words.end(), more.begin(), more.end());
    return std::make_unique<Rank>(words, errors_ + " again", variables.empty() ? variables_ : variables);
  }

  void send(int signal) const { kill(process_, signal); }
  pid_t process() const { return process_; }
  // The exit status, or minus the signal that ended it. Kills a rank that hangs.
  int wait() {
    int status = 0;
    for (const auto until = WallTime::now() + std::chrono::seconds(60);
         wait4(process_, &status, WNOHANG, &used_) == 0;) {
      if (WallTime::now() > until) send(SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    process_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  int64_t peak_bytes() const { return used_.ru_maxrss * 1024; }  // of its memory, after wait()
  std::string errors() const {
    const std::vector<uint8_t> bytes = read_file(errors_);
    return {bytes.begin(), bytes.end()};
  }

 private:
  const Words words_;
  const std::string errors_;
  const Words variables_;
  pid_t process_ = 0;
  rusage used_{};
};

struct Place {
  const TestFolder folder;
  std::string graph = folder.write("g.onnxtxt", std::string(kGraph)).string();
  Words options = {"--deterministic", "--threads", "1", "--save", path("w")};  // of every command
  std::string path(const std::string& name) const { return (folder / name).string(); }

  Words command(const Words& more) const {
    Words words = {"run", graph};
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  // The ranks of a world, of which rank `r` has words of its own as well. `hosts`: names that ranks give their hosts,
  // in place of the system's.
  std::vector<std::unique_ptr<Rank>> start(int size, const Words& more,
                                           const std::vector<Words>& own = std::vector<Words>(4),
                                           const Words& hosts = {}) const {
    const std::string port = "127.0.0.1:" + std::to_string(free_port());
    std::vector<std::unique_ptr<Rank>> ranks;
    for (int rank = 0; rank < size; ++rank) {
      Words words = command(more);
      words.insert(words.end(), {"--world-size", std::to_string(size), "--rank", std::to_string(rank)});
      words.insert(words.end(), {"--rendezvous", port});
      words.insert(words.end(), own[size_t(rank)].begin(), own[size_t(rank)].end());
      Words variables;
      for (const char* name : {"ARBALEST_HOST=", "NCCL_HOSTID="}) {
        if (!hosts.empty()) variables.push_back(name + hosts[size_t(rank)]);
      }
      ranks.push_back(std::make_unique<Rank>(words, path("errors " + std::to_string(rank)), variables));
    }
    return ranks;
  }
  std::vector<uint8_t> weights() const { return read_file(path("w")); }
};

// Checks the exit status of each rank.
inline void expect(int status, std::vector<std::unique_ptr<Rank>>& ranks) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const int found = ranks[rank]->wait();
    CHECK_MESSAGE(found == status, "rank ", rank, ": ", found, "\n", ranks[rank]->errors());
  }
}

// The weights of so many learners of one process.
inline std::vector<uint8_t> alone(const Words& more) {
  const Place place;
  Words words = place.command(more);
  words.insert(words.end(), {"--devices", "cpu:0-3"});
  Rank process(words, place.path("errors"));
  CHECK(process.wait() == kDone);
  return place.weights();
}

// Waits until the run has so many checkpoints.
inline void await_checkpoints(const std::string& folder, size_t count) {
  const auto until = WallTime::now() + std::chrono::seconds(60);
  while (checkpoints_in(folder).size() < count && WallTime::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  REQUIRE(checkpoints_in(folder).size() >= count);
}

inline bool has(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  CHECK_MESSAGE(found, "'", text, "' has no '", part, "'");
  return found;
}

}  // namespace arbalest::test
