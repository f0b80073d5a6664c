// SPDX-License-Identifier: Apache-2.0

// `arbalest run`: its files, its exit status, and interrupts.

#include <doctest/doctest.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>

#include "base/error.h"
#include "executor/devices/device.h"
#include "io/formats/safetensors.h"
#include "tests/io/test_folder.h"
#include "tests/tools/command_line.h"
#include "tests/tools/redirected.h"
#include "tools/command/commands.h"
#include "tools/command/interrupt.h"
#include "tools/watch/log.h"

using namespace arbalest;
using arbalest::test::options_of;

namespace run_command_test {
namespace {

constexpr const char* kSmallGraph =
    "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
    "g () => () {\n"
    "  image, label = arbalest.Prefetch <source = \"glyphs:?train=96&size=16\", batch = 8> ()\n"
    "  x = arbalest.Augment (image)\n"
    "  logits = arbalest.Linear <units = 10> (x)\n"
    "  loss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
    "  trained = arbalest.Train <lr = 0.01> (loss)\n"
    "}\n";

// Options of a command for the small graph, which is written to the folder, on one CPU device.
template <typename Options>
Options options_in(const TestFolder& folder) {
  Options options;
  options.graph = folder.write("g.onnxtxt", std::string(kSmallGraph)).string();
  options.devices = "cpu:0";
  return options;
}

// Writes a graph whose `layers` make h of the images x; returns its path.
std::string write_net(const TestFolder& folder, const std::string& layers) {
  const std::string text = R"(<ir_version: 8, opset_import: ["" : 17, "arbalest" : 1]>
g () => () {
  image, label = arbalest.Prefetch <source = "synthetic:?shape=1x16x16&classes=10&size=100&test=40", batch = 20> ()
  x = arbalest.Augment (image)
  )" + layers + R"(
  logits = arbalest.Linear <units = 10> (h)
  loss = arbalest.SoftmaxCrossEntropy (logits, label)
  trained = arbalest.Train <lr = 0.02> (loss)
})";
  return folder.write("g.onnxtxt", text).string();
}

}  // namespace

TEST_CASE("a log that cannot be written is in the exit status; training goes on and saves") {
  if (!std::filesystem::exists("/dev/full")) {
    MESSAGE("SKIP: no /dev/full to fail on");
    return;
  }
  const TestFolder folder;
  auto options = options_in<RunOptions>(folder);
  options.session.execution.threads = 2;
  options.session.files.save = (folder / "w.safetensors").string();
  CHECK(command_run(options) == kDone);
  REQUIRE(std::filesystem::remove(options.session.files.save));
  options.log = "/dev/full";
  CHECK(command_run(options) == kFailed);
  CHECK(std::filesystem::exists(options.session.files.save));
}

TEST_CASE("plan begins with a summary that fits on a screen") {
  const TestFolder folder;
  auto options = options_in<PlanCommandOptions>(folder);
  options.devices = "cpu:0-1";
  options.session.learners.per_device = 4;
  std::vector<std::string> lines;
  {
    const test::Redirected out((folder / "out").string());
    CHECK(command_plan(options) == kDone);
    lines = out.lines();
  }
  const auto empty = std::find(lines.begin(), lines.end(), "");
  REQUIRE(empty != lines.end());
  CHECK(empty - lines.begin() <= 24);
  const auto line_with = [&](const std::string& part) {
    const auto found =
        std::find_if(lines.begin(), empty, [&](const std::string& line) { return line.find(part) != line.npos; });
    INFO(part);
    REQUIRE(found != empty);
    return *found;
  };
  CHECK(lines[0].starts_with("g: 8 learners on cpu:0, cpu:1; "));
  CHECK(line_with("*/fill").ends_with("each batch, 8 of them, up to 3 at once, 3 slots"));
  CHECK(line_with("*/step").find("forward") != std::string::npos);
  CHECK(line_with("  cpu:1 ").find("learner */state") != std::string::npos);
  CHECK(std::find(empty, lines.end(), "tasks") != lines.end());  // the plan in full follows
}

