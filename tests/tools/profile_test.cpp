// SPDX-License-Identifier: Apache-2.0

// `arbalest profile`: its measurements and how they are printed.

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "graph/file/graph_file.h"
#include "tests/executor/fixture.h"
#include "tests/io/test_folder.h"
#include "tests/tools/redirected.h"
#include "tools/command/commands.h"
#include "tools/measure/profile_report.h"

using namespace arbalest;
using namespace arbalest::test;

namespace profile_test {
namespace {

// The JSON that the command prints for a short measurement.
nlohmann::json profile_of(ProfileOptions& options, const TestFolder& folder) {
  options.seconds = 0.05;
  options.json = true;
  std::string text;
  const Redirected out((folder / "out").string());
  CHECK(command_profile(options) == kDone);
  for (const std::string& line : out.lines()) text += line;
  return nlohmann::json::parse(text);
}

}  // namespace

TEST_CASE("profile times every node of a step") {
  const TestFolder folder;
  ProfileOptions options;
  options.graph = (folder / "g.onnxtxt").string();
  std::ofstream(options.graph) << write_graph_text(tiny(convolutional()));
  options.devices = "cpu:0-1";  // the first is profiled
  options.session.execution.threads = 2;
  options.set = {"prefetch.batch=16"};
  const nlohmann::json profile = profile_of(options, folder);
  CHECK(profile.at("graph") == "tiny");
  CHECK(profile.at("device") == "cpu:0");
  CHECK(profile.at("precision") == "fp32");
  CHECK(profile.at("batch") == 16);
  CHECK(profile.at("images_per_second") > 10);
  CHECK(profile.at("bytes_per_second") > 1e8);
  CHECK(profile.at("flops_per_second") > 1e8);
  double sum = 0;
  std::set<std::string> stages, of_convolution;
  for (const auto& node : profile.at("nodes")) {
    sum += node.at("seconds").get<double>();
    CHECK(node.at("seconds") >= 0);
    CHECK(node.at("bytes") >= 0);
    stages.insert(node.at("stage"));
    if (node.at("layer") == "c.conv") of_convolution.insert(node.at("op"));
    if (node.at("op") == "Conv") CHECK(node.at("flops") == 2.0 * 16 * 8 * 9 * 16 * 16);
  }
  CHECK(sum > 0);
  CHECK(profile.at("step_seconds").get<double>() == doctest::Approx(sum).epsilon(1e-6));
  CHECK(stages == std::set<std::string>{"forward", "backward", "update"});
  CHECK(of_convolution == std::set<std::string>{"Conv", "arbalest.ConvGradWeight"});

  options.set = {"train.lr=1e30"};
  CHECK_THROWS_WITH_AS(command_profile(options), doctest::Contains("no longer finite"), RunError);
  options.set.clear();
  options.session.execution.memory_limit = 1 << 10;  // as run and check tell it
  CHECK_THROWS_WITH_AS(command_profile(options), doctest::Contains("what takes it:\n"), GraphError);
}

TEST_CASE("views of memory are no nodes of a profile") {
  const TestFolder folder;
  ProfileOptions options;
  options.graph = (folder / "g.onnxtxt").string();
  std::ofstream(options.graph)
      << "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
         "g () => (float loss)\n{\n"
         "image, label = arbalest.Prefetch <source = \"synthetic:?shape=3x4x4&classes=4&size=64\", batch = 8> ()\n"
         "x = arbalest.Augment <> (image)\n"
         "a = arbalest.Linear <units = 12> (x)\n"
         "b = Reshape <shape = [0, 3, 4]> (a)\n"
         "c = Tanh (b)\n"
         "d = Reshape <shape = [0, 12]> (c)\n"
         "e = arbalest.Linear <units = 4> (d)\n"
         "loss = arbalest.SoftmaxCrossEntropy (e, label)\n"
         "trained = arbalest.Train <lr = 0.01> (loss)\n}\n";
  options.devices = "cpu:0";
  const nlohmann::json profile = profile_of(options, folder);
  std::set<std::string> ops;
  for (const auto& node : profile.at("nodes")) ops.insert(node.at("op"));
  CHECK(ops.contains("Tanh"));  // it may be in place, too, and works
  CHECK(ops.contains("arbalest.TanhGrad"));
  CHECK_FALSE(ops.contains("Reshape"));
}

TEST_CASE("a profile is reported by stage, by operator, by layer and by what is lost") {
  ProfiledRun run;
  run.graph = "net";
  run.device = "cpu:0";
  run.precision = "fp32";
  run.batch = 8;
  run.images_per_second = 1000;
  run.step.seconds = 0.008;
  run.step.limits = {1e9, 1e12};
  run.step.nodes = {{"c", "c", "Conv", "engine 7", Stage::Forward, 0.002, {1e9, 1e6}},
                    {"c.grad_weight", "c", "arbalest.ConvGradWeight", "", Stage::Backward, 0.005, {1e9, 1e6}},
                    {"update", "update", "arbalest.Sgd", "", Stage::Update, 0.001, {0, 1e6}}};
  const std::string text = profile_text(run, 2, true);
  const auto has = [&](const char* line) { return text.find(line) != std::string::npos; };
  CHECK(has("net on cpu:0: fp32, batch 8: 1000.0 images/s, planned peak 0.0 MiB\n"));
  CHECK(
      has("a step takes 8.000 ms by itself; its 3 nodes, one after the other, 8.000 ms; their limits are 3.000 ms\n"));
  CHECK(has("limits of the device, measured: 1.00 GB/s, 1.00 TFLOP/s\n"));
  CHECK(has("forward       1      2.000   25.0 %    1.00 MB   1.00 GFLOP      50 %\n"));
  CHECK(has("c           2      7.000   87.5 %    2.00 MB   2.00 GFLOP      29 %\n"));
  CHECK(text.find("arbalest.ConvGradWeight ") < text.find("Conv   "));  // by time
  CHECK(has("c.grad_weight                5.000      1.000   50.0 %       memory  arbalest.ConvGradWeight\n"));
  CHECK(has("c                            2.000      1.000   12.5 %       memory  engine 7\n"));
  CHECK_FALSE(has("update                       1.000      1.000"));  // two are listed
  CHECK(profile_text(run, 0, false).find("furthest") == std::string::npos);
  CHECK(profile_record(run).at("taken_bytes").is_null());
  run.planned_peak_bytes = 3 << 20;
  CHECK(profile_record(run).at("library_bytes").is_null());
  run.step.library_bytes = 1 << 19;
  run.step.taken_bytes = 7 << 19;
  CHECK(profile_text(run, 0, false).find("images/s, planned peak 3.0 MiB, libraries 0.5 MiB, taken 3.5 MiB\n") !=
        std::string::npos);
  CHECK(profile_record(run).at("library_bytes") == 1 << 19);
  CHECK(profile_record(run).at("taken_bytes") == 7 << 19);
  run.step.limits = {};  // unknown
  CHECK(profile_text(run, 2, true).find("nan") == std::string::npos);
}

}  // namespace profile_test
