// SPDX-License-Identifier: Apache-2.0

// `arbalest run`: its exit status, its log and what it prints.

#include <doctest/doctest.h>
#include <fmt/ranges.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "base/error.h"
#include "executor/devices/device.h"
#include "io/formats/safetensors.h"
#include "tests/io/test_folder.h"
#include "tests/tools/command_line.h"
#include "tests/tools/redirected.h"
#include "tests/tools/run/small_graph.h"
#include "tools/command/commands.h"
#include "tools/watch/log.h"

using namespace arbalest;
using namespace arbalest::test;

namespace run_command_test {

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