TEST_CASE("the plan of a world is told by its first host's part") {
  const TestFolder folder;
  const std::string graph =
      write_net(folder, "a = arbalest.Conv <filters = 4, kernel_shape = [3, 3]> (x)\n  h = Relu (a)");
  const auto lines_of = [&](std::vector<const char*> more) {
    std::vector<const char*> words = {"plan",      graph.c_str(),
                                      "--devices", "cpu:0",
                                      "--set",     "prefetch.source=synthetic:?shape=1x16x16&classes=10&size=5000"};
    words.insert(words.end(), more.begin(), more.end());
    const Command command = test::parse(words);
    const test::Redirected out((folder / "out").string());
    CHECK(command_plan(options_of<PlanCommandOptions>(command)) == kDone);
    return out.lines();
  };
  const std::vector<std::string> lines = lines_of({"--world", "30x4"});
  const std::string text = fmt::format("{}", fmt::join(lines, "\n"));
  CHECK(lines.front().find("120 learners on 120 devices, host0/cpu:0 to host29/cpu:3; ") != std::string::npos);
  CHECK(text.find("\n  host0/cpu:0 to host29/cpu:3, each ") != std::string::npos);
  CHECK(text.find("host0/cpu:3/learner 3/step") != std::string::npos);
  CHECK(text.find("\n  */cpu:*/learner */step ") != std::string::npos);
  CHECK(text.find("another process") != std::string::npos);
  CHECK(text.find("host7/cpu:0/learner 28/step") == std::string::npos);
  CHECK(lines.back() == "These are the tasks of host0, one of 30 hosts; --json prints those of all.");
  const auto whole = nlohmann::json::parse(fmt::format("{}", fmt::join(lines_of({"--world", "3x4", "--json"}), "\n")));
  CHECK(whole.dump().find("host2/cpu:3/learner 11/step") != std::string::npos);
}

TEST_CASE("check and plan say what a memory limit costs, and plan lists what is computed again") {
  const TestFolder folder;
  const std::string graph = write_net(folder, R"(a = arbalest.ConvBnRelu <filters = 16, kernel_shape = [3, 3]> (x)
  b = arbalest.ConvBnRelu <filters = 16, kernel_shape = [3, 3]> (a)
  h = GlobalAveragePool (b))");
  const auto lines_of = [&](std::vector<const char*> words) {
    words.insert(words.end(), {graph.c_str(), "--devices", "cpu:0"});
    const Command command = test::parse(words);
    const test::Redirected out((folder / "out").string());
    if (const auto* check = options_if<CheckOptions>(command)) CHECK(command_check(*check) == kDone);
    if (const auto* plan = options_if<PlanCommandOptions>(command)) CHECK(command_plan(*plan) == kDone);
    return out.lines();
  };
  const auto joined = [](const std::vector<std::string>& lines) { return fmt::format("{}", fmt::join(lines, "\n")); };
  const auto kept = nlohmann::json::parse(joined(lines_of({"check", "--json"})));
  CHECK(!kept.contains("memory_limit"));
  const int64_t limit = kept.at("planned_bytes").at("cpu:0").get<int64_t>() - 1;
  const std::string size = std::to_string(limit);
  const auto less = nlohmann::json::parse(joined(lines_of({"check", "--json", "--memory-limit", size.c_str()})));
  CHECK(less.at("planned_bytes").at("cpu:0") <= limit);
  CHECK(less.at("memory_limit").at("bytes") == limit);
  CHECK(less.at("memory_limit").at("values_computed_again") == 1);
  CHECK(less.at("memory_limit").at("more_work") > 0);
  const std::string told = "1 value (320 KiB) is computed again in each step, about ";
  CHECK(joined(lines_of({"check", "--memory-limit", size.c_str()})).find(told) != std::string::npos);
  const std::string plan = joined(lines_of({"plan", "--memory-limit", size.c_str()}));
  CHECK(plan.find(told) != std::string::npos);
  CHECK(plan.find("backward Conv ") != std::string::npos);
  CHECK(plan.find(" a.conv again\n") != std::string::npos);
  const auto record = nlohmann::json::parse(joined(lines_of({"plan", "--json", "--memory-limit", size.c_str()})));
  CHECK(record.at("memory_limit") == less.at("memory_limit"));
  const std::string listing = joined(lines_of({"plan", "--after", "recompute", "--memory-limit", size.c_str()}));
  CHECK(listing.find("a.conv again = Conv ") != std::string::npos);
}

