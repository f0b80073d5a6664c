// SPDX-License-Identifier: Apache-2.0

// `arbalest bench scaling`: small sweeps that train on CPUs.

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "graph/file/graph_file.h"
#include "tests/executor/fixture.h"
#include "tests/tools/redirected.h"
#include "tools/command/commands.h"
#include "tools/command/session_setup.h"
#include "tools/measure/bench_scaling.h"

using namespace arbalest;
using test::Redirected;

namespace bench_sweep_test {
namespace {

// Folders of its own that are the process's working directory and its folder for temporary files while it lives.
class OwnFolders {
 public:
  OwnFolders()
      : path_(std::filesystem::temp_directory_path() / ("arbalest_bench_" + std::to_string(getpid()))),
        working_before_(std::filesystem::current_path()) {
    if (const char* before = std::getenv("TMPDIR")) temporary_before_ = before;
    for (const char* folder : {"temporary", "working"}) std::filesystem::create_directories(path_ / folder);
    setenv("TMPDIR", (path_ / "temporary").c_str(), 1);
    std::filesystem::current_path(path_ / "working");
  }
  ~OwnFolders() {
    std::filesystem::current_path(working_before_);
    temporary_before_.empty() ? unsetenv("TMPDIR") : setenv("TMPDIR", temporary_before_.c_str(), 1);
    std::filesystem::remove_all(path_);
  }
  std::string file(const char* name) const { return (path_ / name).string(); }
  bool are_empty() const {
    return std::filesystem::is_empty(path_ / "temporary") && std::filesystem::is_empty(path_ / "working");
  }

 private:
  const std::filesystem::path path_, working_before_;
  std::string temporary_before_;
};

struct Sweep {
  int status = -1;
  std::vector<std::string> lines;
};
Sweep sweep(const ScalingOptions& options, const std::string& file) {
  const Redirected output(file);
  const int status = command_bench_scaling(options);
  return {status, output.lines()};  // the command flushes each line
}

}  // namespace

TEST_CASE("a graph without its validation plans none") {
  const Graph with = test::tiny({});
  const Graph without = without_validation(with);
  CHECK(without.nodes.size() == with.nodes.size() - 1);
  const Prepared prepared = prepare(without, test::on_cpus());
  CHECK(prepared.program.find(LoopRole::Validate) == nullptr);
  CHECK(prepared.validation == nullptr);
  CHECK(without_validation(without).nodes.size() == without.nodes.size());
}

TEST_CASE("a sweep over CPUs measures each cell, passes over those that fail, and leaves no file") {
  const OwnFolders folder;
  ScalingOptions options;
  options.graph = folder.file("tiny.onnxtxt");
  // The rate would end training at once, were it used.
  std::ofstream(options.graph) << write_graph_text(
      test::tiny({.source = "glyphs:?train=200&test=50&size=16", .train = "lr = 1e30"}));
  options.devices = "cpu:0-1";
  options.learners = {1, 2, 30};  // 30 learners with batch 4 are 120 samples on one device, too many on two
  options.set = {"prefetch.batch=4"};
  options.session.learners.strategy = "ssgd";
  options.windows = 3;
  options.window_seconds = 0.2;
  options.warmup_seconds = 0.1;
  options.session.execution.threads = 2;
  options.json = true;

  const auto [status, lines] = sweep(options, folder.file("out"));
  CHECK(status == kDone);
  REQUIRE(lines.size() == 6);
  for (size_t i = 0; i < lines.size(); ++i) {
    INFO(lines[i]);
    const auto cell = nlohmann::json::parse(lines[i]);
    CHECK(cell.at("graph") == "tiny");
    CHECK(cell.at("device_count") == i / 3 + 1);
    CHECK(cell.at("learners") == options.learners[i % 3]);
    if (i == 5) {
      CHECK(cell.at("error").get<std::string>().find("200 training samples, and one update of 60 learners takes 240") !=
            std::string::npos);
      continue;
    }
    REQUIRE_FALSE(cell.contains("error"));
    CHECK(cell.at("batch") == 4);
    CHECK(cell.at("strategy") == (i == 0 ? "none" : "ssgd"));
    const double rate = cell.at("images_per_second");
    CHECK(rate > 10);
    CHECK(rate < 1e8);
    CHECK(cell.at("images_per_second_min") <= rate);
    CHECK(cell.at("images_per_second_max") >= rate);
    CHECK(cell.at("window_images_per_second").size() == 3);
    CHECK(cell.at("planned_peak_bytes") > 1024);
    CHECK(cell.at("efficiency") > 0);
  }
  CHECK(folder.are_empty());

  options.learners = {1};
  options.set = {"train.lr=1e30"};
  const Sweep diverges = sweep(options, folder.file("out"));
  const std::string error = nlohmann::json::parse(diverges.lines.at(0)).at("error");
  CHECK(error.starts_with("the loss is no longer finite after iteration "));

  options.set.clear();
  options.learners = {64};
  const Sweep none = sweep(options, folder.file("out"));
  CHECK(none.lines.size() == 2);
  CHECK(none.status == kFailed);

  options.json = false;
  options.set = {"prefetch.bacth=8"};
  CHECK_THROWS_AS(command_bench_scaling(options), GraphError);
}

TEST_CASE("an interrupted cell says so") {
  std::stop_source stop;
  stop.request_stop();
  const ScalingCell cell =
      measure_cell(without_validation(test::tiny({})), test::on_cpus(), WindowRule{}, stop.get_token());
  CHECK(cell.error == "interrupted");
  CHECK_THROWS_WITH_AS(throw_unless_measured(cell), "interrupted", InterruptedError);
}

}  // namespace bench_sweep_test
