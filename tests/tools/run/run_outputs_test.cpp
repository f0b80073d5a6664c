// SPDX-License-Identifier: Apache-2.0

// Outputs of commands: one process at a time writes each, a command that is refused loses nothing, and no stream takes
// the place of another.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/files/output_lock.h"
#include "executor/training/checkpoint_folder.h"
#include "executor/training/utc_time.h"
#include "tests/io/test_folder.h"
#include "tests/tools/redirected.h"
#include "tools/command/commands.h"
#include "tools/watch/log.h"
#include "tools/watch/tensorboard_log.h"

using namespace arbalest;
using arbalest::test::Redirected;

namespace fs = std::filesystem;

namespace run_outputs_test {
namespace {

constexpr const char* kGraph =
    "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
    "g () => () {\n"
    "  image, label = arbalest.Prefetch <source = \"glyphs:?train=96&size=16\", batch = 8> ()\n"
    "  x = arbalest.Augment (image)\n"
    "  logits = arbalest.Linear <units = 10> (x)\n"
    "  loss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
    "  trained = arbalest.Train <lr = 0.01> (loss)\n"
    "}\n";

constexpr const char* kEarlier = "{\"event\":\"start\"}\n{\"event\":\"end\"}\n";

std::string content(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<nlohmann::json> lines_of(const std::string& log) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(log);
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

struct Place {
  const TestFolder folder;
  RunOptions options;

  Place() {
    options.graph = folder.write("g.onnxtxt", std::string(kGraph)).string();
    options.devices = "cpu:0";
    options.session.execution.threads = 2;
    options.session.length.iterations = 2;
    options.log = at("log.jsonl");
  }
  std::string at(const char* name) const { return (folder / name).string(); }
};

}  // namespace

TEST_CASE("a second run is refused what a first one writes, and destroys none of it") {
  Place place;
  RunOptions& options = place.options;
  JsonLog first(options.log);
  first.started({});
  const std::string told = content(options.log);
  REQUIRE(told.starts_with("{\"event\":\"start\""));
  check_parts(message_of<OutputInUse>([&] { command_run(options); }), {"log.jsonl: ", "process", " writes this log"});
  CHECK(content(options.log) == told);
  first.finished({});
  CHECK(lines_of(options.log).size() == 2);

  options.log.clear();
  for (std::string FileOptions::*file : {&FileOptions::save, &FileOptions::save_best, &FileOptions::trace}) {
    RunOptions other = options;
    other.session.files.*file = place.at("out");
    const OutputLock held(place.at("out"));
    check_parts(message_of<OutputInUse>([&] { command_run(other); }), {"out: ", " writes this file"});
  }
  options.session.checkpoints.folder = place.at("c");
  const CheckpointFolder held(place.at("c"));
  check_parts(message_of<RunError>([&] { command_run(options); }), {"c: another run keeps its checkpoints here"});
}

TEST_CASE("a run that fails before it starts leaves an earlier run's log alone, and begins a new one with its error") {
  Place place;
  place.options.set = {"prefetch.source=npy:/nowhere"};
  std::ofstream(place.options.log) << kEarlier;
  CHECK_THROWS(command_run(place.options));
  CHECK(content(place.options.log) == kEarlier);
  place.options.log = place.at("new.jsonl");
  CHECK_THROWS(command_run(place.options));
  REQUIRE(lines_of(place.options.log).size() == 1);
  CHECK(lines_of(place.options.log)[0].at("event") == "error");
  place.options.set = {};
  CHECK(command_run(place.options) == kDone);
  const std::vector<nlohmann::json> lines = lines_of(place.options.log);
  CHECK(lines.front().at("event") == "start");
  CHECK(lines.back().at("event") == "end");
}

TEST_CASE("what a log receives before the run has started follows the start") {
  const TestFolder folder;
  const std::string path = folder.write("log", std::string(kEarlier)).string();
  JsonLog log(path);
  log.skipped({"photo.jpg", "no photo"});
  CHECK(content(path) == kEarlier);
  log.started({});
  const std::vector<nlohmann::json> lines = lines_of(path);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].at("event") == "start");
  CHECK(lines[1].at("event") == "skipped");
}