TEST_CASE("plan shows the graph without passes that are left out") {
  const TestFolder folder;
  const std::string graph = write_net(folder, R"(a = arbalest.Conv <filters = 4, kernel_shape = [3, 3]> (x)
  h = Relu (a))");
  const auto listing = [&](const char* pass, std::vector<const char*> more) {
    std::vector<const char*> words = {"plan", graph.c_str(), "--devices", "cpu:0", "--after", pass};
    words.insert(words.end(), more.begin(), more.end());
    const Command command = test::parse(words);
    const test::Redirected out((folder / "out").string());
    CHECK(command_plan(options_of<PlanCommandOptions>(command)) == kDone);
    return fmt::format("{}", fmt::join(out.lines(), "\n"));
  };
  for (const char* pass : {"fuse_relu", "remove_dead"}) {
    CHECK(listing(pass, {}).find(" = arbalest.ConvRelu") != std::string::npos);
    const std::string without = listing(pass, {"--without", "fuse_relu"});
    CHECK(without.find(" = arbalest.ConvRelu") == std::string::npos);
    CHECK(without.find(" = Relu") != std::string::npos);
  }
}

TEST_CASE("convolutions of many learners on a GPU leave statistics of fewer, larger chunks") {
  const TestFolder folder;
  const std::string graph = write_net(folder, R"(a = arbalest.ConvBnRelu <filters = 16, kernel_shape = [3, 3]> (x)
  h = arbalest.ConvBnRelu <filters = 16, kernel_shape = [3, 3]> (a))");
  const auto listing = [&](std::vector<const char*> more) {
    std::vector<const char*> words = {
        "plan",        graph.c_str(),    "--devices",
        "cuda:0",      "--gpu",          "H200",
        "--precision", "bf16",           "--batch",
        "64",          "--set",          "prefetch.source=synthetic:?shape=1x16x16&classes=10&size=5000",
        "--after",     "fuse_statistics"};
    words.insert(words.end(), more.begin(), more.end());
    const Command command = test::parse(words);
    const auto [status, text] = [&] {
      const test::Redirected out((folder / "out").string());
      const int ended = command_plan(options_of<PlanCommandOptions>(command));
      return std::pair(ended, fmt::format("{}", fmt::join(out.lines(), "\n")));
    }();
    REQUIRE(status == kDone);
    REQUIRE(text.find("arbalest.ConvStatistics") != std::string::npos);
    return text;
  };
  const std::string larger = "chunk_pixels = 512";
  CHECK(listing({"--learners", "16"}).find(larger) != std::string::npos);
  CHECK(listing({"--learners", "4"}).find(larger) == std::string::npos);
  // The bits of one learner:
  CHECK(listing({"--learners", "16", "--deterministic"}).find(larger) == std::string::npos);
}

TEST_CASE("the log and TensorBoard's folder of a run say what it was asked for") {
  const TestFolder folder;
  const std::string graph = folder.write("g.onnxtxt", std::string(kSmallGraph)).string();
  const std::string log = (folder / "log").string(), events = (folder / "runs/a").string();
  const Command command = test::parse({"run", graph.c_str(), "--devices", "cpu:0", "--seed", "7", "--deterministic",
                                       "--set", "train.lr=0.02", "--without", "fuse_relu,keep_maxima", "--log",
                                       log.c_str(), "--tensorboard", events.c_str()});
  REQUIRE(options_if<RunOptions>(command));
  CHECK(command_run(options_of<RunOptions>(command)) == kDone);
  std::string line;
  std::ifstream file(log);
  REQUIRE(std::getline(file, line));
  const auto start = nlohmann::json::parse(line);
  CHECK(start.at("command").size() == 16);
  CHECK(start.at("command")[1] == "run");
  CHECK(start.at("options").at("GRAPH") == graph);
  CHECK(start.at("options").at("seed") == 7);
  CHECK(start.at("options").at("deterministic") == true);
  CHECK(start.at("options").at("set") == std::vector<std::string>{"train.lr=0.02"});
  CHECK(start.at("options").at("without") == std::vector<std::string>{"fuse_relu,keep_maxima"});
  CHECK(start.at("options").at("precision") == "fp32");  // by default
  CHECK(start.at("options").at("save").is_null());
  CHECK_FALSE(start.at("options").contains("help"));
  CHECK(start.at("attributes").at("train.lr") == 0.02);
  CHECK(start.at("attributes").at("prefetch.batch") == 8);
  CHECK(start.at("attributes").at("train.optimizer") == "sgd");  // by default
  CHECK(start.at("models").size() == 1);
  CHECK(start.at("host").at("cores") > 0);
  CHECK(start.at("versions").contains("arbalest"));
  for (const auto& [library, version] : library_versions()) CHECK(start.at("versions").at(library) == version);
  CHECK(start.at("time").get<std::string>().size() == std::string("2025-03-01T12:30:00Z").size());
  CHECK_FALSE(std::filesystem::is_empty(events));
}

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

