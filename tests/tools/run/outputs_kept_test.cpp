// SPDX-License-Identifier: Apache-2.0

// Outputs replace earlier outputs of their kind, and no other file.

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "io/formats/safetensors.h"
#include "tests/io/test_folder.h"
#include "tests/tools/run/small_graph.h"
#include "tools/command/commands.h"

using namespace arbalest;
using namespace arbalest::test;

namespace outputs_kept_test {

TEST_CASE("no file of a run is another of its files") {
  const auto refusal = [](RunOptions options) {
    options.graph = "net.onnxtxt";
    try {
      command_run(options);
    } catch (const GraphError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  RunOptions over_graph, over_log;
  over_graph.session.files.save = "./net.onnxtxt";
  over_log.log = over_log.session.files.save_best = "out";
  CHECK(refusal(over_graph) == "GRAPH and --save both name './net.onnxtxt'");
  CHECK(refusal(over_log) == "--save-best and --log both name 'out'");
  RunOptions over_checkpoints, over_events;
  over_checkpoints.session.checkpoints.folder = over_checkpoints.session.files.trace = "out";
  over_events.tensorboard = over_events.session.files.save = "out";
  CHECK(refusal(over_checkpoints) == "--trace and --checkpoint both name 'out'");
  CHECK(refusal(over_events) == "--save and --tensorboard both name 'out'");
  RunOptions log_over_weights, trace_over_weights;
  log_over_weights.session.files.weights = log_over_weights.log = "w";
  trace_over_weights.session.files.weights = trace_over_weights.session.files.trace = "w";
  CHECK(refusal(log_over_weights) == "--log would overwrite 'w', which --weights reads");
  CHECK(refusal(trace_over_weights) == "--trace would overwrite 'w', which --weights reads");
}

TEST_CASE("a run's own checkpoints, and keys of its log, are no names for other things") {
  const TestFolder folder;
  RunOptions options;
  options.graph = (folder / "g.onnxtxt").string();
  options.devices = "cpu:0";
  options.session.length.iterations = 1;
  options.session.checkpoints.folder = folder / "c";
  std::ofstream(options.graph) << kSmallGraph;
  RunOptions saving = options;
  saving.session.files.save = folder / "c/checkpoint-best.safetensors";
  check_parts(message_of<GraphError>([&] { command_run(saving); }),
              {"--save ", "the run's own checkpoints have such names", "expected another name"});
  std::string text = kSmallGraph;
  text.insert(text.find("  trained = "), "  epoch = arbalest.Accuracy (logits, label)\n");
  text.insert(text.find("\n}") + 1, "  report = arbalest.Validate (trained, epoch)\n");
  std::ofstream(options.graph) << text;
  options.log = folder / "log";
  check_parts(message_of<GraphError>([&] { command_run(options); }),
              {"metric 'epoch' has the name of another key of what --log writes"});
  CHECK_FALSE(std::filesystem::exists(options.log));
}

TEST_CASE("weights are not saved under names of other tools' files, and no output is called -") {
  const TestFolder folder;
  auto options = options_in<RunOptions>(folder);
  options.session.length.iterations = 1;
  const auto refusal = [&](std::string FileOptions::*file, const std::string& name) {
    RunOptions asked = options;
    asked.session.files.*file = name;
    return message_of<GraphError>([&] { command_run(asked); });
  };
  check_parts(refusal(&FileOptions::save, folder / "m.onnx"),
              {"--save ", "m.onnx: found the ending .onnx", "arbalest export"});
  check_parts(refusal(&FileOptions::save_best, folder / "m.pt"), {"--save-best ", "safetensors.torch.load_file"});
  check_parts(refusal(&FileOptions::save, folder / "m.h5"), {"NAME.safetensors"});
  check_parts(refusal(&FileOptions::save, folder / "m.onnxtxt"), {"found the ending .onnxtxt", "NAME.safetensors"});
  check_parts(refusal(&FileOptions::save, "-"), {"--save: found '-', expected the name of a file"});
  check_parts(refusal(&FileOptions::trace, "-"), {"--trace: found '-'"});
  options.log = "-";
  check_parts(message_of<GraphError>([&] { command_run(options); }), {"--log: found '-'"});
}

TEST_CASE("outputs replace earlier outputs only") {
  const TestFolder folder;
  auto options = options_in<RunOptions>(folder);
  options.session.execution.threads = 2;
  options.session.length.iterations = 1;
  const std::string data = folder.write("photo.jpg", std::string("\xff\xd8\xff photo")).string();
  const auto refusal = [&](std::string RunOptions::*log, std::string FileOptions::*file) {
    RunOptions asked = options;
    (file ? asked.session.files.*file : asked.*log) = data;
    const std::string message = message_of<GraphError>([&] { command_run(asked); });
    CHECK(std::filesystem::file_size(data) == 9);
    return message;
  };
  check_parts(refusal(&RunOptions::log, nullptr), {"--log would overwrite", "found a JPEG image, expected a log"});
  check_parts(refusal(nullptr, &FileOptions::save), {"--save would overwrite", "expected weights"});
  check_parts(refusal(nullptr, &FileOptions::trace), {"--trace would overwrite", "expected a trace"});
  options.log = (folder / "log").string();
  options.session.files.save = (folder / "w").string();
  options.session.files.trace = (folder / "t").string();
  for (int run = 0; run < 2; ++run) CHECK(command_run(options) == kDone);
  // Tensors that no run has saved may be data.
  write_safetensors(options.session.files.save, {{{"x", DataType::Uint8, {1}, {7}}}, {}});
  check_parts(message_of<GraphError>([&] { command_run(options); }), {"--save would overwrite"});
}

TEST_CASE("a command that cannot start leaves an earlier run's log as it is") {
  const TestFolder folder;
  const std::string graph = (folder / "g.onnxtxt").string();
  std::ofstream(graph) << "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
                          "g () => () {\n"
                          "  image, label = arbalest.Prefetch <source = \"glyphs:\", batch = 4> ()\n"
                          "}\n";
  RunOptions options;
  options.log = (folder / "log.jsonl").string();
  std::ofstream(options.log) << "{\"event\":\"earlier\"}\n";
  const auto keeps_log = [&] {
    CHECK_THROWS_AS(command_run(options), GraphError);
    std::string line;
    CHECK(std::getline(std::ifstream(options.log), line));
    CHECK(line == "{\"event\":\"earlier\"}");
  };
  options.graph = (folder / "typo.onnxtxt").string();
  keeps_log();
  options.graph = graph;
  options.set = {"prefetch.bacth=8"};
  keeps_log();
  options.set = {};
  options.devices = "gpu:0";
  keeps_log();
  options.devices = "cpu:0";
  options.tensorboard = graph + "/events";  // in a file
  CHECK_THROWS_AS(command_run(options), RunError);
  options.tensorboard.clear();
  std::string line;
  CHECK(std::getline(std::ifstream(options.log), line));
  CHECK(line == "{\"event\":\"earlier\"}");
}

TEST_CASE("a run that cannot be set up leaves no events") {
  const TestFolder folder;
  auto options = options_in<RunOptions>(folder);
  options.set = {"prefetch.source=npy:/nowhere"};
  options.tensorboard = (folder / "events").string();
  CHECK_THROWS(command_run(options));
  CHECK(std::filesystem::is_empty(options.tensorboard));
}

TEST_CASE("a page replaces pages only") {
  const TestFolder folder;
  const std::string trace = (folder / "t.trace.json.gz").string(), other = (folder / "w.safetensors").string();
  std::ofstream(trace) << "x";
  std::ofstream(other) << "y";
  const auto refusal = [&](const std::string& file) {
    ViewOptions options;
    options.traces = {trace};
    options.file = file;
    try {
      command_view(options);
    } catch (const GraphError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(refusal(trace).find("--output would overwrite '" + trace + "', which TRACE reads") == 0);
  CHECK(refusal(other).find("found a file of another kind, expected a page or no file") != std::string::npos);
}

}  // namespace outputs_kept_test