TEST_CASE("a pipe that nobody reads is no log, one that is read soon is") {
  Place place;
  REQUIRE(mkfifo(place.at("pipe").c_str(), 0600) == 0);
  place.options.log = place.at("pipe");
  check_parts(message_of<RunError>([&] { command_run(place.options); }),
              {"pipe: cannot be written: it is a pipe that nobody reads"});
  std::string read;
  std::thread reader([&] { read = content(place.at("pipe")); });
  CHECK(command_run(place.options) == kDone);
  reader.join();
  CHECK(read.starts_with("{\"event\":\"start\""));
  CHECK(read.find("{\"event\":\"end\"") != std::string::npos);
}

TEST_CASE("a log is not the file of standard error") {
  Place place;
  place.options.log = place.at("both");
  const Redirected errors(place.at("both"), stderr);
  check_parts(message_of<RunError>([&] { command_run(place.options); }),
              {"both: standard error goes to that file", "expected a file of its own"});
}

TEST_CASE("a log that is write-protected stays as it is") {
  Place place;
  const std::string log = place.at("kept.jsonl"), line = "{\"event\":\"start\"}\n";
  std::ofstream(log) << line;
  fs::permissions(log, fs::perms::owner_read);
  place.options.log = log;
  check_parts(message_of<RunError>([&] { command_run(place.options); }), {"kept.jsonl: cannot be written"});
  CHECK(content(log) == line);
}

TEST_CASE("outputs are looked at before the work") {
  Place place;
  fs::create_symlink("gone/out", place.folder / "dead");
  const std::string dead = place.at("dead");
  place.options.session.files.trace = dead;
  place.options.log.clear();
  check_parts(message_of<RunError>([&] { command_run(place.options); }),
              {"dead: cannot be written: there is no folder"});
  const std::string missing = place.at("missing");
  ReportOptions report;
  report.logs = {missing};
  report.file = dead;
  check_parts(message_of<RunError>([&] { command_report(report); }), {"dead: cannot be written"});
  ViewOptions view;
  view.traces = {missing};
  view.file = dead;
  check_parts(message_of<RunError>([&] { command_view(view); }), {"dead: cannot be written"});
  DataOptions data;
  data.source = "glyphs:?train=96&size=16";
  data.contact_sheet = place.at("gone/sheet.png");
  check_parts(message_of<RunError>([&] { command_data(data); }), {"sheet.png: cannot be written"});
  data.contact_sheet = place.at("sheet.bmp");
  CHECK_THROWS_AS(command_data(data), GraphError);
}

TEST_CASE("all outputs may go to /dev/null") {
  Place place;
  FileOptions& files = place.options.session.files;
  files.save = files.trace = place.options.log = "/dev/null";
  CHECK(command_run(place.options) == kDone);
  CHECK(fs::is_character_file("/dev/null"));
}

TEST_CASE("two runs that start within a second have event files of their own") {
  const TestFolder folder;
  for (int run = 0; run < 3; ++run) {
    TensorBoardLog log(folder.string(), {}, true);
    log.started({});
    log.finished({});
  }
  CHECK(folder.names().size() == 3);
}

TEST_CASE("the moment of a run's start is reported, and no clock ends the run") {
  CHECK(utc_time(0) == "1970-01-01T00:00:00Z");
  CHECK(utc_time(1'740'832'200) == "2025-03-01T12:30:00Z");
  CHECK(utc_time(std::numeric_limits<std::time_t>::max()).empty());
}

// Run by the next test, in a process of its own.
TEST_CASE("standard streams that were closed fail, and no file has their numbers" * doctest::skip()) {
  const int opened = open("/dev/null", O_RDONLY);
  CHECK(opened > STDERR_FILENO);
  char byte = 0;
  CHECK(read(STDIN_FILENO, &byte, 1) < 0);
  CHECK(write(STDOUT_FILENO, &byte, 1) < 0);
  CHECK(write(STDERR_FILENO, &byte, 1) < 0);
}

TEST_CASE("standard streams that are closed at the start are taken before anything is opened") {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) close(stream);
    execl("/proc/self/exe", "test", "--no-skip", "-tc=standard streams that were closed*", nullptr);
    _exit(10);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

}  // namespace run_outputs_test