TEST_CASE("lines of the log that hold metrics have no keys but those that are refused for names") {
  const TestFolder folder;
  RunOptions options;
  options.graph = (folder / "g.onnxtxt").string();
  options.devices = "cpu:0";
  options.log = folder / "log";
  options.session.length.epochs = 1;
  options.session.checkpoints.folder = folder / "c";
  options.session.files.save = folder / "w.safetensors";
  std::string text = kSmallGraph;
  text.insert(text.find("  trained = "), "  right = arbalest.Accuracy (logits, label)\n");
  text.insert(text.find("\n}") + 1, "  report = arbalest.Validate (trained, loss, right)\n");
  std::ofstream(options.graph) << text;
  CHECK(command_run(options) == 0);
  const std::vector<std::string>& known = JsonLog::keys();
  std::set<std::string> events;
  std::ifstream log(options.log);
  for (std::string line; std::getline(log, line);) {
    const nlohmann::json json = nlohmann::json::parse(line);
    if (!json.contains("right")) continue;
    events.insert(json["event"]);
    for (const auto& [key, value] : json.items()) {
      CAPTURE(key);
      CHECK((key == "loss" || key == "right" || std::find(known.begin(), known.end(), key) != known.end()));
    }
  }
  CHECK(events.contains("validation"));
  CHECK(events.contains("end"));
}

TEST_CASE("a value that is trained beside a metric called loss has its own name") {
  const TestFolder folder;
  RunOptions options;
  options.graph = (folder / "g.onnxtxt").string();
  options.devices = "cpu:0";
  options.session.length.epochs = 1;
  options.log = folder / "log";
  std::string text = kSmallGraph;
  const std::string trained = "  trained = arbalest.Train <lr = 0.01> (loss)\n";
  text.replace(text.find(trained), trained.size(),
               "  two = Constant <value_float = 2.0> ()\n  total = Mul (loss, two)\n"
               "  trained = arbalest.Train <lr = 0.01> (total)\n"
               "  report = arbalest.Validate (trained, loss, total)\n");
  std::ofstream(options.graph) << text;
  CHECK(command_run(options) == kDone);
  std::ifstream log(options.log);
  size_t validations = 0, epochs = 0;
  for (std::string line; std::getline(log, line);) {
    const auto event = nlohmann::json::parse(line);
    if (event.at("event") == "start") CHECK(event.at("trained") == "total");
    if (event.at("event") == "epoch") {
      ++epochs;
      CHECK(event.contains("total"));
      CHECK_FALSE(event.contains("loss"));
    }
    if (event.at("event") != "validation") continue;
    ++validations;
    CHECK(event.at("total").get<double>() == doctest::Approx(2 * event.at("loss").get<double>()).epsilon(1e-6));
  }
  CHECK(epochs == 1);
  CHECK(validations == 1);
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

TEST_CASE("a fault of a trace's plan that shows late names the file") {
  const TestFolder folder;
  const std::string file = (folder / "t.json").string(), page = (folder / "t.html").string();
  RunOptions options;
  options.graph = folder.write("g.onnxtxt", std::string(kSmallGraph)).string();
  options.devices = "cpu:0";
  options.session.files.trace = file;
  REQUIRE(command_run(options) == kDone);
  gzFile written = gzopen(file.c_str(), "rb");
  std::string text;
  for (int c = gzgetc(written); c >= 0; c = gzgetc(written)) text += char(c);
  gzclose(written);
  nlohmann::json trace = nlohmann::json::parse(text);
  for (nlohmann::json& event : trace["traceEvents"]) {
    if (event["name"] != "arbalest") continue;
    for (nlohmann::json& edge : event["args"]["plan"]["edges"]) edge["distance"] = 0;
  }
  folder.write("t.json", trace.dump());
  TraceOptions look;
  look.file = file;
  ViewOptions show;
  show.traces = {file};
  show.file = page;
  for (const bool view : {false, true}) {
    try {
      view ? command_view(show) : command_trace(look);
      FAIL("the trace was taken");
    } catch (const GraphError& error) {
      check_parts(error.what(), {file + ": the plan cannot run: a cycle through '", "has no lag"});
    }
  }
}

TEST_CASE("names from a graph file forge no line of what is printed") {
  const TestFolder folder;
  PlanCommandOptions plan;
  plan.graph = (folder / "g.onnxtxt").string();
  const std::string hostile = "acc\\nepoch 99: validation  loss 0.0000\x1b[2J\xff";
  std::string text = kSmallGraph;
  text.replace(text.find("g ()"), 1, '"' + hostile + '"');
  text.insert(text.find("  trained"), "  \"" + hostile + "\" = arbalest.Accuracy (logits, label)\n");
  text.insert(text.find("}\n"), "  report = arbalest.Validate (trained, loss, \"" + hostile + "\")\n");
  std::ofstream(plan.graph) << text;
  plan.devices = "cpu:0";
  RunOptions run;
  run.graph = plan.graph;
  run.devices = "cpu:0";
  run.session.execution.threads = 2;
  run.session.files.save = (folder / "w").string();
  run.session.files.trace = (folder / "t").string();
  TraceOptions trace;
  trace.file = run.session.files.trace;
  const auto printed = [&](const auto& command) {
    const test::Redirected out((folder / "out").string()), error((folder / "error").string(), stderr);
    CHECK(command() == kDone);
    std::string text;
    for (const test::Redirected* each : {&out, &error}) {
      for (const std::string& line : each->lines()) text += line + '\n';
    }
    return text;
  };
  PlanCommandOptions json = plan;
  json.json = true;
  CHECK(nlohmann::json::accept(printed([&] { return command_plan(json); })));
  for (const std::string& told :
       {printed([&] { return command_plan(plan); }), printed([&] { return command_run(run); }),
        printed([&] { return command_trace(trace); })}) {
    CHECK(told.find("acc\\x0aepoch 99") != std::string::npos);
    CHECK(told.find("\nepoch 99") == std::string::npos);
    CHECK(told.find_first_of("\x1b\xff") == std::string::npos);
  }
}

TEST_CASE("the name of a data set's folder sends nothing to the terminal") {
  const TestFolder folder;
  const std::filesystem::path set = folder / "set\x1b[2J";
  std::filesystem::create_directory(set);
  const NamedTensor image{"image", DataType::Uint8, {8, 1, 8, 8}, std::vector<uint8_t>(8 * 64)};
  const NamedTensor label{"label", DataType::Int64, {8}, std::vector<uint8_t>(8 * sizeof(int64_t))};
  write_safetensors(set / "train.safetensors", {{image, label}, {}});
  auto check = options_in<CheckOptions>(folder);
  check.set = {"prefetch.source=tensors:" + set.string() + "?classes=10"};
  const test::Redirected out((folder / "out").string());
  CHECK(command_check(check) == kDone);
  bool told = false;
  for (const std::string& line : out.lines()) {
    CHECK(line.find('\x1b') == std::string::npos);
    told |= line.find("set\\x1b[2J") != std::string::npos;
  }
  CHECK(told);
}

TEST_CASE("the first signal sets the flag, the second kills") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      const InterruptHandler handler;
      if (std::freopen("/dev/null", "w", stderr) == nullptr || InterruptHandler::requested()) _exit(10);
      if (!InterruptHandler::signal_name().empty()) _exit(10);
      raise(signal);
      if (!InterruptHandler::requested()) _exit(11);
      if (InterruptHandler::signal_name() != std::string("SIG") + sigabbrev_np(signal)) _exit(11);
      raise(signal);  // right after: part of the same interrupt
      std::this_thread::sleep_for(std::chrono::milliseconds(600));
      raise(signal);
      _exit(12);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == signal);
  }
}

TEST_CASE("an interrupt is reported in the words of what it ends") {
  const TestFolder folder;
  const std::string path = folder / "told.txt";
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const InterruptHandler handler("ending with what is finished");
    if (std::freopen(path.c_str(), "w", stderr) == nullptr) _exit(10);
    raise(SIGINT);
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  std::ifstream told(path);
  CHECK(std::string(std::istreambuf_iterator<char>(told), {}) == "ending with what is finished");
}

TEST_CASE("past its limit of processor time a process is asked to end every second, and may take longer") {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const InterruptHandler handler;
    raise(SIGXCPU);
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    raise(SIGXCPU);
    _exit(InterruptHandler::requested() && InterruptHandler::signal_name() == "SIGXCPU" ? 0 : 11);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("under nohup a terminal that goes away is no interrupt") {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::signal(SIGHUP, SIG_IGN);
    const InterruptHandler handler;
    raise(SIGHUP);
    _exit(InterruptHandler::requested() ? 11 : 0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("check and run note what is probably not meant, and --set that changes nothing") {
  const TestFolder folder;
  std::string text = kSmallGraph;
  text.replace(text.find("(x)\n  loss"), 3, "(d)");
  text.insert(text.find("  logits"), "  d = Dropout <ratio = 0.3> (x)\n");
  const std::string graph = folder / "g.onnxtxt";
  std::ofstream(graph) << text;
  const std::string note = "node 'd' (Dropout): drops nothing, as its training_mode is 0";
  const auto printed = [&](std::vector<const char*> words, std::FILE* stream) {
    for (const char* more : {graph.c_str(), "--devices", "cpu:0", "--threads", "2"}) words.push_back(more);
    const Command command = test::parse(words);
    const test::Redirected output((folder / "out").string(), stdout == stream ? stderr : stdout),
        told((folder / "told").string(), stream);
    if (const auto* run = options_if<RunOptions>(command)) CHECK(command_run(*run) == kDone);
    if (const auto* check = options_if<CheckOptions>(command)) CHECK(command_check(*check) == kDone);
    return fmt::format("{}", fmt::join(told.lines(), "\n"));
  };
  CHECK(printed({"check"}, stdout).find("\n  note        " + note) != std::string::npos);
  CHECK(printed({"run"}, stderr).find("note: " + note) != std::string::npos);
  CHECK(
      printed({"check", "--set", "prefetch.batch=7"}, stdout)
          .find(
              "13 iterations of batch 7; batches are whole, so that 5 of 96 samples are left out, others each time") !=
      std::string::npos);
  CHECK(printed({"check"}, stdout).find("left out") == std::string::npos);
  CHECK(printed({"run", "--set", "prefetch.batch=50"}, stderr)
            .find("an epoch leaves out 46 of 96 samples (48 %), others each time") != std::string::npos);
  CHECK(printed({"run", "--set", "prefetch.batch=23"}, stderr).find("leaves out") == std::string::npos);
  CHECK(printed({"check", "--set", "train.warmup=3", "--epochs", "2"}, stdout)
            .find("warms up for 3 epochs, and the run has 2: the rate never reaches lr") != std::string::npos);
  const std::string large =
      printed({"check", "--set", "logits.units=30000000", "--learners", "12", "--strategy", "none"}, stdout);
  CHECK(large.find("GiB of the machine's memory, which has ") != std::string::npos);
  const std::string told = printed({"check", "--set", "train.lr=0.01", "--set", "prefetch.batch=4", "--set",
                                    "prefetch.batch=2", "--set", "train.epochs=3", "--epochs", "1"},
                                   stderr);
  for (const char* expected : {"--set train.lr=0.01: changes nothing, the graph has that value already",
                               "--set prefetch.batch=2: replaces --set prefetch.batch=4",
                               "--set train.epochs=3: changes nothing, because --epochs counts"}) {
    CHECK(told.find(expected) != std::string::npos);
  }
  std::ofstream(graph) << text.insert(text.rfind('}'),
                                      "  report = arbalest.Validate <split = \"train\"> (trained, loss)\n");
  const std::string idle =
      printed({"run", "--patience", "2", "--plateau", "3", "--strategy", "sma", "--scale-lr", "linear"}, stderr);
  for (const char* expected :
       {"--plateau 3 never acts, because --patience 2 ends the run before",
        "--strategy sma changes nothing with one learner", "--scale-lr changes nothing with one learner"}) {
    CHECK(idle.find(expected) != std::string::npos);
  }
  // A schedule that ends is as long as the graph's epochs, whatever the run is.
  const std::string scheduled =
      printed({"check", "--set", "train.schedule=cosine", "--set", "train.epochs=10", "--epochs", "10"}, stderr);
  CHECK(scheduled.find("changes nothing beside") == std::string::npos);
}

}  // namespace run_command_test
